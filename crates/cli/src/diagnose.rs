//! `standin diagnose`.

use std::process::ExitCode;

use proxy::Diagnosis;

/// Succeeds when sessions are possible; what is only slower or less exact without a feature is said.
pub(crate) fn run() -> ExitCode {
    let Diagnosis {
        user_notification,
        answer_with_descriptor,
        signals_wait,
        same_processor_wake_up,
        copy_descriptors,
        read_memory,
        ..
    } = proxy::diagnose();
    let required = [
        ("system calls can be caught", user_notification.is_ok()),
        ("the application's memory can be read", read_memory),
        ("the application's sockets can be copied", copy_descriptors),
    ];
    let better = [
        (
            "calls are answered with a descriptor in one step (Linux 5.14)",
            answer_with_descriptor,
        ),
        ("signals wait for answers (Linux 5.19)", signals_wait),
        (
            "calls are answered without changing the processor (Linux 6.6)",
            same_processor_wake_up,
        ),
    ];
    for (what, works) in required.iter().chain(&better) {
        println!("{}  {what}", if *works { "yes" } else { "NO " });
    }
    if let Err(error) = &user_notification {
        eprintln!("standin: {error}");
    }
    if required.iter().all(|(_, works)| *works) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

//! Opens a browser.
//!
//! Every user of a machine can read the arguments of programs, and a sandboxed browser cannot read hidden files. So the
//! browser gets an address with a code that only programs of this user can redeem, and only once.

use std::process::{Command, Stdio};
use std::thread;

use tokio::signal::unix::{SignalKind, signal};

const OPENER: &str = "xdg-open";

/// Opens the address. If that fails, the user is asked to open the other one, which is not passed to programs.
pub(super) fn browser(address: &str, printed: String) {
    println!("Opening browser...");
    let opener = Command::new(OPENER)
        .arg(address)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let report = move |problem: String| {
        eprintln!("standin: no browser could be opened ({OPENER}: {problem}): open {printed}");
    };
    match opener {
        // It may run for as long as the browser does.
        Ok(mut opener) => drop(thread::spawn(move || match opener.wait() {
            Ok(status) if status.success() => {}
            Ok(status) => report(status.to_string()),
            Err(error) => report(error.to_string()),
        })),
        Err(error) => report(error.to_string()),
    }
}

/// Waits for SIGTERM or Ctrl-C.
pub(super) async fn termination() {
    let Ok(mut terminated) = signal(SignalKind::terminate()) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminated.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}

//! What supervision costs. Limits here only catch blunders; the benches have the goals.

use std::path::Path;
use std::time::Duration;

use interceptor::measure;

#[test]
fn a_local_open_stays_quick() {
    let measured = measure::open_local().unwrap();
    println!("{measured}");
    assert!(measured.absolute.bare.median > Duration::ZERO);
    assert!(
        measured.absolute.added() < Duration::from_millis(5),
        "{measured}"
    );
}

/// No message of a stream is caught, so nothing but the machine's other work can make it slower.
#[test]
fn a_local_stream_stays_quick() {
    let measured = measure::stream_local().unwrap();
    println!("{measured}");
    assert!(measured.part_of_bare() > 0.1, "{measured}");
}

#[test]
fn a_connection_is_accepted_quickly() {
    let measured = measure::accept().unwrap();
    println!("{measured}");
    assert!(measured.accept.bare.median > Duration::ZERO);
    assert!(
        measured.accept.added() < Duration::from_millis(5),
        "{measured}"
    );
}

#[test]
fn a_program_starts_quickly() {
    let measured = measure::start(Path::new("true"), &[], 10, None).unwrap();
    println!("{measured}");
    assert!(measured.added() < Duration::from_millis(500), "{measured}");
}

/// The numbers for this machine: `cargo test --release -p interceptor -- --ignored --nocapture numbers`.
#[test]
#[ignore = "takes long and judges nothing"]
fn numbers() {
    println!("{}", measure::open_local().unwrap());
    println!("stream: {}", measure::stream_local().unwrap());
    println!("{}", measure::accept().unwrap());
    let mut programs = vec![
        ("true", vec![], 100),
        ("python3", vec!["-c", "import json, http.client"], 15),
        ("node", vec!["-e", "0"], 15),
        ("java", vec!["-version"], 10),
    ];
    let hello = crate::programs::go("hello");
    let hello = hello.as_deref().map(|path| path.to_str().unwrap());
    if let Some(hello) = hello {
        programs.push((hello, vec![], 100));
    }
    for (program, arguments, times) in programs {
        if let Ok(measured) = measure::start(Path::new(program), &arguments, times, None) {
            println!("{program}: {measured}");
        }
    }
}

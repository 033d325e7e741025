//! The overhead of supervision. The limits only detect gross errors; the benchmarks have the actual goals.

use std::path::Path;
use std::time::Duration;

use interceptor::measure;

#[test]
fn local_open_is_fast() {
    let measured = measure::open_local().unwrap();
    println!("{measured}");
    assert!(measured.absolute.bare.median > Duration::ZERO);
    assert!(
        measured.absolute.added() < Duration::from_millis(5),
        "{measured}"
    );
}

/// Messages of a stream are not intercepted, so only other load can slow it down.
#[test]
fn local_stream_is_fast() {
    let measured = measure::stream_local().unwrap();
    println!("{measured}");
    assert!(measured.relative_throughput() > 0.1, "{measured}");
}

#[test]
fn accept_is_fast() {
    let measured = measure::accept().unwrap();
    println!("{measured}");
    assert!(measured.accept.bare.median > Duration::ZERO);
    assert!(
        measured.accept.added() < Duration::from_millis(5),
        "{measured}"
    );
}

#[test]
fn start_is_fast() {
    let measured = measure::start(Path::new("true"), &[], 10, None).unwrap();
    println!("{measured}");
    assert!(measured.added() < Duration::from_millis(500), "{measured}");
}

/// Prints the measurements of this machine: `cargo test --release -p interceptor -- --ignored --nocapture numbers`.
#[test]
#[ignore = "takes long and asserts nothing"]
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
    programs.push((hello.to_str().unwrap(), vec![], 100));
    for (program, arguments, times) in programs {
        if let Ok(measured) = measure::start(Path::new(program), &arguments, times, None) {
            println!("{program}: {measured}");
        }
    }
}

//! What supervision costs. Limits here only catch blunders; the benches have the goals.

use std::time::Duration;

#[test]
fn a_local_open_stays_quick() {
    let measured = interceptor::measure::open_local().unwrap();
    println!("{measured}");
    assert!(measured.absolute.bare > Duration::ZERO);
    assert!(
        measured.absolute.added() < Duration::from_millis(5),
        "{measured}"
    );
}

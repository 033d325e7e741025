//! The target's environment.

use std::collections::HashMap;

use protocol::rpc::ListEnvRequest;

use crate::world::target;

#[tokio::test]
async fn the_environment_is_the_target_s() {
    let Some(target) = target() else { return };
    let client = target.client().await;
    let answer = client.env().list(ListEnvRequest {}).await.unwrap();
    let variables = answer.into_inner().variables.into_iter();
    let variables: HashMap<_, _> = variables
        .map(|variable| (variable.name, variable.value))
        .collect();
    let check = |name: &'static str, value: &[u8]| {
        let found = variables.get(name.as_bytes());
        assert_eq!(found.map(|value| &**value), Some(value), "{name}");
    };
    check("GREETING", b"hello");
    check("EMPTY", b"");
    check("LINES", b"one\ntwo");
    check("BYTES", b"\xff\xfe");
    // More than a MiB in all.
    for number in 1..=9 {
        let large = variables[format!("LARGE_{number}").as_bytes()].len();
        assert_eq!(large, 120_000);
    }
    // Nothing of this machine.
    assert!(!variables.contains_key("CARGO_MANIFEST_DIR".as_bytes()));
}

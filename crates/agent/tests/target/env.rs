//! The target's environment.

use std::collections::HashMap;

use protocol::rpc::ListEnvRequest;

use crate::environment::target;

#[tokio::test]
#[ignore = "needs root"]
async fn environment_is_read_from_the_target() {
    let target = target();
    let client = target.client().await;
    let response = client.env().list(ListEnvRequest {}).await.unwrap();
    let variables = response.into_inner().variables.into_iter();
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
    // More than 1 MiB in total.
    for number in 1..=9 {
        let large = variables[format!("LARGE_{number}").as_bytes()].len();
        assert_eq!(large, 120_000);
    }
    // No variables of the test process.
    assert!(!variables.contains_key("CARGO_MANIFEST_DIR".as_bytes()));
}

//! What goes wrong between a user and a hub: the message names it and the next step.

use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;

use super::hub::{GOOD_TOKEN, Hub, POWERLESS_TOKEN};
use super::{logged_in, run, standin};

#[test]
fn a_mistake_is_named_with_the_next_step() {
    let hub = Hub::start();
    let standin = logged_in(&hub);
    let check = |line: &str, code: i32, expected: &[&str]| {
        let ended = run(&standin, line);
        ended.expect(code).expect_stderr(expected);
        for secret in [GOOD_TOKEN, POWERLESS_TOKEN] {
            assert!(!ended.stderr.contains(secret), "{line}");
        }
    };
    #[rustfmt::skip] // A table is read by its columns.
    let cases: &[(&str, i32, &[&str])] = &[
        ("cluster token prod-ue",                         125, &["has no cluster prod-ue", "did you mean prod-eu?"]),
        ("cluster revoke staging --yes",                  125, &["has no cluster staging", "`standin cluster add staging`"]),
        ("cluster remove prod-uss --yes",                 125, &["did you mean prod-us?"]),
        ("cluster kubeconfig --cluster prodeu",           125, &["did you mean prod-eu?"]),
        ("cluster list --hub localhots",                  125, &["not logged in to the hub localhots", "You are logged in to localhost"]),
        ("cluster list --hub http://localhost",           2,   &["without TLS your token could be read"]),
        ("cluster add Prod",                              2,   &["small letters"]),
        ("cluster add a --label region",                  2,   &["KEY=VALUE"]),
        ("cluster add a --timeout 3",                     2,   &["--wait"]),
        ("cluster login hub.example.com",                 2,   &["--token-file", "--kube-context"]),
        ("cluster login hub.example.com --token-file no", 125, &["cannot read no"]),
        ("cluster login localhost:1 --token-file token",  125, &["localhost:1 cannot be reached", "port 1 is open"]),
        ("cluster login 127.0.0.1/a --token-file token",  2,   &["neither a path"]),
    ];
    for (line, code, expected) in cases {
        check(line, *code, expected);
    }
}

#[test]
fn a_missing_right_is_named_with_its_rule() {
    let hub = Hub::start();
    let standin = logged_in(&hub);
    standin.write("token", POWERLESS_TOKEN);
    let line = format!(
        "cluster login {} --ca-file ca.crt --token-file token",
        hub.url
    );
    run(&standin, &line).expect(0);
    for (line, verb, resource) in [
        ("cluster list", "list", "managedclusters"),
        ("cluster add a", "create", "managedclusters"),
        ("cluster token prod-eu", "create", "managedclusters/token"),
        ("cluster remove prod-eu --yes", "get", "managedclusters"),
    ] {
        let rule = format!("resources: [{resource}]\n  verbs: [{verb}]");
        let right = format!("`{verb}` on `{resource}`");
        let ended = run(&standin, line);
        ended
            .expect(125)
            .expect_stderr(&["max has no such right", &right, &rule]);
    }
}

#[test]
fn what_is_no_hub_is_recognised() {
    let standin = standin();
    standin.write("token", GOOD_TOKEN);
    // Whatever speaks first is not TLS.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        use std::io::Write as _;
        let (mut stream, _) = listener.accept().unwrap();
        stream
            .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .unwrap();
        stream
    });
    run(
        &standin,
        &format!("cluster login 127.0.0.1:{port} --token-file token"),
    )
    .expect(125)
    .expect_stderr(&["does not speak TLS", "6443"]);
    server.join().unwrap();
}

#[test]
fn a_hub_is_named_if_there_are_several() {
    let (one, two) = (Hub::start(), Hub::start());
    let standin = logged_in(&one);
    standin.write("ca.crt", &two.authority);
    let line = format!(
        "cluster login {} --ca-file ca.crt --token-file token",
        two.url
    );
    run(&standin, &line).expect(0);
    run(&standin, "cluster list").expect(125).expect_stderr(&[
        "several hubs",
        &one.name(),
        &two.name(),
        "STANDIN_HUB",
    ]);
    run(&standin, &format!("cluster list --hub {}", one.url)).expect(0);
    let standin = standin.with("STANDIN_HUB", two.name());
    run(&standin, "cluster list").expect(0);
    assert!(two.requests().len() > 2);
}

#[test]
fn logins_that_others_can_access_are_refused() {
    let hub = Hub::start();
    let standin = logged_in(&hub);
    let hubs = standin.path("home/.standin/hubs");
    fs::set_permissions(&hubs, Permissions::from_mode(0o755)).unwrap();
    run(&standin, "cluster list")
        .expect(125)
        .expect_stderr(&["chmod 700"]);
    fs::set_permissions(&hubs, Permissions::from_mode(0o700)).unwrap();
    let file = hubs.join(format!("localhost_{}.json", hub.port));
    fs::set_permissions(file, Permissions::from_mode(0o644)).unwrap();
    let ended = run(&standin, "cluster credential");
    ended.expect(125).expect_stderr(&["chmod 600"]);
    assert_eq!(ended.stdout, "");
}

//! `standin cluster login`, `logout` and `credential`.

use std::fs;
use std::io::Write as _;
use std::process::Stdio;

use serde_json::json;

use super::hub::{GOOD_TOKEN, Hub, POWERLESS_TOKEN};
use super::{assert_private, json_of, logged_in, run, standin};
use crate::support::ProcessOutput;
use crate::terminal::Terminal;

/// A token that expired in 2023.
const EXPIRED: &str = "e30.eyJleHAiOjE3MDAwMDAwMDB9.c2ln";

fn login_file(hub: &Hub) -> String {
    format!("localhost_{}.json", hub.port)
}

#[test]
fn a_token_from_a_file_is_kept_privately_and_printed_for_clients() {
    let hub = Hub::start();
    let standin = logged_in(&hub);
    assert_private(&standin, &login_file(&hub));
    let credential = json_of(&run(&standin, "cluster credential"));
    assert_eq!(
        credential,
        json!({
            "apiVersion": "client.authentication.k8s.io/v1",
            "kind": "ExecCredential",
            "status": { "token": GOOD_TOKEN },
        })
    );
    run(&standin, "cluster logout").expect(0);
    run(&standin, "cluster credential")
        .expect(125)
        .expect_stderr(&["not logged in", "`standin cluster login --help`"]);
}

#[test]
fn a_token_can_be_piped() {
    let hub = Hub::start();
    let standin = standin();
    let login = [
        "cluster",
        "login",
        &hub.url,
        "--token-file",
        "-",
        "--pin",
        &hub.pin,
    ];
    let mut command = standin.command(login);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    writeln!(stdin, "{GOOD_TOKEN}").unwrap();
    drop(stdin);
    let ended = ProcessOutput::from(child.wait_with_output().unwrap());
    ended.expect(0);
    assert!(
        ended.stdout.contains("logged in to the hub localhost"),
        "{}",
        ended.stdout
    );
    // The hub names its authority, with which kubectl can verify it.
    assert_eq!(ended.stderr, "");
    run(&standin, "cluster list").expect(0);
}

#[test]
fn the_token_of_a_context_is_read_each_time() {
    let hub = Hub::start();
    let standin = standin();
    standin.write("ca.crt", &hub.authority);
    standin.write("central-token", GOOD_TOKEN);
    let plugin = "echo '{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"status\":{\"token\":\"'$(cat central-token)'\"}}'";
    let exec = json!({
        "apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", plugin],
        "interactiveMode": "Never",
    });
    let kubeconfig = json!({
        "clusters": [{ "name": "c", "cluster": { "server": "https://127.0.0.1:1" } }],
        "contexts": [
            { "name": "central", "context": { "cluster": "c", "user": "plugin" } },
            { "name": "admin", "context": { "cluster": "c", "user": "certificate" } },
        ],
        "users": [
            { "name": "plugin", "user": { "exec": exec } },
            { "name": "certificate", "user": { "client-certificate-data": "Q0VSVA==", "client-key-data": "S0VZ" } },
        ],
    });
    let kubeconfig = standin.write("kubeconfig", kubeconfig.to_string());
    let standin = standin.with("KUBECONFIG", kubeconfig);
    let login = |context: &str| {
        let line = format!(
            "cluster login {} --ca-file ca.crt --kube-context {context}",
            hub.url
        );
        run(&standin, &line)
    };
    login("admin")
        .expect(125)
        .expect_stderr(&["client certificate", "create token"]);
    login("wrong")
        .expect(125)
        .expect_stderr(&["no context `wrong`", "central, admin"]);
    login(&format!("{}/prod-eu", hub.name()))
        .expect(125)
        .expect_stderr(&["a context of the hub itself"]);
    login("central").expect(0);
    let path = standin.path("home/.standin/hubs").join(login_file(&hub));
    let stored = fs::read_to_string(path).unwrap();
    assert!(!stored.contains(GOOD_TOKEN), "{stored}");
    standin.write("central-token", "renewed");
    let credential = json_of(&run(&standin, "cluster credential"));
    assert_eq!(credential["status"]["token"], "renewed");
}

#[test]
fn an_untrusted_hub_gets_no_token() {
    let (hub, other) = (Hub::start(), Hub::start());
    let standin = standin();
    standin.write("token", GOOD_TOKEN);
    standin.write("ca.crt", &hub.authority);
    standin.write("other.crt", &other.authority);
    standin.write("nothing.crt", "text");
    let login = |options: &str| {
        let line = format!("cluster login {} --token-file token{options}", hub.url);
        run(&standin, &line)
    };
    login("")
        .expect(125)
        .expect_stderr(&["unknown authority", "--ca-file FILE", "--pin"]);
    login(" --ca-file other.crt")
        .expect(125)
        .expect_stderr(&["unknown authority"]);
    login(" --ca-file nothing.crt")
        .expect(125)
        .expect_stderr(&["nothing.crt", "no certificate"]);
    let pin = format!(" --pin {}", other.pin);
    login(&pin)
        .expect(125)
        .expect_stderr(&[&hub.pin, &other.pin, "Ask the hub's administrator"]);
    login(" --pin sha256:0a")
        .expect(2)
        .expect_stderr(&["64 hexadecimal digits"]);
    assert_eq!(hub.requests(), Vec::<String>::new());
    assert!(
        !standin
            .path("home/.standin/hubs")
            .join(login_file(&hub))
            .exists()
    );
    login(" --ca-file ca.crt").expect(0);
}

#[test]
fn a_user_can_trust_the_pin_after_a_question() {
    let hub = Hub::start();
    let standin = standin();
    standin.write("token", GOOD_TOKEN);
    let script = format!(
        "$STANDIN cluster login {} --token-file token; echo exit $?",
        hub.url
    );
    let mut refusing = Terminal::start(&standin, &script, &[]);
    refusing.wait_for_output(&hub.pin);
    refusing.wait_for_output("Is it the same? [y/N]");
    refusing.press("\n");
    refusing.wait_for_output("nothing was sent to the hub");
    refusing.wait_for_output("exit 125");
    assert_eq!(hub.requests(), Vec::<String>::new());
    let mut trusting = Terminal::start(&standin, &script, &[]);
    trusting.wait_for_output("[y/N]");
    trusting.press("yes\n");
    trusting.wait_for_output("exit 0");
    run(&standin, "cluster list").expect(0);
}

#[test]
fn a_login_with_a_pin_outlives_the_authority_and_warns_about_kubectl() {
    let (hub, other) = (Hub::start(), Hub::start());
    let standin = standin();
    standin.write("token", GOOD_TOKEN);
    hub.rotate_authority(&other.authority);
    let line = format!(
        "cluster login {} --token-file token --pin {}",
        hub.url, hub.pin
    );
    run(&standin, &line)
        .expect(0)
        .expect_stderr(&["kubectl will not accept it"]);
    run(&standin, "cluster list").expect(0);
}

#[test]
fn a_token_is_checked_at_the_login() {
    let hub = Hub::start();
    let standin = standin();
    standin.write("ca.crt", &hub.authority);
    let login = |token: &str| {
        standin.write("token", token);
        run(
            &standin,
            &format!(
                "cluster login {} --ca-file ca.crt --token-file token",
                hub.url
            ),
        )
    };
    login("wrong")
        .expect(125)
        .expect_stderr(&["the token is unknown", "--kube-context CONTEXT"]);
    login(EXPIRED)
        .expect(125)
        .expect_stderr(&["expired at 2023-11-14T22:13:20Z", "--token-file FILE"]);
    login("").expect(125).expect_stderr(&["there is no token"]);
    login("two words")
        .expect(125)
        .expect_stderr(&["a token is one word"]);
    // What a user may do is another matter.
    login(POWERLESS_TOKEN).expect(0);
}

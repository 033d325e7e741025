//! `standin cluster`, with a hub's API behind TLS as its neighbour.

mod contexts;
mod hub;
mod login;
mod mistakes;

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use serde_json::{Value, json};

use self::hub::{GOOD_TOKEN, Hub};
use crate::support::{ProcessOutput, Standin};
use crate::terminal::Terminal;

/// `standin` with a home of its own. It starts no agents.
fn standin() -> Standin {
    let standin = Standin {
        folder: tempfile::tempdir().unwrap(),
        variables: Vec::new(),
    };
    let home = standin.path("home");
    fs::create_dir(&home).unwrap();
    standin.with("HOME", home).with("KUBECONFIG", "")
}

/// `standin` that is logged in to a hub.
fn logged_in(hub: &Hub) -> Standin {
    let standin = standin();
    standin.write("ca.crt", &hub.authority);
    standin.write("token", GOOD_TOKEN);
    let login = [
        "cluster",
        "login",
        &hub.url,
        "--token-file",
        "token",
        "--ca-file",
        "ca.crt",
    ];
    standin.run(login).expect(0);
    standin
}

fn run(standin: &Standin, line: &str) -> ProcessOutput {
    standin.run(line.split(' '))
}

fn json_of(output: &ProcessOutput) -> Value {
    output.expect(0);
    serde_json::from_str(&output.stdout).unwrap()
}

#[test]
fn clusters_are_listed_as_a_table_and_as_json() {
    let hub = Hub::start();
    let standin = logged_in(&hub);
    let table = run(&standin, "cluster list");
    table.expect(0);
    assert_eq!(
        table.stdout,
        "\
NAME     STATE         SINCE  AGENT  CERTIFICATE  MESSAGE
new      pending
prod-eu  connected     3h     0.1.0  59d
prod-us  disconnected         0.1.0  29d          its agent was last seen 5 minutes ago
"
    );
    let wide = run(&standin, "cluster ls -o wide");
    for expected in [
        "KUBERNETES",
        "v1.34.1",
        "standin-hub-0",
        "run time",
        "values",
        "region=eu",
    ] {
        assert!(wide.stdout.contains(expected), "{}", wide.stdout);
    }
    let list = json_of(&run(&standin, "cluster list --output json"));
    assert_eq!(list[1]["name"], "prod-eu");
    assert_eq!(list[1]["state"], "connected");
}

#[test]
fn watching_prints_the_clusters_again_when_they_change() {
    let hub = Hub::start();
    let standin = logged_in(&hub);
    let mut terminal = Terminal::start(&standin, "$STANDIN cluster list --watch", &[]);
    terminal.wait_for_output("new      pending");
    hub.set_state("new", "connected");
    terminal.wait_for_output("new      connected");
    terminal.press("\x03");
}

#[test]
fn adding_prints_what_to_run_and_waits() {
    let hub = Hub::start();
    let standin = logged_in(&hub);
    let name = hub.name();
    let added = run(&standin, "cluster add prod-ap --label region=ap");
    added.expect(0);
    assert_eq!(
        added.stdout,
        format!(
            "\
prod-ap is registered at the hub {name}. Run this with kubectl and helm for prod-ap:

  kubectl create namespace standin-tunnel-agent

  standin cluster token prod-ap --hub {name} | kubectl create secret generic standin-tunnel-agent-token \\
    --namespace standin-tunnel-agent --from-file=token=/dev/stdin

  helm install standin-tunnel-agent oci://charts.example.com/standin-tunnel-agent \\
    --namespace standin-tunnel-agent \\
    --set agent.cluster=prod-ap \\
    --set agent.serverURL=wss://hub.example.com:8443 \\
    --set agent.serverCAHash={pin} \\
    --set agent.registrationTokenSecretName=standin-tunnel-agent-token

The second command creates a token that is valid for 15 minutes.

Then `standin cluster list` shows whether it is connected.
",
            pin = hub.pin
        )
    );
    assert_eq!(
        hub.cluster("prod-ap").unwrap()["labels"],
        json!({ "region": "ap" })
    );
    assert_eq!(hub.tokens(), 0);

    // It exists now, and is connected after some requests for it.
    hub.connect_after("prod-ap", 3);
    let connected = run(&standin, "cluster add prod-ap --wait");
    connected
        .expect(0)
        .expect_stderr(&["waiting for the agent of prod-ap (pending)"]);
    let next = format!("kubectl --context {name}/prod-ap get pods");
    assert!(
        connected.stdout.contains("prod-ap is connected"),
        "{}",
        connected.stdout
    );
    assert!(connected.stdout.contains(&next), "{}", connected.stdout);

    let late = run(&standin, "cluster add late --wait --timeout 1");
    late.expect(125).expect_stderr(&[
        "late is not connected after 1 s (pending)",
        "`kubectl logs`",
    ]);
}

#[test]
fn adding_prints_json_with_a_token_only_on_request() {
    let hub = Hub::start();
    let standin = logged_in(&hub);
    let added = json_of(&run(&standin, "cluster add prod-ap --output json"));
    assert_eq!(added["cluster"]["name"], "prod-ap");
    assert_eq!(
        added["values"]["agent.serverURL"],
        "wss://hub.example.com:8443"
    );
    assert_eq!(added["commands"].as_array().unwrap().len(), 3);
    assert_eq!(added["token"], Value::Null);
    let added = json_of(&run(
        &standin,
        "cluster add prod-ap --output json --print-token",
    ));
    assert_eq!(added["token"]["token"], "registration-token-of-prod-ap");
    hub.delay_tokens(2);
    let text = run(&standin, "cluster add prod-ap --print-token");
    assert!(
        text.stdout.contains("\n  registration-token-of-prod-ap\n"),
        "{}",
        text.stdout
    );
    assert!(
        !text.stdout.contains("standin cluster token"),
        "{}",
        text.stdout
    );
}

#[test]
fn tokens_are_printed_without_a_line_end_into_a_pipe() {
    let hub = Hub::start();
    let standin = logged_in(&hub);
    let token = run(&standin, "cluster token prod-eu");
    assert_eq!(token.expect(0).stdout, "registration-token-of-prod-eu");
    let token = json_of(&run(&standin, "cluster token prod-eu --json"));
    assert_eq!(token["cluster"], "prod-eu");
    assert!(token["expiresAt"].is_string());
    let mut terminal = Terminal::start(&standin, "$STANDIN cluster token prod-eu", &[]);
    terminal.wait_for_output("registration-token-of-prod-eu\r\nstandin: valid until");
}

#[test]
fn revoking_and_removing_are_confirmed() {
    let hub = Hub::start();
    let standin = logged_in(&hub);
    for command in ["cluster revoke prod-eu", "cluster remove prod-eu"] {
        run(&standin, command)
            .expect(125)
            .expect_stderr(&["without a terminal", "--yes"]);
    }
    let mut terminal = Terminal::start(&standin, "$STANDIN cluster revoke prod-eu", &[]);
    terminal.wait_for_output("which is connected, and end everything that uses it");
    terminal.press("\n");
    terminal.wait_for_output("nothing was changed");
    assert_eq!(hub.cluster("prod-eu").unwrap()["state"], "connected");

    let mut terminal = Terminal::start(&standin, "$STANDIN cluster revoke prod-eu", &[]);
    terminal.wait_for_output("[y/N]");
    terminal.press("y\n");
    terminal.wait_for_output("prod-eu is revoked");
    assert_eq!(hub.cluster("prod-eu").unwrap()["state"], "revoked");

    let removed = run(&standin, "cluster rm prod-eu --yes");
    removed.expect(0);
    assert!(
        removed.stdout.contains("helm uninstall"),
        "{}",
        removed.stdout
    );
    assert_eq!(hub.cluster("prod-eu"), None);
    run(&standin, "cluster remove prod-us --yes")
        .expect(125)
        .expect_stderr(&["in the values of the hub's chart", "`helm upgrade`"]);
    assert!(hub.cluster("prod-us").is_some());
}

#[test]
fn the_help_teaches() {
    let standin = standin();
    for (line, expected) in [
        ("cluster", "dial out"),
        ("cluster login --help", "--token-file -"),
        ("cluster list --help", "disconnected"),
        ("cluster kubeconfig --help", "standin exec --context"),
        ("cluster add --help", "15 minutes"),
        ("cluster revoke --help", "key may have leaked"),
        ("cluster credential --help", "never write"),
    ] {
        let help = run(&standin, line);
        let text = format!("{}{}", help.stdout, help.stderr);
        assert!(text.contains(expected), "{line}: {text}");
    }
}

/// Logins are secrets.
fn assert_private(standin: &Standin, file: &str) {
    let hubs = standin.path("home/.standin/hubs");
    assert_eq!(fs::metadata(&hubs).unwrap().mode() & 0o777, 0o700);
    assert_eq!(fs::metadata(hubs.join(file)).unwrap().mode() & 0o777, 0o600);
}

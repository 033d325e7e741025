//! Help texts, version, completions, and `standin diagnose`.

use crate::support::Standin;

#[test]
fn help_has_examples_exit_codes_and_every_flag() {
    let standin = Standin::new();
    let short = standin.run(["exec", "-h"]);
    short.expect(0);
    assert!(short.stdout.contains("sudo standin exec -t process/4711"));
    let long = standin.run(["exec", "--help"]);
    long.expect(0);
    for expected in [
        "Examples:",
        "Exit code:",
        "Signals:",
        "125  standin failed",
        "--target",
        "--config-file",
        "--env-file",
        "--override-env",
        "--env-include",
        "--override-env-vars-include",
        "--fs-mode",
        "--no-outgoing",
        "--no-dns",
        "--no-remote-dns",
        "STANDIN_CONFIG_FILE",
        "STANDIN_AGENT_TOKEN",
    ] {
        assert!(long.stdout.contains(expected), "{expected:?} is missing");
    }
    let all = standin.run(["--help"]);
    for command in [
        "exec",
        "ls",
        "operator",
        "cluster",
        "sessions",
        "session",
        "ui",
        "mcp",
        "verify-config",
        "diagnose",
        "completions",
    ] {
        assert!(all.stdout.contains(command), "{}", all.stdout);
    }
}

#[test]
fn the_version_and_completions_are_printed() {
    let standin = Standin::new();
    let version = standin.run(["--version"]);
    assert_eq!(
        version.stdout,
        concat!("standin ", env!("CARGO_PKG_VERSION"), "\n")
    );
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let completions = standin.run(["completions", shell]);
        completions.expect(0);
        assert!(completions.stdout.contains("fs-mode"), "{shell}");
    }
    standin.run(["completions", "nonsense"]).expect(2);
}

#[test]
fn a_diagnosis_is_printed_as_lines_or_json_with_remedies() {
    let standin = Standin::new();
    let lines = standin.run(["diagnose"]);
    lines.expect(0);
    for expected in [
        "kernel: Linux",
        "system call interception",
        "agent: ",
        "Sessions work",
    ] {
        assert!(lines.stdout.contains(expected), "{}", lines.stdout);
    }
    let json = standin.run(["diagnose", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(report["sessions_work"], true);
    let checks = report["checks"].as_array().unwrap();
    assert!(checks.iter().all(|check| check["name"].is_string()));

    let without_agent = Standin::new().with("STANDIN_AGENT_PROGRAM", "/nowhere/standind");
    let lines = without_agent.run(["diagnose"]);
    lines.expect(1);
    assert!(
        lines
            .stdout
            .contains("missing  agent: /nowhere/standind does not run. Install standind"),
        "{}",
        lines.stdout
    );
    let report = without_agent.run(["diagnose", "--json"]);
    report.expect(1);
    let report: serde_json::Value = serde_json::from_str(&report.stdout).unwrap();
    assert_eq!(report["sessions_work"], false);
}

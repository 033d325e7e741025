//! A table of attempts to get around the administrators' policies, with a real target, a real file system and real connections.
//!
//! Each attempt would pass if its guard were removed: none is refused by the kernel alone. Each group has controls as well:
//! operations that are allowed and must work, so that attempts do not fail for another reason.

mod files;
mod outgoing;
mod processes;
mod races;
mod regrants;
mod requests;

use std::io::Write as _;

use agent::Agent;
use protocol::grant::Grant;

use crate::client::Client;
use crate::environment::Target;

/// The minimum number of attempts in the table.
const MIN_ATTEMPTS: usize = 40;

/// The outcomes of attempts and controls.
#[derive(Default)]
struct Report {
    attempts: Vec<(String, bool)>,
    controls: Vec<(String, bool)>,
}

impl Report {
    /// Records something that a policy forbids, and whether the session could do it.
    fn attempt(&mut self, name: impl Into<String>, has_passed: bool) {
        self.attempts.push((name.into(), has_passed));
    }

    /// Records something that is allowed, and whether it worked.
    fn control(&mut self, name: impl Into<String>, has_worked: bool) {
        self.controls.push((name.into(), has_worked));
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root"]
async fn no_attempt_to_bypass_a_policy_passes() {
    let mut report = Report::default();
    requests::run(&mut report).await;
    files::run(&mut report).await;
    processes::run(&mut report).await;
    outgoing::run(&mut report).await;
    regrants::run(&mut report).await;
    races::run(&mut report).await;
    let passed: Vec<_> = report.attempts.iter().filter(|attempt| attempt.1).collect();
    let failed: Vec<_> = report
        .controls
        .iter()
        .filter(|control| !control.1)
        .collect();
    // Written directly, because the output of a successful test is not shown.
    writeln!(
        std::io::stdout(),
        "bypass attempts: {}, passed: {} (controls: {}, failed: {})",
        report.attempts.len(),
        passed.len(),
        report.controls.len(),
        failed.len(),
    )
    .unwrap();
    assert!(passed.is_empty(), "these attempts passed: {passed:#?}");
    assert!(failed.is_empty(), "these are allowed: {failed:#?}");
    assert!(report.attempts.len() >= MIN_ATTEMPTS);
}

/// A session with this grant.
async fn session(target: &Target, grant: &Grant) -> (Agent, Client) {
    let agent = Agent::for_process_with_grant(target.pid, grant).unwrap();
    let client = Client::connect(agent.clone()).await;
    client.hello("").await.unwrap();
    (agent, client)
}

/// Runs a program in the target's mount and PID namespaces, where its root is `/mnt`.
fn run_inside(target: &Target, command: &str) {
    let status = std::process::Command::new("nsenter")
        .arg(format!("--mount=/proc/{}/ns/mnt", target.pid))
        .arg(format!("--pid=/proc/{}/ns/pid", target.pid))
        .args(command.split(' '))
        .status();
    assert!(status.unwrap().success(), "{command}");
}

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

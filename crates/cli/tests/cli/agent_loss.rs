//! Sessions that lose their agent or their target.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::start_failures::ExistingAgent;
use crate::support::{RunningSession, Standin, Target, agent_program, is_alive, wait_until};

/// Prints repeatedly whether a file of the target can be read, until the file `done` exists on this machine.
const READ_LOOP: &str = "while ! test -e done; do if cat /etc/hostname >/dev/null 2>&1; then echo readable >&2; else echo \
                       unreadable >&2; fi; sleep 0.05; done; exit 3";

#[test]
fn a_killed_agent_is_replaced() {
    let (standin, target) = (Standin::new(), Target::new());
    let mut command = standin.session(&target.name(), &[], READ_LOOP);
    command.stdout(Stdio::null());
    let mut session = RunningSession::start(command);
    session.wait_for_output("readable");
    let agent = session.agent();
    kill(Pid::from_raw(agent.try_into().unwrap()), Signal::SIGKILL).unwrap();
    session.wait_for_output("standin: the agent is lost (signal: 9 (SIGKILL))");
    session.wait_for_output("standin: the session continues with another agent");
    session.wait_for_output("readable");
    let another = session.agent();
    assert_ne!(agent, another);
    standin.write("done", "");
    session.wait().expect(3);
    assert!(!is_alive(another), "the second agent still runs");
}

#[test]
fn open_files_of_a_killed_agent_are_stale_and_can_be_reopened() {
    let (standin, target) = (Standin::new(), Target::new());
    let file = standin.write("remote", "content");
    let settings = format!("feature: {{fs: {{read_write: ['^{}$']}}}}", file.display());
    let settings = standin.write("settings.yaml", settings);
    let script = r#"
        my $file = shift;
        open(my $old, "+<", $file) or die;
        print STDERR "open\n";
        select(undef, undef, undef, 0.02) until -e "done";
        my $written = syswrite($old, "lost");
        print STDERR "old: ", defined $written ? "written" : $!, "\n";
        open(my $new, "<", $file) or die;
        # A change through a descriptor is a request to the target.
        print STDERR "new: ", chmod(0600, $new) ? (stat $new)[7] : $!, "\n";
        print STDERR "new: ", scalar <$new>, "\n";
    "#;
    let mut command = standin.command(["exec", "-t", &target.name()]);
    command.arg("-f").arg(&settings);
    command
        .args(["--", "perl", "-e", script])
        .arg(&file)
        .stdout(Stdio::null());
    let mut session = RunningSession::start(command);
    session.wait_for_output("open");
    let agent = Pid::from_raw(session.agent().try_into().unwrap());
    kill(agent, Signal::SIGKILL).unwrap();
    session.wait_for_output("standin: the session continues with another agent");
    standin.write("done", "");
    session.wait_for_output("old: Stale file handle");
    session.wait_for_output("new: 7");
    session.wait_for_output("new: content");
    session.wait().expect(0);
}

#[test]
fn without_an_agent_the_program_keeps_running_and_calls_fail() {
    let target = Target::new();
    let standin = Standin::new();
    let program = standin.path("standind");
    symlink(agent_program(), &program).unwrap();
    let standin = standin.with("STANDIN_AGENT_PROGRAM", &program);
    let mut session = RunningSession::start(standin.session(&target.name(), &[], READ_LOOP));
    session.wait_for_output("readable");
    fs::remove_file(&program).unwrap();
    kill(
        Pid::from_raw(session.agent().try_into().unwrap()),
        Signal::SIGKILL,
    )
    .unwrap();
    session.wait_for_output("standin: there is no agent (cannot start an agent for process/");
    session.wait_for_output("unreadable");
    standin.write("done", "");
    session.wait().expect(3);
}

#[test]
fn the_end_of_the_target_is_reported_and_the_program_keeps_running() {
    let (standin, mut target) = (Standin::new(), Target::new());
    let mut session = RunningSession::start(standin.session(&target.name(), &[], READ_LOOP));
    session.wait_for_output("readable");
    target.end();
    session.wait_for_output("standin: the target has ended: the program keeps running");
    session.wait_for_output("unreadable");
    standin.write("done", "");
    let ended = session.wait();
    ended.expect(3);
    assert_eq!(ended.stderr.matches("the target has ended").count(), 1);
}

#[test]
fn an_existing_agent_that_is_restarted_is_reconnected() {
    let target = Target::new();
    let mut agent = ExistingAgent::start(&target, "127.0.0.1:0");
    let standin = Standin::new().with("STANDIN_AGENT_TOKEN", "secret-of-the-test");
    let mut command = standin.command(["exec", "--agent", &agent.address]);
    command.args(["--", "bash", "-c", READ_LOOP]);
    let mut session = RunningSession::start(command);
    session.wait_for_output("readable");
    agent.end();
    session.wait_for_output("standin: connection to the agent lost");
    let agent = ExistingAgent::start(&target, &agent.address);
    session.wait_for_output(
        "standin: the agent is lost (the other end has lost its state of this link",
    );
    session.wait_for_output("standin: the session continues with another agent");
    session.wait_for_output("readable");
    standin.write("done", "");
    session.wait().expect(3);
    wait_until("the agent logs the disconnect of its client", || {
        agent.log().contains("client disconnected")
    });
    let log = agent.log();
    let (_, since) = log.split_once("client connected").unwrap();
    assert!(
        !since.contains("WARN"),
        "a regular end is no warning: {log}"
    );
}

#[test]
fn an_agent_without_descriptors_recovers_when_it_has_some_again() {
    let target = Target::new();
    let agent = ExistingAgent::start(&target, "127.0.0.1:0");
    let process = agent.process().to_string();
    let limit = |count: &str| {
        let mut command = Command::new("prlimit");
        command.args(["--pid", &process, &format!("--nofile={count}:")]);
        assert!(command.status().unwrap().success());
    };
    // The kernel completes the handshakes, but the agent cannot accept the connections.
    limit("3");
    let silent: Vec<TcpStream> = (0..4)
        .map(|_| TcpStream::connect(&agent.address).unwrap())
        .collect();
    let standin = Standin::new().with("STANDIN_AGENT_TOKEN", "secret-of-the-test");
    let mut command = standin.command(["exec", "--agent", &agent.address, "--", "true"]);
    let mut waiting = command.stderr(Stdio::null()).spawn().unwrap();
    wait_until("the agent logs that it cannot accept", || {
        agent.log().contains("accept failed")
    });
    limit("256");
    assert!(waiting.wait().unwrap().success());
    drop(silent);
}

#[test]
fn a_local_file_opened_instead_of_the_targets_is_reported_once() {
    let (standin, target) = (Standin::new(), Target::new());
    let script = ": <>/etc/hostname; : <>/etc/hostname; until test -e done; do sleep 0.02; done";
    let mut session = RunningSession::start(standin.session(&target.name(), &[], script));
    session
        .wait_for_output("standin: /etc/hostname is at the target, and was opened for reading and");
    standin.write("done", "");
    let ended = session.wait();
    ended.expect(0);
    assert_eq!(ended.stderr.matches("/etc/hostname is").count(), 1);
}

#[test]
fn the_most_verbose_log_explains_decisions() {
    let (standin, target) = (Standin::new(), Target::new());
    let log = standin.path("log");
    let options = ["-vvv", "--log-file", log.to_str().unwrap()];
    let script = "cat /etc/hostname; : </dev/tcp/127.0.0.1/9; true";
    let session = standin.session(&target.name(), &options, script).output();
    assert!(session.unwrap().status.success());
    let log = fs::read_to_string(log).unwrap();
    for expected in [
        "path=/etc/hostname intent=Read choice=Remote(\"/etc/hostname\") rule=\"built-in list of configuration\"",
        "destination=Internet(127.0.0.1:9) choice=Remote rule=\"feature.network.outgoing\"",
    ] {
        assert!(log.contains(expected), "{expected} in\n{log}");
    }
}

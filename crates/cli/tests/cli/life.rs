//! Sessions that lose their agent or their target.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::faults::GivenAgent;
use crate::world::{Running, Standin, Target, agent_program, lives, until};

/// Says each time that a file of the target can or cannot be read, until a file of this machine is there.
const READ_ON: &str = "while ! test -e done; do if cat /etc/hostname >/dev/null 2>&1; then echo readable >&2; else echo \
                       unreadable >&2; fi; sleep 0.05; done; exit 3";

#[test]
fn an_agent_that_is_killed_is_replaced() {
    let (standin, target) = (Standin::new(), Target::new());
    let mut command = standin.session(&target.name(), &[], READ_ON);
    command.stdout(Stdio::null());
    let mut session = Running::start(command);
    session.until_said("readable");
    let agent = session.agent();
    kill(Pid::from_raw(agent.try_into().unwrap()), Signal::SIGKILL).unwrap();
    session.until_said("standin: the agent is gone (signal: 9 (SIGKILL))");
    session.until_said("standin: the session goes on with another agent");
    session.until_said("readable");
    let another = session.agent();
    assert_ne!(agent, another);
    standin.write("done", "");
    session.wait().expect(3);
    assert!(!lives(another), "the second agent is left");
}

#[test]
fn files_that_were_open_at_an_agent_that_was_killed_are_stale_and_are_opened_again() {
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
        # What is changed through a descriptor asks the target about the file.
        print STDERR "new: ", chmod(0600, $new) ? (stat $new)[7] : $!, "\n";
        print STDERR "new: ", scalar <$new>, "\n";
    "#;
    let mut command = standin.command(["exec", "-t", &target.name()]);
    command.arg("-f").arg(&settings);
    command
        .args(["--", "perl", "-e", script])
        .arg(&file)
        .stdout(Stdio::null());
    let mut session = Running::start(command);
    session.until_said("open");
    let agent = Pid::from_raw(session.agent().try_into().unwrap());
    kill(agent, Signal::SIGKILL).unwrap();
    session.until_said("standin: the session goes on with another agent");
    standin.write("done", "");
    session.until_said("old: Stale file handle");
    session.until_said("new: 7");
    session.until_said("new: content");
    session.wait().expect(0);
}

#[test]
fn without_an_agent_the_program_goes_on_and_calls_fail() {
    let target = Target::new();
    let standin = Standin::new();
    let program = standin.path("standind");
    symlink(agent_program(), &program).unwrap();
    let standin = standin.with("STANDIN_AGENT_PROGRAM", &program);
    let mut session = Running::start(standin.session(&target.name(), &[], READ_ON));
    session.until_said("readable");
    fs::remove_file(&program).unwrap();
    kill(
        Pid::from_raw(session.agent().try_into().unwrap()),
        Signal::SIGKILL,
    )
    .unwrap();
    session.until_said("standin: there is no agent (there is no agent beside process/");
    session.until_said("unreadable");
    standin.write("done", "");
    session.wait().expect(3);
}

#[test]
fn a_target_that_ends_is_told_and_the_program_goes_on() {
    let (standin, mut target) = (Standin::new(), Target::new());
    let mut session = Running::start(standin.session(&target.name(), &[], READ_ON));
    session.until_said("readable");
    target.end();
    session.until_said("standin: the target has ended: the program goes on");
    session.until_said("unreadable");
    standin.write("done", "");
    let ended = session.wait();
    ended.expect(3);
    assert_eq!(ended.stderr.matches("the target has ended").count(), 1);
}

#[test]
fn a_given_agent_that_is_restarted_is_greeted_again() {
    let target = Target::new();
    let mut agent = GivenAgent::start(&target, "127.0.0.1:0");
    let standin = Standin::new().with("STANDIN_AGENT_TOKEN", "secret-of-the-test");
    let mut command = standin.command(["exec", "--agent", &agent.address]);
    command.args(["--", "bash", "-c", READ_ON]);
    let mut session = Running::start(command);
    session.until_said("readable");
    agent.end();
    session.until_said("standin: the connection to the agent is lost");
    let agent = GivenAgent::start(&target, &agent.address);
    session.until_said("standin: the agent is gone (the other end has lost its state of this link");
    session.until_said("standin: the session goes on with another agent");
    session.until_said("readable");
    standin.write("done", "");
    session.wait().expect(3);
    until("the agent says that its client has gone", || {
        agent.said().contains("a client has gone")
    });
    let said = agent.said();
    let (_, since) = said.split_once("a client has come").unwrap();
    assert!(!since.contains("WARN"), "an end is no warning: {said}");
}

#[test]
fn an_agent_without_descriptors_goes_on_when_it_has_some_again() {
    let target = Target::new();
    let agent = GivenAgent::start(&target, "127.0.0.1:0");
    let process = agent.process().to_string();
    let limit = |count: &str| {
        let mut command = Command::new("prlimit");
        command.args(["--pid", &process, &format!("--nofile={count}:")]);
        assert!(command.status().unwrap().success());
    };
    // The kernel accepts for it, and it cannot take them.
    limit("3");
    let silent: Vec<TcpStream> = (0..4)
        .map(|_| TcpStream::connect(&agent.address).unwrap())
        .collect();
    let standin = Standin::new().with("STANDIN_AGENT_TOKEN", "secret-of-the-test");
    let mut command = standin.command(["exec", "--agent", &agent.address, "--", "true"]);
    let mut waiting = command.stderr(Stdio::null()).spawn().unwrap();
    until("the agent says that it cannot accept", || {
        agent.said().contains("could not be accepted")
    });
    limit("256");
    assert!(waiting.wait().unwrap().success());
    drop(silent);
}

#[test]
fn a_file_that_is_read_and_written_here_in_place_of_the_targets_is_told() {
    let (standin, target) = (Standin::new(), Target::new());
    let script = ": <>/etc/hostname; : <>/etc/hostname; until test -e done; do sleep 0.02; done";
    let mut session = Running::start(standin.session(&target.name(), &[], script));
    session.until_said("standin: /etc/hostname is at the target, and was opened for reading and");
    standin.write("done", "");
    let ended = session.wait();
    ended.expect(0);
    assert_eq!(ended.stderr.matches("/etc/hostname is").count(), 1);
}

#[test]
fn the_most_talkative_log_explains_decisions() {
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

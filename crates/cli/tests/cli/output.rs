//! Messages on standard error and on terminals, and logs.

use std::fs;
use std::process::Stdio;

use crate::support::{ProcessOutput, RunningSession, Service, Standin, Target};
use crate::terminal::Terminal;

#[test]
fn without_a_terminal_one_line_is_printed_and_with_quiet_none() {
    let (standin, target) = (Standin::new(), Target::new());
    let name = target.name();
    let ended = standin.run(["exec", "-t", &name, "--", "echo", "words"]);
    ended.expect(0);
    assert_eq!(ended.stdout, "words\n");
    let line = ended.stderr.strip_suffix(" ms)\n").unwrap();
    let time = line.strip_prefix(&format!("standin: standing in for {name} ("));
    assert!(time.unwrap().parse::<u32>().is_ok(), "{}", ended.stderr);
    let quiet = standin.run(["exec", "--quiet", "-t", &name, "--", "echo", "words"]);
    quiet.expect(0);
    assert_eq!(quiet.stderr, "");
}

#[test]
fn on_a_terminal_a_progress_line_shows_the_steps_and_is_replaced() {
    let (standin, target) = (Standin::new(), Target::new());
    let script = format!("$STANDIN exec -t {} -- echo words", target.name());
    for (variables, dimmed) in [(&[][..], true), (&[("NO_COLOR", "1")], false)] {
        let (shown, code) = Terminal::start(&standin, &script, variables).wait();
        assert_eq!(code, Some(0), "{shown}");
        for step in [
            "reading the configuration…",
            "finding the target…",
            "starting the agent…",
            "connecting…",
            "reading the environment…",
        ] {
            assert!(shown.contains(step), "{step:?} is missing in {shown:?}");
        }
        let last = shown.rsplit("\r\x1b[2K").next().unwrap();
        let expected = format!("standin: standing in for {} (", target.name());
        assert!(last.starts_with(&expected), "{shown:?}");
        assert!(last.ends_with("ms)\r\nwords\r\n"), "{shown:?}");
        assert_eq!(shown.contains("\x1b[2m"), dimmed, "{shown:?}");
    }
    let script = script.replace("exec", "exec --quiet");
    let (shown, _) = Terminal::start(&standin, &script, &[]).wait();
    assert_eq!(shown, "words\r\n");
    let script = script.replace("exec --quiet", "exec");
    let (shown, _) = Terminal::start(&standin, &script, &[("TERM", "dumb")]).wait();
    assert!(!shown.contains('\x1b'), "{shown:?}");
}

#[test]
fn an_error_replaces_the_progress_line() {
    let standin = Standin::new();
    let script = "$STANDIN exec -t process/4194303 -- true";
    let (shown, code) = Terminal::start(&standin, script, &[]).wait();
    assert_eq!(code, Some(125));
    let last = shown.rsplit("\x1b[2K").next().unwrap();
    assert!(
        last.starts_with("standin: there is no process 4194303"),
        "{shown:?}"
    );
}

/// Watches the files of a folder for changes.
const WATCH: &str = r#"
import ctypes, os, sys
libc = ctypes.CDLL(None)
descriptor = libc.inotify_init()
for name in os.listdir(sys.argv[1]):
    libc.inotify_add_watch(descriptor, os.path.join(sys.argv[1], name).encode(), 2)
"#;

#[test]
fn warnings_of_one_kind_are_two_lines() {
    let (standin, target) = (Standin::new(), Target::new());
    for number in 0..13 {
        standin.write(&format!("watched/{number}"), "content");
    }
    let folder = standin.path("watched");
    let folder = folder.to_str().unwrap();
    let settings = format!(r#"{{"feature": {{"fs": {{"read_only": ["^{folder}"]}}}}}}"#);
    standin.write("standin.json", settings);
    let command = ["exec", "--quiet", "-t", &target.name(), "--"];
    let program = ["python3", "-c", WATCH, folder];
    let ended = standin.run([&command[..], &program].concat());
    ended.expect(0);
    let lines: Vec<&str> = ended.stderr.lines().collect();
    let [first, others] = lines[..] else {
        panic!("{}", ended.stderr);
    };
    assert!(first.starts_with(&format!("standin: {folder}/")), "{first}");
    let expected = "standin: 12 more paths cannot be watched for changes; ";
    assert!(others.starts_with(expected), "{others}");
}

/// Causes a warning in the middle of a line, and one between two lines.
const WARNED: &str = r#"
import ctypes, os, sys
folder = sys.argv[1]
os.write(1, b"unfinished")
libc = ctypes.CDLL(None)
libc.inotify_add_watch(libc.inotify_init(), os.path.join(folder, "file").encode(), 2)
os.write(2, b" line\n")
try:
    open(os.path.join(folder, "pipe"))
except OSError:
    os.write(1, b"finished\n")
"#;

#[test]
fn on_a_terminal_a_message_never_continues_a_line_of_the_program() {
    let (standin, target) = (Standin::new(), Target::new());
    standin.write("warned.py", WARNED);
    standin.write("remote/file", "content");
    let folder = standin.path("remote");
    let folder = folder.to_str().unwrap();
    let settings = format!(r#"{{"feature": {{"fs": {{"read_only": ["^{folder}"]}}}}}}"#);
    standin.write("standin.json", settings);
    let script = format!(
        "mkfifo {folder}/pipe; $STANDIN exec -q -t {} -- python3 warned.py {folder}",
        target.name()
    );
    let mut terminal = Terminal::with_screen(&standin, &script);
    let (shown, code) = terminal.wait();
    assert_eq!(code, Some(0), "{shown}");
    let rows = terminal.rows();
    let starts = [
        "unfinished",
        &format!("standin: {folder}/file is the target's and cannot be watched for changes"),
        " line",
        &format!("standin: {folder}/pipe is a pipe, a socket or a device of the target"),
        "finished",
    ];
    assert_eq!(rows.len(), starts.len(), "{rows:#?}");
    for (row, start) in rows.iter().zip(starts) {
        assert!(row.starts_with(start), "{start:?} is not in {rows:#?}");
    }
    assert_eq!(rows[0], "unfinished");
}

/// Listens on many ports in the middle of a line, until a key is pressed.
const LISTENING: &str = r#"
import os, socket
os.write(1, b"unfinished")
listeners = [socket.create_server(("", port)) for port in [18090] + 20 * [0]]
os.write(1, b" line\n")
os.read(0, 1)
"#;

#[test]
#[ignore = "needs root"]
fn a_port_that_the_target_serves_has_its_own_line_and_the_others_share_one() {
    let (standin, service) = (Standin::new(), Service::start(18090));
    standin.write("listening.py", LISTENING);
    let script = format!(
        "$STANDIN exec -t {} -- python3 listening.py",
        service.name()
    );
    let mut terminal = Terminal::with_screen(&standin, &script);
    terminal.wait_for_output("` lists them");
    let rows = terminal.rows();
    let starts = [
        &format!("standin: standing in for {} (", service.name()),
        "unfinished",
        "standin: port 18090 of the target: the program (port 18090) gets a copy of everything",
        " line",
        "standin: the program also opened 20 ports that the target does not serve; `standin session ",
    ];
    assert_eq!(rows.len(), starts.len(), "{rows:#?}");
    for (row, start) in rows.iter().zip(starts) {
        assert!(row.starts_with(start), "{start:?} is not in {rows:#?}");
    }
    assert_eq!(rows[1], "unfinished");
    // The command in the last line lists the ports.
    let command = rows[4].split('`').nth(1).unwrap().split(' ').skip(1);
    let info = standin.run(command);
    info.expect(0);
    let ports = info.stdout.lines().filter(|line| line.starts_with("port "));
    assert_eq!(ports.count(), 21, "{}", info.stdout);
    terminal.press("\n");
    assert_eq!(terminal.wait().1, Some(0));
}

#[test]
fn a_log_is_written_on_request_and_contains_no_secret() {
    let secret = "hunter2-of-the-target";
    let target = Target::with(&[("API_KEY".as_ref(), secret.as_ref())]);
    let standin = Standin::new();
    let script = "echo here; cat /etc/hostname >/dev/null; read word";
    let mut command = standin.session(
        &target.name(),
        &["-vvv", "--override-env", "OTHER_KEY=hunter2-of-a-flag"],
        script,
    );
    let mut session = RunningSession::start({
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        command
    });
    session.wait_for_output("the log is ");
    session.wait_for_output("standing in for");
    let variables = fs::read(format!("/proc/{}/environ", session.agent())).unwrap();
    let variables = String::from_utf8_lossy(&variables).into_owned();
    let token = variables
        .split('\0')
        .find_map(|variable| variable.strip_prefix("STANDIN_AGENT_TOKEN="))
        .unwrap()
        .to_owned();
    drop(session.child.stdin.take());
    let ended = session.wait();
    let log = ended
        .stderr
        .lines()
        .find_map(|line| line.strip_prefix("standin: the log is "));
    let log = log.unwrap();
    assert!(
        log.starts_with(standin.path("state/standin").to_str().unwrap()),
        "{log}"
    );
    let log = fs::read_to_string(log).unwrap();
    for expected in ["starting the agent", "client connected", "program exited"] {
        assert!(log.contains(expected), "{expected:?} is missing in {log}");
    }
    for secret in [secret, "hunter2-of-a-flag", &token] {
        assert!(
            !log.contains(secret) && !ended.stderr.contains(secret),
            "{secret} was printed"
        );
    }
}

#[test]
fn a_log_file_can_be_named_and_by_default_there_is_none() {
    let (standin, target) = (Standin::new(), Target::new());
    standin
        .run(["exec", "-t", &target.name(), "--", "true"])
        .expect(0);
    assert!(!standin.path("state").exists());
    let ended = standin.run([
        "exec",
        "--log-file",
        "own.log",
        "-t",
        &target.name(),
        "--",
        "true",
    ]);
    ended.expect(0).expect_stderr(&["the log is own.log"]);
    assert!(
        fs::read_to_string(standin.path("own.log"))
            .unwrap()
            .contains("agent listening")
    );
}

#[test]
fn input_and_output_are_passed_to_the_program_unchanged() {
    let (standin, target) = (Standin::new(), Target::new());
    let bytes: Vec<u8> = (0..1_000_000_u32)
        .map(|number| (number % 251) as u8)
        .collect();
    let file = standin.write("bytes", &bytes);
    let mut command = standin.command(["exec", "-q", "-t", &target.name(), "--", "cat"]);
    let output = command
        .stdin(fs::File::open(file).unwrap())
        .output()
        .unwrap();
    assert_eq!(output.stdout, bytes);
    let script = format!(
        "$STANDIN exec -q -t {} -- bash -c 'test -t 0 && test -t 1 && test -t 2 && tty'",
        target.name()
    );
    let (shown, code) = Terminal::start(&standin, &script, &[]).wait();
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.starts_with("/dev/pts/"), "{shown}");
    // Closed standard descriptors are no problem.
    let script = format!(
        "exec {} exec -q -t {} -- true <&- >&-",
        env!("CARGO_BIN_EXE_standin"),
        target.name()
    );
    let mut command = std::process::Command::new("bash");
    standin.configure(command.args(["-c", &script]));
    ProcessOutput::from(command.output().unwrap()).expect(0);
}

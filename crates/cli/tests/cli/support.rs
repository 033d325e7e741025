//! Helpers of the tests: programs, targets, and waiting for conditions.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Output, Stdio};
use std::sync::{OnceLock, mpsc};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The timeout of everything that a test waits for.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A user without any rights.
pub(crate) const UNPRIVILEGED_UID: u32 = 65534;

/// The agent's program. It is in another package, so it is built once, unless STANDIN_PROGRAMS names a build.
pub(crate) fn agent_program() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        if let Some(folder) = env::var_os("STANDIN_PROGRAMS") {
            return PathBuf::from(folder).join("standind");
        }
        let folder = Path::new(env!("CARGO_BIN_EXE_standin")).parent().unwrap();
        let status = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env("CARGO_TARGET_DIR", folder.parent().unwrap())
            .args(["build", "--quiet", "--locked", "--package", "server"])
            .status();
        assert!(status.unwrap().success(), "standind cannot be built");
        folder.join("standind")
    })
}

/// `standin` with its own folder, and without settings from the environment.
pub(crate) struct Standin {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) variables: Vec<(String, PathBuf)>,
}

impl Standin {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Standin {
            folder,
            variables: vec![("STANDIN_AGENT_PROGRAM".to_owned(), agent_program().into())],
        }
    }

    /// Sets or replaces an environment variable.
    pub(crate) fn with(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.variables.retain(|(other, _)| other != name);
        self.variables
            .push((name.to_owned(), PathBuf::from(value.as_ref())));
        self
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn command<S: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
    ) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_standin"));
        self.configure(command.args(arguments));
        command
    }

    /// Sets the environment of a command that starts `standin`.
    pub(crate) fn configure(&self, command: &mut Command) {
        for (name, _) in env::vars_os() {
            if name.to_string_lossy().starts_with("STANDIN_") {
                command.env_remove(name);
            }
        }
        command
            .current_dir(self.folder.path())
            .env("XDG_STATE_HOME", self.path("state"))
            .env("STANDIN_SESSIONS_DIR", self.path("sessions"))
            .envs(self.variables.iter().cloned())
            .stdin(Stdio::null());
    }

    pub(crate) fn run<S: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
    ) -> ProcessOutput {
        ProcessOutput::from(self.command(arguments).output().unwrap())
    }

    /// A command that runs a shell script in a session.
    pub(crate) fn session(&self, target: &str, options: &[&str], script: &str) -> Command {
        let mut command = self.command(["exec", "-t", target]);
        command.args(options).args(["--", "bash", "-c", script]);
        command
    }
}

/// The exit status and the output of a process.
#[derive(Debug)]
pub(crate) struct ProcessOutput {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for ProcessOutput {
    fn from(output: Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        ProcessOutput {
            status: output.status,
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
        }
    }
}

impl ProcessOutput {
    /// Checks the exit code, which is 128 plus the number for a signal.
    #[track_caller]
    pub(crate) fn expect(&self, code: i32) -> &Self {
        let found = self
            .status
            .code()
            .or_else(|| self.status.signal().map(|signal| 128 + signal));
        assert_eq!(found, Some(code), "{self:?}");
        self
    }

    /// Checks that standard error contains all of these texts.
    #[track_caller]
    pub(crate) fn expect_stderr(&self, expected: &[&str]) -> &Self {
        for expected in expected {
            assert!(
                self.stderr.contains(expected),
                "{expected:?} is missing in {:?}",
                self.stderr
            );
        }
        self
    }
}

/// A response of an HTTP server.
#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

impl HttpResponse {
    /// Sends a request on a connection of its own.
    pub(crate) fn get(
        stream: &mut (impl Read + Write),
        host: &str,
        path: &str,
        header: &str,
    ) -> Self {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{header}\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        HttpResponse {
            status,
            head: head.to_owned(),
            body: body.to_owned(),
        }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.lines().filter_map(|line| line.split_once(": "));
        fields.find_map(|(key, value)| key.eq_ignore_ascii_case(name).then_some(value))
    }

    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// A target process. It ends with the test.
pub(crate) struct Target(Child);

impl Target {
    pub(crate) fn new() -> Self {
        Self::with(&[])
    }

    pub(crate) fn with(variables: &[(&OsStr, &OsStr)]) -> Self {
        let mut command = Command::new("sleep");
        command.arg("3600").env_clear().stdin(Stdio::null());
        Target(command.envs(variables.iter().copied()).spawn().unwrap())
    }

    pub(crate) fn name(&self) -> String {
        format!("process/{}", self.0.id())
    }

    pub(crate) fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.end();
    }
}

/// A service in its own network namespace. It ends with the test.
pub(crate) struct Service(Child);

impl Service {
    /// Returns when the service listens on the port.
    pub(crate) fn start(port: u16) -> Self {
        let script =
            format!("ip link set lo up && exec python3 -m http.server {port} >/dev/null 2>&1");
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", &script]);
        let service = Self(command.stdin(Stdio::null()).spawn().unwrap());
        wait_until("the service listens", || {
            ["tcp", "tcp6"].iter().any(|table| {
                let table = format!("/proc/{}/net/{table}", service.0.id());
                let table = fs::read_to_string(table).unwrap_or_default();
                table.lines().any(|line| is_listener(line, port))
            })
        });
        service
    }

    pub(crate) fn name(&self) -> String {
        format!("process/{}", self.0.id())
    }

    /// A command in the network namespace of the service.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--net", "--target", &self.0.id().to_string(), program]);
        command
    }

    /// The output of a client in the network namespace of the service.
    pub(crate) fn run_client(&self, client: &[&str]) -> String {
        let (program, arguments) = client.split_first().unwrap();
        let mut command = self.command(program);
        let ended = ProcessOutput::from(command.args(arguments).output().unwrap());
        ended.expect(0);
        ended.stdout
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether a line of `/proc/net/tcp` is a socket that listens on this port.
fn is_listener(line: &str, port: u16) -> bool {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let local = fields.get(1).copied().unwrap_or_default();
    local.ends_with(&format!(":{port:04X}")) && fields.get(3) == Some(&"0A")
}

/// A running session and its output. It ends with the test.
pub(crate) struct RunningSession {
    pub(crate) child: Child,
    stderr: BufReader<ChildStderr>,
    pub(crate) printed: String,
    /// Kills a session that hangs. Dropped before the process is reaped, so that no other process is killed.
    watchdog: Option<mpsc::Sender<()>>,
}

impl RunningSession {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (watchdog, ended) = mpsc::channel::<()>();
        let process = Pid::from_raw(i32::try_from(child.id()).unwrap());
        thread::spawn(move || {
            if ended.recv_timeout(TIMEOUT) == Err(mpsc::RecvTimeoutError::Timeout) {
                let _ = kill(process, Signal::SIGKILL);
            }
        });
        RunningSession {
            child,
            stderr,
            printed: String::new(),
            watchdog: Some(watchdog),
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Reads standard error until a line contains this text.
    #[track_caller]
    pub(crate) fn wait_for_output(&mut self, expected: &str) {
        loop {
            let mut line = String::new();
            let length = self.stderr.read_line(&mut line).unwrap();
            self.printed.push_str(&line);
            if line.contains(expected) {
                return;
            }
            assert!(
                length > 0,
                "{expected:?} was never printed: {}",
                self.printed
            );
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.id()).unwrap()), signal).unwrap();
    }

    /// Whether a signal has stopped the process.
    pub(crate) fn is_stopped(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.id())).unwrap();
        stat.rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with('T'))
    }

    /// The agent that was started for the session.
    pub(crate) fn agent(&self) -> u32 {
        let is_agent = |id: &u32| {
            let name = fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
            name.trim() == "standind"
        };
        children_of(self.id()).into_iter().find(is_agent).unwrap()
    }

    pub(crate) fn wait(mut self) -> ProcessOutput {
        let _ = self.stderr.read_to_string(&mut self.printed);
        let mut stdout = String::new();
        if let Some(mut output) = self.child.stdout.take() {
            output.read_to_string(&mut stdout).unwrap();
        }
        self.watchdog = None;
        ProcessOutput {
            status: self.child.wait().unwrap(),
            stdout,
            stderr: std::mem::take(&mut self.printed),
        }
    }
}

impl Drop for RunningSession {
    fn drop(&mut self) {
        self.watchdog = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn children_of(process: u32) -> Vec<u32> {
    let mut children = Vec::new();
    for task in fs::read_dir(format!("/proc/{process}/task"))
        .unwrap()
        .flatten()
    {
        let list = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        children.extend(
            list.split_whitespace()
                .filter_map(|id| id.parse::<u32>().ok()),
        );
    }
    children
}

/// Whether a process exists and is not a zombie.
pub(crate) fn is_alive(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// Waits for a condition.
#[track_caller]
pub(crate) fn wait_until(description: &str, condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < TIMEOUT, "timed out: {description}");
        thread::sleep(Duration::from_millis(20));
    }
}

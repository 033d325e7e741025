//! The target of a test, servers inside its network, and a session with it.

use std::ffi::OsString;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use agent::Agent;
use config::{EnvFile, Format, Layers, Surroundings};
use nix::sched::{CloneFlags, setns};
use proxy::{Launch, Session};
use tokio::runtime::Runtime;

use crate::namespaces;

/// A target process with its own root directory, network and host name. It ends with the test, together with everything
/// that was created for it.
pub(crate) struct Environment {
    namespaces: Child,
    pid: u32,
    pub(crate) runtime: Runtime,
    /// For the output of programs.
    pub(crate) folder: tempfile::TempDir,
}

impl Environment {
    pub(crate) fn new() -> Self {
        let (namespaces, pid) = namespaces::start();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("there are threads");
        Self {
            pid,
            namespaces,
            runtime,
            folder: tempfile::tempdir().expect("there is room"),
        }
    }

    /// Calls a function inside the target's network. Sockets that it creates stay in that network.
    pub(crate) fn inside<T: Send>(&self, function: impl FnOnce() -> T + Send) -> T {
        let path = format!("/proc/{}/ns/net", self.pid);
        let enter = || {
            let namespace = fs::File::open(path).expect("the target is there");
            setns(namespace.as_fd(), CloneFlags::CLONE_NEWNET).expect("root may enter");
            function()
        };
        thread::scope(|scope| scope.spawn(enter).join().expect("it does not panic"))
    }

    pub(crate) fn listen(&self, address: &str) -> tokio::net::TcpListener {
        let listener = self.inside(|| TcpListener::bind(address).expect("the port is free"));
        listener.set_nonblocking(true).expect("it is a socket");
        let _in = self.runtime.enter();
        tokio::net::TcpListener::from_std(listener).expect("there is a runtime")
    }

    pub(crate) fn udp(&self, address: &str) -> tokio::net::UdpSocket {
        let socket = self.inside(|| UdpSocket::bind(address).expect("the port is free"));
        socket.set_nonblocking(true).expect("it is a socket");
        let _in = self.runtime.enter();
        tokio::net::UdpSocket::from_std(socket).expect("there is a runtime")
    }

    /// Runs a script in the target's namespaces, and returns its output.
    pub(crate) fn run_inside(&self, script: &str) -> String {
        let target = format!("--target={}", self.pid);
        let output = Command::new("nsenter")
            .args([&target, "--net", "--mount", "--uts", "--root"])
            .args(["sh", "-c", script])
            .output()
            .expect("nsenter can be started");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// A path of the target, as root sees it from outside.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.pid))
    }

    /// Starts a session with its own agent. `network` is the `feature.network` of the configuration.
    pub(crate) fn session(&self, network: &str) -> Arc<Session> {
        self.session_with(&format!("network: {network}"))
    }

    /// Like [`session`](Self::session), with all members of `feature`.
    pub(crate) fn session_with(&self, features: &str) -> Arc<Session> {
        let text = format!("feature: {{{features}}}");
        let settings = Layers::new().file("test", &text, Format::Yaml).resolve();
        let settings = settings.expect("it is a configuration").settings;
        let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec();
        let surroundings = Surroundings {
            home: env::var_os("HOME").map(|home| bytes(Path::new(&home))),
            working_directory: env::current_dir().ok().map(|folder| bytes(&folder)),
            temporary: Some(bytes(self.folder.path())),
            code: vec![bytes(&env::temp_dir())],
        };
        self.runtime.block_on(async {
            let agent = Agent::for_process(self.pid).expect("root may do everything");
            let (near, far) = tokio::io::duplex(1024 * 1024);
            tokio::spawn(async move { agent.serve_connection(far).await });
            let session =
                Session::over_pipe(near, "", &settings, &EnvFile::default(), &surroundings).await;
            Arc::new(session.expect("the agent accepts the session"))
        })
    }

    /// Runs a script in a session, and returns its output, including standard error.
    #[track_caller]
    pub(crate) fn run(&self, session: &Arc<Session>, script: &str) -> String {
        let running = self.start(session, script);
        running.wait()
    }

    pub(crate) fn start(&self, session: &Arc<Session>, script: &str) -> RunningProgram {
        let output = self.folder.path().join("output");
        let _ = fs::remove_file(&output);
        let script = format!("exec >'{}' 2>&1\n{script}", output.display());
        let inherited = ["PATH", "HOME", "LANG"];
        let environment =
            env::vars_os().filter(|(name, _)| inherited.iter().any(|kept| name == *kept));
        let supervised = Launch::new("bash")
            .arguments(["-c", &script])
            .environment(environment.collect::<Vec<(OsString, OsString)>>())
            .start(Arc::clone(session) as _)
            .expect("this machine can supervise programs");
        RunningProgram { supervised, output }
    }
}

/// A program that runs in a session.
pub(crate) struct RunningProgram {
    supervised: interceptor::SupervisedProcess,
    output: PathBuf,
}

impl RunningProgram {
    pub(crate) fn output(&self) -> String {
        fs::read_to_string(&self.output).unwrap_or_default()
    }

    #[track_caller]
    pub(crate) fn wait(mut self) -> String {
        let status = self.supervised.wait().expect("it ends");
        let output = self.output();
        assert!(status.success(), "{status:?} after: {output}");
        output
    }
}

impl Drop for Environment {
    fn drop(&mut self) {
        // When the first process of a PID namespace ends, the kernel kills all others.
        let _ = self.namespaces.kill();
        let _ = self.namespaces.wait();
    }
}

/// Waits until a condition is true, which must be soon.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "timed out: {what}"
        );
        thread::sleep(Duration::from_millis(5));
    }
}

//! The target of a test, what runs inside its network, and a session with it.

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

/// A process with its own root, network and name. Ends with the test, and with it everything that was made for it.
pub(crate) struct World {
    namespaces: Child,
    pid: u32,
    pub(crate) runtime: Runtime,
    /// For what programs write, and for programs.
    pub(crate) folder: tempfile::TempDir,
}

impl World {
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

    /// Makes something inside the target's network. Sockets stay there, whoever uses them.
    pub(crate) fn inside<T: Send>(&self, make: impl FnOnce() -> T + Send) -> T {
        let path = format!("/proc/{}/ns/net", self.pid);
        let enter = || {
            let namespace = fs::File::open(path).expect("the target is there");
            setns(namespace.as_fd(), CloneFlags::CLONE_NEWNET).expect("root may enter");
            make()
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

    /// Runs a script as the target would, and answers what it wrote.
    pub(crate) fn run_inside(&self, script: &str) -> String {
        let target = format!("--target={}", self.pid);
        let output = Command::new("nsenter")
            .args([&target, "--net", "--mount", "--uts", "--root"])
            .args(["sh", "-c", script])
            .output()
            .expect("nsenter can be started");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// One of the target's paths, as root sees it from outside.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.pid))
    }

    /// Starts a session with an agent of its own. The text is the `network` of a configuration.
    pub(crate) fn session(&self, network: &str) -> Arc<Session> {
        self.session_with(&format!("network: {network}"))
    }

    /// As [`session`](Self::session), with all features.
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
                Session::over(near, "", &settings, &EnvFile::default(), &surroundings).await;
            Arc::new(session.expect("the agent welcomes us"))
        })
    }

    /// Runs a script in a session, and answers what it wrote, also to standard error.
    #[track_caller]
    pub(crate) fn run(&self, session: &Arc<Session>, script: &str) -> String {
        let started = self.start(session, script);
        started.wait()
    }

    pub(crate) fn start(&self, session: &Arc<Session>, script: &str) -> Started {
        let output = self.folder.path().join("output");
        let _ = fs::remove_file(&output);
        let script = format!("exec >'{}' 2>&1\n{script}", output.display());
        let keep = ["PATH", "HOME", "LANG"];
        let environment = env::vars_os().filter(|(name, _)| keep.iter().any(|keep| name == *keep));
        let supervised = Launch::new("bash")
            .arguments(["-c", &script])
            .environment(environment.collect::<Vec<(OsString, OsString)>>())
            .start(Arc::clone(session) as _)
            .expect("this machine can supervise programs");
        Started { supervised, output }
    }
}

/// A program that runs in a session.
pub(crate) struct Started {
    supervised: interceptor::Supervised,
    output: PathBuf,
}

impl Started {
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

impl Drop for World {
    fn drop(&mut self) {
        // With the first process of its namespaces the kernel ends all others.
        let _ = self.namespaces.kill();
        let _ = self.namespaces.wait();
    }
}

/// Waits for something that must become true soon.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "waited in vain: {what}"
        );
        thread::sleep(Duration::from_millis(5));
    }
}

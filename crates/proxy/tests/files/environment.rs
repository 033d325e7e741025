//! A target, an agent and a session.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use agent::Agent;
use config::{EnvFile, Format, Layers, Surroundings};
use interceptor::{Disposition, Errno, Host as _, OpenOptions, RemoteFiles};
use proxy::{FileBackend, Session};
use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf,
};
use tokio::runtime::Runtime;

/// Paths below this one are remote. It does not exist on this machine: the configuration maps it to a folder.
pub(crate) const REMOTE: &str = "/remote-files";

pub(crate) struct Environment {
    pub(crate) session: Arc<Session>,
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) folder: tempfile::TempDir,
    pub(crate) target: Child,
    pub(crate) runtime: Runtime,
}

/// The number of bytes received from the agent, and of writes to it.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) received: AtomicU64,
    pub(crate) writes: AtomicU64,
    /// While this is set, nothing is received from the agent.
    pub(crate) stalled: AtomicBool,
}

impl Environment {
    pub(crate) fn new(backend: FileBackend) -> Self {
        Self::with_settings(backend, "")
    }

    /// With more settings for files, as members of a YAML map.
    pub(crate) fn with_settings(backend: FileBackend, settings: &str) -> Self {
        Self::build(backend, settings, Duration::ZERO, 0)
    }

    /// With a target that runs as this user.
    pub(crate) fn with_target_user(backend: FileBackend, user: u32) -> Self {
        Self::build(backend, "", Duration::ZERO, user)
    }

    /// With this round-trip time to the agent.
    pub(crate) fn with_latency(backend: FileBackend, round_trip: Duration) -> Self {
        Self::build(backend, "", round_trip, 0)
    }

    fn build(backend: FileBackend, settings: &str, round_trip: Duration, user: u32) -> Self {
        let runtime = Runtime::new().unwrap();
        let folder = tempfile::tempdir().unwrap();
        if user != 0 {
            std::os::unix::fs::chown(folder.path(), Some(user), None).unwrap();
        }
        // It exits at the end of its input, which is when this process ends for any reason.
        let mut target = Command::new("cat");
        if user != 0 {
            target.uid(user);
        }
        let target = target
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let traffic = Arc::new(Traffic::default());
        let session = runtime.block_on(connect(
            target.id(),
            folder.path(),
            settings,
            Arc::clone(&traffic),
            round_trip,
        ));
        let session = {
            let _runtime = runtime.enter();
            session.with_file_backend(backend).unwrap()
        };
        Self {
            session: Arc::new(session),
            traffic,
            folder,
            target,
            runtime,
        }
    }

    pub(crate) fn files(&self) -> &dyn RemoteFiles {
        self.session.files()
    }

    /// The path of a file of the target, to be used without the session.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        String::from_utf8(std::fs::read(self.path(name)).unwrap()).unwrap()
    }

    pub(crate) fn open(&self, name: &str, flags: i32) -> Result<File, Errno> {
        self.open_with_mode(name, flags, 0)
    }

    pub(crate) fn open_with_mode(&self, name: &str, flags: i32, mode: u32) -> Result<File, Errno> {
        let options = OpenOptions {
            flags,
            mode,
            resolve: 0,
        };
        let opened: Result<OwnedFd, Disposition> = self.files().open(&self.path(name), &options);
        opened.map(File::from).map_err(errno)
    }

    /// How many files whose names start with `prefix` the agent has open. The agent runs in this process.
    pub(crate) fn open_at_target(&self, prefix: &str) -> usize {
        let folder = self.folder.path().canonicalize().unwrap();
        let prefix = folder.join(prefix).into_os_string();
        let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let opened = descriptors.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        opened
            .filter(|path| {
                let path = path.as_os_str().as_encoded_bytes();
                path.starts_with(prefix.as_encoded_bytes())
            })
            .count()
    }

    pub(crate) fn received(&self) -> u64 {
        self.traffic.received.load(Ordering::SeqCst)
    }
}

impl Drop for Environment {
    fn drop(&mut self) {
        let _ = self.target.kill();
        let _ = self.target.wait();
    }
}

pub(crate) fn errno(instead: Disposition) -> Errno {
    match instead {
        Disposition::Fail(errno) => errno,
        Disposition::Local => panic!("it is not local"),
    }
}

/// A pipe to a new agent.
pub(crate) fn agent(pid: u32, round_trip: Duration) -> DuplexStream {
    let agent = Agent::for_process(pid).unwrap();
    let (near, far) = tokio::io::duplex(1 << 20);
    tokio::spawn(async move { agent.serve_connection(far).await });
    if round_trip.is_zero() {
        return near;
    }
    let (nearer, between) = tokio::io::duplex(1 << 20);
    let (from_us, to_us) = tokio::io::split(between);
    let (from_agent, to_agent) = tokio::io::split(near);
    tokio::spawn(delay(from_us, to_agent, round_trip / 2));
    tokio::spawn(delay(from_agent, to_us, round_trip / 2));
    nearer
}

/// Copies with a delay. The number of bytes in transit is not limited.
async fn delay(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin + Send + 'static,
    by: Duration,
) {
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some((when, chunk)) = receiver.recv().await {
            tokio::time::sleep_until(when).await;
            let chunk: Vec<u8> = chunk;
            if to.write_all(&chunk).await.is_err() {
                return;
            }
        }
    });
    let mut buffer = vec![0; 256 * 1024];
    while let Ok(count) = from.read(&mut buffer).await
        && count > 0
    {
        let when = tokio::time::Instant::now() + by;
        let _ = sender.send((when, buffer[..count].to_vec()));
    }
}

async fn connect(
    pid: u32,
    folder: &Path,
    settings: &str,
    traffic: Arc<Traffic>,
    round_trip: Duration,
) -> Session {
    let near = agent(pid, round_trip);
    let folder = folder.display();
    let has_mode = settings.contains("mode:");
    let mode = if has_mode { "" } else { "mode: write," };
    let text = format!(
        "feature: {{fs: {{{mode} read_write: ['^{folder}'], \
         mapping: {{'^{REMOTE}(?<rest>/.*)?$': '{folder}$rest'}}, {settings}}}}}"
    );
    let resolved = Layers::new().file("test", &text, Format::Yaml).resolve();
    let settings = resolved.unwrap().settings;
    let pipe = CountingPipe {
        pipe: near,
        traffic,
    };
    let surroundings = Surroundings::default();
    Session::over_pipe(pipe, "", &settings, &EnvFile::default(), &surroundings)
        .await
        .unwrap()
}

/// Counts the traffic, and can stall it.
struct CountingPipe {
    pipe: DuplexStream,
    traffic: Arc<Traffic>,
}

impl AsyncRead for CountingPipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.traffic.stalled.load(Ordering::SeqCst) {
            let waker = context.waker().clone();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(2)).await;
                waker.wake();
            });
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.pipe).poll_read(context, buffer);
        let count = buffer.filled().len() - before;
        let received = &self.traffic.received;
        received.fetch_add(count as u64, Ordering::SeqCst);
        polled
    }
}

impl AsyncWrite for CountingPipe {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.traffic.writes.fetch_add(1, Ordering::SeqCst);
        Pin::new(&mut self.pipe).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.traffic.writes.fetch_add(1, Ordering::SeqCst);
        Pin::new(&mut self.pipe).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.pipe.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_shutdown(context)
    }
}

/// Waits until a condition is true, which must be soon.
#[track_caller]
pub(crate) fn wait_until(condition_name: &str, mut condition: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !condition() {
        assert!(
            start.elapsed().as_secs() < 30,
            "timed out: {condition_name}"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

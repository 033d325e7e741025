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
use interceptor::{Errno, Host as _, Instead, OpenOptions, RemoteFiles};
use proxy::{FilesThrough, Session};
use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf,
};
use tokio::runtime::Runtime;

/// Everything below is the target's. It is not on this machine: the configuration maps it to a folder.
pub(crate) const REMOTE: &str = "/remote-files";

pub(crate) struct World {
    pub(crate) session: Arc<Session>,
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) folder: tempfile::TempDir,
    pub(crate) target: Child,
    pub(crate) runtime: Runtime,
}

/// Bytes that came from the agent, and parts that were sent to it.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) received: AtomicU64,
    pub(crate) writes: AtomicU64,
    /// Nothing comes from the agent while this is set.
    pub(crate) stalled: AtomicBool,
}

impl World {
    pub(crate) fn new(through: FilesThrough) -> Self {
        Self::with_settings(through, "")
    }

    /// With more settings for files, as members of a YAML map.
    pub(crate) fn with_settings(through: FilesThrough, settings: &str) -> Self {
        Self::build(through, settings, Duration::ZERO, 0)
    }

    /// With a target that has the rights of this user.
    pub(crate) fn of_user(through: FilesThrough, user: u32) -> Self {
        Self::build(through, "", Duration::ZERO, user)
    }

    /// With an agent that is half of `round_trip` away.
    pub(crate) fn far_away(through: FilesThrough, round_trip: Duration) -> Self {
        Self::build(through, "", round_trip, 0)
    }

    fn build(through: FilesThrough, settings: &str, round_trip: Duration, user: u32) -> Self {
        let runtime = Runtime::new().unwrap();
        let folder = tempfile::tempdir().unwrap();
        if user != 0 {
            std::os::unix::fs::chown(folder.path(), Some(user), None).unwrap();
        }
        // It ends when its input does, which is when this process ends, however it does.
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
            session.with_files_through(through).unwrap()
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

    /// A file at the target, by another way than the session.
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
        let opened: Result<OwnedFd, Instead> = self.files().open(&self.path(name), &options);
        opened.map(File::from).map_err(errno)
    }

    /// How many files with such names the agent has open. It is part of this process.
    pub(crate) fn open_at_target(&self, names: &str) -> usize {
        let folder = self.folder.path().canonicalize().unwrap();
        let beginning = folder.join(names).into_os_string();
        let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let opened = descriptors.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        opened
            .filter(|path| {
                let path = path.as_os_str().as_encoded_bytes();
                path.starts_with(beginning.as_encoded_bytes())
            })
            .count()
    }

    pub(crate) fn received(&self) -> u64 {
        self.traffic.received.load(Ordering::SeqCst)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.target.kill();
        let _ = self.target.wait();
    }
}

pub(crate) fn errno(instead: Instead) -> Errno {
    match instead {
        Instead::Fail(errno) => errno,
        Instead::Local => panic!("it is not local"),
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

/// A long wire: it holds as many bytes as there are.
async fn delay(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin + Send + 'static,
    by: Duration,
) {
    let (parts_to_far_end, mut parts) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some((when, part)) = parts.recv().await {
            tokio::time::sleep_until(when).await;
            let part: Vec<u8> = part;
            if to.write_all(&part).await.is_err() {
                return;
            }
        }
    });
    let mut buffer = vec![0; 256 * 1024];
    while let Ok(count) = from.read(&mut buffer).await
        && count > 0
    {
        let when = tokio::time::Instant::now() + by;
        let _ = parts_to_far_end.send((when, buffer[..count].to_vec()));
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
    let pipe = Counted {
        pipe: near,
        traffic,
    };
    let surroundings = Surroundings::default();
    Session::over(pipe, "", &settings, &EnvFile::default(), &surroundings)
        .await
        .unwrap()
}

/// Counts what travels.
struct Counted {
    pipe: DuplexStream,
    traffic: Arc<Traffic>,
}

impl AsyncRead for Counted {
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

impl AsyncWrite for Counted {
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

/// Waits for something that must become true soon.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !condition() {
        assert!(start.elapsed().as_secs() < 30, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

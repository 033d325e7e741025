//! A simulated target.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak};

use interceptor::{
    CallResult, Completion, Destination, DestinationChoice, Directory, Errno, FileSystemStats,
    Host, Intent, Launch, Listener, ListenerChoice, Metadata, Notice, OpenOptions,
    OutgoingConnection, PathChoice, PendingConnection, PendingListener, RemoteFiles,
    SocketAddresses, Times, Transport,
};

/// Methods that are forwarded to the directory.
macro_rules! forward {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($argument: $kind),*) -> $result {
            self.files.$name($($argument),*)
        })*
    };
}

/// Everything below is on the target, and not on this machine.
pub(crate) const REMOTE: &str = "/remote-files";

/// Everything below is on this machine, at another path.
pub(crate) const RENAMED: &str = "/renamed-files";

/// A target with a temporary directory as its file system.
pub(crate) struct Target {
    /// Paths about which the host was consulted.
    pub(crate) choices: Mutex<Vec<PathBuf>>,
    /// Decisions that took effect.
    pub(crate) decisions: Mutex<Vec<(PathBuf, PathChoice)>>,
    pub(crate) root: tempfile::TempDir,
    /// A directory of this machine that is also on the target, with other files.
    both: Mutex<Option<PathBuf>>,
    files: Directory,
    pub(crate) notices: Mutex<Vec<Notice>>,
    /// How many connections were established.
    pub(crate) established: AtomicUsize,
    /// Whether listening sockets of the application receive the target's traffic.
    pub(crate) accepts_listeners: AtomicBool,
    /// The listeners, in the order of `listen` calls.
    pub(crate) listeners: Mutex<Vec<(Transport, SocketAddr, Listener)>>,
    this: Weak<Self>,
    gate: Mutex<bool>,
    gate_opened: Condvar,
}

impl Target {
    pub(crate) fn new() -> Arc<Self> {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("remote-files")).unwrap();
        std::fs::create_dir(root.path().join("renamed-files")).unwrap();
        Arc::new_cyclic(|this| Self {
            this: this.clone(),
            established: AtomicUsize::new(0),
            accepts_listeners: AtomicBool::new(false),
            listeners: Mutex::default(),
            gate: Mutex::default(),
            gate_opened: Condvar::new(),
            files: Directory::open(root.path()).unwrap(),
            root,
            both: Mutex::default(),
            notices: Mutex::default(),
            choices: Mutex::default(),
            decisions: Mutex::default(),
        })
    }
}

impl Target {
    /// Makes the target have a directory of this machine as well. Its files there are those of [`REMOTE`].
    pub(crate) fn has_also(&self, directory: &Path) {
        *self.both.lock().unwrap() = Some(directory.to_path_buf());
    }

    /// The local path of a remote file.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join("remote-files").join(name)
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }
}

/// Addresses that only the target reaches. [`Target::serve`] simulates their servers.
fn is_remote_address(address: &SocketAddr) -> bool {
    match address.ip() {
        IpAddr::V4(ip) => ip.octets().starts_with(&[198, 51, 100]),
        IpAddr::V6(ip) => ip.segments().starts_with(&[0x2001, 0xdb8]),
    }
}

/// A port on which listening is refused.
pub(crate) const REFUSED_PORT: u16 = 61_099;

/// The local address of the target.
const LOCAL: &str = "10.1.2.3:54321";

impl Target {
    /// Lets connections to 198.51.100.9 be established, and those to 198.51.100.10 be read.
    pub(crate) fn open_gate(&self) {
        *self.gate.lock().unwrap() = true;
        self.gate_opened.notify_all();
    }

    fn wait_for_gate(&self) {
        let mut gate = self.gate.lock().unwrap();
        while !*gate {
            gate = self.gate_opened.wait(gate).unwrap();
        }
    }

    fn serve(&self, outgoing: PendingConnection) {
        let address = match outgoing.destination() {
            Destination::Internet(address) => *address,
            Destination::Unix(_) => "198.51.100.7:7".parse().unwrap(),
        };
        let last = match address.ip() {
            IpAddr::V4(ip) => ip.octets()[3],
            IpAddr::V6(ip) => ip.octets()[15],
        };
        if last == 9 {
            self.wait_for_gate();
        }
        if last == 8 {
            return outgoing.refuse(Errno::EHOSTUNREACH);
        }
        if address.port() != 7 {
            return outgoing.refuse(Errno::ECONNREFUSED);
        }
        let addresses = SocketAddresses {
            local: Some(LOCAL.parse().unwrap()),
            peer: None,
        };
        let stream = outgoing.transport() != Transport::Udp;
        if let Ok(connection) = outgoing.establish(addresses) {
            self.established.fetch_add(1, Ordering::SeqCst);
            if last == 10 {
                self.wait_for_gate();
            }
            echo(connection, stream);
        }
    }
}

/// Sends received data back in upper case. For datagrams, until the socket is closed.
fn echo(connection: OutgoingConnection, stream: bool) {
    let (socket, registration) = connection.into_parts();
    let mut file = File::from(socket);
    let mut buffer = vec![0; 65536];
    while let Ok(length) = file.read(&mut buffer) {
        if length == 0 && stream {
            break;
        }
        buffer[..length].make_ascii_uppercase();
        // An empty datagram must be sent as well.
        let sent = if stream {
            file.write_all(&buffer[..length])
        } else {
            file.write(&buffer[..length]).map(drop)
        };
        if sent.is_err() {
            break;
        }
        if buffer[..length] == *b"BYE\n" {
            break;
        }
    }
    drop(registration);
}

impl Host for Target {
    fn choose_destination(&self, _: Transport, destination: &Destination) -> DestinationChoice {
        let remote = match destination {
            Destination::Internet(address) => is_remote_address(address),
            Destination::Unix(path) if path.ends_with("refused.sock") => {
                return DestinationChoice::Refused(Errno::ENOENT);
            }
            Destination::Unix(path) => path.starts_with(REMOTE),
        };
        match remote {
            true => DestinationChoice::Remote,
            false => DestinationChoice::Local,
        }
    }

    fn connect(&self, outgoing: PendingConnection) {
        let this = self.this.upgrade().unwrap();
        std::thread::spawn(move || this.serve(outgoing));
    }

    fn choose_listener(&self, _: Transport, _: SocketAddr) -> ListenerChoice {
        match self.accepts_listeners.load(Ordering::SeqCst) {
            true => ListenerChoice::Target,
            false => ListenerChoice::Local,
        }
    }

    fn listen(&self, listening: PendingListener) {
        let (transport, address) = (listening.transport(), listening.address());
        if address.port() == REFUSED_PORT {
            return listening.refuse(Errno::EADDRINUSE);
        }
        // The lock is taken first: the program continues when its listener is accepted, and may listen again
        // immediately.
        let mut listeners = self.listeners.lock().unwrap();
        let listener = listening.accept();
        listeners.push((transport, address, listener));
    }

    fn path_decided(&self, path: &Path, _: Intent, choice: &PathChoice) {
        let mut decisions = self.decisions.lock().unwrap();
        decisions.push((path.to_path_buf(), choice.clone()));
    }

    fn choose_path(&self, path: &Path, intent: Intent) -> PathChoice {
        self.choices.lock().unwrap().push(path.to_path_buf());
        if path == Path::new("/etc/hidden-passwd") || path == Path::new("/etc/passwd") {
            return PathChoice::Refused(Errno::ENOENT);
        }
        let writes = matches!(intent, Intent::Write | Intent::ReadAndWrite);
        if path.starts_with("/remote-files/read-only") && writes {
            return PathChoice::Refused(Errno::EROFS);
        }
        if path.starts_with(REMOTE) {
            return PathChoice::Remote(path.to_path_buf());
        }
        let both = self.both.lock().unwrap();
        if let Some(both) = &*both
            && let Ok(rest) = path.strip_prefix(both)
        {
            return PathChoice::Remote(Path::new(REMOTE).join(rest));
        }
        if let Ok(rest) = path.strip_prefix("/mapped") {
            return PathChoice::Remote(Path::new(REMOTE).join(rest));
        }
        if path.starts_with(RENAMED) {
            let rest = path.strip_prefix("/").unwrap_or(path);
            return PathChoice::LocalAs(self.root.path().join(rest));
        }
        PathChoice::Local
    }

    fn files(&self) -> &dyn RemoteFiles {
        self
    }

    fn hostname(&self) -> Option<OsString> {
        Some("checkout-7d9f".into())
    }

    fn skips_program(&self, program: &Path) -> bool {
        program.ends_with("skipped-program")
    }

    fn notice(&self, notice: &Notice) {
        self.notices.lock().unwrap().push(notice.clone());
    }
}

impl Target {
    /// `later` is completed by another thread, and only then: the file itself does not exist. `abandoned` is never
    /// completed.
    fn start<T: 'static>(
        &self,
        path: &Path,
        then: Completion<T>,
        query: impl FnOnce(&Self, &Path) -> CallResult<T> + Send + 'static,
    ) -> Result<(), Completion<T>> {
        if path.ends_with("abandoned") {
            return Ok(());
        }
        if !path.ends_with("later") {
            return Err(then);
        }
        let (this, path) = (
            self.this.upgrade().unwrap(),
            path.with_file_name("content-of-later"),
        );
        std::thread::spawn(move || then(query(&this, &path)));
        Ok(())
    }
}

/// The files of the directory; opening `slow` waits for the gate.
impl RemoteFiles for Target {
    fn start_open(
        &self,
        path: &Path,
        options: &OpenOptions,
        then: Completion<OwnedFd>,
    ) -> Result<(), Completion<OwnedFd>> {
        let options = *options;
        self.start(path, then, move |this, path| this.open(path, &options))
    }

    fn start_metadata(
        &self,
        path: &Path,
        follow: bool,
        then: Completion<Metadata>,
    ) -> Result<(), Completion<Metadata>> {
        self.start(path, then, move |this, path| this.metadata(path, follow))
    }

    fn start_access(
        &self,
        path: &Path,
        mode: i32,
        follow: bool,
        then: Completion<()>,
    ) -> Result<(), Completion<()>> {
        self.start(path, then, move |this, path| {
            this.access(path, mode, follow)
        })
    }

    fn open(&self, path: &Path, options: &OpenOptions) -> CallResult<OwnedFd> {
        if path.ends_with("slow") {
            self.wait_for_gate();
        }
        self.files.open(path, options)
    }

    forward! {
        metadata(path: &Path, follow: bool) -> CallResult<Metadata>;
        read_link(path: &Path) -> CallResult<PathBuf>;
        access(path: &Path, mode: i32, follow: bool) -> CallResult<()>;
        file_system(path: &Path) -> CallResult<FileSystemStats>;
        create_directory(path: &Path, mode: u32) -> CallResult<()>;
        create_node(path: &Path, mode: u32, device: u64) -> CallResult<()>;
        remove_file(path: &Path) -> CallResult<()>;
        remove_directory(path: &Path) -> CallResult<()>;
        rename(from: &Path, to: &Path, flags: u32) -> CallResult<()>;
        create_hard_link(from: &Path, to: &Path, follow: bool) -> CallResult<()>;
        name_open_file(file: BorrowedFd<'_>, to: &Path) -> CallResult<()>;
        create_symbolic_link(content: &Path, path: &Path) -> CallResult<()>;
        set_mode(path: &Path, mode: u32, follow: bool) -> CallResult<()>;
        set_owner(path: &Path, user: Option<u32>, group: Option<u32>, follow: bool) -> CallResult<()>;
        set_times(path: &Path, times: &Times, follow: bool) -> CallResult<()>;
        set_length(path: &Path, length: u64) -> CallResult<()>;
        attribute(path: &Path, name: &OsStr, follow: bool) -> CallResult<Vec<u8>>;
        attributes(path: &Path, follow: bool) -> CallResult<Vec<u8>>;
        set_attribute(path: &Path, name: &OsStr, value: &[u8], flags: i32, follow: bool) -> CallResult<()>;
        remove_attribute(path: &Path, name: &OsStr, follow: bool) -> CallResult<()>;
    }
}

/// The exit status and the output of a program.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ProgramExit {
    pub(crate) status: ExitStatus,
    pub(crate) output: String,
}

impl ProgramExit {
    /// The output of a program that must have succeeded.
    #[track_caller]
    pub(crate) fn output(self) -> String {
        assert!(
            self.status.success(),
            "{:?} after: {}",
            self.status,
            self.output
        );
        self.output
    }
}

/// The environment of test programs.
pub(crate) fn environment() -> Vec<(OsString, OsString)> {
    std::env::vars_os()
        .filter(|(name, _)| ["PATH", "HOME", "LANG"].iter().any(|keep| name == *keep))
        .collect()
}

/// A shell script whose output goes to a file.
pub(crate) fn shell(script: &str, output: &Path) -> Launch {
    let script = format!("exec >'{}' 2>&1\n{script}", output.display());
    Launch::new("bash")
        .arguments(["-c", &script])
        .environment(environment())
}

/// Runs a script under supervision.
pub(crate) fn run(target: &Arc<Target>, script: &str) -> ProgramExit {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("output");
    let mut supervised = shell(script, &output)
        .start(Arc::clone(target) as _)
        .unwrap();
    let status = supervised.wait().unwrap();
    let output = std::fs::read(&output).unwrap_or_default();
    ProgramExit {
        status,
        output: String::from_utf8_lossy(&output).into_owned(),
    }
}

/// Runs the same script without supervision, in the same environment, so that both are comparable.
pub(crate) fn run_bare(script: &str) -> ProgramExit {
    let output = std::process::Command::new("bash")
        .args(["-c", &format!("exec 2>&1\n{script}")])
        .env_clear()
        .envs(environment())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    ProgramExit {
        status: ExitStatus::from_raw(output.status.into_raw()),
        output: String::from_utf8_lossy(&output.stdout).into_owned(),
    }
}

/// Waits for a condition, with a timeout.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !condition() {
        assert!(start.elapsed().as_secs() < 30, "timed out: {what}");
        std::thread::yield_now();
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

/// Whether a process exists and is not a zombie.
pub(crate) fn is_alive(process: &str) -> bool {
    let stat = std::fs::read_to_string(PathBuf::from("/proc").join(process).join("stat"));
    stat.is_ok_and(|stat| {
        !stat
            .rsplit_once(')')
            .is_some_and(|(_, rest)| rest.starts_with(" Z"))
    })
}

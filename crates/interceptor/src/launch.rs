//! Starting a program under supervision.

mod supervised;

use std::ffi::{CString, OsStr, OsString};
use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg, socketpair,
};

pub use self::supervised::{Signaller, Supervised};

use crate::diagnose::{ListenerFeatures, check_kernel, listener_features, read_copy};
use crate::filter::{self, Catch, FIRST_DATAGRAM_DESCRIPTOR};
use crate::supervisor::Supervisor;
use crate::sys::process;
use crate::sys::shared::Shared;
use crate::sys::spawn::{self, Body, Executable, Plan, Report, Stage};
use crate::{Errno, Error, Host};

/// A program to start, and how it is supervised.
#[derive(Debug, Clone)]
pub struct Launch {
    program: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    directory: Option<PathBuf>,
    files: bool,
    outgoing: bool,
    incoming: bool,
    hostname: bool,
    allow_io_uring: bool,
    let_signals_wait: bool,
}

impl Launch {
    /// A program by name, which is looked for in our `PATH`, or by path. It starts without any environment.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            arguments: Vec::new(),
            environment: Vec::new(),
            directory: None,
            files: true,
            outgoing: true,
            incoming: true,
            hostname: true,
            allow_io_uring: false,
            let_signals_wait: true,
        }
    }

    #[must_use]
    pub fn arguments(mut self, arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// The whole environment of the program, there from its first instruction.
    #[must_use]
    pub fn environment(
        mut self,
        variables: impl IntoIterator<Item = (impl Into<OsString>, impl Into<OsString>)>,
    ) -> Self {
        let variables = variables.into_iter();
        self.environment = variables
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        self
    }

    /// The directory of this machine in which the program starts; ours if not set.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// Whether calls about files are caught. What is not caught is local, and costs nothing.
    #[must_use]
    pub fn catch_files(mut self, catch: bool) -> Self {
        self.files = catch;
        self
    }

    /// Whether outgoing connections are caught.
    #[must_use]
    pub fn catch_outgoing(mut self, catch: bool) -> Self {
        self.outgoing = catch;
        self
    }

    /// Whether sockets with which the program listens are caught.
    #[must_use]
    pub fn catch_incoming(mut self, catch: bool) -> Self {
        self.incoming = catch;
        self
    }

    /// Whether questions for the host's name are caught.
    #[must_use]
    pub fn catch_hostname(mut self, catch: bool) -> Self {
        self.hostname = catch;
        self
    }

    /// Lets the program use `io_uring`. What it does there is not seen, and so is local.
    #[must_use]
    pub fn allow_io_uring(mut self, allow: bool) -> Self {
        self.allow_io_uring = allow;
        self
    }

    /// Whether signals wait for answers where the kernel can do that. It always should; without, it is as on a kernel
    /// that cannot, to try out what happens there. See [`Supervised::signals_wait`].
    #[must_use]
    pub fn let_signals_wait(mut self, wait: bool) -> Self {
        self.let_signals_wait = wait;
        self
    }

    /// Starts the program.
    ///
    /// Signals are the caller's to care for: a terminal sends them to us and to the application alike, and
    /// [`Supervised::signal`] passes on those that only we got. Dispositions that are `ignore` are inherited.
    ///
    /// # Errors
    /// When the program cannot be found or executed, or when this machine does not allow supervision.
    pub fn start(self, host: Arc<dyn Host>) -> Result<Supervised, Error> {
        let program = find_program(&self.program)?;
        let body = Body::Execute(self.executable(&program)?);
        start(&body, Supervisor::new(host, self.catch()))
            .map_err(|failure| failure.explain(program, self.directory.unwrap_or_default()))
    }

    /// Does everything of [`start`](Self::start) that needs neither the environment nor a host. An environment that was
    /// set here is not used.
    ///
    /// # Errors
    /// As there, but for a program that cannot be executed.
    pub fn prepare(self) -> Result<Prepared, Error> {
        let program = find_program(&self.program)?;
        let body = Body::Execute(self.executable(&program)?);
        let environment = Shared::new().map_err(|source| Error::System {
            what: "map shared memory",
            source,
        })?;
        let catch = self.catch();
        let directory = self.directory.unwrap_or_default();
        match begin(&body, &catch, Some(&environment)) {
            Ok(begun) => Ok(Prepared {
                begun,
                environment,
                catch,
                program,
                directory,
            }),
            Err(failure) => Err(failure.explain(program, directory)),
        }
    }

    fn catch(&self) -> Catch {
        Catch {
            files: self.files,
            outgoing: self.outgoing,
            incoming: self.incoming,
            hostname: self.hostname,
            refuse_io_uring: !self.allow_io_uring,
            first_datagram_descriptor: first_datagram_descriptor(),
            let_signals_wait: self.let_signals_wait,
        }
    }

    fn executable(&self, program: &Path) -> Result<Executable, Error> {
        let mut arguments = vec![c_string(self.program.as_os_str(), "the program's name")?];
        for argument in &self.arguments {
            arguments.push(c_string(argument, "an argument")?);
        }
        let environment = variables(&self.environment)?;
        let directory = self
            .directory
            .as_ref()
            .map(|path| c_string(path.as_os_str(), "the directory"))
            .transpose()?;
        let path = c_string(program.as_os_str(), "the program's path")?;
        Ok(Executable::new(path, arguments, environment, directory))
    }
}

/// Why a body could not be started, before it is known what it was.
#[derive(Debug)]
pub(crate) enum Failure {
    Error(Error),
    Execute(Errno),
    Directory(Errno),
}

impl Failure {
    fn explain(self, program: PathBuf, directory: PathBuf) -> Error {
        match self {
            Self::Error(error) => error,
            Self::Execute(source) => Error::Execute { program, source },
            Self::Directory(source) => Error::Directory { directory, source },
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Error(error) => error,
            Failure::Execute(source) | Failure::Directory(source) => Self::System {
                what: "start a process",
                source,
            },
        }
    }
}

/// Starts watcher, application and the thread that answers.
pub(crate) fn start(body: &Body, supervisor: Supervisor) -> Result<Supervised, Failure> {
    begin(body, &supervisor.catch, None)?.run(supervisor)
}

/// Processes that are there and filtered, and of which no call was answered yet.
struct Begun {
    // These two are closed first: an application that waits for them then ends, and only then does its watcher go on.
    hand_over: OwnedFd,
    listener: Option<OwnedFd>,
    supervised: Supervised,
}

/// Starts watcher and application. The latter executes nothing before it is told to, if its environment comes later.
fn begin(body: &Body, catch: &Catch, environment: Option<&Shared>) -> Result<Begun, Failure> {
    let failed = |what| move |source| Failure::Error(Error::System { what, source });
    check_kernel().map_err(Failure::Error)?;
    let pair = || {
        socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )
        .map_err(failed("make a pair of sockets"))
    };
    let (control, watcher_control) = pair()?;
    let (hand_over, child_hand_over) = pair()?;
    let us = process::open(process::own_id()).map_err(failed("open our own process"))?;
    // It starts while the processes do.
    let (listener_to_receiver, given) = std::sync::mpsc::channel();
    let receiver = std::thread::Builder::new()
        .name("standin-calls".to_owned())
        .spawn(move || {
            let given: Result<(Supervisor, OwnedFd), _> = given.recv();
            if let Ok((supervisor, listener)) = given {
                supervisor.run(listener);
            }
        })
        .map_err(|error| crate::notification::errno_of(&error))
        .map_err(failed("start a thread"))?;
    let watcher = spawn::spawn(&Plan {
        filter: &filter::program(catch),
        hand_over_below: i32::try_from(catch.first_datagram_descriptor).unwrap_or(i32::MAX),
        let_signals_wait: catch.let_signals_wait,
        body,
        environment,
        control: watcher_control.as_fd(),
        hand_over: child_hand_over.as_fd(),
        supervisor: us.as_fd(),
    })
    .map_err(failed("start a process"))?;
    drop((watcher_control, child_hand_over));

    // From here on dropping it ends everything.
    let mut begun = Begun {
        hand_over,
        listener: None,
        supervised: Supervised {
            control: Some(UnixStream::from(control)),
            watcher,
            application: None,
            process: 0,
            receiver: Some(receiver),
            listener_to_receiver: Some(listener_to_receiver),
            exit: None,
            signals_wait: false,
            features: ListenerFeatures::default(),
        },
    };
    let supervised = &mut begun.supervised;
    match receive_report(&begun.hand_over)? {
        (Some(report), Some(listener)) if report.stage == Stage::Supervised => {
            supervised.process = report.process;
            supervised.signals_wait = report.signals_wait;
            supervised.features = listener_features(listener.as_fd());
            begun.listener = Some(listener);
        }
        (report, _) => return Err(explain(report)),
    }
    supervised.application = process::open(supervised.process).ok();
    // Nobody answers yet, so it is still a copy of us: `execve` waits.
    read_copy(supervised.process).map_err(|source| Failure::Error(Error::Unreadable { source }))?;
    Ok(begun)
}

impl Begun {
    /// Answers calls from now on. Returns when the program runs.
    fn run(self, mut supervisor: Supervisor) -> Result<Supervised, Failure> {
        let Self {
            hand_over,
            listener,
            mut supervised,
        } = self;
        supervisor.restarts = (!supervised.signals_wait).then(Arc::default);
        let channel = supervised.listener_to_receiver.take();
        if let (Some(channel), Some(listener)) = (channel, listener) {
            let _ = channel.send((supervisor, listener));
        }
        // Nothing more comes when the program runs: its end of the hand-over is closed by `execve`.
        match receive_report(&hand_over)? {
            (None, _) => Ok(supervised),
            (report, _) => Err(explain(report)),
        }
    }
}

/// A program that is about to start: everything is there but its environment, and whoever answers.
///
/// Making it early, before the rest of a session, takes what is slow about starting out of the way: forking a process
/// that has grown. Dropping it ends what was begun.
pub struct Prepared {
    begun: Begun,
    environment: Shared,
    catch: Catch,
    program: PathBuf,
    directory: PathBuf,
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Prepared")
            .field("program", &self.program)
            .finish_non_exhaustive()
    }
}

impl Prepared {
    /// Starts the program, with this as its whole environment.
    ///
    /// # Errors
    /// When the program cannot be executed.
    pub fn start(
        mut self,
        environment: impl IntoIterator<Item = (impl Into<OsString>, impl Into<OsString>)>,
        host: Arc<dyn Host>,
    ) -> Result<Supervised, Error> {
        let environment = environment.into_iter();
        let environment: Vec<_> = environment
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        let (program, directory) = (self.program, self.directory);
        let written = self.environment.write(&variables(&environment)?);
        written.map_err(|source| Error::Execute {
            program: program.clone(),
            source,
        })?;
        // If it is gone, what it said last tells why.
        let _ = nix::sys::socket::send(
            self.begun.hand_over.as_raw_fd(),
            &[1],
            MsgFlags::MSG_NOSIGNAL,
        );
        self.begun
            .run(Supervisor::new(host, self.catch))
            .map_err(|failure| failure.explain(program, directory))
    }
}

/// The next message of the child, if it sends one, with the descriptor that came along.
fn receive_report(hand_over: &OwnedFd) -> Result<(Option<Report>, Option<OwnedFd>), Failure> {
    let failed = |source| Failure::Error(Error::HandOver { source });
    let mut bytes = [0; Report::LENGTH];
    let mut vectors = [IoSliceMut::new(&mut bytes)];
    let mut space = nix::cmsg_space!([std::os::fd::RawFd; 1]);
    let (length, descriptor) = loop {
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let raw = hand_over.as_raw_fd();
        match recvmsg::<()>(raw, &mut vectors, Some(&mut space), flags) {
            Ok(message) => {
                let rights = message
                    .cmsgs()
                    .map_err(failed)?
                    .find_map(|part| match part {
                        ControlMessageOwned::ScmRights(descriptors) => descriptors.first().copied(),
                        _ => None,
                    });
                break (message.bytes, rights.map(crate::sys::socket::own));
            }
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(failed(errno)),
        }
    };
    let report = if length == Report::LENGTH {
        Report::decode(bytes)
    } else {
        None
    };
    Ok((report, descriptor))
}

fn explain(report: Option<Report>) -> Failure {
    let Some(report) = report else {
        return Failure::Error(Error::EndedEarly);
    };
    let source = Errno::from_raw(report.errno);
    Failure::Error(match (report.stage, source) {
        (Stage::Execute, _) => return Failure::Execute(source),
        (Stage::Directory, _) => return Failure::Directory(source),
        (Stage::Filter, Errno::EBUSY) => Error::Nested,
        (Stage::Filter, Errno::EINVAL | Errno::ENOSYS) => Error::NoUserNotification,
        (Stage::Filter, _) => Error::Forbidden { source },
        (Stage::HandOver | Stage::Supervised, _) => Error::HandOver { source },
        (Stage::Fork, _) => Error::System {
            what: "start a process",
            source,
        },
    })
}

/// Descriptors must stay below the limit of open files, which may be low.
pub(crate) fn first_datagram_descriptor() -> u32 {
    let limit = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE)
        .map_or(1024, |(soft, _)| soft);
    let most = u32::try_from(limit / 4 * 3).unwrap_or(u32::MAX);
    most.clamp(16, FIRST_DATAGRAM_DESCRIPTOR)
}

fn variables(environment: &[(OsString, OsString)]) -> Result<Vec<CString>, Error> {
    let variable = |(name, value): &(OsString, OsString)| {
        let mut variable = name.clone();
        variable.push("=");
        variable.push(value);
        c_string(&variable, "a variable")
    };
    environment.iter().map(variable).collect()
}

fn c_string(text: &OsStr, what: &'static str) -> Result<CString, Error> {
    CString::new(text.as_bytes()).map_err(|_| Error::ZeroByte(what))
}

/// As a shell looks for a program.
fn find_program(program: &Path) -> Result<PathBuf, Error> {
    let not_found = || Error::ProgramNotFound(program.to_path_buf());
    if program.as_os_str().as_bytes().contains(&b'/') {
        return Ok(program.to_path_buf());
    }
    let path = std::env::var_os("PATH").ok_or_else(not_found)?;
    std::env::split_paths(&path)
        .map(|directory| directory.join(program))
        .find(|candidate| is_executable(candidate))
        .ok_or_else(not_found)
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && nix::unistd::access(path, nix::unistd::AccessFlags::X_OK).is_ok()
}

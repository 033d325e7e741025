//! Starts a program under supervision.

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

pub use self::supervised::{Signaller, SupervisedProcess};

use crate::diagnose::{ListenerFeatures, check_kernel, check_memory_access, listener_features};
use crate::filter::{self, FIRST_DATAGRAM_DESCRIPTOR, InterceptSettings};
use crate::supervisor::Supervisor;
use crate::sys::process;
use crate::sys::shared_environment::SharedEnvironment;
use crate::sys::spawn::{self, Executable, ProcessBody, SpawnPlan, StartPhase, StartReport};
use crate::{Errno, Error, Host};

/// A program to start, and the settings of its supervision.
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
    wait_killable: bool,
}

impl Launch {
    /// A program by path, or by a name that is searched in our `PATH`. It starts with an empty environment.
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
            wait_killable: true,
        }
    }

    #[must_use]
    pub fn arguments(mut self, arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Sets the whole environment of the program.
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

    /// Sets the local directory in which the program starts; the default is ours.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// Whether calls about files are intercepted. Calls that are not intercepted are local, and cost nothing.
    #[must_use]
    pub fn intercept_files(mut self, intercept: bool) -> Self {
        self.files = intercept;
        self
    }

    /// Whether outgoing connections are intercepted.
    #[must_use]
    pub fn intercept_outgoing(mut self, intercept: bool) -> Self {
        self.outgoing = intercept;
        self
    }

    /// Whether listening sockets are intercepted.
    #[must_use]
    pub fn intercept_incoming(mut self, intercept: bool) -> Self {
        self.incoming = intercept;
        self
    }

    /// Whether queries for the host name are intercepted.
    #[must_use]
    pub fn intercept_hostname(mut self, intercept: bool) -> Self {
        self.hostname = intercept;
        self
    }

    /// Allows `io_uring`. Its operations are not intercepted, and therefore local.
    #[must_use]
    pub fn allow_io_uring(mut self, allow: bool) -> Self {
        self.allow_io_uring = allow;
        self
    }

    /// Whether only fatal signals interrupt intercepted calls, if the kernel supports it; the default is true. False is
    /// for tests of the behaviour on older kernels. See [`SupervisedProcess::wait_killable`].
    #[must_use]
    pub fn wait_killable(mut self, wait: bool) -> Self {
        self.wait_killable = wait;
        self
    }

    /// Starts the program.
    ///
    /// The caller is responsible for signals: a terminal sends them to us and to the application alike, and
    /// [`SupervisedProcess::signal`] forwards those that only we received. Ignored signals stay ignored in the program.
    ///
    /// # Errors
    /// When the program cannot be found or executed, or when this machine does not allow supervision.
    pub fn start(self, host: Arc<dyn Host>) -> Result<SupervisedProcess, Error> {
        let program = find_program(&self.program)?;
        let body = ProcessBody::Execute(self.executable(&program)?);
        start(&body, Supervisor::new(host, self.intercept_settings()))
            .map_err(|failure| failure.explain(program, self.directory.unwrap_or_default()))
    }

    /// Does the part of [`start`](Self::start) that needs neither the environment nor a host. An environment that was
    /// set here is not used.
    ///
    /// # Errors
    /// Like [`start`](Self::start), except for a program that cannot be executed.
    pub fn prepare(self) -> Result<PreparedLaunch, Error> {
        let program = find_program(&self.program)?;
        let body = ProcessBody::Execute(self.executable(&program)?);
        let environment = SharedEnvironment::new().map_err(|source| Error::System {
            what: "map shared memory",
            source,
        })?;
        let settings = self.intercept_settings();
        let directory = self.directory.unwrap_or_default();
        match start_processes(&body, &settings, Some(&environment)) {
            Ok(started) => Ok(PreparedLaunch {
                started,
                environment,
                settings,
                program,
                directory,
            }),
            Err(failure) => Err(failure.explain(program, directory)),
        }
    }

    fn intercept_settings(&self) -> InterceptSettings {
        InterceptSettings {
            files: self.files,
            outgoing: self.outgoing,
            incoming: self.incoming,
            hostname: self.hostname,
            refuse_io_uring: !self.allow_io_uring,
            first_datagram_descriptor: first_datagram_descriptor(),
            wait_killable: self.wait_killable,
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

/// Why a process could not be started, without the program and directory.
#[derive(Debug)]
pub(crate) enum StartFailure {
    Error(Error),
    Execute(Errno),
    Directory(Errno),
}

impl StartFailure {
    fn explain(self, program: PathBuf, directory: PathBuf) -> Error {
        match self {
            Self::Error(error) => error,
            Self::Execute(source) => Error::Execute { program, source },
            Self::Directory(source) => Error::Directory { directory, source },
        }
    }
}

impl From<StartFailure> for Error {
    fn from(failure: StartFailure) -> Self {
        match failure {
            StartFailure::Error(error) => error,
            StartFailure::Execute(source) | StartFailure::Directory(source) => Self::System {
                what: "start a process",
                source,
            },
        }
    }
}

/// Starts watcher, application and receiving thread.
pub(crate) fn start(
    body: &ProcessBody,
    supervisor: Supervisor,
) -> Result<SupervisedProcess, StartFailure> {
    start_processes(body, &supervisor.settings, None)?.run(supervisor)
}

/// Processes that are started and filtered, and none of whose calls has been completed yet.
struct StartedProcesses {
    // These two are dropped first: an application that waits for them then exits, and only then does its watcher stop.
    hand_over: OwnedFd,
    listener: Option<OwnedFd>,
    supervised: SupervisedProcess,
}

/// Starts watcher and application. If the environment is provided later, the application executes nothing before it
/// gets a message.
fn start_processes(
    body: &ProcessBody,
    settings: &InterceptSettings,
    environment: Option<&SharedEnvironment>,
) -> Result<StartedProcesses, StartFailure> {
    let failed = |what| move |source| StartFailure::Error(Error::System { what, source });
    check_kernel().map_err(StartFailure::Error)?;
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
    // The thread starts in parallel with the processes.
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
    let watcher = spawn::spawn(&SpawnPlan {
        filter: &filter::program(settings),
        hand_over_below: i32::try_from(settings.first_datagram_descriptor).unwrap_or(i32::MAX),
        wait_killable: settings.wait_killable,
        body,
        environment,
        control: watcher_control.as_fd(),
        hand_over: child_hand_over.as_fd(),
        supervisor: us.as_fd(),
    })
    .map_err(failed("start a process"))?;
    drop((watcher_control, child_hand_over));

    // From here on, dropping this value ends all processes.
    let mut started = StartedProcesses {
        hand_over,
        listener: None,
        supervised: SupervisedProcess {
            control: Some(UnixStream::from(control)),
            watcher,
            application: None,
            process: 0,
            receiver: Some(receiver),
            listener_to_receiver: Some(listener_to_receiver),
            exit: None,
            wait_killable: false,
            features: ListenerFeatures::default(),
        },
    };
    let supervised = &mut started.supervised;
    match receive_report(&started.hand_over)? {
        (Some(report), Some(listener)) if report.phase == StartPhase::Supervised => {
            supervised.process = report.process;
            supervised.wait_killable = report.wait_killable;
            supervised.features = listener_features(listener.as_fd());
            started.listener = Some(listener);
        }
        (report, _) => return Err(explain(report)),
    }
    supervised.application = process::open(supervised.process).ok();
    // No call has been completed yet, so the process is still a copy of us, suspended in `execve`.
    check_memory_access(supervised.process)
        .map_err(|source| StartFailure::Error(Error::Unreadable { source }))?;
    Ok(started)
}

impl StartedProcesses {
    /// Starts to complete calls. Returns when the program runs.
    fn run(self, mut supervisor: Supervisor) -> Result<SupervisedProcess, StartFailure> {
        let Self {
            hand_over,
            listener,
            mut supervised,
        } = self;
        supervisor.restarts = (!supervised.wait_killable).then(Arc::default);
        let channel = supervised.listener_to_receiver.take();
        if let (Some(channel), Some(listener)) = (channel, listener) {
            let _ = channel.send((supervisor, listener));
        }
        // No more messages follow when the program runs: `execve` closes its end of the hand-over socket.
        match receive_report(&hand_over)? {
            (None, _) => Ok(supervised),
            (report, _) => Err(explain(report)),
        }
    }
}

/// A program that is ready to start, except for its environment and its host.
///
/// Preparing early, before the rest of a session, moves the slow part out of the critical path: forking a process that
/// has grown large. Dropping it ends the processes.
pub struct PreparedLaunch {
    started: StartedProcesses,
    environment: SharedEnvironment,
    settings: InterceptSettings,
    program: PathBuf,
    directory: PathBuf,
}

impl std::fmt::Debug for PreparedLaunch {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("PreparedLaunch")
            .field("program", &self.program)
            .finish_non_exhaustive()
    }
}

impl PreparedLaunch {
    /// Starts the program with this environment.
    ///
    /// # Errors
    /// When the program cannot be executed.
    pub fn start(
        mut self,
        environment: impl IntoIterator<Item = (impl Into<OsString>, impl Into<OsString>)>,
        host: Arc<dyn Host>,
    ) -> Result<SupervisedProcess, Error> {
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
        // If the process is gone, its last report tells why.
        let _ = nix::sys::socket::send(
            self.started.hand_over.as_raw_fd(),
            &[1],
            MsgFlags::MSG_NOSIGNAL,
        );
        self.started
            .run(Supervisor::new(host, self.settings))
            .map_err(|failure| failure.explain(program, directory))
    }
}

/// Receives the next message of the child, if it sends one, and the attached descriptor.
fn receive_report(
    hand_over: &OwnedFd,
) -> Result<(Option<StartReport>, Option<OwnedFd>), StartFailure> {
    let failed = |source| StartFailure::Error(Error::HandOver { source });
    let mut bytes = [0; StartReport::LENGTH];
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
    let report = if length == StartReport::LENGTH {
        StartReport::decode(bytes)
    } else {
        None
    };
    Ok((report, descriptor))
}

fn explain(report: Option<StartReport>) -> StartFailure {
    let Some(report) = report else {
        return StartFailure::Error(Error::EndedEarly);
    };
    let source = Errno::from_raw(report.errno);
    StartFailure::Error(match (report.phase, source) {
        (StartPhase::Execute, _) => return StartFailure::Execute(source),
        (StartPhase::Directory, _) => return StartFailure::Directory(source),
        (StartPhase::Filter, Errno::EBUSY) => Error::Nested,
        (StartPhase::Filter, Errno::EINVAL | Errno::ENOSYS) => Error::NoUserNotification,
        (StartPhase::Filter, _) => Error::Forbidden { source },
        (StartPhase::HandOver | StartPhase::Supervised, _) => Error::HandOver { source },
        (StartPhase::Fork, _) => Error::System {
            what: "start a process",
            source,
        },
    })
}

/// Descriptors must stay below the limit of open files, which may be low.
pub(crate) fn first_datagram_descriptor() -> u32 {
    let limit = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE)
        .map_or(1024, |(soft, _)| soft);
    let limit = u32::try_from(limit / 4 * 3).unwrap_or(u32::MAX);
    limit.clamp(16, FIRST_DATAGRAM_DESCRIPTOR)
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

/// Searches a program like a shell.
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

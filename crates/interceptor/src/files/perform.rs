//! Performs file operations with the files of the target or of this machine.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::request::{Operation, PathArgument, Request, TimeFormat};
use super::resolve::ResolvedPath;
use super::write_structure;
use crate::host::{CallResult, Disposition, Intent, Notice, OpenOptions, PathChoice, RemoteFiles};
use crate::hostname::{self, SystemName};
use crate::metadata::{SetTime, Times, Timestamp};
use crate::notification::{Notification, PATH_MAX};
use crate::process::{copy_descriptor_of, umask_of};
use crate::supervisor::Supervisor;
use crate::{Errno, Metadata};

/// The result of an operation.
enum OperationResult {
    Value(i64),
    Descriptor(OwnedFd),
}

impl From<()> for OperationResult {
    fn from((): ()) -> Self {
        Self::Value(0)
    }
}

/// Performs a call whose paths are not simply local.
pub(super) fn perform(
    supervisor: &Supervisor,
    notification: Notification,
    request: &Request,
    paths: &[ResolvedPath],
) {
    if let Operation::Chdir = request.operation {
        return change_directory(supervisor, notification, paths);
    }
    let result = match paths {
        [ResolvedPath::Link(content)] => write_proc_link(&notification, request, content),
        [ResolvedPath::SystemName(name)] => {
            open_system_name(supervisor, &notification, request, *name)
        }
        [ResolvedPath::Machine { .. }, ..] if request.operation == Operation::Watch => {
            Err(Disposition::Local)
        }
        [ResolvedPath::Machine { app_path, path }] => perform_on_machine(
            supervisor,
            &notification,
            request,
            (app_path, path),
            Path::new(""),
        ),
        [
            ResolvedPath::Machine { app_path, path },
            ResolvedPath::Machine {
                app_path: second_app_path,
                path: second,
            },
        ] => {
            let both = (app_path.as_path(), path.as_path());
            let result = perform_on_machine(supervisor, &notification, request, both, second);
            update_renamed_paths(supervisor, request, &result, app_path, second_app_path);
            result
        }
        [
            ResolvedPath::Open(process, number),
            ResolvedPath::Remote { app_path, target },
        ] => {
            let files = supervisor.host.files();
            name_open_file(supervisor, files, (*process, *number), (app_path, target))
        }
        [
            ResolvedPath::Open(process, number),
            ResolvedPath::Machine { app_path, path },
        ] => {
            let files = supervisor.files.machine().map_err(Disposition::from);
            files.and_then(|files| {
                name_open_file(supervisor, files, (*process, *number), (app_path, path))
            })
        }
        [ResolvedPath::Remote { app_path, target }] => perform_remote(
            supervisor,
            &notification,
            request,
            (app_path, target),
            Path::new(""),
        ),
        [
            ResolvedPath::Remote { app_path, target },
            ResolvedPath::Remote {
                app_path: second_app_path,
                target: second,
            },
        ] => {
            let both = (app_path.as_path(), target.as_path());
            let result = perform_remote(supervisor, &notification, request, both, second);
            update_renamed_paths(supervisor, request, &result, app_path, second_app_path);
            result
        }
        _ => Err(Disposition::Local),
    };
    match result {
        Ok(OperationResult::Value(value)) => notification.succeed(value),
        Ok(OperationResult::Descriptor(descriptor)) => {
            let close_on_exec = matches!(request.operation, Operation::Open { flags, .. } if flags & libc::O_CLOEXEC != 0);
            notification.respond_with_descriptor(descriptor, close_on_exec);
        }
        Err(Disposition::Fail(errno)) => notification.fail(errno),
        Err(Disposition::Local) => notification.pass(),
    }
}

/// Updates the paths that only we track after a successful rename.
fn update_renamed_paths(
    supervisor: &Supervisor,
    request: &Request,
    result: &CallResult<OperationResult>,
    app_path: &Path,
    second_app_path: &Path,
) {
    if let (
        Ok(_),
        Operation::Rename {
            flags: 0 | libc::RENAME_NOREPLACE,
        },
    ) = (result, request.operation)
    {
        supervisor.files.rename(app_path, second_app_path);
        supervisor.processes.rename(app_path, second_app_path);
    }
}

fn perform_on_machine(
    supervisor: &Supervisor,
    notification: &Notification,
    request: &Request,
    (app_path, path): (&Path, &Path),
    second: &Path,
) -> CallResult<OperationResult> {
    let files = supervisor.files.machine()?;
    let outcome = execute(files, notification, request, path, second);
    // The kernel has the local path, the application uses another one.
    if let Ok(OperationResult::Descriptor(descriptor)) = &outcome
        && app_path != path
    {
        record_opened(supervisor, request, descriptor, app_path);
    }
    outcome
}

fn perform_remote(
    supervisor: &Supervisor,
    notification: &Notification,
    request: &Request,
    (app_path, target): (&Path, &Path),
    second: &Path,
) -> CallResult<OperationResult> {
    if request.operation == Operation::Watch {
        supervisor.host.notice(&Notice::WatchRefused {
            path: app_path.to_path_buf(),
        });
        // The error of an exhausted limit: programs that can poll instead fall back to that.
        return Err(Errno::ENOSPC.into());
    }
    let files = supervisor.host.files();
    check_end(files, request, target)?;
    let outcome = execute(files, notification, request, target, second);
    if let Ok(OperationResult::Descriptor(descriptor)) = &outcome {
        record_opened(supervisor, request, descriptor, app_path);
    }
    outcome
}

fn record_opened(
    supervisor: &Supervisor,
    request: &Request,
    descriptor: &OwnedFd,
    app_path: &Path,
) {
    match request.operation {
        Operation::Open { flags, .. } if flags & libc::O_TMPFILE == libc::O_TMPFILE => {
            supervisor
                .files
                .record_opened(descriptor, &unnamed_file_path(app_path));
        }
        _ => supervisor.files.record_opened(descriptor, app_path),
    }
}

/// The path that the kernel shows for an unnamed file in a directory.
fn unnamed_file_path(directory: &Path) -> PathBuf {
    directory.join("# (deleted)")
}

fn name_open_file(
    supervisor: &Supervisor,
    files: &dyn RemoteFiles,
    (process, number): (libc::pid_t, RawFd),
    (app_path, name): (&Path, &Path),
) -> CallResult<OperationResult> {
    let file = copy_descriptor_of(process, number)?;
    files.name_open_file(file.as_fd(), name)?;
    supervisor.files.record_opened(&file, app_path);
    Ok(().into())
}

fn write_proc_link(
    notification: &Notification,
    request: &Request,
    content: &Path,
) -> CallResult<OperationResult> {
    match request.operation {
        // The kernel has no text for a link to a file this deep.
        Operation::ReadLink { .. } if content.as_os_str().len() >= PATH_MAX => {
            Err(Errno::ENAMETOOLONG.into())
        }
        Operation::ReadLink { buffer, size } => Ok(OperationResult::Value(write_link(
            notification,
            buffer,
            size,
            content,
        )?)),
        _ => Err(Disposition::Local),
    }
}

/// Opens the file of the host name or domain name. For everything else it is a file of this machine.
fn open_system_name(
    supervisor: &Supervisor,
    notification: &Notification,
    request: &Request,
    name: SystemName,
) -> CallResult<OperationResult> {
    let Operation::Open { flags, .. } = request.operation else {
        return Err(Disposition::Local);
    };
    let exclusive = libc::O_CREAT | libc::O_EXCL;
    // The kernel reports the error, or opens a descriptor that cannot be read.
    if flags & (libc::O_PATH | libc::O_DIRECTORY) != 0
        || flags & exclusive == exclusive
        || request.path.wants_directory()
    {
        return Err(Disposition::Local);
    }
    let Some(opened) = hostname::open_file(supervisor, notification.thread(), name) else {
        return Err(Disposition::Local);
    };
    // Writing would change the name of this machine. In most containers, these files are read-only as well.
    if flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0 {
        return Err(Errno::EROFS.into());
    }
    Ok(OperationResult::Descriptor(opened?))
}

/// `chdir`. The kernel can only change to directories of this machine; we track all others.
fn change_directory(supervisor: &Supervisor, notification: Notification, paths: &[ResolvedPath]) {
    let check = |files: &dyn RemoteFiles, path: &Path| -> CallResult<()> {
        check_directory(&files.metadata(path, true)?)?;
        files.access(path, libc::X_OK, true)
    };
    let thread = notification.thread();
    let canonical;
    let (checked, directory) = match paths {
        [ResolvedPath::Machine { app_path, path }] => {
            let machine = supervisor.files.machine();
            let checked = machine.map_err(Disposition::from);
            (checked.and_then(|machine| check(machine, path)), app_path)
        }
        [ResolvedPath::Remote { app_path, target }] => {
            let files = supervisor.host.files();
            let checked = check(files, target);
            canonical = canonical_directory(supervisor, app_path, target);
            (checked, &canonical)
        }
        _ => {
            // The kernel changes the directory. If it fails, the virtual directory must stay; it is only cleared for an
            // existing directory that may be entered.
            let path = notification.read_string(notification.argument(0));
            let path = PathBuf::from(OsString::from_vec(path.unwrap_or_default()));
            let machine = supervisor.files.machine();
            if machine.is_ok_and(|machine| check(machine, &path).is_ok()) {
                supervisor.processes.set_directory(thread, None);
            }
            return notification.pass();
        }
    };
    match checked {
        Ok(()) if notification.is_valid() => {
            supervisor
                .processes
                .set_directory(thread, Some(directory.clone()));
            notification.succeed(0);
        }
        Ok(()) => notification.fail(Errno::EINTR),
        Err(Disposition::Fail(errno)) => notification.fail(errno),
        Err(Disposition::Local) => notification.pass(),
    }
}

/// The path of a target directory that `getcwd` returns. If its canonical path is not remote under the same path, the
/// path by which it was reached is kept.
fn canonical_directory(supervisor: &Supervisor, app_path: &Path, target: &Path) -> PathBuf {
    let host = &supervisor.host;
    match host.files().canonical(target) {
        Ok(canonical)
            if canonical != target
                && host.choose_path(&canonical, Intent::Stat)
                    == PathChoice::Remote(canonical.clone()) =>
        {
            canonical
        }
        _ => app_path.to_path_buf(),
    }
}

/// Checks that the kernel bases on the end of a path: `file/` is not a file, and `.` is not a name.
fn check_end(files: &dyn RemoteFiles, request: &Request, target: &Path) -> CallResult<()> {
    let wants_directory = request.path.wants_directory();
    let second_wants = request
        .second
        .as_ref()
        .is_some_and(PathArgument::wants_directory);
    if !wants_directory && !second_wants {
        return Ok(());
    }
    match (request.operation, request.path.last()) {
        (Operation::CreateDirectory { .. }, _) => return Ok(()),
        // Directories cannot be hard-linked.
        (Operation::HardLink, _) if second_wants => return Err(Errno::ENOENT.into()),
        (Operation::RemoveDirectory, b".") => return Err(Errno::EINVAL.into()),
        (Operation::RemoveDirectory, b"..") => return Err(Errno::ENOTEMPTY.into()),
        (Operation::Rename { .. }, b"." | b"..") => return Err(Errno::EBUSY.into()),
        (Operation::Open { flags, .. }, _) if flags & libc::O_CREAT != 0 => {
            return Err(Errno::EISDIR.into());
        }
        // These operations check it themselves.
        (Operation::Open { .. } | Operation::Stat { .. } | Operation::Statx { .. }, _) => {
            return Ok(());
        }
        _ => {}
    }
    check_directory(&files.metadata(target, true)?)?;
    match request.operation {
        Operation::ReadLink { .. } => Err(Errno::EINVAL.into()),
        _ => Ok(()),
    }
}

pub(super) fn check_directory(metadata: &Metadata) -> Result<(), Errno> {
    if metadata.mode & libc::S_IFMT == libc::S_IFDIR {
        Ok(())
    } else {
        Err(Errno::ENOTDIR)
    }
}

/// Calls `files`, and writes the result into the memory of the caller.
fn execute(
    files: &dyn RemoteFiles,
    from: &Notification,
    request: &Request,
    path: &Path,
    second: &Path,
) -> CallResult<OperationResult> {
    let wants_directory = request.path.wants_directory();
    let follow = request.path.follow || wants_directory;
    let describe = || -> CallResult<Metadata> {
        let metadata = files.metadata(path, follow)?;
        if wants_directory {
            check_directory(&metadata)?;
        }
        Ok(metadata)
    };
    match request.operation {
        Operation::Chroot => Err(Errno::EPERM.into()),
        Operation::Unsupported => Err(Errno::EOPNOTSUPP.into()),
        Operation::Open { .. } => {
            let mask = umask_of(from.thread());
            let options = open_options(request, mask).ok_or(Errno::EINVAL)?;
            check_caller(from)?;
            Ok(OperationResult::Descriptor(files.open(path, &options)?))
        }
        Operation::Stat { buffer } => {
            let structure = libc::stat::from(&describe()?);
            Ok(OperationResult::Value(write_structure(
                from, buffer, &structure,
            )?))
        }
        Operation::Statx { buffer } => {
            let structure = libc::statx::from(&describe()?);
            Ok(OperationResult::Value(write_structure(
                from, buffer, &structure,
            )?))
        }
        Operation::Access { mode } => Ok(files.access(path, mode, follow)?.into()),
        Operation::ReadLink { buffer, size } => {
            let content = files.read_link(path)?;
            Ok(OperationResult::Value(write_link(
                from, buffer, size, &content,
            )?))
        }
        Operation::FileSystem { buffer } => {
            let structure = libc::statfs::from(&files.file_system(path)?);
            Ok(OperationResult::Value(write_structure(
                from, buffer, &structure,
            )?))
        }
        Operation::Attribute { name, buffer, size } => {
            let name = read_name(from, name)?;
            let value = files.attribute(path, &name, follow)?;
            Ok(OperationResult::Value(write_sized(
                from, buffer, size, &value,
            )?))
        }
        Operation::Attributes { buffer, size } => {
            let names = files.attributes(path, follow)?;
            Ok(OperationResult::Value(write_sized(
                from, buffer, size, &names,
            )?))
        }
        _ => {
            check_caller(from)?;
            Ok(change(files, from, request, path, second)?.into())
        }
    }
}

/// Operations that change something and return no data.
fn change(
    files: &dyn RemoteFiles,
    from: &Notification,
    request: &Request,
    path: &Path,
    second: &Path,
) -> CallResult<()> {
    let follow = request.path.follow || request.path.wants_directory();
    let masked = |mode: u32| mode & !umask_of(from.thread());
    match request.operation {
        Operation::CreateDirectory { mode } => files.create_directory(path, masked(mode)),
        Operation::CreateNode { mode, device } => files.create_node(path, masked(mode), device),
        Operation::RemoveFile => files.remove_file(path),
        Operation::RemoveDirectory => files.remove_directory(path),
        Operation::Rename { flags } => files.rename(path, second, flags),
        Operation::HardLink => files.create_hard_link(path, second, follow),
        Operation::SymbolicLink { content } => {
            let content = read_name(from, content)?;
            files.create_symbolic_link(Path::new(&content), path)
        }
        Operation::SetMode { mode } => files.set_mode(path, mode & 0o7777, follow),
        Operation::SetOwner { user, group } => {
            let changed = |id: u32| (id != u32::MAX).then_some(id);
            files.set_owner(path, changed(user), changed(group), follow)
        }
        Operation::SetTimes { times, format } => {
            files.set_times(path, &read_times(from, times, format)?, follow)
        }
        Operation::SetLength { length } => files.set_length(path, length),
        Operation::SetAttribute {
            name,
            value,
            size,
            flags,
        } => {
            let name = read_name(from, name)?;
            let size = usize::try_from(size).unwrap_or(usize::MAX);
            if size > 65_536 {
                return Err(Errno::E2BIG.into());
            }
            let value = from.read_bytes(value, size)?;
            files.set_attribute(path, &name, &value, flags, follow)
        }
        Operation::RemoveAttribute { name } => {
            files.remove_attribute(path, &read_name(from, name)?, follow)
        }
        _ => Err(Disposition::Local),
    }
}

/// The options for opening a file for a caller with this umask. `None` for any other operation.
pub(super) fn open_options(request: &Request, mask: u32) -> Option<OpenOptions> {
    let Operation::Open {
        flags,
        mode,
        resolve,
    } = request.operation
    else {
        return None;
    };
    let directory = if request.path.wants_directory() {
        libc::O_DIRECTORY
    } else {
        0
    };
    Some(OpenOptions {
        flags: (transferable(flags) | directory) & !libc::O_CLOEXEC,
        mode: mode & !mask,
        // The path is absolute by now; the confinement applied to the path of the caller.
        resolve: resolve & !(libc::RESOLVE_BENEATH | libc::RESOLVE_IN_ROOT | libc::RESOLVE_CACHED),
    })
}

/// Whether an open may create or truncate a file.
pub(super) fn open_modifies(flags: i32) -> bool {
    let changes = libc::O_CREAT | libc::O_TRUNC;
    flags & changes != 0 || flags & libc::O_TMPFILE == libc::O_TMPFILE
}

/// The kernel cannot install an `O_PATH` descriptor in another process, so the caller gets a readable one.
fn transferable(flags: i32) -> i32 {
    if flags & libc::O_PATH == 0 {
        return flags;
    }
    flags & (libc::O_DIRECTORY | libc::O_NOFOLLOW) | libc::O_RDONLY | libc::O_NONBLOCK
}

/// Fails if the caller was killed meanwhile: nothing is changed on its behalf then.
fn check_caller(from: &Notification) -> Result<(), Errno> {
    if from.is_valid() {
        Ok(())
    } else {
        Err(Errno::EINTR)
    }
}

fn read_name(from: &Notification, address: u64) -> Result<OsString, Errno> {
    from.read_string(address).map(OsString::from_vec)
}

/// The content of a symbolic link is truncated to the buffer, without a terminating zero.
fn write_link(from: &Notification, buffer: u64, size: u64, content: &Path) -> Result<i64, Errno> {
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    if size == 0 {
        return Err(Errno::EINVAL);
    }
    let bytes = OsStr::as_bytes(content.as_os_str());
    let bytes = bytes.get(..size.min(bytes.len())).unwrap_or_default();
    from.memory()?.write(buffer, bytes)?;
    i64::try_from(bytes.len()).map_err(|_| Errno::EINVAL)
}

/// Attributes must fit into the buffer; a size of zero queries the required length.
fn write_sized(from: &Notification, buffer: u64, size: u64, bytes: &[u8]) -> Result<i64, Errno> {
    let length = i64::try_from(bytes.len()).map_err(|_| Errno::E2BIG)?;
    if size > 0 {
        if size < bytes.len() as u64 {
            return Err(Errno::ERANGE);
        }
        from.memory()?.write(buffer, bytes)?;
    }
    Ok(length)
}

fn read_times(from: &Notification, address: u64, format: TimeFormat) -> Result<Times, Errno> {
    if address == 0 {
        return Ok(Times {
            accessed: SetTime::Now,
            modified: SetTime::Now,
        });
    }
    let second = |size: usize| address + size as u64;
    let (accessed, modified) = match format {
        TimeFormat::Nanoseconds => {
            let read = |address| {
                let time: libc::timespec = from.read_plain(address)?;
                Ok::<_, Errno>(match time.tv_nsec {
                    libc::UTIME_NOW => SetTime::Now,
                    libc::UTIME_OMIT => SetTime::Keep,
                    nanoseconds => timestamp(time.tv_sec, nanoseconds)?,
                })
            };
            (read(address)?, read(second(size_of::<libc::timespec>()))?)
        }
        TimeFormat::Microseconds => {
            let read = |address| {
                let time: libc::timeval = from.read_plain(address)?;
                timestamp(time.tv_sec, time.tv_usec * 1000)
            };
            (read(address)?, read(second(size_of::<libc::timeval>()))?)
        }
        TimeFormat::Seconds => {
            let times: libc::utimbuf = from.read_plain(address)?;
            (timestamp(times.actime, 0)?, timestamp(times.modtime, 0)?)
        }
    };
    Ok(Times { accessed, modified })
}

fn timestamp(seconds: i64, nanoseconds: i64) -> Result<SetTime, Errno> {
    let nanoseconds = u32::try_from(nanoseconds).map_err(|_| Errno::EINVAL)?;
    if nanoseconds >= 1_000_000_000 {
        return Err(Errno::EINVAL);
    }
    Ok(SetTime::To(Timestamp {
        seconds,
        nanoseconds,
    }))
}

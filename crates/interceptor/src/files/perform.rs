//! Doing what a call asks for, with the files of the target or of this machine.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::request::{Operation, PathArgument, Request, TimeFormat};
use super::resolve::Place;
use super::write_structure;
use crate::host::{Answer, Instead, Intent, Notice, OpenOptions, PathChoice, RemoteFiles};
use crate::metadata::{Moment, SetTime, Times};
use crate::notification::Notification;
use crate::process::{copy_descriptor_of, creation_mask_of};
use crate::supervisor::Supervisor;
use crate::{Errno, Metadata};

/// What a call is answered with in the end.
enum Outcome {
    Value(i64),
    Descriptor(OwnedFd),
}

impl From<()> for Outcome {
    fn from((): ()) -> Self {
        Self::Value(0)
    }
}

/// Does a call whose paths are not simply local.
pub(super) fn perform(
    supervisor: &Supervisor,
    notification: Notification,
    request: &Request,
    places: &[Place],
) {
    if let Operation::Chdir = request.operation {
        return change_directory(supervisor, notification, places);
    }
    let answer = match places {
        [Place::Link(content)] => answer_link(&notification, request, content),
        [Place::Machine { .. }, ..] if request.operation == Operation::Watch => Err(Instead::Local),
        [Place::Machine { seen, path }] => on_machine(
            supervisor,
            &notification,
            request,
            (seen, path),
            Path::new(""),
        ),
        [
            Place::Machine { seen, path },
            Place::Machine {
                seen: second_seen,
                path: second,
            },
        ] => {
            let both = (seen.as_path(), path.as_path());
            let answer = on_machine(supervisor, &notification, request, both, second);
            rename_known(supervisor, request, &answer, seen, second_seen);
            answer
        }
        [Place::Open(process, number), Place::Remote { seen, target }] => {
            let files = supervisor.host.files();
            name_open_file(supervisor, files, (*process, *number), (seen, target))
        }
        [Place::Open(process, number), Place::Machine { seen, path }] => {
            let files = supervisor.files.machine().map_err(Instead::from);
            files.and_then(|files| {
                name_open_file(supervisor, files, (*process, *number), (seen, path))
            })
        }
        [Place::Remote { seen, target }] => remotely(
            supervisor,
            &notification,
            request,
            (seen, target),
            Path::new(""),
        ),
        [
            Place::Remote { seen, target },
            Place::Remote {
                seen: second_seen,
                target: second,
            },
        ] => {
            let both = (seen.as_path(), target.as_path());
            let answer = remotely(supervisor, &notification, request, both, second);
            rename_known(supervisor, request, &answer, seen, second_seen);
            answer
        }
        _ => Err(Instead::Local),
    };
    match answer {
        Ok(Outcome::Value(value)) => notification.succeed(value),
        Ok(Outcome::Descriptor(descriptor)) => {
            let close_on_exec = matches!(request.operation, Operation::Open { flags, .. } if flags & libc::O_CLOEXEC != 0);
            notification.give(descriptor, close_on_exec);
        }
        Err(Instead::Fail(errno)) => notification.fail(errno),
        Err(Instead::Local) => notification.pass(),
    }
}

/// What only we know by its name has another one now.
fn rename_known(
    supervisor: &Supervisor,
    request: &Request,
    answer: &Answer<Outcome>,
    seen: &Path,
    second_seen: &Path,
) {
    if let (
        Ok(_),
        Operation::Rename {
            flags: 0 | libc::RENAME_NOREPLACE,
        },
    ) = (answer, request.operation)
    {
        supervisor.files.rename(seen, second_seen);
        supervisor.processes.rename(seen, second_seen);
    }
}

fn on_machine(
    supervisor: &Supervisor,
    notification: &Notification,
    request: &Request,
    (seen, path): (&Path, &Path),
    second: &Path,
) -> Answer<Outcome> {
    let files = supervisor.files.machine()?;
    let outcome = do_it(files, notification, request, path, second);
    // The kernel knows it by its own name, and the application by another.
    if let Ok(Outcome::Descriptor(descriptor)) = &outcome
        && seen != path
    {
        remember(supervisor, request, descriptor, seen);
    }
    outcome
}

fn remotely(
    supervisor: &Supervisor,
    notification: &Notification,
    request: &Request,
    (seen, target): (&Path, &Path),
    second: &Path,
) -> Answer<Outcome> {
    if request.operation == Operation::Watch {
        supervisor.host.notice(&Notice::WatchRefused {
            path: seen.to_path_buf(),
        });
        // The error of a limit that is reached: programs that know to poll instead do so.
        return Err(Errno::ENOSPC.into());
    }
    let files = supervisor.host.files();
    check_end(files, request, target)?;
    let outcome = do_it(files, notification, request, target, second);
    if let Ok(Outcome::Descriptor(descriptor)) = &outcome {
        remember(supervisor, request, descriptor, seen);
    }
    outcome
}

fn remember(supervisor: &Supervisor, request: &Request, descriptor: &OwnedFd, seen: &Path) {
    match request.operation {
        Operation::Open { flags, .. } if flags & libc::O_TMPFILE == libc::O_TMPFILE => {
            supervisor.files.remember(descriptor, &unnamed(seen));
        }
        _ => supervisor.files.remember(descriptor, seen),
    }
}

/// What the kernel calls a file of a directory that has no name.
fn unnamed(directory: &Path) -> PathBuf {
    directory.join("# (deleted)")
}

fn name_open_file(
    supervisor: &Supervisor,
    files: &dyn RemoteFiles,
    (process, number): (libc::pid_t, RawFd),
    (seen, name): (&Path, &Path),
) -> Answer<Outcome> {
    let file = copy_descriptor_of(process, number)?;
    files.name_open_file(file.as_fd(), name)?;
    supervisor.files.remember(&file, seen);
    Ok(().into())
}

fn answer_link(notification: &Notification, request: &Request, content: &Path) -> Answer<Outcome> {
    match request.operation {
        Operation::ReadLink { buffer, size } => Ok(Outcome::Value(write_link(
            notification,
            buffer,
            size,
            content,
        )?)),
        _ => Err(Instead::Local),
    }
}

/// `chdir`. The kernel only knows directories of this machine; any other is for us to know.
fn change_directory(supervisor: &Supervisor, notification: Notification, places: &[Place]) {
    let check = |files: &dyn RemoteFiles, path: &Path| -> Answer<()> {
        check_directory(&files.metadata(path, true)?)?;
        files.access(path, libc::X_OK, true)
    };
    let thread = notification.thread();
    let canonical;
    let (checked, directory) = match places {
        [Place::Machine { seen, path }] => {
            let machine = supervisor.files.machine();
            let checked = machine.map_err(Instead::from);
            (checked.and_then(|machine| check(machine, path)), seen)
        }
        [Place::Remote { seen, target }] => {
            let files = supervisor.host.files();
            let checked = check(files, target);
            canonical = canonical_directory(supervisor, seen, target);
            (checked, &canonical)
        }
        _ => {
            // The kernel goes there. If it cannot, it stays, and so must our knowledge; only a real directory that
            // may be entered changes it.
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
        Err(Instead::Fail(errno)) => notification.fail(errno),
        Err(Instead::Local) => notification.pass(),
    }
}

/// The name by which `getcwd` knows a directory of the target. One that the target's links lead to from elsewhere keeps
/// the name by which it was reached if it has no other that leads there.
fn canonical_directory(supervisor: &Supervisor, seen: &Path, target: &Path) -> PathBuf {
    let host = &supervisor.host;
    match host.files().canonical(target) {
        Ok(canonical)
            if canonical != target
                && host.choose_path(&canonical, Intent::Look)
                    == PathChoice::Remote(canonical.clone()) =>
        {
            canonical
        }
        _ => seen.to_path_buf(),
    }
}

/// What the kernel checks by how a path ends: `file/` is no file, and `.` is no name.
fn check_end(files: &dyn RemoteFiles, request: &Request, target: &Path) -> Answer<()> {
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
        // No directory gets a second name.
        (Operation::HardLink, _) if second_wants => return Err(Errno::ENOENT.into()),
        (Operation::RemoveDirectory, b".") => return Err(Errno::EINVAL.into()),
        (Operation::RemoveDirectory, b"..") => return Err(Errno::ENOTEMPTY.into()),
        (Operation::Rename { .. }, b"." | b"..") => return Err(Errno::EBUSY.into()),
        (Operation::Open { flags, .. }, _) if flags & libc::O_CREAT != 0 => {
            return Err(Errno::EISDIR.into());
        }
        // These find out by themselves.
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

/// Asks `files`, and writes what it says into the caller's memory.
fn do_it(
    files: &dyn RemoteFiles,
    from: &Notification,
    request: &Request,
    path: &Path,
    second: &Path,
) -> Answer<Outcome> {
    let wants_directory = request.path.wants_directory();
    let follow = request.path.follow || wants_directory;
    let describe = || -> Answer<Metadata> {
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
            let mask = creation_mask_of(from.thread());
            let options = open_options(request, mask).ok_or(Errno::EINVAL)?;
            still_wanted(from)?;
            Ok(Outcome::Descriptor(files.open(path, &options)?))
        }
        Operation::Stat { buffer } => {
            let structure = libc::stat::from(&describe()?);
            Ok(Outcome::Value(write_structure(from, buffer, &structure)?))
        }
        Operation::Statx { buffer } => {
            let structure = libc::statx::from(&describe()?);
            Ok(Outcome::Value(write_structure(from, buffer, &structure)?))
        }
        Operation::Access { mode } => Ok(files.access(path, mode, follow)?.into()),
        Operation::ReadLink { buffer, size } => {
            let content = files.read_link(path)?;
            Ok(Outcome::Value(write_link(from, buffer, size, &content)?))
        }
        Operation::FileSystem { buffer } => {
            let structure = libc::statfs::from(&files.file_system(path)?);
            Ok(Outcome::Value(write_structure(from, buffer, &structure)?))
        }
        Operation::Attribute { name, buffer, size } => {
            let name = read_name(from, name)?;
            let value = files.attribute(path, &name, follow)?;
            Ok(Outcome::Value(write_sized(from, buffer, size, &value)?))
        }
        Operation::Attributes { buffer, size } => {
            let names = files.attributes(path, follow)?;
            Ok(Outcome::Value(write_sized(from, buffer, size, &names)?))
        }
        _ => {
            still_wanted(from)?;
            Ok(change(files, from, request, path, second)?.into())
        }
    }
}

/// The operations that change something and answer nothing.
fn change(
    files: &dyn RemoteFiles,
    from: &Notification,
    request: &Request,
    path: &Path,
    second: &Path,
) -> Answer<()> {
    let follow = request.path.follow || request.path.wants_directory();
    let masked = |mode: u32| mode & !creation_mask_of(from.thread());
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
        _ => Err(Instead::Local),
    }
}

/// How a file is to be opened, by a caller with this mask. `None` if that is not what is asked for.
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
        // The path is absolute by now, and what it may not leave was for the caller's path.
        resolve: resolve & !(libc::RESOLVE_BENEATH | libc::RESOLVE_IN_ROOT | libc::RESOLVE_CACHED),
    })
}

/// Whether an open may make or empty a file.
pub(super) fn open_changes(flags: i32) -> bool {
    let changes = libc::O_CREAT | libc::O_TRUNC;
    flags & changes != 0 || flags & libc::O_TMPFILE == libc::O_TMPFILE
}

/// The kernel does not let an `O_PATH` descriptor be given to another process, so that one gets a readable one.
fn transferable(flags: i32) -> i32 {
    if flags & libc::O_PATH == 0 {
        return flags;
    }
    flags & (libc::O_DIRECTORY | libc::O_NOFOLLOW) | libc::O_RDONLY | libc::O_NONBLOCK
}

/// The caller may have been killed since; then nothing is changed on its behalf.
fn still_wanted(from: &Notification) -> Result<(), Errno> {
    if from.is_valid() {
        Ok(())
    } else {
        Err(Errno::EINTR)
    }
}

fn read_name(from: &Notification, address: u64) -> Result<OsString, Errno> {
    from.read_string(address).map(OsString::from_vec)
}

/// Content of a symbolic link is cut to the buffer, without a zero.
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

/// Attributes must fit, and a size of zero asks how much room they need.
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
                    nanoseconds => moment(time.tv_sec, nanoseconds)?,
                })
            };
            (read(address)?, read(second(size_of::<libc::timespec>()))?)
        }
        TimeFormat::Microseconds => {
            let read = |address| {
                let time: libc::timeval = from.read_plain(address)?;
                moment(time.tv_sec, time.tv_usec * 1000)
            };
            (read(address)?, read(second(size_of::<libc::timeval>()))?)
        }
        TimeFormat::Seconds => {
            let times: libc::utimbuf = from.read_plain(address)?;
            (moment(times.actime, 0)?, moment(times.modtime, 0)?)
        }
    };
    Ok(Times { accessed, modified })
}

fn moment(seconds: i64, nanoseconds: i64) -> Result<SetTime, Errno> {
    let nanoseconds = u32::try_from(nanoseconds).map_err(|_| Errno::EINVAL)?;
    if nanoseconds >= 1_000_000_000 {
        return Err(Errno::EINVAL);
    }
    Ok(SetTime::To(Moment {
        seconds,
        nanoseconds,
    }))
}

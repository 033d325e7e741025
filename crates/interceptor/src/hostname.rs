//! The host name and the domain name that the application sees: `uname`, `sethostname`, `setdomainname`, and the two
//! files in `/proc/sys/kernel`.
//!
//! The host name is that of the target until the application sets another one. A caller that may set a name sets it for
//! the session: the names of this machine and of the target stay. In the kernel, the names belong to a UTS namespace. A
//! process in a namespace of its own sets the name there, in the kernel as well, because a file tree of its own shows
//! the files of the kernel. Until then it sees the names of the session.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::sys::memfd::{MFdFlags, memfd_create};
use parking_lot::Mutex;

use crate::Errno;
use crate::notification::{Notification, errno_of};
use crate::process::has_capability;
use crate::supervisor::{Decision, Supervisor};
use crate::sys::process::{owner_of_namespace, parent_of_namespace, system_names};
use crate::syscalls::Call;

/// The longest name, without the terminating zero.
const MAX_LENGTH: usize = 64;

/// How many namespaces with names of their own are tracked. When there are more, the oldest is dropped.
const MAX_NAMESPACES: usize = 256;

/// The capability to set the names.
const CAP_SYS_ADMIN: u32 = 21;

/// A name that a process can query and set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SystemName {
    Host,
    Domain,
}

impl SystemName {
    /// The name whose file in `/proc` this is.
    pub(crate) fn of_file(path: &Path) -> Option<Self> {
        match path.as_os_str().as_bytes() {
            b"/proc/sys/kernel/hostname" => Some(Self::Host),
            b"/proc/sys/kernel/domainname" => Some(Self::Domain),
            _ => None,
        }
    }
}

/// The names that the application has set.
#[derive(Debug, Default)]
pub(crate) struct SystemNames(Mutex<Vec<NamespaceNames>>);

/// The names that were set in one UTS namespace.
#[derive(Debug)]
struct NamespaceNames {
    /// Keeps the namespace, so that its number is not reused.
    namespace: Namespace,
    host: Option<Vec<u8>>,
    domain: Option<Vec<u8>>,
}

impl NamespaceNames {
    fn get(&self, name: SystemName) -> Option<&Vec<u8>> {
        match name {
            SystemName::Host => self.host.as_ref(),
            SystemName::Domain => self.domain.as_ref(),
        }
    }
}

impl SystemNames {
    /// The name that was set for a thread: in its namespace, or in that of the session.
    fn set_for(&self, thread: libc::pid_t, name: SystemName) -> Option<Vec<u8>> {
        let all = self.0.lock();
        if all.is_empty() {
            return None;
        }
        let session = Namespace::of_session().ok();
        let own = Namespace::of_thread(thread).ok();
        let find = |namespace: &Namespace| {
            let names = all.iter().find(|names| names.namespace.is(namespace))?;
            names.get(name).cloned()
        };
        let of_own = own.as_ref().and_then(find);
        of_own.or_else(|| session.as_ref().and_then(find))
    }

    fn set(&self, namespace: Namespace, name: SystemName, value: Vec<u8>) {
        let mut all = self.0.lock();
        let known = all.iter().position(|names| names.namespace.is(&namespace));
        let mut names = match known {
            Some(index) => all.remove(index),
            None => NamespaceNames {
                namespace,
                host: None,
                domain: None,
            },
        };
        match name {
            SystemName::Host => names.host = Some(value),
            SystemName::Domain => names.domain = Some(value),
        }
        if all.len() >= MAX_NAMESPACES {
            all.remove(0);
        }
        all.push(names);
    }
}

/// An open namespace.
#[derive(Debug)]
struct Namespace(File);

impl Namespace {
    /// The UTS namespace of the session, which is ours.
    fn of_session() -> Result<Self, Errno> {
        Self::open("/proc/self/ns/uts")
    }

    /// The UTS namespace of a thread.
    fn of_thread(thread: libc::pid_t) -> Result<Self, Errno> {
        Self::open(&format!("/proc/{thread}/ns/uts"))
    }

    fn open(path: &str) -> Result<Self, Errno> {
        File::open(path).map(Self).map_err(|error| errno_of(&error))
    }

    /// Whether both are the same namespace.
    fn is(&self, other: &Self) -> bool {
        let identity = |namespace: &Self| {
            let metadata = namespace.0.metadata().ok()?;
            Some((metadata.dev(), metadata.ino()))
        };
        identity(self) == identity(other)
    }

    /// Whether a thread has the capability to set the names in this namespace. The capability counts in the user
    /// namespace that owns this namespace, and a thread has it in its own user namespace and those below.
    fn may_be_changed_by(&self, thread: libc::pid_t) -> bool {
        if !has_capability(thread, CAP_SYS_ADMIN) {
            return false;
        }
        let Ok(user) = Self::open(&format!("/proc/{thread}/ns/user")) else {
            // A kernel without user namespaces.
            return true;
        };
        let mut owner = owner_of_namespace(self.0.as_fd());
        // The kernel does not show us namespaces above our own, and a process of ours has no capabilities there.
        while let Ok(namespace) = owner {
            let namespace = Self(File::from(namespace));
            if namespace.is(&user) {
                return true;
            }
            owner = parent_of_namespace(namespace.0.as_fd());
        }
        false
    }
}

pub(crate) fn decide(supervisor: &Supervisor, call: Call) -> Decision {
    if supervisor.host.hostname().is_none() {
        return Decision::Pass;
    }
    match call {
        Call::Uname => Decision::defer(write_names),
        Call::SetHostname => Decision::defer(|supervisor, notification| {
            set_name(supervisor, notification, SystemName::Host);
        }),
        Call::SetDomainName => Decision::defer(|supervisor, notification| {
            set_name(supervisor, notification, SystemName::Domain);
        }),
        _ => Decision::Pass,
    }
}

/// The content of the file of a name, for reading. `None` if the session has no names of its own.
pub(crate) fn open_file(
    supervisor: &Supervisor,
    thread: libc::pid_t,
    name: SystemName,
) -> Option<Result<OwnedFd, Errno>> {
    supervisor.host.hostname()?;
    let mut content = current(supervisor, thread, name);
    content.push(b'\n');
    Some(in_memory(&content))
}

/// `uname`: the result of this machine with the names of the session.
fn write_names(supervisor: &Supervisor, notification: Notification) {
    let mut names = system_names();
    let current = |name| current(supervisor, notification.thread(), name);
    names.nodename = field(&current(SystemName::Host));
    names.domainname = field(&current(SystemName::Domain));
    let written = notification.write_plain(notification.argument(0), &names);
    notification.finish(written.map(|()| 0));
}

/// `sethostname` and `setdomainname`, with the checks of the kernel in their order.
fn set_name(supervisor: &Supervisor, notification: Notification, name: SystemName) {
    let thread = notification.thread();
    let namespaces = (Namespace::of_thread(thread), Namespace::of_session());
    let (Ok(namespace), Ok(session)) = namespaces else {
        return notification.fail(Errno::EPERM);
    };
    let is_session = namespace.is(&session);
    if !namespace.may_be_changed_by(thread) {
        return match is_session {
            true => notification.fail(Errno::EPERM),
            false => notification.pass(),
        };
    }
    let value = match usize::try_from(notification.int(1)) {
        Ok(length @ ..=MAX_LENGTH) => notification.read_bytes(notification.argument(0), length),
        _ => Err(Errno::EINVAL),
    };
    let value = match value {
        Ok(value) => value,
        Err(errno) => return notification.fail(errno),
    };
    supervisor.names.set(namespace, name, value);
    match is_session {
        true => notification.succeed(0),
        false => notification.pass(),
    }
}

/// The name that a thread sees.
fn current(supervisor: &Supervisor, thread: libc::pid_t, name: SystemName) -> Vec<u8> {
    let set = supervisor.names.set_for(thread, name);
    let mut value = set.unwrap_or_else(|| match name {
        SystemName::Host => supervisor.host.hostname().unwrap_or_default().into_vec(),
        SystemName::Domain => {
            let domain = system_names().domainname;
            domain.iter().flat_map(|byte| byte.to_ne_bytes()).collect()
        }
    });
    let end = value.iter().position(|byte| *byte == 0);
    value.truncate(end.unwrap_or(MAX_LENGTH).min(MAX_LENGTH));
    value
}

/// A name as a field of `utsname`. The last byte stays zero.
fn field(name: &[u8]) -> [libc::c_char; MAX_LENGTH + 1] {
    let mut field = [0; MAX_LENGTH + 1];
    for (slot, byte) in field.iter_mut().take(MAX_LENGTH).zip(name) {
        *slot = libc::c_char::from_ne_bytes([*byte]);
    }
    field
}

/// A file in memory, as a descriptor for reading.
fn in_memory(content: &[u8]) -> Result<OwnedFd, Errno> {
    let failed = |error: std::io::Error| errno_of(&error);
    let mut file = File::from(memfd_create("standin", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(content).map_err(failed)?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    File::open(path).map(OwnedFd::from).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_into_their_field() {
        for (name, expected) in [
            (b"checkout".to_vec(), 8),
            (Vec::new(), 0),
            (vec![b'x'; 64], 64),
            (vec![b'x'; 200], 64),
        ] {
            let field = field(&name);
            let length = field.iter().position(|byte| *byte == 0);
            assert_eq!(length, Some(expected), "{name:?}");
        }
    }

    #[test]
    fn names_are_of_one_namespace_and_their_number_is_limited() {
        let names = SystemNames::default();
        let thread = nix::unistd::gettid().as_raw();
        assert_eq!(names.set_for(thread, SystemName::Host), None);
        let session = || Namespace::of_session().unwrap();
        names.set(session(), SystemName::Host, b"first".to_vec());
        names.set(session(), SystemName::Host, b"second".to_vec());
        names.set(session(), SystemName::Domain, b"domain".to_vec());
        // A namespace of another kind takes the part of one that no thread is in.
        for name in ["mnt", "net", "ipc"] {
            let other = Namespace::open(&format!("/proc/self/ns/{name}")).unwrap();
            names.set(other, SystemName::Host, b"other".to_vec());
        }
        let set = |name| names.set_for(thread, name);
        assert_eq!(set(SystemName::Host), Some(b"second".to_vec()));
        assert_eq!(set(SystemName::Domain), Some(b"domain".to_vec()));
        assert_eq!(names.0.lock().len(), 4);
    }
}

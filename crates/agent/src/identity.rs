//! The target's credentials for file access, and how a thread assumes them.

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::{Gid, getgroups, umask};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_thread_groups,
};

use crate::{Error, Result, sys};

/// The credentials by which the kernel checks the target's access to files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
    /// The effective capabilities. Empty if they apply only in another user namespace than ours.
    pub(crate) capabilities: CapabilitySet,
}

impl Identity {
    /// Parses the text of `/proc/<pid>/status`. `None` if it is malformed.
    pub(crate) fn parse(status: &str, same_user_namespace: bool) -> Option<Self> {
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name))?;
            Some(line[name.len()..].split_whitespace())
        };
        // Real, effective, saved, file system.
        let uid = field("Uid:")?.nth(3)?.parse().ok()?;
        let gid = field("Gid:")?.nth(3)?.parse().ok()?;
        let groups = field("Groups:")?.map(str::parse).collect::<Result<_, _>>();
        let effective = u64::from_str_radix(field("CapEff:")?.next()?, 16).ok()?;
        Some(Self {
            uid,
            gid,
            groups: groups.ok()?,
            capabilities: if same_user_namespace {
                CapabilitySet::from_bits_retain(effective)
            } else {
                CapabilitySet::empty()
            },
        })
    }

    /// Permanently gives these credentials to the calling thread. The client has applied its umask to every mode already, so
    /// the thread's umask is empty.
    pub(crate) fn assume(&self) -> Result<()> {
        match sys::own_filesystem_settings() {
            // The seccomp filter of a container runtime may forbid it. Then all threads of the agent share the empty umask,
            // which is harmless: they create files only for the target.
            Ok(()) | Err(Errno::PERM) => umask(Mode::empty()),
            Err(errno) => return Err(missing_permission("take a umask per thread")(errno)),
        };
        self.assume_groups()
            .map_err(missing_permission("take the target's groups"))?;
        sys::set_filesystem_group(self.gid)
            .map_err(missing_permission("take the target's group"))?;
        sys::set_filesystem_user(self.uid).map_err(missing_permission("take the target's user"))?;
        self.assume_capabilities()
            .map_err(missing_permission("take the target's capabilities"))
    }

    fn assume_groups(&self) -> Result<(), Errno> {
        let groups: Vec<Gid> = self.groups.iter().copied().map(Gid::from_raw).collect();
        // The call needs a capability that an agent of the same user lacks, and does not need.
        if getgroups()? == groups {
            return Ok(());
        }
        set_thread_groups(&groups)
    }

    fn assume_capabilities(&self) -> Result<(), Errno> {
        let own = capabilities(None)?;
        let sets = CapabilitySets {
            effective: own.permitted & self.capabilities,
            permitted: own.permitted,
            inheritable: own.inheritable,
        };
        set_capabilities(None, sets)
    }
}

/// The agent's own credentials, which its threads have at start.
#[derive(Debug)]
pub(crate) struct OwnIdentity(Option<(Identity, CapabilitySets)>);

impl OwnIdentity {
    pub(crate) fn of_this_thread() -> Self {
        let read = || {
            let sets = capabilities(None)?;
            let groups = getgroups()?.into_iter().map(Gid::as_raw).collect();
            let identity = Identity {
                uid: sys::filesystem_user(),
                gid: sys::filesystem_group(),
                groups,
                capabilities: sets.effective,
            };
            Ok::<_, Errno>((identity, sets))
        };
        Self(read().ok())
    }
}

impl Identity {
    /// Runs `work` with these credentials on a thread with the agent's own credentials, and restores those afterwards.
    /// `None` if the thread cannot assume the credentials. `work` must not create files, because the thread's umask
    /// stays.
    pub(crate) fn run_as<T>(&self, own: &OwnIdentity, work: impl FnOnce() -> T) -> Option<T> {
        let (own, sets) = own.0.as_ref()?;
        let effective = sets.permitted & self.capabilities;
        if (self.uid, self.gid, &self.groups, effective)
            == (own.uid, own.gid, &own.groups, own.capabilities)
        {
            return Some(work());
        }
        let set_ids = |identity: &Self| -> Result<(), Errno> {
            if self.groups != own.groups {
                let groups: Vec<Gid> = identity.groups.iter().copied().map(Gid::from_raw).collect();
                set_thread_groups(&groups)?;
            }
            sys::set_filesystem_group(identity.gid)?;
            sys::set_filesystem_user(identity.uid)
        };
        let assume = || {
            set_ids(self)?;
            set_capabilities(None, CapabilitySets { effective, ..*sets })
        };
        let result = assume().is_ok().then(work);
        // Capabilities are restored first, because restoring the ids needs them.
        if let Err(errno) = set_capabilities(None, *sets).and_then(|()| set_ids(own)) {
            tracing::error!(%errno, "restoring thread credentials failed");
        }
        result
    }
}

fn missing_permission(action: &'static str) -> impl FnOnce(Errno) -> Error {
    move |source| Error::Agent {
        action,
        hint: "it needs the capabilities SETUID and SETGID, or the target's own user",
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tapp\nUmask:\t0022\nState:\tS (sleeping)\nUid:\t1\t2\t3\t1000\nGid:\t1\t2\t3\t1001\n\
        Groups:\t1001 2000 \nCapInh:\t0000000000000000\nCapEff:\t0000000000000003\n";

    #[test]
    fn file_system_ids_are_parsed() {
        let identity = Identity::parse(STATUS, true).unwrap();
        assert_eq!(
            identity,
            Identity {
                uid: 1000,
                gid: 1001,
                groups: vec![1001, 2000],
                capabilities: CapabilitySet::CHOWN | CapabilitySet::DAC_OVERRIDE,
            }
        );
    }

    #[test]
    #[ignore = "needs root"]
    fn run_as_restores_the_credentials_of_the_thread() {
        let own = OwnIdentity::of_this_thread();
        let before = (getgroups().unwrap(), capabilities(None).unwrap());
        let other = Identity {
            uid: 1000,
            gid: 1001,
            groups: vec![1001, 2000],
            capabilities: CapabilitySet::CHOWN,
        };
        let secret = std::env::temp_dir().join(format!("standin-secret-{}", std::process::id()));
        std::fs::write(&secret, "").unwrap();
        std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .unwrap();
        let as_other = other.run_as(&own, || {
            let ids = (sys::filesystem_user(), sys::filesystem_group());
            let groups: Vec<u32> = getgroups().unwrap().into_iter().map(Gid::as_raw).collect();
            let effective = capabilities(None).unwrap().effective;
            let read = std::fs::read(&secret).map_err(|error| error.kind());
            (ids, groups, effective, read)
        });
        let read = std::fs::read(&secret);
        std::fs::remove_file(&secret).unwrap();
        let expected = (
            (1000, 1001),
            other.groups.clone(),
            CapabilitySet::CHOWN,
            Err(std::io::ErrorKind::PermissionDenied),
        );
        assert_eq!(as_other, Some(expected));
        assert_eq!((sys::filesystem_user(), sys::filesystem_group()), (0, 0));
        assert_eq!((getgroups().unwrap(), capabilities(None).unwrap()), before);
        assert!(read.is_ok());
    }

    #[test]
    fn capabilities_of_another_user_namespace_are_ignored() {
        let identity = Identity::parse(STATUS, false).unwrap();
        assert_eq!(identity.capabilities, CapabilitySet::empty());
    }

    #[test]
    fn malformed_status_is_rejected() {
        let check = |text: &str| assert_eq!(Identity::parse(text, true), None, "{text}");
        check("");
        check("Uid:\t1\t2\t3\nGid:\t1\t2\t3\t4\nGroups:\nCapEff:\t0\n");
        check(&STATUS.replace("2000", "many"));
        check(&STATUS.replace("CapEff", "CapXxx"));
    }
}

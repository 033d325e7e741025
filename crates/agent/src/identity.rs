//! As whom the target accesses files, and how a thread becomes that.

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::{Gid, getgroups, umask};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_thread_groups,
};

use crate::{Error, Result, sys};

/// The credentials with which the kernel judges the target's access to files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
    /// Those in effect. None of them when they count only in a user namespace that is not ours.
    pub(crate) capabilities: CapabilitySet,
}

impl Identity {
    /// Reads the text of `/proc/<pid>/status`. None: it is not such a text.
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

    /// Gives this identity to the calling thread, for good. The caller's mask has been applied to every mode before it
    /// reaches the agent, so the thread has none.
    pub(crate) fn take(&self) -> Result<()> {
        match sys::own_filesystem_settings() {
            // The filter that container runtimes put around processes may forbid it. Then all of the agent's threads have
            // no mask, and none of them makes files for anybody else.
            Ok(()) | Err(Errno::PERM) => umask(Mode::empty()),
            Err(errno) => return Err(refused("take a umask per thread")(errno)),
        };
        self.take_groups()
            .map_err(refused("take the target's groups"))?;
        sys::set_filesystem_group(self.gid).map_err(refused("take the target's group"))?;
        sys::set_filesystem_user(self.uid).map_err(refused("take the target's user"))?;
        self.take_capabilities()
            .map_err(refused("take the target's capabilities"))
    }

    fn take_groups(&self) -> Result<(), Errno> {
        let wanted: Vec<Gid> = self.groups.iter().copied().map(Gid::from_raw).collect();
        // Needs a right that an agent of the same user does not have, and does not need.
        if getgroups()? == wanted {
            return Ok(());
        }
        set_thread_groups(&wanted)
    }

    fn take_capabilities(&self) -> Result<(), Errno> {
        let own = capabilities(None)?;
        let sets = CapabilitySets {
            effective: own.permitted & self.capabilities,
            permitted: own.permitted,
            inheritable: own.inheritable,
        };
        set_capabilities(None, sets)
    }
}

/// What the agent's threads are before they become anything.
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
    /// Does something with this identity on a thread that has the agent's own, and has it again afterwards. `None` if the thread
    /// cannot become this. For what creates nothing: the thread's mask stays.
    pub(crate) fn act<T>(&self, own: &OwnIdentity, work: impl FnOnce() -> T) -> Option<T> {
        let (own, sets) = own.0.as_ref()?;
        let effective = sets.permitted & self.capabilities;
        if (self.uid, self.gid, &self.groups, effective)
            == (own.uid, own.gid, &own.groups, own.capabilities)
        {
            return Some(work());
        }
        let take_ids = |wanted: &Self| -> Result<(), Errno> {
            if self.groups != own.groups {
                let groups: Vec<Gid> = wanted.groups.iter().copied().map(Gid::from_raw).collect();
                set_thread_groups(&groups)?;
            }
            sys::set_filesystem_group(wanted.gid)?;
            sys::set_filesystem_user(wanted.uid)
        };
        let take = || {
            take_ids(self)?;
            set_capabilities(None, CapabilitySets { effective, ..*sets })
        };
        let done = take().is_ok().then(work);
        // The rights come back first: they are what the rest needs.
        if let Err(errno) = set_capabilities(None, *sets).and_then(|()| take_ids(own)) {
            tracing::error!(%errno, "a thread of the agent could not take its own identity back");
        }
        done
    }
}

fn refused(action: &'static str) -> impl FnOnce(Errno) -> Error {
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
    fn the_fourth_id_is_the_one_for_files() {
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
    fn a_thread_that_acts_as_another_is_itself_again_afterwards() {
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
        let as_other = other.act(&own, || {
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
    fn capabilities_of_another_user_namespace_do_not_count() {
        let identity = Identity::parse(STATUS, false).unwrap();
        assert_eq!(identity.capabilities, CapabilitySet::empty());
    }

    #[test]
    fn what_is_no_status_is_refused() {
        let check = |text: &str| assert_eq!(Identity::parse(text, true), None, "{text}");
        check("");
        check("Uid:\t1\t2\t3\nGid:\t1\t2\t3\t4\nGroups:\nCapEff:\t0\n");
        check(&STATUS.replace("2000", "many"));
        check(&STATUS.replace("CapEff", "CapXxx"));
    }
}

//! Which process a container is, by the container's id. The kernel knows containers only as control groups, whose names
//! contain the id with every runtime that Kubernetes uses.

use std::fs;

use crate::{Error, Result};

/// The first process of a container, as seen from here: on the node where all processes are seen, and inside of its pod.
pub fn process_of_container(id: &str) -> Result<u32> {
    let processes = fs::read_dir("/proc").map_err(|error| Error::Agent {
        action: "list processes",
        hint: "mount /proc",
        source: crate::error::errno_of(&error),
    })?;
    let oldest = processes
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| is_in(&read(*pid, "cgroup"), id))
        .filter_map(|pid| Some((started(&read(pid, "stat"))?, pid)))
        .min();
    match oldest {
        Some((_, pid)) => Ok(pid),
        None if first_is_in_our_pod() => Ok(1),
        None => Err(Error::NoContainer(id.to_owned())),
    }
}

/// Inside of a container's own process namespace its first process has the number 1, also where control groups are
/// hidden.
fn first_is_in_our_pod() -> bool {
    let network = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
    let ours = network("self");
    std::process::id() != 1 && ours.is_some() && ours == network("1")
}

fn read(pid: u32, file: &str) -> String {
    // What has ended meanwhile is not looked for.
    fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default()
}

/// Whether a text of `/proc/<pid>/cgroup` names the container. An id that is only a part of a longer one is another.
fn is_in(groups: &str, id: &str) -> bool {
    !id.is_empty()
        && groups.lines().any(|line| {
            line.split(|letter: char| !letter.is_ascii_alphanumeric())
                .any(|word| word == id)
        })
}

/// When a process was started, in ticks since the machine was: the 22nd field, counted behind the name.
fn started(stat: &str) -> Option<u64> {
    stat.rsplit_once(") ")?
        .1
        .split(' ')
        .nth(19)?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef";

    #[test]
    fn control_groups_name_their_container() {
        let check = |groups: &str, expected| assert_eq!(is_in(groups, ID), expected, "{groups}");
        check(
            "12:memory:/kubepods/burstable/pod1-2/0123456789abcdef\n0::/\n",
            true,
        );
        check(
            "0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-0123456789abcdef.scope\n",
            true,
        );
        check("0::/../crio-0123456789abcdef.scope", true);
        check("0::/system.slice/docker-0123456789abcdef.scope", true);
        check("0::/kubepods/0123456789abcdef0", false);
        check("0::/", false);
        check("", false);
        assert!(!is_in("0::/", ""));
    }

    #[test]
    fn the_start_of_a_process_is_behind_its_name() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20";
        assert_eq!(started(&format!("12 (a) b) {rest}\n")), Some(4711));
        assert_eq!(started("12 (a) S 1"), None);
        assert_eq!(started(""), None);
    }

    #[test]
    fn a_container_that_is_not_there_is_not_found() {
        let found = process_of_container("there-is-none");
        assert!(matches!(found, Err(Error::NoContainer(_))), "{found:?}");
    }
}

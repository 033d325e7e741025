//! Finds the process of a container by the container's id. The kernel knows containers only as control groups, whose names
//! contain the id in all runtimes that Kubernetes supports.

use std::fs;

use crate::{Error, Result};

/// The first process of a container, as seen from here: on the node, where all processes are visible, or inside its pod.
pub fn process_of_container(id: &str) -> Result<u32> {
    let processes = fs::read_dir("/proc").map_err(|error| Error::Agent {
        action: "list processes",
        hint: "mount /proc",
        source: crate::error::errno_of(&error),
    })?;
    let oldest = processes
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| is_in_container(&read(*pid, "cgroup"), id))
        .filter_map(|pid| Some((start_time(&read(pid, "stat"))?, pid)))
        .min();
    match oldest {
        Some((_, pid)) => Ok(pid),
        None if first_process_is_in_our_pod() => Ok(1),
        None => Err(Error::NoContainer(id.to_owned())),
    }
}

/// Inside a container's own PID namespace, its first process is process 1, also if control groups are hidden.
fn first_process_is_in_our_pod() -> bool {
    let network = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
    let ours = network("self");
    std::process::id() != 1 && ours.is_some() && ours == network("1")
}

fn read(pid: u32, file: &str) -> String {
    // A process that has exited in the meantime does not match.
    fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default()
}

/// Whether the text of `/proc/<pid>/cgroup` contains the container's id, not only as a part of a longer id.
fn is_in_container(groups: &str, id: &str) -> bool {
    !id.is_empty()
        && groups.lines().any(|line| {
            line.split(|letter: char| !letter.is_ascii_alphanumeric())
                .any(|word| word == id)
        })
}

/// The start time of a process, in ticks since boot: the 22nd field, counted from the end of the name.
fn start_time(stat: &str) -> Option<u64> {
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
    fn container_ids_are_found_in_control_groups() {
        let check =
            |groups: &str, expected| assert_eq!(is_in_container(groups, ID), expected, "{groups}");
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
        assert!(!is_in_container("0::/", ""));
    }

    #[test]
    fn start_time_is_parsed() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20";
        assert_eq!(start_time(&format!("12 (a) b) {rest}\n")), Some(4711));
        assert_eq!(start_time("12 (a) S 1"), None);
        assert_eq!(start_time(""), None);
    }

    #[test]
    fn a_missing_container_is_an_error() {
        let found = process_of_container("missing-container");
        assert!(matches!(found, Err(Error::NoContainer(_))), "{found:?}");
    }
}

//! What a lab could leave behind on the machine, counted.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::command::run;

/// Everything on the machine that labs make, by kind. Two of these, before and after, show what stayed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remains {
    things: BTreeSet<(Kind, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Process,
    Mount,
    Namespace,
    Device,
    Rule,
    ControlGroup,
}

/// Programs that labs start. Others come and go on a machine without a lab's doing.
const PROGRAMS: [&str; 12] = [
    "etcd",
    "kube-apiserver",
    "kube-controller",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "containerd",
    "containerd-shim",
    "runc",
    "unshare",
    "pause",
    "coredns",
];

impl Remains {
    /// Looks at the machine as it is now.
    pub fn now() -> Self {
        let mut things = BTreeSet::new();
        processes_and_namespaces(&mut things);
        let mut lines = |kind, text: String| {
            things.extend(text.lines().map(|line| (kind, line.trim().to_owned())));
        };
        lines(
            Kind::Mount,
            fs::read_to_string("/proc/self/mounts").unwrap_or_default(),
        );
        lines(
            Kind::Device,
            run(Command::new("ip").args(["-brief", "link"]))
                .map(first_words)
                .unwrap_or_default(),
        );
        lines(
            Kind::Rule,
            run(Command::new("nft").args(["--stateless", "list", "ruleset"])).unwrap_or_default(),
        );
        lines(
            Kind::Rule,
            run(Command::new("ip").arg("rule")).unwrap_or_default(),
        );
        lines(
            Kind::Rule,
            run(Command::new("ip").arg("route")).unwrap_or_default(),
        );
        control_groups(Path::new("/sys/fs/cgroup"), &mut things);
        Remains { things }
    }

    /// What is here and was not there before.
    pub fn since(&self, before: &Remains) -> Vec<(Kind, String)> {
        self.things.difference(&before.things).cloned().collect()
    }

    /// Waits until nothing is left that was not there before. The kernel removes namespaces a moment after their last
    /// process; what is still there at the end of the patience is returned.
    pub fn settle(before: &Remains, patience: Duration) -> Vec<(Kind, String)> {
        let deadline = Instant::now() + patience;
        loop {
            let left = Remains::now().since(before);
            if left.is_empty() || Instant::now() > deadline {
                return left;
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// How many things there are of a kind.
    pub fn count(&self, kind: Kind) -> usize {
        self.things
            .iter()
            .filter(|(other, _)| *other == kind)
            .count()
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Kind::Process => "process",
            Kind::Mount => "mount",
            Kind::Namespace => "namespace",
            Kind::Device => "device",
            Kind::Rule => "rule or route",
            Kind::ControlGroup => "control group",
        })
    }
}

fn processes_and_namespaces(things: &mut BTreeSet<(Kind, String)>) {
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else {
            continue;
        };
        let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        let line = fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
        let is_ours = PROGRAMS
            .iter()
            .any(|program| name.trim().starts_with(program))
            || line.contains(crate::role::MARKER);
        if is_ours {
            things.insert((Kind::Process, format!("{pid} {}", name.trim())));
        }
        for kind in ["pid", "mnt", "net", "uts", "ipc"] {
            if let Ok(link) = fs::read_link(entry.path().join("ns").join(kind)) {
                things.insert((Kind::Namespace, link.display().to_string()));
            }
        }
    }
}

fn control_groups(folder: &Path, things: &mut BTreeSet<(Kind, String)>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            things.insert((Kind::ControlGroup, entry.path().display().to_string()));
            control_groups(&entry.path(), things);
        }
    }
}

/// `ip -brief link` without the states, which change by themselves.
fn first_words(text: String) -> String {
    text.lines()
        .filter_map(|line| line.split_whitespace().next())
        .map(|word| format!("{word}\n"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_difference_is_what_came() {
        let thing = |name: &str| (Kind::Device, name.to_owned());
        let before = Remains {
            things: [thing("lo"), thing("eth0")].into(),
        };
        let after = Remains {
            things: [thing("lo"), thing("standin0")].into(),
        };
        assert_eq!(after.since(&before), [thing("standin0")]);
        assert_eq!(after.count(Kind::Device), 2);
    }

    #[test]
    fn a_machine_has_mounts_and_devices() {
        let now = Remains::now();
        assert!(now.count(Kind::Mount) > 0);
        assert!(now.count(Kind::Namespace) > 0);
    }
}

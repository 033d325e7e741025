//! What a lab could leave behind on the machine, counted.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::command::run;
use crate::lab::Lab;
use crate::role::MARKER;

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

/// By what each kind is known to come from a lab. Other programs on the machine make such things too, at any time.
const MARKS: [(Kind, &[&str]); 4] = [
    (
        Kind::Mount,
        &[
            "standin",
            "/var/lib/kubelet",
            "/run/containerd",
            "/run/netns/cni-",
        ],
    ),
    (Kind::Device, &["standin", "cni", "wire"]),
    (Kind::Rule, &["standin", "KUBE-", "CNI-", "10.200."]),
    (Kind::ControlGroup, &["standin-lab", "kubepods", "k8s.io"]),
];

impl Remains {
    /// Looks at the machine as it is now.
    pub fn now() -> Self {
        let mut things = BTreeSet::new();
        processes_and_namespaces(&mut things);
        let mut groups = Vec::new();
        control_groups(Path::new("/sys/fs/cgroup"), &mut groups);
        let output = |program: &str, arguments: &[&str]| {
            run(Command::new(program).args(arguments)).unwrap_or_default()
        };
        let found = [
            (
                Kind::Mount,
                fs::read_to_string("/proc/self/mounts").unwrap_or_default(),
            ),
            (
                Kind::Device,
                first_words(&output("ip", &["-brief", "link"])),
            ),
            (
                Kind::Rule,
                output("nft", &["--stateless", "list", "ruleset"]),
            ),
            (Kind::Rule, output("ip", &["rule"])),
            (Kind::Rule, output("ip", &["route"])),
            (Kind::ControlGroup, groups.join("\n")),
        ];
        for (kind, text) in found {
            let marked = text.lines().filter(|line| is_marked(kind, line));
            things.extend(marked.map(|line| (kind, line.trim().to_owned())));
        }
        Remains { things }
    }

    /// What is here and was not there before.
    pub fn since(&self, before: &Remains) -> Vec<(Kind, String)> {
        self.things.difference(&before.things).cloned().collect()
    }

    /// Waits until nothing is left that was not there before. The kernel removes namespaces a moment after their last
    /// process; what is still there at the end of the patience is returned. Labs that run beside come and go as they
    /// like: what is theirs does not count.
    pub fn settle(before: &Remains, beside: &[&Lab], patience: Duration) -> Vec<(Kind, String)> {
        let deadline = Instant::now() + patience;
        loop {
            let mut left = Remains::now().since(before);
            left.retain(|(_, thing)| !beside.iter().any(|lab| belongs_to(thing, lab)));
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

/// Everything of a lab carries the name of its network or of its folder.
fn belongs_to(thing: &str, lab: &Lab) -> bool {
    let device = lab.network().device();
    let separators = |character: char| !character.is_ascii_alphanumeric() && character != '-';
    thing
        .split(separators)
        .any(|word| word == device || word == lab.name())
}

fn is_marked(kind: Kind, line: &str) -> bool {
    MARKS
        .iter()
        .filter(|(other, _)| *other == kind)
        .any(|(_, marks)| marks.iter().any(|mark| line.contains(mark)))
}

/// Every process of a node is in the lab's control group, and the keeper has its role on its command line. A
/// namespace that no process is in could only be held by a mount, which is another kind.
fn processes_and_namespaces(things: &mut BTreeSet<(Kind, String)>) {
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else {
            continue;
        };
        let read = |name: &str| fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        let group = read("cgroup");
        let line = read("cmdline").replace('\0', " ");
        let owner = match group.split_once("/standin-lab/") {
            Some((_, rest)) => rest.split('/').next().unwrap_or_default().to_owned(),
            None if line.contains(MARKER) => line,
            None => continue,
        };
        things.insert((
            Kind::Process,
            format!("{pid} {} of {}", read("comm").trim(), owner.trim()),
        ));
        for kind in ["pid", "mnt", "net", "uts", "ipc"] {
            if let Ok(link) = fs::read_link(entry.path().join("ns").join(kind)) {
                things.insert((
                    Kind::Namespace,
                    format!("{} of {}", link.display(), owner.trim()),
                ));
            }
        }
    }
}

fn control_groups(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.push(entry.path().display().to_string());
            control_groups(&entry.path(), found);
        }
    }
}

/// `ip -brief link` without the states, which change by themselves.
fn first_words(text: &str) -> String {
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
    fn only_what_labs_make_is_counted() {
        for (kind, line, expected) in [
            (Kind::Device, "standin0@if2", true),
            (Kind::Device, "docker0", false),
            (Kind::Rule, "10.200.3.0/24 dev standin3", true),
            (Kind::Rule, "default via 192.0.2.1 dev eth0", false),
            (
                Kind::ControlGroup,
                "/sys/fs/cgroup/memory/standin-lab/standin0",
                true,
            ),
            (Kind::ControlGroup, "/sys/fs/cgroup/user.slice", false),
            (
                Kind::Mount,
                "tmpfs /var/lib/kubelet/pods/x tmpfs rw 0 0",
                true,
            ),
            (Kind::Mount, "proc /proc proc rw 0 0", false),
        ] {
            assert_eq!(is_marked(kind, line), expected, "{line}");
        }
    }
}

//! The control groups of labs and nodes, for both layouts of control groups.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::error::{Error, ErrorContext as _, Result};

/// The parent of the groups of all labs.
const ROOT: &str = "standin-lab";

/// Controllers that Kubernetes needs.
const CONTROLLERS: [&str; 6] = ["cpu", "cpuset", "io", "memory", "pids", "hugetlb"];

/// How long the kernel may take to freeze, thaw or release processes.
const KERNEL_TIMEOUT: Duration = Duration::from_secs(10);

/// How the machine mounts its control groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// One hierarchy with all controllers (systemd's default for years).
    Unified(PathBuf),
    /// One hierarchy for each controller, perhaps with an empty unified one beside them.
    Separate(Vec<PathBuf>),
}

impl Layout {
    pub(crate) fn detect() -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts")
            .with_context(|| "read the mount table".to_owned())?;
        Layout::from_mounts(&mounts).ok_or_else(|| {
            Error::Refused(
                "no control groups are mounted below /sys/fs/cgroup; mount them (`mount -t cgroup2 none \
                 /sys/fs/cgroup`) or use a machine with systemd"
                    .to_owned(),
            )
        })
    }

    /// Reads the text of `/proc/mounts`.
    pub(crate) fn from_mounts(mounts: &str) -> Option<Self> {
        let mut separate = Vec::new();
        let mut unified = None;
        for line in mounts.lines() {
            let mut fields = line.split(' ').skip(1);
            let (Some(mount), Some(kind)) = (fields.next(), fields.next()) else {
                continue;
            };
            if !mount.starts_with("/sys/fs/cgroup") {
                continue;
            }
            match kind {
                "cgroup" => separate.push(PathBuf::from(mount)),
                "cgroup2" => unified = Some(PathBuf::from(mount)),
                _ => {}
            }
        }
        if !separate.is_empty() {
            // The unified hierarchy of a mixed layout carries no controllers, but processes are in it too.
            separate.extend(unified);
            separate.sort();
            return Some(Layout::Separate(separate));
        }
        unified.map(Layout::Unified)
    }

    fn mounts(&self) -> &[PathBuf] {
        match self {
            Layout::Unified(mount) => std::slice::from_ref(mount),
            Layout::Separate(mounts) => mounts,
        }
    }
}

/// The control group of a lab or of one of its nodes, in every hierarchy.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    layout: Layout,
    path: PathBuf,
}

impl Group {
    pub(crate) fn of_lab(layout: Layout, lab: &str) -> Self {
        Group {
            layout,
            path: Path::new(ROOT).join(lab),
        }
    }

    pub(crate) fn of_node(&self, node: &str) -> Self {
        Group {
            layout: self.layout.clone(),
            path: self.path.join(node),
        }
    }

    /// The path below every mount, such as for the kubelet's `cgroupRoot`.
    pub(crate) fn name(&self) -> String {
        format!("/{}", self.path.display())
    }

    /// Creates the group, with a group `system` below it for the node's own programs. The groups of pods are siblings of
    /// `system`, because a group of the unified layout contains either processes or groups.
    pub(crate) fn create(&self) -> Result<()> {
        for mount in self.layout.mounts() {
            let system = mount.join(&self.path).join("system");
            fs::create_dir_all(&system)
                .with_context(|| format!("create the control group {}", system.display()))?;
            match &self.layout {
                Layout::Unified(_) => delegate_controllers(mount, &self.path)?,
                Layout::Separate(_) => inherit_processors(mount, &self.path.join("system"))?,
            }
        }
        Ok(())
    }

    /// Moves the calling process into the group `system`.
    pub(crate) fn enter(&self) -> Result<()> {
        for mount in self.layout.mounts() {
            let procs = mount.join(&self.path).join("system/cgroup.procs");
            fs::write(&procs, "0")
                .with_context(|| format!("enter the control group {}", procs.display()))?;
        }
        Ok(())
    }

    /// Freezes or thaws every process of the group.
    pub(crate) fn freeze(&self, frozen: bool) -> Result<()> {
        let (file, value) = match &self.layout {
            Layout::Unified(mount) => (
                mount.join(&self.path).join("cgroup.freeze"),
                if frozen { "1" } else { "0" },
            ),
            Layout::Separate(mounts) => {
                let freezer = mounts.iter().find(|mount| mount.ends_with("freezer")).ok_or_else(|| {
                    Error::Refused("this machine has no `freezer` control group, so nodes cannot be paused".to_owned())
                })?;
                (
                    freezer.join(&self.path).join("freezer.state"),
                    if frozen { "FROZEN" } else { "THAWED" },
                )
            }
        };
        let writing = || format!("write {value} to {}", file.display());
        fs::write(&file, value).with_context(writing)?;
        // The kernel reports the state when every process has been frozen or thawed.
        let deadline = Instant::now() + KERNEL_TIMEOUT;
        while !self.has_state(frozen) {
            if Instant::now() > deadline {
                return Err(Error::Refused(format!(
                    "the processes of {} cannot be frozen or thawed",
                    self.path.display()
                )));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn has_state(&self, frozen: bool) -> bool {
        match &self.layout {
            Layout::Unified(mount) => {
                let expected = if frozen { "frozen 1" } else { "frozen 0" };
                fs::read_to_string(mount.join(&self.path).join("cgroup.events"))
                    .is_ok_and(|events| events.lines().any(|line| line == expected))
            }
            Layout::Separate(mounts) => {
                let expected = if frozen { "FROZEN" } else { "THAWED" };
                mounts
                    .iter()
                    .filter(|mount| mount.ends_with("freezer"))
                    .all(|mount| {
                        fs::read_to_string(mount.join(&self.path).join("freezer.state"))
                            .is_ok_and(|state| state.trim() == expected)
                    })
            }
        }
    }

    /// Kills every process in the groups of the nodes below this group of a lab, including frozen ones.
    pub(crate) fn kill_processes(&self) {
        for mount in self.layout.mounts() {
            for node in child_groups(&mount.join(&self.path)) {
                for (file, value) in [("freezer.state", "THAWED"), ("cgroup.freeze", "0")] {
                    let file = node.join(file);
                    if file.exists() {
                        let _ = fs::write(file, value);
                    }
                }
            }
        }
        let deadline = Instant::now() + KERNEL_TIMEOUT;
        loop {
            let processes = self.processes();
            if processes.is_empty() || Instant::now() > deadline {
                return;
            }
            for process in processes {
                let _ = kill(Pid::from_raw(process), Signal::SIGKILL);
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// The processes in the group and below it.
    pub(crate) fn processes(&self) -> Vec<i32> {
        let Some(mount) = self.layout.mounts().first() else {
            return Vec::new();
        };
        let mut found = Vec::new();
        collect_processes(&mount.join(&self.path), &mut found);
        found
    }

    /// The processor time that the group's processes have used, including processes that have exited.
    pub(crate) fn processor_time(&self) -> Result<Duration> {
        let unsupported =
            || Error::Refused("the control groups do not count processor time".to_owned());
        match &self.layout {
            Layout::Unified(mount) => {
                let text = read(&mount.join(&self.path).join("cpu.stat"))?;
                let line = text
                    .lines()
                    .find_map(|line| line.strip_prefix("usage_usec "))
                    .ok_or_else(unsupported)?;
                line.trim()
                    .parse()
                    .map(Duration::from_micros)
                    .map_err(|_| unsupported())
            }
            Layout::Separate(mounts) => {
                let accounting = mounts.iter().find(|mount| {
                    mount
                        .file_name()
                        .is_some_and(|name| name.to_string_lossy().contains("cpuacct"))
                });
                let mount = accounting.ok_or_else(unsupported)?;
                let text = read(&mount.join(&self.path).join("cpuacct.usage"))?;
                text.trim()
                    .parse()
                    .map(Duration::from_nanos)
                    .map_err(|_| unsupported())
            }
        }
    }

    /// Removes the group and everything below it; its processes must have exited. Also removes the common parent group
    /// of all labs if this was its last child.
    pub(crate) fn remove(&self) -> Result<()> {
        let deadline = Instant::now() + KERNEL_TIMEOUT;
        for mount in self.layout.mounts() {
            // The kernel releases processes shortly after they have exited.
            while let Err(error) = remove_tree(&mount.join(&self.path)) {
                if Instant::now() > deadline {
                    return Err(error).with_context(|| {
                        format!("remove the control group {}", self.path.display())
                    });
                }
                thread::sleep(Duration::from_millis(20));
            }
            let _ = fs::remove_dir(mount.join(ROOT));
        }
        Ok(())
    }
}

fn read(file: &Path) -> Result<String> {
    fs::read_to_string(file).with_context(|| format!("read {}", file.display()))
}

fn collect_processes(group: &Path, found: &mut Vec<i32>) {
    if let Ok(text) = fs::read_to_string(group.join("cgroup.procs")) {
        found.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
    }
    for child in child_groups(group) {
        collect_processes(&child, found);
    }
}

fn remove_tree(group: &Path) -> io::Result<()> {
    for child in child_groups(group) {
        remove_tree(&child)?;
    }
    match fs::remove_dir(group) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn child_groups(group: &Path) -> Vec<PathBuf> {
    fs::read_dir(group)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

/// Enables the controllers on every level: in the unified layout a group passes them on only explicitly.
fn delegate_controllers(mount: &Path, group: &Path) -> Result<()> {
    let available = fs::read_to_string(mount.join("cgroup.controllers"))
        .with_context(|| format!("read the controllers of {}", mount.display()))?;
    let mut level = mount.to_owned();
    let mut levels = vec![level.clone()];
    for part in group {
        level.push(part);
        levels.push(level.clone());
    }
    for level in levels {
        let file = level.join("cgroup.subtree_control");
        for controller in CONTROLLERS
            .iter()
            .filter(|name| available.split_whitespace().any(|word| word == **name))
        {
            fs::write(&file, format!("+{controller}")).with_context(|| {
                format!(
                    "pass the {controller} controller on in {} (inside a container, the lab needs a delegated \
                     control group)",
                    level.display()
                )
            })?;
        }
    }
    Ok(())
}

/// Copies the processors and memory nodes of the root group: a new group of the separate `cpuset` hierarchy may use none.
fn inherit_processors(mount: &Path, group: &Path) -> Result<()> {
    if !mount.ends_with("cpuset") {
        return Ok(());
    }
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let value = fs::read_to_string(mount.join(file)).with_context(|| format!("read {file}"))?;
        let mut level = mount.to_owned();
        for part in group {
            level.push(part);
            fs::write(level.join(file), value.trim())
                .with_context(|| format!("write {file} of {}", level.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_detected_from_the_mount_table() {
        let unified = "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        assert_eq!(
            Layout::from_mounts(unified),
            Some(Layout::Unified(PathBuf::from("/sys/fs/cgroup")))
        );
        let mixed = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                     cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n\
                     cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n\
                     cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let expected = ["cpuset", "memory", "unified"]
            .map(|name| Path::new("/sys/fs/cgroup").join(name))
            .to_vec();
        assert_eq!(Layout::from_mounts(mixed), Some(Layout::Separate(expected)));
        assert_eq!(Layout::from_mounts("proc /proc proc rw 0 0\n"), None);
        let elsewhere = "cgroup2 /run/somewhere cgroup2 rw 0 0\n";
        assert_eq!(Layout::from_mounts(elsewhere), None);
    }

    #[test]
    fn the_name_is_the_path_below_every_mount() {
        let lab = Group::of_lab(Layout::Unified(PathBuf::from("/sys/fs/cgroup")), "standin0");
        assert_eq!(lab.of_node("east-1").name(), "/standin-lab/standin0/east-1");
    }
}

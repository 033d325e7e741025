//! A control group with a memory limit, of either version of the kernel's interface.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

/// Where control groups are mounted.
const MOUNT: &str = "/sys/fs/cgroup";

/// The files of a version of the interface.
struct Files {
    folder: &'static str,
    limit: &'static str,
    events: &'static str,
}

const UNIFIED: Files = Files {
    folder: "",
    limit: "memory.max",
    events: "memory.events",
};
const SEPARATE: Files = Files {
    folder: "memory",
    limit: "memory.limit_in_bytes",
    events: "memory.oom_control",
};

/// A control group. It is removed when this is dropped, which must be after its processes have ended.
pub(super) struct Group {
    folder: PathBuf,
    files: Files,
}

impl Group {
    /// A group whose processes together may use so many bytes.
    pub(super) fn with_limit(bytes: u64) -> Result<Self> {
        let is_unified = Path::new(MOUNT).join("cgroup.controllers").exists();
        let files = if is_unified { UNIFIED } else { SEPARATE };
        let mount = Path::new(MOUNT).join(files.folder);
        if is_unified {
            // It fails if the controller is enabled already in another way; setting the limit then shows whether it is.
            let _ = fs::write(mount.join("cgroup.subtree_control"), "+memory");
        }
        let folder = mount.join(format!("standin-bench-{}", std::process::id()));
        fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        let group = Self { folder, files };
        fs::write(group.folder.join(group.files.limit), bytes.to_string())
            .context("limiting memory needs control groups with the memory controller")?;
        Ok(group)
    }

    /// A command that runs a program in the group, and in whatever `outer` enters.
    pub(super) fn inside(&self, mut outer: Command) -> Command {
        let processes = self.folder.join("cgroup.procs");
        outer
            .args(["sh", "-c", r#"echo $$ > "$0" && exec "$@""#])
            .arg(processes);
        outer
    }

    /// How many processes of the group the kernel has killed because of its limit.
    pub(super) fn killed(&self) -> Result<f64> {
        let events = fs::read_to_string(self.folder.join(self.files.events))?;
        let line = events
            .lines()
            .find_map(|line| line.strip_prefix("oom_kill "));
        Ok(line.context("the kernel does not count kills")?.parse()?)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.folder);
    }
}

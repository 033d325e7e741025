//! The root file system of a node: the host's programs, and its own files for everything else.
//!
//! It is assembled on a tmpfs inside the node's mount namespace. So the node writes to no folder of the host except its
//! own, and no mount can be left behind.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::{NODE_MOUNT, PROGRAMS_MOUNT};
use crate::error::{ErrorContext as _, Result};

/// Folders of the host that a node shares. Symbolic links among them (`/bin` on most hosts) are copied as links.
const SHARED: [&str; 10] = [
    "/usr", "/etc", "/dev", "/sys", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32",
];

/// Shared folders that a node may write to, for devices and control groups. The others are mounted read-only.
const WRITABLE: [&str; 2] = ["/dev", "/sys"];

/// Sysctls that the kubelet would change for the whole host if they differ. Files with the expected values are mounted
/// over them.
const KERNEL_SETTINGS: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// Folders below `/var` that Kubernetes and the container runtime require.
const VAR_DIRECTORIES: [&str; 6] = [
    "lib/kubelet",
    "lib/containerd",
    "lib/cni",
    "log/pods",
    "log/containers",
    "tmp",
];

pub(super) fn enter(node: &Path, programs: &Path) -> Result<()> {
    let root = node.join("root");
    make_folder(&root)?;
    mount_one(
        Some("tmpfs"),
        &root,
        Some("tmpfs"),
        MsFlags::empty(),
        Some("mode=755"),
    )?;
    for shared in SHARED {
        share(Path::new(shared), &root)?;
    }
    for folder in ["proc", "run", "tmp", "root", "opt", "mnt", "home", "old"] {
        make_folder(&root.join(folder))?;
    }
    for folder in VAR_DIRECTORIES {
        make_folder(&node.join("var").join(folder))?;
    }
    bind(&node.join("var"), &root.join("var"))?;
    bind(node, &root.join(NODE_MOUNT.trim_start_matches('/')))?;
    bind(programs, &root.join(PROGRAMS_MOUNT.trim_start_matches('/')))?;
    mount_one(
        Some("proc"),
        &root.join("proc"),
        Some("proc"),
        MsFlags::empty(),
        None,
    )?;
    for folder in ["run", "tmp"] {
        mount_one(
            Some("tmpfs"),
            &root.join(folder),
            Some("tmpfs"),
            MsFlags::empty(),
            Some("mode=1777"),
        )?;
    }
    make_folder(&root.join("run/netns"))?;
    symlink("/run", root.join("var/run"))
        .or_else(ignore_already_exists)
        .with_context(|| "link /var/run".to_owned())?;
    mask_kernel_settings(node, &root)?;

    nix::unistd::pivot_root(&root, &root.join("old"))
        .with_context(|| "change the root".to_owned())?;
    nix::unistd::chdir("/").with_context(|| "change to the new root".to_owned())?;
    umount2("/old", MntFlags::MNT_DETACH).with_context(|| "leave the old root".to_owned())?;
    // Volumes with mount propagation need a shared mount tree.
    mount_one(
        None,
        Path::new("/"),
        None,
        MsFlags::MS_REC | MsFlags::MS_SHARED,
        None,
    )
}

fn share(folder: &Path, root: &Path) -> Result<()> {
    let mount_point = root.join(folder.strip_prefix("/").unwrap_or(folder));
    match fs::symlink_metadata(folder) {
        Ok(metadata) if metadata.is_symlink() => {
            let target =
                fs::read_link(folder).with_context(|| format!("read {}", folder.display()))?;
            symlink(&target, &mount_point)
                .with_context(|| format!("link {}", mount_point.display()))
        }
        Ok(_) => {
            bind(folder, &mount_point)?;
            if WRITABLE.contains(&folder.to_str().unwrap_or_default()) {
                return Ok(());
            }
            let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
            mount_one(None, &mount_point, None, flags, None)
        }
        Err(_) => Ok(()),
    }
}

fn bind(from: &Path, to: &Path) -> Result<()> {
    make_folder(to)?;
    mount_one(
        from.to_str(),
        to,
        None,
        MsFlags::MS_BIND | MsFlags::MS_REC,
        None,
    )
}

fn mask_kernel_settings(node: &Path, root: &Path) -> Result<()> {
    let folder = node.join("kernel-settings");
    make_folder(&folder)?;
    for (setting, value) in KERNEL_SETTINGS {
        let target = root.join("proc/sys").join(setting);
        if !target.exists() {
            continue;
        }
        let file = folder.join(setting.replace('/', "_"));
        fs::write(&file, value).with_context(|| format!("write {}", file.display()))?;
        mount_one(file.to_str(), &target, None, MsFlags::MS_BIND, None)?;
    }
    Ok(())
}

fn mount_one(
    source: Option<&str>,
    target: &Path,
    kind: Option<&str>,
    flags: MsFlags,
    options: Option<&str>,
) -> Result<()> {
    mount(source, target, kind, flags, options).with_context(|| {
        format!(
            "mount {} on {}",
            source.unwrap_or("nothing"),
            target.display()
        )
    })
}

fn make_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).with_context(|| format!("create {}", path.display()))
}

fn ignore_already_exists(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == std::io::ErrorKind::AlreadyExists {
        Ok(())
    } else {
        Err(error)
    }
}

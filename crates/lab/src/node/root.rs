//! The root file system of a node: the machine's programs, and everything else its own.
//!
//! It is put together on a temporary file system inside the node's mount namespace. So the node writes to no folder
//! of the machine outside its own, and no mount can be left behind.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::{INSIDE, PROGRAMS_INSIDE};
use crate::error::{Doing as _, Result};

/// Folders of the machine that a node shares. Links among them (`/bin` on most machines) are copied as links.
const SHARED: [&str; 10] = [
    "/usr", "/etc", "/dev", "/sys", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32",
];

/// Devices and control groups are there to be written to. Of the rest, a node only reads.
const WRITABLE: [&str; 2] = ["/dev", "/sys"];

/// The kubelet sets these for the whole machine when they differ. It is shown files that already hold what it wants.
const KERNEL_SETTINGS: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// Folders below `/var` that Kubernetes and the container runtime expect.
const VARIABLE: [&str; 6] = [
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
    for folder in VARIABLE {
        make_folder(&node.join("var").join(folder))?;
    }
    bind(&node.join("var"), &root.join("var"))?;
    bind(node, &root.join(INSIDE.trim_start_matches('/')))?;
    bind(
        programs,
        &root.join(PROGRAMS_INSIDE.trim_start_matches('/')),
    )?;
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
        .or_else(already_there)
        .doing(|| "link /var/run".to_owned())?;
    show_kernel_settings(node, &root)?;

    nix::unistd::pivot_root(&root, &root.join("old")).doing(|| "change the root".to_owned())?;
    nix::unistd::chdir("/").doing(|| "change to the new root".to_owned())?;
    umount2("/old", MntFlags::MNT_DETACH).doing(|| "leave the old root".to_owned())?;
    // Volumes with mount propagation need a tree that propagates.
    mount_one(
        None,
        Path::new("/"),
        None,
        MsFlags::MS_REC | MsFlags::MS_SHARED,
        None,
    )
}

fn share(folder: &Path, root: &Path) -> Result<()> {
    let place = root.join(folder.strip_prefix("/").unwrap_or(folder));
    match fs::symlink_metadata(folder) {
        Ok(metadata) if metadata.is_symlink() => {
            let target = fs::read_link(folder).doing(|| format!("read {}", folder.display()))?;
            symlink(&target, &place).doing(|| format!("link {}", place.display()))
        }
        Ok(_) => {
            bind(folder, &place)?;
            if WRITABLE.contains(&folder.to_str().unwrap_or_default()) {
                return Ok(());
            }
            let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
            mount_one(None, &place, None, flags, None)
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

fn show_kernel_settings(node: &Path, root: &Path) -> Result<()> {
    let folder = node.join("kernel-settings");
    make_folder(&folder)?;
    for (setting, value) in KERNEL_SETTINGS {
        let place = root.join("proc/sys").join(setting);
        if !place.exists() {
            continue;
        }
        let file = folder.join(setting.replace('/', "_"));
        fs::write(&file, value).doing(|| format!("write {}", file.display()))?;
        mount_one(file.to_str(), &place, None, MsFlags::MS_BIND, None)?;
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
    mount(source, target, kind, flags, options).doing(|| {
        format!(
            "mount {} on {}",
            source.unwrap_or("nothing"),
            target.display()
        )
    })
}

fn make_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).doing(|| format!("make {}", path.display()))
}

fn already_there(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == std::io::ErrorKind::AlreadyExists {
        Ok(())
    } else {
        Err(error)
    }
}

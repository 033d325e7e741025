//! The target process, the only process in its namespaces.

use std::fs;
use std::io::{self, BufRead as _, Read as _, Write as _};
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{chdir, pivot_root, sethostname};

use super::application;
use super::network::{DOMAIN, HOST_NAME, NAMESERVER, TARGET, TARGET6};
use super::peer_network::ip;

/// All folders of the target. The tests put files there.
const FOLDERS: [&str; 8] = [
    "etc",
    "proc",
    "run/secrets/standin.test/account",
    "srv/orders",
    "srv/small",
    "tmp",
    "var/lib",
    "var/log",
];

/// Reports each step of its start, and then runs until standard input ends.
pub(super) fn main() -> Result<()> {
    unshare(
        CloneFlags::CLONE_NEWNET
            | CloneFlags::CLONE_NEWNS
            | CloneFlags::CLONE_NEWUTS
            | CloneFlags::CLONE_NEWIPC,
    )
    .context("cannot unshare the namespaces")?;
    report("unshared")?;
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    ensure!(line.trim() == "wired", "the network was not set up");
    set_up_network()?;
    sethostname(HOST_NAME)?;
    enter_empty_root().context("cannot enter an empty root file system")?;
    application::start()?;
    report("ready")?;
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn report(step: &str) -> Result<()> {
    let mut stdout = io::stdout();
    writeln!(stdout, "{step}")?;
    Ok(stdout.flush()?)
}

fn set_up_network() -> Result<()> {
    ip(&format!("address add {TARGET}/24 dev eth0"))?;
    // The veth pair has only two ends, so the address is unique without duplicate detection.
    ip(&format!("address add {TARGET6}/64 dev eth0 nodad"))?;
    ip("link set lo up")?;
    ip("link set eth0 up")
}

fn enter_empty_root() -> Result<()> {
    let nothing = None::<&str>;
    mount(
        nothing,
        "/",
        nothing,
        MsFlags::MS_REC | MsFlags::MS_PRIVATE,
        nothing,
    )?;
    let root = std::env::temp_dir();
    mount(
        Some("target"),
        &root,
        Some("tmpfs"),
        MsFlags::empty(),
        nothing,
    )?;
    for folder in FOLDERS {
        fs::create_dir_all(root.join(folder))?;
    }
    symlink("/run", root.join("var/run"))?;
    write_configuration(&root.join("etc"))?;
    mount(
        Some("proc"),
        &root.join("proc"),
        Some("proc"),
        MsFlags::empty(),
        nothing,
    )?;
    mount(
        Some("small"),
        &root.join("srv/small"),
        Some("tmpfs"),
        MsFlags::empty(),
        Some("size=256k"),
    )?;
    chdir(&root)?;
    pivot_root(".", ".")?;
    umount2(".", MntFlags::MNT_DETACH)?;
    Ok(chdir("/")?)
}

fn write_configuration(folder: &Path) -> Result<()> {
    fs::write(folder.join("hostname"), format!("{HOST_NAME}\n"))?;
    fs::write(
        folder.join("hosts"),
        format!(
            "127.0.0.1 localhost\n::1 localhost\n{TARGET} {HOST_NAME}\n10.77.0.81 from-hosts-file\n"
        ),
    )?;
    fs::write(
        folder.join("resolv.conf"),
        format!("nameserver {NAMESERVER}\nsearch other.test {DOMAIN}\noptions ndots:2\n"),
    )?;
    Ok(())
}

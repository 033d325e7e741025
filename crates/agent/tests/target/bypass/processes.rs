//! The memory and the environment of processes.

use std::fs;

use protocol::grant::Grant;
use protocol::rpc::{AccessMode, ListEnvRequest, SymbolicLinkRequest};

use super::files::{can_open, path_request};
use super::{Report, run_inside, session, texts};
use crate::environment::target;

pub(super) async fn run(report: &mut Report) {
    let target = target();
    for directory in ["/run/proc", "/run/one"] {
        fs::create_dir(target.path(directory)).unwrap();
    }
    for file in ["/run/environ", "/run/x"] {
        fs::write(target.path(file), "").unwrap();
    }
    run_inside(&target, "mount -t proc second /mnt/run/proc");
    run_inside(&target, "mount --bind /mnt/proc/1 /mnt/run/one");
    run_inside(&target, "mount --bind /mnt/proc/1/environ /mnt/run/x");
    run_inside(&target, "mount --bind /mnt/proc/1/mem /mnt/run/environ");
    // Without any policy.
    let (_agent, client) = session(&target, &Grant::default()).await;
    for path in [
        "/proc/1/mem",
        "/proc/1/task/1/mem",
        "/run/proc/1/mem",
        "/run/one/mem",
        "/run/environ",
    ] {
        for mode in [AccessMode::Read, AccessMode::Write] {
            let opened = can_open(&client, path_request(path, mode)).await;
            report.attempt(format!("opening {path} ({mode:?})"), opened);
        }
    }
    for path in ["/proc/1/environ", "/run/proc/1/maps", "/run/one/environ"] {
        let opened = can_open(&client, path_request(path, AccessMode::Read)).await;
        report.control(format!("{path} without a policy"), opened);
    }
    let grant = Grant {
        hidden_variables: texts(&["GREET*"]),
        ..Grant::default()
    };
    let (_agent, client) = session(&target, &grant).await;
    let link = SymbolicLinkRequest {
        path: "/srv/data/link".into(),
        target: "/proc/1/environ".into(),
    };
    client.files().symbolic_link(link).await.unwrap();
    for path in [
        "/proc/1/environ",
        "/proc/1/task/1/environ",
        "/proc/1/auxv",
        "/proc/1/maps",
        "/proc/1/smaps",
        "/proc/1/smaps_rollup",
        "/proc/1/numa_maps",
        "/proc/1/pagemap",
        "/proc/1/stack",
        "/proc/1/syscall",
        "/proc/1/task/1/maps",
        "/run/proc/1/environ",
        "/run/proc/1/auxv",
        "/run/one/environ",
        "/run/one/task/1/smaps",
        "/run/x",
        "/srv/data/link",
    ] {
        let opened = can_open(&client, path_request(path, AccessMode::Read)).await;
        report.attempt(format!("opening {path} with hidden variables"), opened);
    }
    let referring = path_request("/proc/1/environ", AccessMode::None);
    let referred = can_open(&client, referring).await;
    report.attempt("referring to an environment", referred);
    let listed = client.env().list(ListEnvRequest {}).await.unwrap();
    let variables = listed.into_inner().variables;
    let is_listed = |name: &str| variables.iter().any(|variable| variable.name == name);
    report.attempt("listing a hidden variable", is_listed("GREETING"));
    report.control("listing other variables", !variables.is_empty());
    for path in ["/proc/1/status", "/run/proc/1/cmdline", "/run/one/stat"] {
        let opened = can_open(&client, path_request(path, AccessMode::Read)).await;
        report.control(format!("{path} with hidden variables"), opened);
    }
}

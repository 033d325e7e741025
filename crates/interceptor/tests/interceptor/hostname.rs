//! The host name and the domain name.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use crate::environments::supervise_below;
use crate::programs;
use crate::target::{Target, run};

#[test]
fn hostname_is_that_of_target() {
    let names = programs::c("names");
    let script = format!(
        "hostname; uname -n; cat /proc/sys/kernel/hostname; {}",
        names.display()
    );
    let output = run(&Target::new(), &script).output();
    let expected = "checkout-7d9f\ncheckout-7d9f\ncheckout-7d9f\n\
        host [checkout-7d9f] [checkout-7d9f] [checkout-7d9f]\ndomain [";
    assert!(output.starts_with(expected), "{output}");
}

/// Runs a script in a session, in a UTS namespace with the names `machine` and `machine-domain`. Returns the output of the
/// session, and that of a query afterwards without a session.
fn run_on_machine(script: &str) -> (String, String) {
    programs::require("unshare");
    // Another user must be able to run the program, also if the target directory is in a private directory.
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let names = folder.path().join("names");
    fs::copy(programs::c("names"), &names).unwrap();
    let skipped = folder.path().join("skipped-program");
    std::os::unix::fs::symlink(&names, &skipped).unwrap();
    let names = names.display();
    let machine = format!(
        "'{names}' host machine && '{names}' domain machine-domain && \"$0\" \"$@\"; echo afterwards; '{names}'"
    );
    let script = format!(
        "names() {{ '{names}' \"$@\"; }}; skipped() {{ '{}' \"$@\"; }}\n{script}",
        skipped.display()
    );
    let arguments = ["--uts", "sh", "-c", &machine];
    let output = supervise_below("unshare".as_ref(), &arguments, &script);
    let (session, afterwards) = output
        .split_once("afterwards\n")
        .unwrap_or_else(|| panic!("{output}"));
    let session = session
        .split_once("running 1 test\n")
        .and_then(|(_, session)| session.split_once("ended: Some(0)\n"))
        .unwrap_or_else(|| panic!("{output}"));
    (session.0.to_owned(), afterwards.to_owned())
}

/// The output of `names` that shows these names.
fn shown(host: &str, domain: &str) -> String {
    format!("host [{host}] [{host}] [{host}]\ndomain [{domain}] [{domain}] [{domain}]\n")
}

#[test]
#[ignore = "needs root"]
fn names_are_set_for_the_session_alone() {
    const TARGET: &str = "checkout-7d9f";
    const DOMAIN: &str = "machine-domain";
    let longest = "0123456789012345678901234567890123456789012345678901234567890123";
    let table: &[(&str, String)] = &[
        ("names", shown(TARGET, DOMAIN)),
        (
            "names host renamed; names",
            "sethostname: ok\n".to_owned() + &shown("renamed", DOMAIN),
        ),
        (
            "(names host of-child); names; hostname",
            format!("sethostname: ok\n{}of-child\n", shown("of-child", DOMAIN)),
        ),
        (
            "names domain shop; names host x; names",
            format!("setdomainname: ok\nsethostname: ok\n{}", shown("x", "shop")),
        ),
        // Programs that are left alone see and set the names of the machine.
        (
            "names host renamed >/dev/null; skipped",
            shown("machine", DOMAIN),
        ),
        (
            "setpriv --reuid 65534 --clear-groups bash -c \"$(declare -f names); names host x; names domain x; names\"",
            "sethostname: Operation not permitted\nsetdomainname: Operation not permitted\n"
                .to_owned()
                + &shown(TARGET, DOMAIN),
        ),
        // Root in a user namespace of its own, without a UTS namespace of its own.
        (
            "unshare --user --map-root-user bash -c \"$(declare -f names); names host x; names\"",
            "sethostname: Operation not permitted\n".to_owned() + &shown(TARGET, DOMAIN),
        ),
        (
            "names host of-session >/dev/null; unshare --uts bash -c \"$(declare -f names); names; names host own; names\"; names",
            format!(
                "{}sethostname: ok\n{}{}",
                shown("of-session", DOMAIN),
                shown("own", DOMAIN),
                shown("of-session", DOMAIN)
            ),
        ),
        (
            "unshare --user --map-root-user --uts bash -c \"$(declare -f names); names host own; names domain d; names\"; names",
            format!(
                "sethostname: ok\nsetdomainname: ok\n{}{}",
                shown("own", "d"),
                shown(TARGET, DOMAIN)
            ),
        ),
        (
            "names edges",
            format!(
                "too long: Invalid argument\nnegative: Invalid argument\nno address: Bad address\nlongest: ok\n{}\
                 with a zero: ok\n{}empty: ok\n{}write: Read-only file system\nread and write: Read-only file system\n\
                 truncate: Read-only file system\ndirectory: Not a directory\nin the directory: ok\n\
                 relative: Read-only file system\n",
                shown(longest, DOMAIN),
                shown("ab", DOMAIN),
                shown("", DOMAIN)
            ),
        ),
    ];
    for (script, expected) in table {
        let (session, afterwards) = run_on_machine(script);
        assert_eq!(session, *expected, "{script}");
        assert_eq!(afterwards, shown("machine", DOMAIN), "{script}");
    }
}

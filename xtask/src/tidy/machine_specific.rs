//! Text that is specific to one machine or network: home folders, and the hosts that packages come from.
//!
//! Which host serves packages is a setting of the machine (a mirror, a proxy), so the repository never names one. Lock
//! files are exempt: package managers write them.

use super::Finding;
use crate::workspace::Source;

/// Folders under which the next path segment is a user name, or a cache that belongs to one machine.
const MACHINE_PATHS: &[&str] = &[
    concat!("/", "home", "/"),
    concat!("/", "Users", "/"),
    concat!("/root/", ".cargo/"),
    concat!("/root/", ".cache/"),
    concat!("/root/", "go/"),
];

/// Written in two parts, because this file is checked as well.
const PACKAGE_HOSTS: &[&str] = &[
    concat!("registry.npmjs", ".org"),
    concat!("registry.yarnpkg", ".com"),
    concat!("files.pythonhosted", ".org"),
    concat!("pypi", ".org"),
    concat!("proxy.golang", ".org"),
    concat!("sum.golang", ".org"),
    concat!("index.crates", ".io"),
    concat!("static.crates", ".io"),
    concat!("deb.debian", ".org"),
    concat!("archive.ubuntu", ".com"),
    concat!("/artifactory", "/"),
    concat!("/nexus", "/repository/"),
];

const LOCK_FILES: &[&str] = &[
    "Cargo.lock",
    "go.sum",
    "package-lock.json",
    "pnpm-lock.yaml",
    "uv.lock",
];

pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    let is_lock_file = |source: &&Source| {
        let name = source.path.file_name();
        LOCK_FILES
            .iter()
            .any(|lock_file| name.is_some_and(|name| name == *lock_file))
    };
    sources
        .iter()
        .filter(|source| !is_lock_file(source))
        .flat_map(|source| {
            let findings = source.text.lines().enumerate().filter_map(|(index, line)| {
                let problem = problem(line)?;
                Some(Finding::new(&source.path, index + 1, problem))
            });
            findings.collect::<Vec<_>>()
        })
        .collect()
}

fn problem(line: &str) -> Option<String> {
    if let Some(path) = MACHINE_PATHS
        .iter()
        .find(|path| names_something_in(line, path))
    {
        return Some(format!(
            "a path of one machine ({path}…); use ~, $HOME or a relative path"
        ));
    }
    let host = PACKAGE_HOSTS.iter().find(|host| line.contains(*host))?;
    Some(format!(
        "names a package host ({host}); which host is used is a setting of the machine"
    ))
}

/// Only with a name after it: the folder itself exists everywhere.
fn names_something_in(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        let after = line[start + path.len()..].chars().next();
        // A longer path or an address that happens to contain the same letters.
        let is_own_path = !before
            .is_some_and(|character| character.is_alphanumeric() || "._-~}".contains(character));
        is_own_path && after.is_some_and(char::is_alphanumeric)
    })
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{shown, source};
    use super::*;

    fn is_found(path: &str, line: &str) -> bool {
        !check(&[source(path, line)]).is_empty()
    }

    #[test]
    fn paths_of_one_machine_are_found() {
        let home = concat!("/", "home", "/");
        assert!(is_found("a.sh", &format!("cd {home}alice/standin")));
        assert!(is_found("a.sh", &format!("x=\"{home}alice\"")));
        assert!(is_found("a.md", concat!("see /root", "/.cargo/registry")));
        for harmless in [
            format!("a home folder is in {home}"),
            format!("https://example.com{home}page"),
            "/root/secret in a container".to_owned(),
            "~/.cache/standin".to_owned(),
        ] {
            assert!(!is_found("a.md", &harmless), "{harmless}");
        }
    }

    #[test]
    fn package_hosts_are_found_except_in_lock_files() {
        let text = format!("first\nurl = {}\n", PACKAGE_HOSTS[0]);
        assert!(!is_found("web/package-lock.json", &text));
        let found = shown(&check(&[source("web/notes.txt", &text)]));
        assert!(
            found[0].starts_with("web/notes.txt:2: names a package host"),
            "{found:?}"
        );
    }
}

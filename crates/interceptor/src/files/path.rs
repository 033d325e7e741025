//! Path strings, and the links of `/proc` that represent open files and working directories of a process.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::fd::RawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProcessLink {
    Directory,
    Descriptor(RawFd),
}

/// `/proc/<pid>/cwd`, `/proc/<pid>/fd/<n>`, and the same below `task/<tid>`.
pub(super) fn process_link(path: &Path) -> Option<(libc::pid_t, ProcessLink)> {
    let rest = path.strip_prefix("/proc").ok()?.to_str()?;
    let parts: Vec<&str> = rest.split('/').collect();
    let (process, what) = match parts.as_slice() {
        [_, "task", thread, what @ ..] => (thread, what),
        [process, what @ ..] => (process, what),
        [] => return None,
    };
    let process = process.parse().ok()?;
    match what {
        ["cwd"] => Some((process, ProcessLink::Directory)),
        ["fd", number] => Some((process, ProcessLink::Descriptor(number.parse().ok()?))),
        _ => None,
    }
}

/// Whether a path in `/proc` or `/dev` may be, or may lead through, a link that [`process_link`] recognizes.
pub(super) fn may_be_process_link(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    let contains = |part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
    contains(b"/fd/") || contains(b"/cwd") || path.starts_with("/dev/fd")
}

pub(super) fn components_of(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some(OsString::from("..")),
            _ => None,
        })
        .collect()
}

/// The path without `.`, `..` and doubled slashes, without looking at any file.
pub(crate) fn normalized(path: &Path) -> PathBuf {
    let bytes = path.as_os_str().as_bytes();
    let odd = bytes.windows(2).any(|pair| matches!(pair, b"//" | b"/."));
    let ends_with_slash = bytes.len() > 1 && bytes.ends_with(b"/");
    if !odd && !ends_with_slash {
        return path.to_path_buf();
    }
    let mut normal: Vec<u8> = Vec::with_capacity(bytes.len());
    for part in path.components() {
        match part {
            Component::Normal(name) => {
                normal.push(b'/');
                normal.extend(name.as_bytes());
            }
            Component::ParentDir => {
                let end = normal.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
                normal.truncate(end);
            }
            _ => {}
        }
    }
    if normal.is_empty() {
        normal.push(b'/');
    }
    PathBuf::from(OsString::from_vec(normal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_normalized() {
        let table = [
            ("/", "/"),
            ("/a/b", "/a/b"),
            ("//a//b/", "/a/b"),
            ("/a/./b/.", "/a/b"),
            ("/a/../b", "/b"),
            ("/../..", "/"),
            ("/a/b/../../c/..", "/"),
            ("/.hidden/..x", "/.hidden/..x"),
        ];
        for (path, expected) in table {
            assert_eq!(normalized(Path::new(path)), Path::new(expected), "{path}");
        }
    }

    #[test]
    fn process_links_are_recognized() {
        let process_of = |path: &str| process_link(Path::new(path)).map(|(process, _)| process);
        assert_eq!(process_of("/proc/12/cwd"), Some(12));
        assert_eq!(process_of("/proc/12/fd/3"), Some(12));
        assert_eq!(process_of("/proc/12/task/13/fd/3"), Some(13));
        assert_eq!(process_of("/proc/12/fd"), None);
        assert_eq!(process_of("/proc/self/fd/3"), None);
        assert_eq!(process_of("/proc/12/status"), None);
        assert_eq!(process_of("/srv/12/cwd"), None);
    }
}

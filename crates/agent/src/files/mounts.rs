//! The other paths of a file: a file system can be mounted at several places of the target, as a whole or in parts.
//!
//! A rule for one path of a file holds for all of its paths, so all of them are judged.

use rustix::io::Errno;

use crate::error::errno_of;

/// The mounts that a process sees.
#[derive(Debug)]
pub(super) struct MountTable(Vec<Mount>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Mount {
    id: u32,
    parent: u32,
    device: Vec<u8>,
    /// The mounted directory or file, as a path of the file system.
    root: Vec<u8>,
    /// Where it is mounted, as a path of the process.
    point: Vec<u8>,
}

impl MountTable {
    /// The mounts of a process. They are never cached, because the kernel does not report all of their changes.
    pub(super) fn of_process(pid: u32) -> Result<Self, Errno> {
        let text = std::fs::read(format!("/proc/{pid}/mountinfo"));
        Ok(Self::parse(&text.map_err(|error| errno_of(&error))?))
    }

    fn parse(text: &[u8]) -> Self {
        let lines = text.split(|byte| *byte == b'\n');
        Self(lines.filter_map(Mount::parse).collect())
    }

    /// The other paths of the file at a path without symbolic links.
    pub(super) fn other_paths(&self, path: &[u8]) -> Vec<Vec<u8>> {
        let Some(mount) = self.mount_of(path) else {
            return Vec::new();
        };
        let Some(inside) = below(&mount.point, path).map(|rest| join(&mount.root, rest)) else {
            return Vec::new();
        };
        let others = self.0.iter().filter(|other| other.is_of(mount));
        let others = others.filter_map(|other| {
            let rest = below(&other.root, &inside)?;
            Some(join(&other.point, rest))
        });
        others.filter(|other| other != path).collect()
    }

    /// Where parts of a directory are mounted.
    pub(super) fn mounted_parts(&self, directory: &[u8]) -> Vec<Vec<u8>> {
        let Some(mount) = self.mount_of(directory) else {
            return Vec::new();
        };
        let Some(inside) = below(&mount.point, directory).map(|rest| join(&mount.root, rest))
        else {
            return Vec::new();
        };
        let others = self.0.iter().filter(|other| other.is_of(mount));
        let parts = others.filter(|other| below(&inside, &other.root).is_some());
        parts.map(|part| part.point.clone()).collect()
    }

    /// The mount in which the path is, found as the kernel does: a mount hides what is below its mount point.
    fn mount_of(&self, path: &[u8]) -> Option<&Mount> {
        let is_root = |mount: &&Mount| {
            mount.point == b"/" && !self.0.iter().any(|other| other.id == mount.parent)
        };
        let mut current = self.0.iter().find(is_root)?;
        // Each step enters a mount of the one before, so there are fewer steps than mounts.
        for _ in 0..self.0.len() {
            let children = self.0.iter().filter(|mount| {
                mount.parent == current.id
                    && mount.id != current.id
                    && below(&mount.point, path).is_some()
            });
            match children.min_by_key(|mount| mount.point.len()) {
                Some(child) => current = child,
                None => break,
            }
        }
        Some(current)
    }
}

impl Mount {
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ');
        let mut number = || std::str::from_utf8(fields.next()?).ok()?.parse().ok();
        let (id, parent) = (number()?, number()?);
        Some(Self {
            id,
            parent,
            device: fields.next()?.to_vec(),
            root: unescape(fields.next()?),
            point: unescape(fields.next()?),
        })
    }

    fn is_of(&self, other: &Self) -> bool {
        self.device == other.device
    }
}

/// The rest of a path below a directory: empty, or with a slash at its beginning.
fn below<'path>(directory: &[u8], path: &'path [u8]) -> Option<&'path [u8]> {
    if directory == b"/" {
        return Some(if path == b"/" { b"" } else { path });
    }
    let rest = path.strip_prefix(directory)?;
    (rest.is_empty() || rest.starts_with(b"/")).then_some(rest)
}

fn join(directory: &[u8], rest: &[u8]) -> Vec<u8> {
    match (directory, rest) {
        (directory, b"") => directory.to_vec(),
        (b"/", rest) => rest.to_vec(),
        (directory, rest) => [directory, rest].concat(),
    }
}

/// The kernel writes spaces and some other characters as three octal digits.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, after @ ..] = rest {
        let digits = after.get(..3).filter(|_| *first == b'\\');
        let escaped =
            digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() {
            &after[3..]
        } else {
            after
        };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
30 1 0:40 / / rw - overlay overlay rw
31 30 0:41 / /proc rw - proc proc rw
32 30 8:1 /volumes/a /data rw - ext4 /dev/sda1 rw
33 30 8:1 / /host\\040root rw - ext4 /dev/sda1 rw
34 30 8:1 /volumes/a/token /run/token rw - ext4 /dev/sda1 rw
35 33 0:42 / /host\\040root/volumes/b rw - tmpfs tmpfs rw
36 32 0:43 / /data/over rw - tmpfs tmpfs rw
37 36 0:44 / /data/over rw - tmpfs tmpfs rw
";

    fn texts(paths: Vec<Vec<u8>>) -> Vec<String> {
        let text = |path: Vec<u8>| String::from_utf8(path).unwrap();
        paths.into_iter().map(text).collect()
    }

    #[test]
    fn a_file_has_a_path_in_each_mount_of_its_file_system() {
        let mounts = MountTable::parse(MOUNTS.as_bytes());
        let check = |path: &str, expected: &[&str]| {
            assert_eq!(
                texts(mounts.other_paths(path.as_bytes())),
                expected,
                "{path}"
            );
        };
        check("/etc/passwd", &[]);
        check("/", &[]);
        check("/data", &["/host root/volumes/a"]);
        check("/data/x", &["/host root/volumes/a/x"]);
        check("/host root/volumes/a/x", &["/data/x"]);
        check("/host root/etc", &[]);
        check("/host root/volumes/b/x", &[]);
        check("/data/token", &["/host root/volumes/a/token", "/run/token"]);
        check("/run/token", &["/data/token", "/host root/volumes/a/token"]);
        check("/database", &[]);
        check("/data/over/x", &[]);
    }

    #[test]
    fn the_last_of_several_mounts_at_a_path_counts() {
        let mounts = MountTable::parse(MOUNTS.as_bytes());
        let device = |path: &str| {
            let mount = mounts.mount_of(path.as_bytes()).unwrap();
            String::from_utf8(mount.device.clone()).unwrap()
        };
        assert_eq!(device("/data/over/x"), "0:44");
        assert_eq!(device("/data/other"), "8:1");
        assert_eq!(device("/"), "0:40");
    }

    #[test]
    fn mounted_parts_of_a_directory_are_found() {
        let mounts = MountTable::parse(MOUNTS.as_bytes());
        let parts = |path: &str| texts(mounts.mounted_parts(path.as_bytes()));
        assert_eq!(parts("/host root/volumes"), ["/data", "/run/token"]);
        assert_eq!(parts("/host root/etc"), [""; 0]);
    }
}

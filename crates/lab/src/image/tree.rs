//! The file tree of an image: merges sources, of which later ones override earlier ones.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::fs::{self, FileType};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use super::ImageError;

/// The same limit as the kernel's.
const MAX_LINKS_FOLLOWED: usize = 40;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    Directory { mode: u32 },
    Link { target: PathBuf },
    File { content: Content, mode: u32 },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Content {
    OnDisk { path: PathBuf, size: u64 },
    InMemory(Vec<u8>),
}

/// Entries by their path relative to the root of the image. Paths are ordered by their components, so a folder precedes
/// its contents, and the order does not depend on the order of directory entries on disk.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    entries: BTreeMap<PathBuf, Entry>,
}

impl Tree {
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&Path, &Entry)> {
        self.entries
            .iter()
            .map(|(path, entry)| (path.as_path(), entry))
    }

    /// Inserts the entry at a path of the image and replaces an existing entry.
    ///
    /// The path is resolved through symbolic links that the image already has: where `/bin` is a link to `usr/bin`, a
    /// file added as `/bin/program` is in `/usr/bin`, and a folder added as `/bin` is merged into `/usr/bin`. Parent
    /// folders are created.
    pub(crate) fn insert(&mut self, path: &Path, entry: Entry) -> Result<(), ImageError> {
        let relative = relative_to_root(path)?;
        let (Some(parent), Some(name)) = (relative.parent(), relative.file_name()) else {
            // The root itself exists without an entry.
            return Ok(());
        };
        let real_path = self.real_directory(parent)?.join(name);
        if let Entry::Directory { .. } = entry {
            let directory = self.real_directory(&real_path)?;
            // A link may lead to the root, which exists without an entry.
            if directory != Path::new("") {
                self.entries.insert(directory, entry);
            }
            return Ok(());
        }
        if let Some(Entry::Directory { .. }) = self.entries.get(&real_path) {
            self.entries.retain(|path, _| !path.starts_with(&real_path));
        }
        self.entries.insert(real_path, entry);
        Ok(())
    }

    /// Inserts the contents of a folder on disk below a path of the image.
    pub(crate) fn insert_folder(
        &mut self,
        folder: &Path,
        destination: &Path,
    ) -> Result<(), ImageError> {
        for (path, entry) in entries_of_folder(folder)? {
            self.insert(&destination.join(path), entry)?;
        }
        Ok(())
    }

    /// Resolves the links in the path of a folder. Missing folders are created, and a file in the path is replaced by a
    /// folder, because later sources override earlier ones.
    fn real_directory(&mut self, path: &Path) -> Result<PathBuf, ImageError> {
        let mut pending: VecDeque<OsString> = names_of(path).collect();
        let mut real = PathBuf::new();
        let mut links_followed = 0;
        while let Some(name) = pending.pop_front() {
            if name == ".." {
                real.pop();
                continue;
            }
            let next = real.join(&name);
            match self.entries.get(&next) {
                Some(Entry::Directory { .. }) => real = next,
                Some(Entry::Link { target }) => {
                    links_followed += 1;
                    if links_followed > MAX_LINKS_FOLLOWED {
                        let path = path.to_path_buf();
                        return Err(ImageError::LinkLoop { path });
                    }
                    if target.is_absolute() {
                        real = PathBuf::new();
                    }
                    let names: Vec<OsString> = names_of(target).collect();
                    for name in names.into_iter().rev() {
                        pending.push_front(name);
                    }
                }
                Some(Entry::File { .. }) | None => {
                    self.entries
                        .insert(next.clone(), Entry::Directory { mode: 0o755 });
                    real = next;
                }
            }
        }
        Ok(real)
    }
}

/// Everything below a folder on disk, in an order that does not depend on the disk. The folder itself is first, with an
/// empty path.
pub(crate) fn entries_of_folder(folder: &Path) -> Result<BTreeMap<PathBuf, Entry>, ImageError> {
    let mut entries = BTreeMap::new();
    let mode = metadata_of(folder)?.permissions().mode() & 0o7777;
    entries.insert(PathBuf::new(), Entry::Directory { mode });
    let mut unvisited = vec![PathBuf::new()];
    while let Some(relative) = unvisited.pop() {
        let directory = folder.join(&relative);
        let listing = fs::read_dir(&directory).map_err(ImageError::file("list", &directory))?;
        for item in listing {
            let item = item.map_err(ImageError::file("list", &directory))?;
            let relative = relative.join(item.file_name());
            let entry = entry_on_disk(&item.path())?;
            if let Entry::Directory { .. } = entry {
                unvisited.push(relative.clone());
            }
            entries.insert(relative, entry);
        }
    }
    Ok(entries)
}

/// The entry for a path on disk. A symbolic link is not followed.
fn entry_on_disk(path: &Path) -> Result<Entry, ImageError> {
    let metadata = fs::symlink_metadata(path).map_err(ImageError::file("read", path))?;
    let mode = metadata.permissions().mode() & 0o7777;
    let kind = metadata.file_type();
    if kind.is_dir() {
        return Ok(Entry::Directory { mode });
    }
    if kind.is_symlink() {
        let target = fs::read_link(path).map_err(ImageError::file("read", path))?;
        return Ok(Entry::Link { target });
    }
    if !kind.is_file() {
        return Err(special_file(path, kind));
    }
    let content = Content::OnDisk {
        path: path.to_path_buf(),
        size: metadata.len(),
    };
    Ok(Entry::File { content, mode })
}

/// The content of one file on disk. Symbolic links are followed: the caller means the file, not the link.
pub(crate) fn content_of_file(path: &Path) -> Result<Content, ImageError> {
    let metadata = metadata_of(path)?;
    if !metadata.is_file() {
        return Err(special_file(path, metadata.file_type()));
    }
    Ok(Content::OnDisk {
        path: path.to_path_buf(),
        size: metadata.len(),
    })
}

fn metadata_of(path: &Path) -> Result<fs::Metadata, ImageError> {
    fs::metadata(path).map_err(ImageError::file("read", path))
}

fn special_file(path: &Path, kind: FileType) -> ImageError {
    let kind = if kind.is_socket() {
        "socket"
    } else if kind.is_fifo() {
        "named pipe"
    } else if kind.is_dir() {
        "folder where a file is expected"
    } else {
        "device"
    };
    ImageError::SpecialFile {
        path: path.to_path_buf(),
        kind,
    }
}

fn relative_to_root(path: &Path) -> Result<PathBuf, ImageError> {
    let mut relative = PathBuf::new();
    for component in path.components() {
        match component {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => relative.push(name),
            Component::ParentDir | Component::Prefix(_) => {
                let path = path.to_path_buf();
                return Err(ImageError::PathOutsideImage { path });
            }
        }
    }
    Ok(relative)
}

/// The components of a path, including `..`, which must be resolved after links.
fn names_of(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_os_string()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Entry {
        Entry::File {
            content: Content::InMemory(text.as_bytes().to_vec()),
            mode: 0o644,
        }
    }

    fn link(target: &str) -> Entry {
        Entry::Link {
            target: PathBuf::from(target),
        }
    }

    fn directory(mode: u32) -> Entry {
        Entry::Directory { mode }
    }

    /// Inserts the entries in order and compares the resulting paths.
    fn check(insertions: &[(&str, Entry)], expected: &[&str]) -> Tree {
        let mut tree = Tree::default();
        for (path, entry) in insertions {
            tree.insert(Path::new(path), entry.clone()).unwrap();
        }
        let paths: Vec<&str> = tree
            .entries()
            .map(|(path, _)| path.to_str().unwrap())
            .collect();
        assert_eq!(paths, expected);
        tree
    }

    #[test]
    fn parent_folders_are_created_and_precede_their_contents() {
        check(
            &[("/a.b", file("")), ("/a/b/c", file("")), ("/a-b", file(""))],
            &["a", "a/b", "a/b/c", "a-b", "a.b"],
        );
    }

    #[test]
    fn later_entries_replace_earlier_ones() {
        let tree = check(
            &[("/etc/name", file("old")), ("/etc/name", file("new"))],
            &["etc", "etc/name"],
        );
        assert_eq!(tree.entries[Path::new("etc/name")], file("new"));
        check(&[("/a/b/c", file("")), ("/a", file(""))], &["a"]);
        check(&[("/a", file("")), ("/a/b", file(""))], &["a", "a/b"]);
        let tree = check(
            &[("/tmp/x", file("")), ("/tmp", directory(0o1777))],
            &["tmp", "tmp/x"],
        );
        assert_eq!(tree.entries[Path::new("tmp")], directory(0o1777));
    }

    #[test]
    fn paths_are_resolved_through_links_of_the_image() {
        check(
            &[("/bin", link("usr/bin")), ("/bin/program", file(""))],
            &["bin", "usr", "usr/bin", "usr/bin/program"],
        );
        check(
            &[
                ("/usr/bin/old", file("")),
                ("/bin", link("/usr/sbin/../bin")),
                ("/bin", directory(0o755)),
                ("/bin/new", file("")),
            ],
            &[
                "bin",
                "usr",
                "usr/bin",
                "usr/bin/new",
                "usr/bin/old",
                "usr/sbin",
            ],
        );
        let tree = check(&[("/a", link("b")), ("/a", file(""))], &["a"]);
        assert_eq!(tree.entries[Path::new("a")], file(""));
    }

    #[test]
    fn link_loops_and_paths_outside_the_image_are_rejected() {
        let mut tree = Tree::default();
        tree.insert(Path::new("/a"), link("b")).unwrap();
        tree.insert(Path::new("/b"), link("a")).unwrap();
        assert!(matches!(
            tree.insert(Path::new("/a/c"), file("")),
            Err(ImageError::LinkLoop { .. })
        ));
        assert!(matches!(
            tree.insert(Path::new("/../etc/passwd"), file("")),
            Err(ImageError::PathOutsideImage { .. })
        ));
    }
}

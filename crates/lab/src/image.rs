//! Container images, built from folders, files and static programs without Docker and without a registry.
//!
//! An [`Image`] is a list of sources and a configuration. Writing it gives one tar file with one layer, in the format of
//! `docker save`, which `ctr images import` and `podman load` both take. The same sources give the same bytes on every
//! machine of one architecture: entries are sorted, owned by root and without a date.
//!
//! ```no_run
//! # use std::path::Path;
//! # use lab::image::{Cache, Image, ImageError};
//! # fn main() -> Result<(), ImageError> {
//! let archive = Image::new("registry.lab/shop/checkout:1")
//!     .file("/checkout", Path::new("target/release/checkout"), 0o755)
//!     .directory("/tmp", 0o1777)
//!     .entrypoint(["/checkout"])
//!     .user("1000:1000")
//!     .write_cached(&Cache::new("/var/cache/lab"))?;
//! # Ok(())
//! # }
//! ```

mod archive;
mod cache;
mod command;
mod error;
mod fingerprint;
pub mod recipes;
mod tree;

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

pub use self::archive::ImageArchive;
pub use self::cache::Cache;
pub(crate) use self::command::{output_of, pipe};
pub use self::error::ImageError;
pub(crate) use self::fingerprint::Fingerprint;
use self::tree::{Entry, Tree};

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The section of a [`Cache`] for archives.
const ARCHIVES: &str = "archives";

/// The description of an image. Later sources override earlier ones.
#[derive(Debug, Clone)]
pub struct Image {
    reference: String,
    sources: Vec<Source>,
    configuration: Configuration,
}

#[derive(Debug, Clone)]
enum Source {
    Folder {
        path: PathBuf,
        destination: PathBuf,
        key: Option<String>,
    },
    File {
        path: PathBuf,
        destination: PathBuf,
        mode: u32,
    },
    Bytes {
        bytes: Vec<u8>,
        destination: PathBuf,
        mode: u32,
    },
    Directory {
        destination: PathBuf,
        mode: u32,
    },
    Link {
        target: PathBuf,
        destination: PathBuf,
    },
}

/// The configuration that a container runtime reads, with the field names of the OCI image specification.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Configuration {
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    env: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    entrypoint: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cmd: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    working_dir: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_signal: Option<String>,
}

impl Image {
    /// The reference is the image's name in pods; it needs a registry and a tag, such as `registry.lab/pause:1`.
    pub fn new(reference: impl Into<String>) -> Self {
        Self {
            reference: reference.into(),
            sources: Vec::new(),
            configuration: Configuration {
                env: vec![format!("PATH={DEFAULT_PATH}")],
                ..Configuration::default()
            },
        }
    }

    /// Adds the contents of a folder. Modes and symbolic links are kept, owners and dates are not.
    pub fn folder(mut self, path: impl Into<PathBuf>, destination: impl Into<PathBuf>) -> Self {
        self.sources.push(Source::Folder {
            path: path.into(),
            destination: destination.into(),
            key: None,
        });
        self
    }

    /// Adds a folder whose content is identified by a key, so that it need not be read to find the image in the cache. The
    /// caller guarantees that the same key means the same content.
    pub fn keyed_folder(
        mut self,
        path: impl Into<PathBuf>,
        destination: impl Into<PathBuf>,
        key: impl Into<String>,
    ) -> Self {
        self.sources.push(Source::Folder {
            path: path.into(),
            destination: destination.into(),
            key: Some(key.into()),
        });
        self
    }

    pub fn file(
        mut self,
        destination: impl Into<PathBuf>,
        path: impl Into<PathBuf>,
        mode: u32,
    ) -> Self {
        self.sources.push(Source::File {
            path: path.into(),
            destination: destination.into(),
            mode,
        });
        self
    }

    pub fn bytes(
        mut self,
        destination: impl Into<PathBuf>,
        bytes: impl AsRef<[u8]>,
        mode: u32,
    ) -> Self {
        self.sources.push(Source::Bytes {
            bytes: bytes.as_ref().to_vec(),
            destination: destination.into(),
            mode,
        });
        self
    }

    pub fn directory(mut self, destination: impl Into<PathBuf>, mode: u32) -> Self {
        self.sources.push(Source::Directory {
            destination: destination.into(),
            mode,
        });
        self
    }

    pub fn link(mut self, destination: impl Into<PathBuf>, target: impl Into<PathBuf>) -> Self {
        self.sources.push(Source::Link {
            target: target.into(),
            destination: destination.into(),
        });
        self
    }

    pub fn entrypoint<Word: Into<String>>(mut self, words: impl IntoIterator<Item = Word>) -> Self {
        self.configuration.entrypoint = words.into_iter().map(Into::into).collect();
        self
    }

    pub fn command<Word: Into<String>>(mut self, words: impl IntoIterator<Item = Word>) -> Self {
        self.configuration.cmd = words.into_iter().map(Into::into).collect();
        self
    }

    /// Sets an environment variable and replaces an earlier value. `PATH` has the usual value by default.
    pub fn environment(mut self, name: &str, value: &str) -> Self {
        let prefix = format!("{name}=");
        let variables = &mut self.configuration.env;
        variables.retain(|variable| !variable.starts_with(&prefix));
        variables.push(format!("{prefix}{value}"));
        self
    }

    /// A user and a group by number, such as `1000:1000`; a pod that must not run as root needs numbers.
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.configuration.user = Some(user.into());
        self
    }

    pub fn working_directory(mut self, path: impl Into<String>) -> Self {
        self.configuration.working_dir = Some(path.into());
        self
    }

    pub fn stop_signal(mut self, signal: impl Into<String>) -> Self {
        self.configuration.stop_signal = Some(signal.into());
        self
    }

    /// Writes the archive to `output`, which is replaced atomically when the archive is complete.
    pub fn write(&self, output: &Path) -> Result<ImageArchive, ImageError> {
        let mut unfinished = output.as_os_str().to_owned();
        unfinished.push(format!(".{}", std::process::id()));
        let unfinished = PathBuf::from(unfinished);
        self.write_in_place(&unfinished)
            .and_then(|()| {
                fs::rename(&unfinished, output).map_err(ImageError::file("rename", &unfinished))
            })
            .inspect_err(|_| {
                // The original error is reported, even if the partial file cannot be removed.
                let _ = fs::remove_file(&unfinished);
            })?;
        ImageArchive::open(output)
    }

    /// The archive in the cache, written only if it does not exist yet.
    pub fn write_cached(&self, cache: &Cache) -> Result<ImageArchive, ImageError> {
        self.check_reference()?;
        let digest = self.inputs_digest()?;
        let name = format!("{}-{}.tar", self.file_stem(), &digest[..16]);
        let path = cache.entry(ARCHIVES, &name, |path| self.write_in_place(path))?;
        ImageArchive::open(&path)
    }

    /// A hash of everything that determines the archive. It reads all files, except folders with a key.
    pub fn inputs_digest(&self) -> Result<String, ImageError> {
        let mut fingerprint = Fingerprint::new("image");
        fingerprint.number(archive::FORMAT_VERSION);
        fingerprint.text(archive::architecture()?);
        fingerprint.text(&self.reference);
        fingerprint.bytes(&serde_json::to_vec(&self.configuration)?);
        for source in &self.sources {
            source.add_to(&mut fingerprint)?;
        }
        Ok(fingerprint.finish())
    }

    fn write_in_place(&self, path: &Path) -> Result<(), ImageError> {
        self.check_reference()?;
        archive::write(&self.reference, &self.tree()?, &self.configuration, path)
    }

    fn tree(&self) -> Result<Tree, ImageError> {
        let mut tree = Tree::default();
        for source in &self.sources {
            source.insert_into(&mut tree)?;
        }
        Ok(tree)
    }

    /// Rejects short names: container runtimes expand them differently, so that a pod would not find the image.
    fn check_reference(&self) -> Result<(), ImageError> {
        let complete = self.reference.rsplit_once(':').is_some_and(|(name, tag)| {
            name.split_once('/').is_some_and(|(registry, path)| {
                registry.contains(['.', ':']) && is_lower_case_path(path)
            }) && !tag.is_empty()
                && tag
                    .chars()
                    .all(|letter| letter.is_ascii_alphanumeric() || "._-".contains(letter))
        });
        if complete {
            return Ok(());
        }
        Err(ImageError::Reference {
            reference: self.reference.clone(),
        })
    }

    /// The reference without its registry, as a part of a file name: `shop-checkout-1`.
    fn file_stem(&self) -> String {
        let (_, name) = self.reference.split_once('/').unwrap_or_default();
        name.replace(['/', ':'], "-")
    }
}

impl Source {
    fn insert_into(&self, tree: &mut Tree) -> Result<(), ImageError> {
        match self {
            Self::Folder {
                path, destination, ..
            } => tree.insert_folder(path, destination),
            Self::File {
                path,
                destination,
                mode,
            } => {
                let content = tree::content_of_file(path)?;
                let mode = *mode;
                tree.insert(destination, Entry::File { content, mode })
            }
            Self::Bytes {
                bytes,
                destination,
                mode,
            } => {
                let content = tree::Content::InMemory(bytes.clone());
                let mode = *mode;
                tree.insert(destination, Entry::File { content, mode })
            }
            Self::Directory { destination, mode } => {
                tree.insert(destination, Entry::Directory { mode: *mode })
            }
            Self::Link {
                target,
                destination,
            } => {
                let target = target.clone();
                tree.insert(destination, Entry::Link { target })
            }
        }
    }

    fn add_to(&self, fingerprint: &mut Fingerprint) -> Result<(), ImageError> {
        if let Self::Folder {
            destination,
            key: Some(key),
            ..
        } = self
        {
            fingerprint.text("keyed folder");
            fingerprint.path(destination);
            fingerprint.text(key);
            return Ok(());
        }
        let mut tree = Tree::default();
        self.insert_into(&mut tree)?;
        fingerprint.text("source");
        fingerprint.number(tree.entries().count() as u64);
        for (path, entry) in tree.entries() {
            fingerprint.path(path);
            fingerprint.entry(entry)?;
        }
        Ok(())
    }
}

fn is_lower_case_path(path: &str) -> bool {
    !path.is_empty()
        && path.split('/').all(|part| {
            !part.is_empty()
                && part.chars().all(|letter| {
                    letter.is_ascii_lowercase() || letter.is_ascii_digit() || "._-".contains(letter)
                })
        })
}

#[cfg(test)]
mod tests;

//! Errors while building an image, and what to do about them.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("cannot {action} {}", path.display())]
    File {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },

    #[error("{} is a {kind}, and an image holds only files, folders and symbolic links", path.display())]
    SpecialFile { path: PathBuf, kind: &'static str },

    #[error("{} was {expected} bytes long when the image was begun and has changed since", path.display())]
    FileChanged { path: PathBuf, expected: u64 },

    #[error("{} is not a path inside an image", path.display())]
    PathOutsideImage { path: PathBuf },

    #[error("the symbolic links at {} form a loop", path.display())]
    LinkLoop { path: PathBuf },

    #[error("{reference:?} does not name an image")]
    Reference { reference: String },

    #[error("there is no image architecture for this machine ({machine})")]
    Architecture { machine: &'static str },

    #[error("{} is not an image archive of the lab: {reason}", path.display())]
    NotAnArchive { path: PathBuf, reason: String },

    #[error("cannot describe the image in JSON")]
    Json(#[from] serde_json::Error),

    #[error("cannot run {program}")]
    CommandNotStarted { program: String, source: io::Error },

    #[error("{program} failed ({status}): {message}")]
    CommandFailed {
        program: String,
        status: ExitStatus,
        message: String,
    },

    #[error("the packages {packages:?} cannot be resolved")]
    PackagesUnresolved {
        packages: Vec<String>,
        source: Box<ImageError>,
    },

    #[error("{count} packages cannot be downloaded")]
    PackagesNotDownloaded {
        count: usize,
        source: Box<ImageError>,
    },

    #[error("cannot parse this line of apt's output: {line:?}")]
    PackageLine { line: String },

    #[error("the package {package} has no {path:?}, which the image needs")]
    PackageLacks {
        package: &'static str,
        path: &'static str,
    },
}

impl ImageError {
    /// What the user can do next.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::SpecialFile { .. } => {
                Some("remove it from the folder, or add the folder's other files one by one")
            }
            Self::FileChanged { .. } => Some(
                "wait until the program that writes the file is done, then build the image again",
            ),
            Self::PathOutsideImage { .. } => {
                Some("give an absolute path without `..`, such as /usr/bin/program")
            }
            Self::LinkLoop { .. } => Some("remove one of the links from the image's sources"),
            Self::Reference { .. } => {
                Some("write it as registry/name:tag, such as registry.lab/shop/checkout:1")
            }
            Self::Architecture { .. } => Some("run the lab on an x86-64 or a 64-bit Arm machine"),
            Self::NotAnArchive { .. } => Some("delete the file; it is built again when needed"),
            Self::CommandNotStarted { program, .. } if program == "cc" => {
                Some("install a C compiler: apt-get install gcc libc6-dev")
            }
            Self::CommandNotStarted { .. } => Some(
                "the lab's images are built on Debian or Ubuntu, with apt-get, dpkg-deb and tar",
            ),
            Self::PackagesUnresolved { .. } | Self::PackagesNotDownloaded { .. } => {
                Some("run `apt-get update`: the machine's package lists are missing or out of date")
            }
            Self::File { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                Some("free some space, for example by deleting the lab's cache folder")
            }
            Self::File { .. }
            | Self::Json(_)
            | Self::CommandFailed { .. }
            | Self::PackageLine { .. }
            | Self::PackageLacks { .. } => None,
        }
    }

    /// Adds the action and the file to an I/O error.
    pub(crate) fn file(
        action: &'static str,
        path: impl AsRef<Path>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.as_ref().to_path_buf();
        move |source| Self::File {
            action,
            path,
            source,
        }
    }
}

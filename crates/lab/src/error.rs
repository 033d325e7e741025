//! The errors of the lab. Each message tells the user what to do next, or [`Error::hint`] does.

use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;

use crate::host_checks::Problem;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The host does not meet the lab's requirements. Nothing has been changed.
    #[error("this machine cannot run the lab{}", list(.0))]
    UnsuitableHost(Vec<Problem>),

    #[error("cannot {action}")]
    Io {
        action: String,
        #[source]
        source: io::Error,
    },

    #[error("`{command}` failed ({status}){}", quote(.output))]
    Command {
        command: String,
        status: String,
        output: String,
    },

    /// A component of a node does not become ready.
    #[error("{node}: {problem}\n  last lines of {}:{}", .log.display(), quote(.tail))]
    Component {
        node: String,
        problem: String,
        log: PathBuf,
        tail: String,
    },

    #[error("no lab named `{0}` is running")]
    NotRunning(String),

    #[error("{0}")]
    Refused(String),

    #[error("request to the lab's {role} failed: {message}")]
    Remote { role: &'static str, message: String },

    #[error("the API server of {cluster} answered {path} with: {message}")]
    Api {
        cluster: String,
        path: String,
        message: String,
    },

    #[error("cannot create the certificates of a cluster")]
    Certificates(#[from] rcgen::Error),

    #[error("cannot read {what}")]
    Json {
        what: String,
        #[source]
        source: serde_json::Error,
    },

    #[error(transparent)]
    Wire(#[from] crate::wire::WireError),

    #[error(transparent)]
    Image(#[from] crate::image::ImageError),
}

impl Error {
    /// What the user can do about it, where that is not already part of the message.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::NotRunning(name) => {
                Some(format!("start it with `cargo xtask lab up --name {name}`"))
            }
            Error::Component { log, .. } => Some(format!(
                "the whole log is in {}; everything that was started is taken down again, so the command can be repeated",
                log.display()
            )),
            Error::Command { command, .. } if command.starts_with("go ") => Some(
                "the lab's Kubernetes is built from Go modules: check that Go can reach its module \
                 proxy (`go env GOPROXY`) and that the disk is not full, then run the command again"
                    .to_owned(),
            ),
            Error::Image(error) => error.hint().map(str::to_owned),
            Error::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                Some("free some disk space and run the command again".to_owned())
            }
            _ => None,
        }
    }
}

/// Adds the action that an I/O error interrupted, worded to follow "cannot".
pub(crate) trait ErrorContext<T> {
    fn with_context(self, action: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<io::Error>> ErrorContext<T> for std::result::Result<T, E> {
    fn with_context(self, action: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Error::Io {
            action: action(),
            source: error.into(),
        })
    }
}

fn list(problems: &[Problem]) -> String {
    problems.iter().fold(String::new(), |mut text, problem| {
        let _ = write!(text, "\n  - {}\n    {}", problem.what, problem.remedy);
        text
    })
}

fn quote(output: &str) -> String {
    output
        .lines()
        .filter(|line| !line.trim().is_empty())
        .fold(String::new(), |mut text, line| {
            let _ = write!(text, "\n    | {line}");
            text
        })
}

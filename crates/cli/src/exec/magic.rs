//! What bundles of settings need on this machine.

use config::{MagicSurroundings, Settings};
use tempfile::TempDir;

/// Ends with the session.
#[derive(Debug)]
pub(super) struct Magic {
    /// Nobody puts anything into it.
    empty: Option<TempDir>,
    pub(super) mounts: Vec<String>,
}

impl Magic {
    /// Without a folder the session goes on, and what is in its place on this machine is seen.
    pub(super) fn new(settings: &Settings) -> Self {
        let empty = settings.needs_empty_folder().then(|| {
            let made = tempfile::Builder::new().prefix("standin-").tempdir();
            made.inspect_err(
                |error| tracing::warn!(%error, "there is no place for an empty folder"),
            )
        });
        Self {
            empty: empty.and_then(Result::ok),
            mounts: Vec::new(),
        }
    }

    pub(super) fn surroundings(&self) -> MagicSurroundings {
        let folder = self
            .empty
            .as_ref()
            .and_then(|folder| folder.path().to_str());
        MagicSurroundings {
            empty_folder: folder.map(ToOwned::to_owned),
            mounts: self.mounts.clone(),
        }
    }
}

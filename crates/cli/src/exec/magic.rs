//! Applies the `magic` settings, which need resources besides the settings.

use std::ffi::OsString;

use config::{MagicSurroundings, Resolved, Surroundings};
use proxy::TemporaryFolder;

use super::settings;

/// Shown in place of the temporary folder if there is no session.
const FOLDER_PLACEHOLDER: &str = "<empty folder of the session>";

/// The resources of magic for a session. They are removed when this is dropped.
#[derive(Debug)]
pub(super) struct Magic {
    _empty_folder: Option<TemporaryFolder>,
}

impl Magic {
    /// Adds the settings of magic to those of a session.
    pub(super) fn add(
        resolved: &mut Resolved,
        surroundings: &Surroundings,
        mounts: Vec<String>,
    ) -> Self {
        let folder = resolved.needs_empty_folder().then(TemporaryFolder::new);
        let folder = folder.and_then(|created| {
            let failed = |error: &_| tracing::warn!(%error, "temporary folder not created");
            created.inspect_err(failed).ok()
        });
        let path = folder.as_ref().and_then(|folder| folder.path().to_str());
        let magic = MagicSurroundings {
            mounts,
            empty_folder: path.map(str::to_owned),
        };
        resolved.add_magic(surroundings, &magic);
        Self {
            _empty_folder: folder,
        }
    }
}

/// The same without a session, for `--print-config`.
pub(super) fn add_preview(resolved: &mut Resolved, command: &[OsString]) {
    let magic = MagicSurroundings {
        mounts: Vec::new(),
        empty_folder: Some(FOLDER_PLACEHOLDER.to_owned()),
    };
    resolved.add_magic(&settings::surroundings(command), &magic);
}

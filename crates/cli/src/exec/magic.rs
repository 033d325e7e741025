//! What `magic` needs beside the settings.

use std::ffi::OsString;

use config::{MagicSurroundings, Resolved, Surroundings};
use proxy::TemporaryFolder;

use super::settings;

/// What is shown of a folder that only a session has.
const FOLDER_OF_A_SESSION: &str = "<empty folder of the session>";

/// What magic has made for a session. It is gone when this is.
#[derive(Debug)]
pub(super) struct Magic {
    _empty_folder: Option<TemporaryFolder>,
}

impl Magic {
    /// Adds what magic adds to the settings of a session.
    pub(super) fn add(
        resolved: &mut Resolved,
        surroundings: &Surroundings,
        mounts: Vec<String>,
    ) -> Self {
        let folder = resolved.needs_empty_folder().then(TemporaryFolder::new);
        let folder = folder.and_then(|made| {
            let failed = |error: &_| tracing::warn!(%error, "no temporary folder can be made");
            made.inspect_err(failed).ok()
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

/// The same without a session, for those who want to know what would be.
pub(super) fn add_what_is_known(resolved: &mut Resolved, command: &[OsString]) {
    let magic = MagicSurroundings {
        mounts: Vec::new(),
        empty_folder: Some(FOLDER_OF_A_SESSION.to_owned()),
    };
    resolved.add_magic(&settings::surroundings(command), &magic);
}

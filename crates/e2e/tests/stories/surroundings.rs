//! What stories on this machine share: the programs of this repository, and those that stand in.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::Result;
use e2e::environment;
use e2e::machine::Programs;

/// `standin` and `standind`.
pub(crate) fn programs() -> Result<Programs> {
    Programs::find(&Path::new(env!("CARGO_TARGET_TMPDIR")).join(".."))
}

/// Where compiled programs are kept.
pub(crate) fn cache() -> PathBuf {
    env::var_os(environment::FIXTURES).map_or_else(
        || Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs"),
        PathBuf::from,
    )
}

//! What it costs to watch sessions: each event, `standin ui` with many sessions, and the page.

mod events;
mod page;
mod ui;

use anyhow::Result;

use super::groups::{self, Group};
use super::session::programs::Programs;
use super::{Extent, Row};
use crate::{packages, web, workspace};

const GROUPS: &[Group<Programs>] = &[
    ("events", events::rows),
    ("ui", ui::rows),
    ("page", page::rows),
];

/// Builds the page first, because it is in the program.
pub(super) fn prepare() -> Result<()> {
    packages::install_missing(&packages::BROWSER)?;
    web::install_and_build(&workspace::root()?)?;
    Programs::build()
}

pub(super) fn measure(extent: &Extent) -> Result<Vec<Row>> {
    groups::measure(GROUPS, extent, || Programs::find(extent), |_| Ok(()))
}

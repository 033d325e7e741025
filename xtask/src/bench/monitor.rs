//! The cost of monitoring: of each event, of `standin ui` with many sessions, and of the page.

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

/// Builds the page first, because the program embeds it.
pub(super) fn prepare() -> Result<()> {
    packages::install_missing(&packages::BROWSER)?;
    web::install_and_build(&workspace::root()?)?;
    Programs::build()
}

pub(super) fn measure(extent: &Extent) -> Result<Vec<Row>> {
    groups::measure(GROUPS, extent, || Programs::find(extent), |_| Ok(()))
}

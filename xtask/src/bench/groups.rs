//! Groups of rows, of which some or all are measured at one site.

use anyhow::{Result, bail};

use super::{Extent, Row};

/// Rows that belong together.
pub(super) type Group<Site> = (&'static str, fn(&mut Site, &Extent) -> Result<Vec<Row>>);

/// Measures the selected groups. `build` creates the site, `begin` is called before each group.
pub(super) fn measure<Site>(
    groups: &[Group<Site>],
    extent: &Extent,
    build: impl FnOnce() -> Result<Site>,
    mut begin: impl FnMut(&mut Site) -> Result<()>,
) -> Result<Vec<Row>> {
    let names: Vec<&str> = groups.iter().map(|(name, _)| *name).collect();
    if let Some(unknown) = extent
        .only
        .iter()
        .find(|only| !names.contains(&only.as_str()))
    {
        bail!(
            "there is no group `{unknown}`. Available groups: {}",
            names.join(", ")
        );
    }
    let mut site = build()?;
    let mut rows = Vec::new();
    for (name, group) in groups {
        if !extent.only.is_empty() && !extent.only.iter().any(|only| only == name) {
            continue;
        }
        eprintln!("measuring {name}");
        match begin(&mut site).and_then(|()| group(&mut site, extent)) {
            Ok(measured) => rows.extend(measured),
            Err(error) => {
                // The other groups can still be measured; this one counts as a missed goal.
                eprintln!("{name} could not be measured: {error:#}");
                rows.push(Row::new(format!("{name}: failures"), 1.0, "").at_most(0.0));
            }
        }
    }
    Ok(rows)
}

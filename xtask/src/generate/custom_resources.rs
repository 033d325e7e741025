//! The operator's custom resources, from the types of the crate `api`, as templates of its chart.
//!
//! They are templates because Helm neither upgrades nor deletes what is in a chart's folder `crds`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const FOLDER: &str = "charts/standin-operator/templates";
const HEAD: &str =
    "# Made from the types of crates/api by `cargo xtask generate`. Do not change it here.\n";

/// What every generated file should contain now. The paths are relative to the top of the repository.
pub(crate) fn generated_files(_root: &Path) -> Result<Vec<(PathBuf, Vec<u8>)>> {
    api::custom_resource_definitions()
        .into_iter()
        .map(|definition| {
            let name = definition.spec.names.singular.clone();
            let name = name.context("a custom resource has no name")?;
            // Through JSON: its order of fields is that of Kubernetes, and nothing that is absent is written.
            let value = serde_json::to_value(&definition)?;
            let text = serde_saphyr::to_string(&value)?;
            let path = Path::new(FOLDER).join(format!("{name}-customresourcedefinition.yaml"));
            Ok((path, format!("{HEAD}{text}").into_bytes()))
        })
        .collect()
}

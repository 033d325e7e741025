//! The custom resources of the operator and of the hub, from the types of the crate `api`, as templates of their charts.
//!
//! They are templates because Helm neither upgrades nor deletes what is in a chart's folder `crds`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const OPERATOR: &str = "charts/standin-operator/templates";
const HUB: &str = "charts/standin-hub/templates";
const HEAD: &str =
    "# Made from the types of crates/api by `cargo xtask generate`. Do not change it here.\n";

/// What every generated file should contain now. The paths are relative to the top of the repository.
pub(crate) fn generated_files(_root: &Path) -> Result<Vec<(PathBuf, Vec<u8>)>> {
    let of_operator = api::custom_resource_definitions();
    let of_operator = of_operator.into_iter().map(|it| (OPERATOR, it));
    let of_hub = [(HUB, api::hub_custom_resource_definition())];
    of_operator
        .chain(of_hub)
        .map(|(folder, definition)| {
            let name = definition.spec.names.singular.clone();
            let name = name.context("a custom resource has no name")?;
            // Through JSON: its order of fields is that of Kubernetes, and nothing that is absent is written.
            let value = serde_json::to_value(&definition)?;
            let text = serde_saphyr::to_string(&value)?;
            let path = Path::new(folder).join(format!("{name}-customresourcedefinition.yaml"));
            Ok((path, format!("{HEAD}{text}").into_bytes()))
        })
        .collect()
}

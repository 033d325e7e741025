//! Which crate may import which. [`MAP`] is the map of ARCHITECTURE.md as a table.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

use super::Finding;
use crate::process;

/// The groups of the map. What a member may import follows from its group; see [`Group::may_import`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Group {
    Words,
    Plumbing,
    DataPath,
    ControlPath,
    Programs,
    Proof,
    Samples,
}

/// A crate's place in the map.
#[derive(Debug)]
struct Place {
    name: &'static str,
    group: Group,
    /// Crates that this one hosts: the exceptions to the rule of its group.
    guests: &'static [&'static str],
}

const fn place(name: &'static str, group: Group, guests: &'static [&'static str]) -> Place {
    Place {
        name,
        group,
        guests,
    }
}

#[rustfmt::skip] // A table is read by its columns.
const MAP: &[Place] = &[
    place("protocol",      Group::Words,       &[]),
    place("api",           Group::Words,       &[]),
    place("config",        Group::Words,       &[]),
    place("monitor",       Group::Words,       &[]),
    place("link",          Group::Plumbing,    &[]),
    place("cluster",       Group::Plumbing,    &["link"]),
    place("tunnel",        Group::Plumbing,    &[]),
    place("interceptor",   Group::DataPath,    &[]),
    place("proxy",         Group::DataPath,    &["interceptor", "router"]),
    place("router",        Group::DataPath,    &[]),
    place("splitter",      Group::DataPath,    &[]),
    place("agent",         Group::DataPath,    &["splitter"]),
    place("operator",      Group::ControlPath, &[]),
    place("usage",         Group::ControlPath, &[]),
    place("fleet",         Group::ControlPath, &[]),
    place("cli",           Group::Programs,    &["proxy"]),
    place("server",        Group::Programs,    &["agent", "operator", "usage", "fleet"]),
    place("workload",      Group::Proof,       &[]),
    place("lab",           Group::Proof,       &[]),
    place("e2e",           Group::Proof,       &[]),
    place("xtask",         Group::Proof,       &[]),
    place("shop-checkout", Group::Samples,     &[]),
];

/// Clients of the Kubernetes API. The data path carries bytes and must work where there is no Kubernetes.
const KUBERNETES_CLIENTS: &[&str] = &[
    "kube",
    "kube-client",
    "kube-core",
    "kube-runtime",
    "k8s-openapi",
];

impl Group {
    fn may_import(self, other: Self) -> bool {
        match self {
            Self::Words | Self::Samples => false,
            Self::Plumbing => other == Self::Words,
            Self::DataPath | Self::ControlPath | Self::Programs => {
                matches!(other, Self::Words | Self::Plumbing)
            }
            Self::Proof => true,
        }
    }

    fn rule(self) -> &'static str {
        match self {
            Self::Words => "words import nothing of ours",
            Self::Plumbing => "plumbing imports only words",
            Self::DataPath | Self::ControlPath => {
                "paths import words and plumbing, never one another"
            }
            Self::Programs => "programs import words, plumbing and the crates they host",
            Self::Proof => "proof may import anything",
            Self::Samples => "sample services import nothing of ours",
        }
    }
}

/// A package of this workspace and everything that its manifest names as a dependency, except for its tests.
#[derive(Debug)]
pub(crate) struct Package {
    name: String,
    /// Relative to the top of the repository.
    manifest_path: PathBuf,
    manifest: String,
    dependencies: Vec<String>,
}

/// What cargo knows of the workspace.
pub(crate) fn read_graph(root: &Path) -> Result<Vec<Package>> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<MetadataPackage>,
    }
    #[derive(Deserialize)]
    struct MetadataPackage {
        name: String,
        manifest_path: PathBuf,
        dependencies: Vec<MetadataDependency>,
    }
    #[derive(Deserialize)]
    struct MetadataDependency {
        name: String,
        kind: Option<String>,
    }

    let json = process::output(lab::cargo(root).args([
        "metadata",
        "--format-version=1",
        "--no-deps",
        "--offline",
    ]))?;
    let metadata: Metadata =
        serde_json::from_str(&json).context("reading the output of cargo metadata")?;
    metadata
        .packages
        .into_iter()
        .map(|package| {
            let manifest = std::fs::read_to_string(&package.manifest_path)
                .with_context(|| format!("reading {}", package.manifest_path.display()))?;
            let manifest_path = package
                .manifest_path
                .strip_prefix(root)
                .unwrap_or(&package.manifest_path);
            Ok(Package {
                name: package.name,
                manifest_path: manifest_path.to_path_buf(),
                manifest,
                // A test may put both ends together.
                dependencies: package
                    .dependencies
                    .into_iter()
                    // What a crate's tests import is proof, which may import anything.
                    .filter(|dependency| dependency.kind.as_deref() != Some("dev"))
                    .map(|dependency| dependency.name)
                    .collect(),
            })
        })
        .collect()
}

pub(crate) fn check(packages: &[Package]) -> Vec<Finding> {
    packages
        .iter()
        .flat_map(|package| check_package(package, packages))
        .collect()
}

fn check_package(package: &Package, packages: &[Package]) -> Vec<Finding> {
    let Some(importer) = find(&package.name) else {
        return vec![Finding::new(
            &package.manifest_path,
            line_of(&package.manifest, "name"),
            format!(
                "the crate {} has no place in the map. Add it to MAP in xtask/src/tidy/dependencies.rs and to ARCHITECTURE.md",
                package.name
            ),
        )];
    };
    let mut findings = Vec::new();
    for dependency in &package.dependencies {
        let mut at_dependency = |message: String| {
            let line = line_of(&package.manifest, dependency);
            findings.push(Finding::new(&package.manifest_path, line, message));
        };
        if importer.group == Group::DataPath && KUBERNETES_CLIENTS.contains(&dependency.as_str()) {
            at_dependency(format!(
                "{} is on the data path, which never imports {dependency}",
                package.name
            ));
        } else if packages.iter().any(|ours| ours.name == *dependency)
            // A crate names itself to have a feature in its own tests.
            && package.name != *dependency
            && let Some(imported) = find(dependency)
            && !importer.group.may_import(imported.group)
            && !importer.guests.contains(&imported.name)
        {
            let rule = importer.group.rule();
            at_dependency(format!(
                "{} must not import {dependency}: {rule}",
                package.name
            ));
        }
    }
    findings
}

fn find(name: &str) -> Option<&'static Place> {
    MAP.iter().find(|place| place.name == name)
}

/// The line of a manifest that sets `key`, as `key = …`, `key.workspace = …` or `[dependencies.key]`.
fn line_of(manifest: &str, key: &str) -> usize {
    let sets_key = |line: &str| {
        let line = line.trim();
        line.strip_prefix(key)
            .is_some_and(|rest| rest.starts_with([' ', '=', '.']))
            || line.ends_with(&format!("dependencies.{key}]"))
    };
    manifest
        .lines()
        .position(sets_key)
        .map_or(1, |index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::super::test_support::shown;
    use super::*;

    /// Each entry is a crate and what it imports.
    fn findings(graph: &[(&str, &[&str])]) -> Vec<String> {
        let packages: Vec<Package> = graph
            .iter()
            .map(|(name, dependencies)| {
                let lines: String = dependencies
                    .iter()
                    .map(|name| format!("{name} = \"1\"\n"))
                    .collect();
                Package {
                    name: (*name).to_owned(),
                    manifest_path: format!("crates/{name}/Cargo.toml").into(),
                    manifest: format!("[package]\nname = \"{name}\"\n[dependencies]\n{lines}"),
                    dependencies: dependencies.iter().map(|name| (*name).to_owned()).collect(),
                }
            })
            .collect();
        shown(&check(&packages))
    }

    #[test]
    fn the_intended_graph_is_tidy() {
        let graph: &[(&str, &[&str])] = &[
            ("protocol", &["prost"]),
            ("api", &["kube"]),
            ("config", &[]),
            ("monitor", &["serde"]),
            ("link", &["protocol", "h2"]),
            ("cluster", &["api", "kube"]),
            ("tunnel", &["protocol"]),
            ("interceptor", &["protocol"]),
            ("router", &["protocol", "link"]),
            ("proxy", &["interceptor", "router", "link", "config"]),
            ("splitter", &["h2"]),
            ("agent", &["protocol", "link", "splitter"]),
            ("operator", &["api", "cluster", "kube"]),
            ("usage", &["api"]),
            ("fleet", &["link"]),
            ("cli", &["proxy", "config", "cluster"]),
            ("server", &["agent", "operator", "usage", "fleet", "tunnel"]),
            ("workload", &["link"]),
            ("lab", &["nix"]),
            ("e2e", &["lab", "agent", "cli"]),
            ("xtask", &["lab", "e2e"]),
            ("shop-checkout", &["tonic"]),
        ];
        assert_eq!(findings(graph), Vec::<String>::new());
        assert_eq!(
            graph.len(),
            MAP.len(),
            "the graph shows every place of the map"
        );
    }

    #[test]
    fn what_points_the_wrong_way_is_found() {
        let all: &[(&str, &[&str])] = &[
            ("protocol", &["api"]),
            ("api", &[]),
            ("link", &["cluster"]),
            ("cluster", &[]),
            ("router", &["agent"]),
            ("agent", &["serde", "operator"]),
            ("operator", &["lab"]),
            ("cli", &["operator"]),
            ("lab", &[]),
        ];
        assert_eq!(
            findings(all),
            [
                "crates/protocol/Cargo.toml:4: protocol must not import api: words import nothing of ours",
                "crates/link/Cargo.toml:4: link must not import cluster: plumbing imports only words",
                "crates/router/Cargo.toml:4: router must not import agent: paths import words and plumbing, never one another",
                "crates/agent/Cargo.toml:5: agent must not import operator: paths import words and plumbing, never one another",
                "crates/operator/Cargo.toml:4: operator must not import lab: paths import words and plumbing, never one another",
                "crates/cli/Cargo.toml:4: cli must not import operator: programs import words, plumbing and the crates they host",
            ]
        );
    }

    #[test]
    fn the_data_path_has_no_kubernetes_client() {
        assert_eq!(
            findings(&[("agent", &["kube"])]),
            ["crates/agent/Cargo.toml:4: agent is on the data path, which never imports kube"]
        );
    }

    #[test]
    fn a_crate_from_elsewhere_with_a_name_of_ours_is_no_matter() {
        assert_eq!(findings(&[("agent", &["config"])]), Vec::<String>::new());
    }

    #[test]
    fn a_new_crate_is_asked_for_its_place() {
        assert_eq!(
            findings(&[("helpers", &[])]),
            [
                "crates/helpers/Cargo.toml:2: the crate helpers has no place in the map. Add it to MAP in \
                 xtask/src/tidy/dependencies.rs and to ARCHITECTURE.md"
            ]
        );
    }

    #[test]
    fn guests_are_crates_of_the_map() {
        for place in MAP {
            for guest in place.guests {
                assert!(find(guest).is_some(), "{guest}");
            }
        }
    }
}

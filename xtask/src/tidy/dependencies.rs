//! Which crate may import which. [`MAP`] is the map of ARCHITECTURE.md as a table.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

use super::Finding;
use crate::process;

/// The groups of the map. What a member may import follows from its group; see [`Group::may_import`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Group {
    Shared,
    Types,
    Infrastructure,
    DataPath,
    ControlPath,
    Programs,
    Testing,
    Samples,
}

/// One crate of the map.
#[derive(Debug)]
struct CrateRule {
    name: &'static str,
    group: Group,
    /// Crates that this one may import beyond the rule of its group.
    allowed_dependencies: &'static [&'static str],
}

const fn rule(
    name: &'static str,
    group: Group,
    allowed_dependencies: &'static [&'static str],
) -> CrateRule {
    CrateRule {
        name,
        group,
        allowed_dependencies,
    }
}

#[rustfmt::skip] // A table is read by its columns.
const MAP: &[CrateRule] = &[
    rule("error-chain",    Group::Shared,          &[]),
    rule("backoff",        Group::Shared,          &[]),
    rule("protocol",       Group::Types,           &[]),
    rule("api",            Group::Types,           &[]),
    rule("config",         Group::Types,           &[]),
    rule("monitor",        Group::Types,           &[]),
    rule("admission",      Group::Infrastructure,  &[]),
    rule("link",           Group::Infrastructure,  &[]),
    rule("cluster",        Group::Infrastructure,  &["link"]),
    rule("authority",      Group::Infrastructure,  &[]),
    rule("tunnel",         Group::Infrastructure,  &["link"]),
    rule("signin",         Group::Infrastructure,  &[]),
    rule("interceptor",    Group::DataPath,        &[]),
    rule("proxy",          Group::DataPath,        &["interceptor", "router"]),
    rule("router",         Group::DataPath,        &[]),
    rule("splitter",       Group::DataPath,        &[]),
    rule("agent",          Group::DataPath,        &["splitter"]),
    rule("operator",       Group::ControlPath,     &[]),
    rule("hub",            Group::ControlPath,     &[]),
    rule("tunnel-agent",   Group::ControlPath,     &[]),
    rule("usage",          Group::ControlPath,     &[]),
    rule("fleet",          Group::ControlPath,     &[]),
    rule("cli",            Group::Programs,        &["proxy"]),
    rule("server",         Group::Programs,        &["agent", "operator", "hub", "tunnel-agent", "usage", "fleet"]),
    rule("workload",       Group::Testing,         &[]),
    rule("lab",            Group::Testing,         &[]),
    rule("e2e",            Group::Testing,         &[]),
    rule("xtask",          Group::Testing,         &[]),
    rule("shop-checkout",  Group::Samples,         &[]),
];

/// Clients of the Kubernetes API. The data path carries bytes and must work without Kubernetes.
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
            Self::Shared | Self::Samples => false,
            Self::Types => other == Self::Shared,
            Self::Infrastructure => matches!(other, Self::Shared | Self::Types),
            Self::DataPath | Self::ControlPath | Self::Programs => {
                matches!(other, Self::Shared | Self::Types | Self::Infrastructure)
            }
            Self::Testing => true,
        }
    }

    fn rule(self) -> &'static str {
        match self {
            Self::Shared => "small shared parts import nothing of ours",
            Self::Types => "types import only the small shared parts",
            Self::Infrastructure => "infrastructure imports only types",
            Self::DataPath | Self::ControlPath => {
                "paths import types and infrastructure, never one another"
            }
            Self::Programs => "programs import types, infrastructure and the crates they run",
            Self::Testing => "testing may import anything",
            Self::Samples => "sample services import nothing of ours",
        }
    }
}

/// Whether a crate of the map is a part of the released programs.
pub(crate) fn is_released(name: &str) -> bool {
    find(name).is_some_and(|rule| !matches!(rule.group, Group::Testing | Group::Samples))
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

/// The packages of the workspace, from `cargo metadata`.
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
                dependencies: package
                    .dependencies
                    .into_iter()
                    // A crate's tests may import anything.
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
                "the crate {} is not in the map. Add it to MAP in xtask/src/tidy/dependencies.rs and to ARCHITECTURE.md",
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
            && !importer.allowed_dependencies.contains(&imported.name)
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

fn find(name: &str) -> Option<&'static CrateRule> {
    MAP.iter().find(|rule| rule.name == name)
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
            ("error-chain", &[]),
            ("backoff", &["rand"]),
            ("protocol", &["prost", "error-chain"]),
            ("api", &["kube"]),
            ("config", &[]),
            ("monitor", &["serde"]),
            ("admission", &["tokio"]),
            ("link", &["protocol", "h2"]),
            ("cluster", &["api", "kube"]),
            ("authority", &["api", "rcgen"]),
            ("tunnel", &["protocol", "link"]),
            ("signin", &["api"]),
            ("interceptor", &["protocol"]),
            ("router", &["protocol", "link"]),
            ("proxy", &["interceptor", "router", "link", "config"]),
            ("splitter", &["h2"]),
            ("agent", &["protocol", "link", "splitter"]),
            (
                "operator",
                &["api", "admission", "authority", "cluster", "kube"],
            ),
            (
                "hub",
                &["api", "admission", "authority", "tunnel", "signin"],
            ),
            ("tunnel-agent", &["api", "authority", "tunnel"]),
            ("usage", &["api"]),
            ("fleet", &["link"]),
            ("cli", &["proxy", "config", "cluster"]),
            (
                "server",
                &["agent", "operator", "hub", "tunnel-agent", "usage", "fleet"],
            ),
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
            "the graph has every crate of the map"
        );
    }

    #[test]
    fn forbidden_imports_are_found() {
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
                "crates/protocol/Cargo.toml:4: protocol must not import api: types import only the small shared parts",
                "crates/link/Cargo.toml:4: link must not import cluster: infrastructure imports only types",
                "crates/router/Cargo.toml:4: router must not import agent: paths import types and infrastructure, never one another",
                "crates/agent/Cargo.toml:5: agent must not import operator: paths import types and infrastructure, never one another",
                "crates/operator/Cargo.toml:4: operator must not import lab: paths import types and infrastructure, never one another",
                "crates/cli/Cargo.toml:4: cli must not import operator: programs import types, infrastructure and the crates they run",
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
    fn a_foreign_crate_with_a_name_of_ours_is_allowed() {
        assert_eq!(findings(&[("agent", &["config"])]), Vec::<String>::new());
    }

    #[test]
    fn a_crate_that_is_not_in_the_map_is_found() {
        assert_eq!(
            findings(&[("helpers", &[])]),
            [
                "crates/helpers/Cargo.toml:2: the crate helpers is not in the map. Add it to MAP in \
                 xtask/src/tidy/dependencies.rs and to ARCHITECTURE.md"
            ]
        );
    }

    #[test]
    fn allowed_dependencies_are_crates_of_the_map() {
        for rule in MAP {
            for dependency in rule.allowed_dependencies {
                assert!(find(dependency).is_some(), "{dependency}");
            }
        }
    }
}

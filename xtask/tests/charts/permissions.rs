//! `docs/permissions.md` has a row for every rule of every role, and no other rows.

use std::collections::BTreeSet;

use serde_json::Value;

use super::rendering::{HUB, TUNNEL_AGENT, objects, objects_of, read, words};

/// One right, without the reason for it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    role: String,
    verbs: BTreeSet<String>,
    resources: BTreeSet<String>,
    names: BTreeSet<String>,
    group: String,
}

/// Settings whose charts together have every right.
const SETTINGS: &[&str] = &[
    "operator.licenseSecret=licence",
    "operator.agent.mode=pod",
    "operator.agent.mode=node",
    "operator.multiClusterMember=true",
    r#"operator.multiCluster={"enabled":true,"clusterName":"hub","defaultCluster":"east","clusters":{"east":{"authType":"bearerToken","server":"https://east.example.com","caData":"LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCllRPT0KLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo="}}}"#,
];

/// The same for the charts of the tunnel.
const TUNNEL_SETTINGS: &[(&str, &[&str])] = &[
    (HUB, &[]),
    (
        TUNNEL_AGENT,
        &[
            "agent.allow.users={anna,system:serviceaccount:ci:deployer}",
            "agent.allow.groups={team-a}",
            "agent.allow.extraKeys={scopes}",
        ],
    ),
];

fn rights_of_the_charts() -> BTreeSet<Right> {
    let set = |list: &Value| words(list).into_iter().collect::<BTreeSet<String>>();
    let mut rights = BTreeSet::new();
    let of_operator = SETTINGS.iter().flat_map(|setting| objects(&[setting]));
    let of_tunnel = TUNNEL_SETTINGS
        .iter()
        .flat_map(|(chart, settings)| objects_of(chart, settings));
    for object in of_operator.chain(of_tunnel) {
        let kind = object["kind"].as_str().unwrap_or_default();
        if !matches!(kind, "Role" | "ClusterRole") {
            continue;
        }
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        for rule in object["rules"].as_array().into_iter().flatten() {
            for group in words(&rule["apiGroups"]) {
                rights.insert(Right {
                    role: format!("{kind} {name}"),
                    verbs: set(&rule["verbs"]),
                    resources: set(&rule["resources"]),
                    names: set(&rule["resourceNames"]),
                    group,
                });
            }
        }
    }
    rights
}

/// Rows like "| `get`, `list` | `secrets` named `one` | `core` | why |", under a heading with the role.
fn rights_of_the_page() -> BTreeSet<Right> {
    let page = read("docs/permissions.md");
    let mut role = String::new();
    let mut rights = BTreeSet::new();
    for line in page.lines() {
        if line.starts_with('#') {
            role = quoted(line).join(" ");
            let kind = if line.contains("ClusterRole") {
                "ClusterRole"
            } else {
                "Role"
            };
            role = format!("{kind} {role}");
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let ["", verbs, resources, group, why, ""] = cells[..] else {
            continue;
        };
        if !verbs.starts_with('`') {
            continue;
        }
        assert!(!why.is_empty(), "no reason: {line}");
        let (resources, names) = resources.split_once(" named ").unwrap_or((resources, ""));
        let group = quoted(group).concat();
        rights.insert(Right {
            role: role.clone(),
            verbs: quoted(verbs).into_iter().collect(),
            resources: quoted(resources).into_iter().collect(),
            names: quoted(names).into_iter().collect(),
            group: if group == "core" {
                String::new()
            } else {
                group
            },
        });
    }
    rights
}

/// What stands between backticks.
fn quoted(text: &str) -> Vec<String> {
    text.split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_page_has_every_right_and_no_others() {
    let (chart, page) = (rights_of_the_charts(), rights_of_the_page());
    let missing: Vec<&Right> = chart.difference(&page).collect();
    let outdated: Vec<&Right> = page.difference(&chart).collect();
    assert!(
        missing.is_empty() && outdated.is_empty(),
        "not in docs/permissions.md: {missing:#?}\nnot in the charts: {outdated:#?}"
    );
}

#[test]
fn no_role_has_wildcards() {
    for right in rights_of_the_charts() {
        let all = right.verbs.iter().chain(&right.resources);
        assert!(all.clone().all(|word| !word.contains('*')), "{right:?}");
        assert!(right.group != "*", "{right:?}");
    }
}

/// The right to start sessions is granted per namespace. A role that is bound for a whole cluster must not have it.
#[test]
fn viewers_may_not_start_sessions() {
    let rights = rights_of_the_charts();
    let of = |role: &str| -> Vec<&Right> {
        let role = format!("ClusterRole {role}");
        rights.iter().filter(|right| right.role == role).collect()
    };
    assert!(!of("mirrord-operator-viewer").is_empty());
    for right in of("mirrord-operator-viewer") {
        let reads = ["get".to_owned(), "list".to_owned()];
        assert!(
            right.verbs.iter().all(|verb| reads.contains(verb)),
            "{right:?}"
        );
    }
    let user = of("mirrord-operator-user");
    assert!(
        user.iter().all(|right| right.resources.contains("targets")),
        "{user:?}"
    );
    let notes = read("charts/standin-operator/templates/NOTES.txt");
    for line in notes
        .lines()
        .filter(|line| line.contains("clusterrolebinding"))
    {
        assert!(line.contains("mirrord-operator-viewer"), "{line}");
    }
}

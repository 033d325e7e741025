//! The charts of the hub and of the tunnel agent: their objects, and what the programs may do.

use serde_json::{Value, json};

use super::rendering::{HUB, TUNNEL_AGENT, find, objects_of, words};

/// The rules of a role, each as resources, names and verbs.
fn rules(
    objects: &[Value],
    kind: &str,
    name: &str,
) -> Vec<(Vec<String>, Vec<String>, Vec<String>)> {
    let role = find(objects, kind, name).unwrap_or_else(|| panic!("no {kind} {name}"));
    let rules = role["rules"].as_array().unwrap().iter();
    rules
        .map(|rule| {
            (
                words(&rule["resources"]),
                words(&rule["resourceNames"]),
                words(&rule["verbs"]),
            )
        })
        .collect()
}

fn rule(
    resources: &[&str],
    names: &[&str],
    verbs: &[&str],
) -> (Vec<String>, Vec<String>, Vec<String>) {
    let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    (owned(resources), owned(names), owned(verbs))
}

#[test]
fn the_authority_outlives_the_hub_and_nothing_else_does() {
    let objects = objects_of(
        HUB,
        &["agent.caSecretName=ours", "loadBalancer.enabled=true"],
    );
    let kept =
        |object: &&Value| !object["metadata"]["annotations"]["helm.sh/resource-policy"].is_null();
    let kept: Vec<&Value> = objects
        .iter()
        .filter(kept)
        .map(|it| &it["metadata"]["name"])
        .collect();
    assert_eq!(kept, [&json!("ours")]);
    for secret in ["ours", "standin-hub-server", "standin-hub-tokens"] {
        let secret = find(&objects, "Secret", secret).unwrap();
        // An upgrade must not replace what the hub has stored.
        assert!(secret["data"].is_null() && secret["stringData"].is_null());
    }
}

#[test]
fn the_hub_has_no_right_beyond_its_registry_and_its_secrets() {
    let objects = objects_of(HUB, &["agent.caSecretName=ours"]);
    let all = [
        "get", "list", "watch", "create", "update", "patch", "delete",
    ];
    let secrets = ["ours", "standin-hub-server", "standin-hub-tokens"];
    assert_eq!(
        rules(&objects, "Role", "standin-hub"),
        [
            rule(&["managedclusters"], &[], &all),
            rule(&["managedclusters/status"], &[], &["update", "patch"]),
            rule(&["secrets"], &secrets, &["get", "update"]),
        ]
    );
    assert_eq!(
        rules(&objects, "ClusterRole", "standin-hub"),
        [
            rule(&["tokenreviews"], &[], &["create"]),
            rule(&["subjectaccessreviews"], &[], &["create"]),
        ]
    );
}

#[test]
fn an_agent_has_no_right_of_its_own_but_to_act_as_users() {
    let objects = objects_of(TUNNEL_AGENT, &[]);
    let state = ["standin-tunnel-agent-state"];
    assert_eq!(
        rules(&objects, "Role", "standin-tunnel-agent"),
        [rule(&["secrets"], &state, &["get", "update"])]
    );
    check_impersonation(&[], &[("users", &[]), ("groups", &[]), ("uids", &[])]);
}

/// The rules for these settings, all of them to impersonate.
fn check_impersonation(settings: &[&str], expected: &[(&str, &[&str])]) {
    let objects = objects_of(TUNNEL_AGENT, settings);
    let expected: Vec<_> = expected
        .iter()
        .map(|(resource, names)| rule(&[resource], names, &["impersonate"]))
        .collect();
    let found = rules(&objects, "ClusterRole", "standin-tunnel-agent");
    assert_eq!(found, expected, "{settings:?}");
}

#[test]
fn full_names_on_the_allow_list_are_enforced_by_the_api_server_too() {
    check_impersonation(
        &["agent.allow.users={anna,bert}", "agent.allow.groups={a,b}"],
        &[
            ("users", &["anna", "bert"]),
            ("groups", &["a", "b"]),
            ("uids", &[]),
        ],
    );
    // A rule with a pattern is for all names.
    check_impersonation(
        &[
            "agent.allow.users={anna,dev-*}",
            "agent.allow.groups={team-*}",
        ],
        &[("users", &[]), ("groups", &[]), ("uids", &[])],
    );
    check_impersonation(
        &[r#"agent.allow={"users":["system:serviceaccount:ci:deployer"],"groups":[]}"#],
        &[("serviceaccounts", &["deployer"]), ("uids", &[])],
    );
    check_impersonation(
        &[
            "agent.allow.users={anna,system:serviceaccount:ci:*}",
            "agent.allow.groups={a}",
        ],
        &[
            ("users", &["anna"]),
            ("serviceaccounts", &[]),
            ("groups", &["a"]),
            ("uids", &[]),
        ],
    );
    check_impersonation(
        &[
            "agent.allow.users={anna}",
            "agent.allow.groups={a}",
            "agent.allow.extraKeys={scopes}",
        ],
        &[
            ("users", &["anna"]),
            ("groups", &["a"]),
            ("uids", &[]),
            ("userextras/scopes", &[]),
        ],
    );
}

#[test]
fn a_token_is_in_no_argument_and_its_secret_may_be_missing() {
    let objects = objects_of(TUNNEL_AGENT, &["agent.registrationToken=SECRET"]);
    let deployment = find(&objects, "Deployment", "standin-tunnel-agent").unwrap();
    assert!(!deployment.to_string().contains("SECRET"));
    let name = "standin-tunnel-agent-registration";
    let secret = find(&objects, "Secret", name).unwrap();
    assert_eq!(secret["stringData"]["token"], "SECRET");
    let volume = |objects: &[Value]| {
        let deployment = find(objects, "Deployment", "standin-tunnel-agent").unwrap();
        deployment["spec"]["template"]["spec"]["volumes"][0]["secret"].clone()
    };
    assert_eq!(volume(&objects)["secretName"], name);
    assert_eq!(volume(&objects)["optional"], true);
    let own = objects_of(TUNNEL_AGENT, &["agent.registrationTokenSecretName=mine"]);
    assert_eq!(volume(&own)["secretName"], "mine");
    assert!(find(&own, "Secret", name).is_none());
}

#[test]
fn the_pods_are_restricted() {
    for (chart, name) in [(HUB, "standin-hub"), (TUNNEL_AGENT, "standin-tunnel-agent")] {
        let objects = objects_of(chart, &[]);
        let deployment = find(&objects, "Deployment", name).unwrap();
        let pod = &deployment["spec"]["template"]["spec"];
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        assert_eq!(
            pod["securityContext"]["seccompProfile"]["type"],
            "RuntimeDefault"
        );
        let container = &pod["containers"][0];
        let context = json!({
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": { "drop": ["ALL"] },
        });
        assert_eq!(container["securityContext"], context);
        for probe in ["readinessProbe", "livenessProbe"] {
            assert_eq!(container[probe]["httpGet"]["port"], "probes");
        }
        assert_eq!(pod["nodeSelector"]["kubernetes.io/os"], "linux");
    }
}

#[test]
fn optional_objects_of_the_tunnel_are_there_only_when_asked_for() {
    for (chart, kind, name, setting) in [
        (
            HUB,
            "NetworkPolicy",
            "standin-hub",
            "networkPolicy.enabled=true",
        ),
        (
            HUB,
            "ServiceMonitor",
            "standin-hub",
            "serviceMonitor.enabled=true",
        ),
        (
            HUB,
            "Service",
            "standin-hub-tunnel",
            "loadBalancer.enabled=true",
        ),
        (
            HUB,
            "RoleBinding",
            "standin-hub-user",
            "userRole.groups={a}",
        ),
        (
            TUNNEL_AGENT,
            "NetworkPolicy",
            "standin-tunnel-agent",
            "networkPolicy.enabled=true",
        ),
        (
            TUNNEL_AGENT,
            "ConfigMap",
            "standin-tunnel-agent",
            "agent.serverCA=PEM",
        ),
    ] {
        assert!(
            find(&objects_of(chart, &[]), kind, name).is_none(),
            "{kind} by itself"
        );
        assert!(
            find(&objects_of(chart, &[setting]), kind, name).is_some(),
            "no {kind}"
        );
    }
    let budget = |settings: &[&str]| {
        find(
            &objects_of(HUB, settings),
            "PodDisruptionBudget",
            "standin-hub",
        )
        .is_some()
    };
    assert!(budget(&[]));
    assert!(!budget(&["hub.replicas=1"]));
}

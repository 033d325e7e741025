//! The objects of the chart: which exist, and whether their references match.

use serde_json::{Value, json};

use super::rendering::{find, objects, read, template, words};

const NAME: &str = "mirrord-operator";
const UNINSTALL: &str = "mirrord-operator-uninstall";
const AGENTS: &str = "mirrord-node-agent";

/// Whether a selector matches these labels.
fn selects(selector: &Value, labels: &Value) -> bool {
    let expected_labels = selector.as_object().unwrap();
    !expected_labels.is_empty()
        && expected_labels
            .iter()
            .all(|(key, value)| labels.get(key) == Some(value))
}

#[test]
fn optional_objects_are_there_only_when_asked_for() {
    for (kind, name, setting) in [
        ("NetworkPolicy", NAME, "networkPolicy.enabled=true"),
        ("NetworkPolicy", UNINSTALL, "networkPolicy.enabled=true"),
        ("ServiceMonitor", NAME, "serviceMonitor.enabled=true"),
        (
            "ConfigMap",
            "mirrord-operator-dashboard",
            "grafanaDashboard.enabled=true",
        ),
        (
            "ClusterRoleBinding",
            "mirrord-operator-user",
            "userRole.groups={a}",
        ),
        (
            "ClusterRoleBinding",
            "mirrord-operator-viewer",
            "userRole.groups={a}",
        ),
    ] {
        assert!(
            find(&objects(&[]), kind, name).is_none(),
            "{kind} by itself"
        );
        assert!(
            find(&objects(&[setting]), kind, name).is_some(),
            "no {kind} with {setting}"
        );
    }
}

#[test]
fn a_single_replica_has_no_disruption_budget_that_would_hold_up_its_node() {
    let budget = |settings: &[&str]| find(&objects(settings), "PodDisruptionBudget", NAME).cloned();
    assert_eq!(budget(&[]).unwrap()["spec"]["maxUnavailable"], 1);
    assert_eq!(budget(&["operator.replicas=1"]), None);
    assert_eq!(budget(&["podDisruptionBudget.enabled=false"]), None);
}

#[test]
fn selectors_of_the_operator_match_its_pods_and_no_others() {
    let settings = ["networkPolicy.enabled=true", "operator.podLabels.team=a"];
    let objects = objects(&settings);
    let pods =
        &find(&objects, "Deployment", NAME).unwrap()["spec"]["template"]["metadata"]["labels"];
    let job = find(&objects, "Job", UNINSTALL).unwrap();
    let others = &job["spec"]["template"]["metadata"]["labels"];
    for (kind, name, path) in [
        ("Deployment", NAME, "/spec/selector/matchLabels"),
        ("Service", NAME, "/spec/selector"),
        ("Service", "mirrord-operator-metrics", "/spec/selector"),
        ("PodDisruptionBudget", NAME, "/spec/selector/matchLabels"),
        ("NetworkPolicy", NAME, "/spec/podSelector/matchLabels"),
    ] {
        let selector = find(&objects, kind, name).unwrap().pointer(path).unwrap();
        assert!(selects(selector, pods), "{kind} {name}: {selector}");
        assert!(!selects(selector, others), "{kind} {name}: {selector}");
    }
}

#[test]
fn prometheus_finds_the_metrics() {
    let objects = objects(&["serviceMonitor.enabled=true", "serviceMonitor.interval=7s"]);
    let monitor = &find(&objects, "ServiceMonitor", NAME).unwrap()["spec"];
    let selected: Vec<&Value> = objects
        .iter()
        .filter(|object| object["kind"] == "Service")
        .filter(|service| {
            selects(
                &monitor["selector"]["matchLabels"],
                &service["metadata"]["labels"],
            )
        })
        .collect();
    let [service] = selected.as_slice() else {
        panic!("not one Service: {selected:?}");
    };
    let endpoint = &monitor["endpoints"][0];
    assert_eq!(endpoint["port"], service["spec"]["ports"][0]["name"]);
    assert_eq!(endpoint["interval"], "7s");
    let port = &service["spec"]["ports"][0]["targetPort"];
    let deployment = find(&objects, "Deployment", NAME).unwrap();
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let ports = container["ports"].as_array().unwrap();
    let metrics = ports.iter().find(|found| found["name"] == *port).unwrap();
    let arguments = words(&container["args"]);
    let listens = format!("--listen-for-metrics=[::]:{}", metrics["containerPort"]);
    assert!(
        arguments.contains(&listens),
        "{listens} is not in {arguments:?}"
    );
}

/// No load of other clients must delay a probe.
#[test]
fn probes_have_a_port_of_their_own_which_no_pod_reaches() {
    let objects = objects(&["networkPolicy.enabled=true", "operator.agent.mode=node"]);
    for (kind, name, count) in [("Deployment", NAME, 2), ("DaemonSet", AGENTS, 1)] {
        let object = find(&objects, kind, name).unwrap();
        let container = &object["spec"]["template"]["spec"]["containers"][0];
        let probes = ["readinessProbe", "livenessProbe"].map(|probe| &container[probe]);
        let probes: Vec<&Value> = probes
            .into_iter()
            .filter(|probe| !probe.is_null())
            .collect();
        assert_eq!(probes.len(), count, "{kind}");
        for probe in probes {
            let port = probe.pointer("/httpGet/port");
            let port = port.or_else(|| probe.pointer("/tcpSocket/port")).unwrap();
            assert_eq!(port, "probes", "{kind}");
            assert_eq!(probe["timeoutSeconds"], 5, "{kind}");
        }
        let ports = container["ports"].as_array().unwrap();
        let port = ports.iter().find(|port| port["name"] == "probes").unwrap();
        let listens = format!("--listen-for-probes=[::]:{}", port["containerPort"]);
        let arguments = words(&container["args"]);
        assert!(arguments.contains(&listens), "{arguments:?}");
        let numbers = ports.iter().map(|port| port["containerPort"].to_string());
        let different: std::collections::BTreeSet<String> = numbers.collect();
        assert_eq!(different.len(), ports.len(), "{kind}");
    }
    let ingress = &find(&objects, "NetworkPolicy", NAME).unwrap()["spec"]["ingress"];
    let rules = ingress.as_array().unwrap();
    let opens = |rule: &Value, port: &str| rule["ports"].to_string().contains(port);
    assert!(!rules.iter().any(|rule| opens(rule, "probes")), "{ingress}");
    let mut metrics = rules.iter().filter(|rule| opens(rule, "metrics"));
    let from = json!([{"namespaceSelector": {}}]);
    assert_eq!(metrics.next().unwrap()["from"], from);
    assert!(metrics.next().is_none(), "{ingress}");
}

#[test]
fn a_network_policy_with_addresses_lets_only_these_reach_the_api() {
    let open = objects(&["networkPolicy.enabled=true"]);
    let spec = &find(&open, "NetworkPolicy", NAME).unwrap()["spec"];
    assert_eq!(spec["policyTypes"], json!(["Ingress", "Egress"]));
    assert_eq!(spec["ingress"][0].get("from"), None);
    let closed = objects(&[
        "networkPolicy.enabled=true",
        "networkPolicy.apiServerCidrs={10.0.0.1/32}",
    ]);
    let spec = &find(&closed, "NetworkPolicy", NAME).unwrap()["spec"];
    let server = json!([{"ipBlock": {"cidr": "10.0.0.1/32"}}]);
    assert_eq!(spec["ingress"][0]["from"], server);
    let egress = spec["egress"].as_array().unwrap();
    assert!(egress.iter().all(|rule| *rule != json!({})), "{egress:?}");
    assert!(egress.iter().any(|rule| rule["to"] == server), "{egress:?}");
}

/// A Primary must be able to reach its members.
#[test]
fn a_network_policy_lets_a_primary_reach_its_members() {
    let certificate = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCg==";
    let member = |method: &str, server: &str| json!({"authType": method, "server": server, "caData": certificate});
    let mut eks = member("eks", "https://blue.example.com");
    eks["region"] = json!("eu-north-1");
    let primary = json!({
        "enabled": true, "clusterName": "hub", "defaultCluster": "east", "managementOnly": true,
        "clusters": {
            "east": member("bearerToken", "https://east:6443"),
            "west": member("mtls", "https://[fd00::1]:6443/clusters/west"),
            "north": member("mtls", "https://[fd00::1]"),
            "blue": eks,
        },
    });
    let primary = format!("operator.multiCluster={primary}");
    let settings = [
        "networkPolicy.enabled=true",
        &primary,
        "sa.roleArn=arn:aws:iam::1:role/a",
        "networkPolicy.apiServerCidrs={10.0.0.1/32}",
        "networkPolicy.memberCidrs={10.1.0.0/16,fd00::/64}",
    ];
    let rules = |settings: &[&str]| {
        let objects = objects(settings);
        let policy = find(&objects, "NetworkPolicy", NAME).unwrap()["spec"].clone();
        // It must not allow members to reach the operator.
        let ingress = policy["ingress"].to_string();
        assert!(!ingress.contains("10.1.0.0"), "{ingress}");
        policy["egress"].as_array().unwrap().clone()
    };
    let ports = json!([{"port": 443, "protocol": "TCP"}, {"port": 6443, "protocol": "TCP"}]);
    let members = json!([{"ipBlock": {"cidr": "10.1.0.0/16"}}, {"ipBlock": {"cidr": "fd00::/64"}}]);
    let narrow = json!({"ports": ports, "to": members});
    assert_eq!(rules(&settings).last(), Some(&narrow));
    assert_eq!(rules(&settings[..4]).last(), Some(&json!({"ports": ports})));
    // Where everything can be reached, members can.
    assert!(rules(&settings[..3]).contains(&json!({})));
    let useless = [settings[0], settings[1], settings[2], settings[4]];
    let refused = template(&useless).unwrap_err();
    assert!(
        refused.contains("`networkPolicy.apiServerCidrs` is not"),
        "{refused}"
    );
}

#[test]
fn the_uninstall_job_reaches_the_api_server_and_accepts_no_connections() {
    for (settings, server) in [
        (vec!["networkPolicy.enabled=true"], json!({})),
        (
            vec![
                "networkPolicy.enabled=true",
                "networkPolicy.apiServerCidrs={10.0.0.1/32}",
            ],
            json!({"to": [{"ipBlock": {"cidr": "10.0.0.1/32"}}]}),
        ),
    ] {
        let objects = objects(&settings);
        let policy = find(&objects, "NetworkPolicy", UNINSTALL).unwrap();
        // A hook would be created too late, or deleted before the Job ends.
        assert_eq!(policy["metadata"].get("annotations"), None);
        let spec = &policy["spec"];
        let job = find(&objects, "Job", UNINSTALL).unwrap();
        let pods = &job["spec"]["template"]["metadata"]["labels"];
        assert!(selects(&spec["podSelector"]["matchLabels"], pods), "{spec}");
        assert_eq!(spec["policyTypes"], json!(["Ingress", "Egress"]));
        assert_eq!(spec.get("ingress"), None);
        let egress = spec["egress"].as_array().unwrap();
        assert!(egress.contains(&server), "{egress:?}");
        let dns = json!([{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]);
        assert!(egress.iter().any(|rule| rule["ports"] == dns), "{egress:?}");
        assert_eq!(egress.len(), 2);
    }
}

#[test]
fn only_the_operator_reaches_the_agents_in_its_namespace() {
    let policy = |mode: &str| {
        let mode = format!("operator.agent.mode={mode}");
        let objects = objects(&["networkPolicy.enabled=true", &mode]);
        let policy = find(&objects, "NetworkPolicy", "mirrord-agent").cloned();
        (objects, policy)
    };
    // Agents in the pods of targets are subject to the policies of these pods.
    assert_eq!(policy("ephemeral").1, None);
    for mode in ["node", "pod"] {
        let (objects, policy) = policy(mode);
        let policy = policy.unwrap();
        let spec = &policy["spec"];
        assert_eq!(spec["policyTypes"], json!(["Ingress"]));
        let [rule] = spec["ingress"].as_array().unwrap().as_slice() else {
            panic!("not one rule: {spec}");
        };
        let ports = json!([{"port": 20000, "endPort": 31999, "protocol": "TCP"}]);
        assert_eq!(rule["ports"], ports);
        // Without a namespace selector it matches pods of this namespace.
        let [from] = rule["from"].as_array().unwrap().as_slice() else {
            panic!("not one source: {rule}");
        };
        assert_eq!(from.as_object().unwrap().len(), 1, "{from}");
        let sources = &from["podSelector"]["matchLabels"];
        let operator = find(&objects, "Deployment", NAME).unwrap();
        let operator = &operator["spec"]["template"]["metadata"]["labels"];
        assert!(selects(sources, operator), "{sources}");
        let selector = &spec["podSelector"];
        match find(&objects, "DaemonSet", AGENTS) {
            Some(agents) => {
                let agents = &agents["spec"]["template"]["metadata"]["labels"];
                assert!(selects(&selector["matchLabels"], agents), "{selector}");
                assert!(!selects(&selector["matchLabels"], operator), "{selector}");
                assert!(!selects(sources, agents), "{sources}");
            }
            None => {
                let label = "operator.metalbear.co/session";
                let expressions = json!([{"key": label, "operator": "Exists"}]);
                assert_eq!(selector["matchExpressions"], expressions);
                let observe = read("crates/operator/src/controller/observe.rs");
                assert!(
                    observe.contains(&format!("{label:?}")),
                    "the operator labels agents otherwise"
                );
            }
        }
    }
}

#[test]
fn what_is_for_linux_is_where_linux_is() {
    let all = objects(&["operator.agent.mode=node", "operator.nodeSelector.disk=ssd"]);
    for (kind, name, expected) in [
        (
            "Deployment",
            NAME,
            json!({"kubernetes.io/os": "linux", "disk": "ssd"}),
        ),
        (
            "Job",
            UNINSTALL,
            json!({"kubernetes.io/os": "linux", "disk": "ssd"}),
        ),
        // Targets are on other nodes as well.
        ("DaemonSet", AGENTS, json!({"kubernetes.io/os": "linux"})),
    ] {
        let pod = &find(&all, kind, name).unwrap()["spec"]["template"]["spec"];
        assert_eq!(pod["nodeSelector"], expected, "{kind}");
    }
    let usual = objects(&[]);
    let pod = &find(&usual, "Deployment", NAME).unwrap()["spec"]["template"]["spec"];
    assert_eq!(pod["nodeSelector"], json!({"kubernetes.io/os": "linux"}));
}

#[test]
fn agents_have_the_resources_that_are_asked_for_wherever_they_are() {
    let objects = objects(&[
        "operator.agent.mode=node",
        "operator.agent.resources.requests.cpu=50m",
        "operator.agent.resources.limits.memory=2Gi",
        "operator.agent.resources.limits.cpu=2",
    ]);
    let agents = find(&objects, "DaemonSet", AGENTS).unwrap();
    let resources = &agents["spec"]["template"]["spec"]["containers"][0]["resources"];
    let expected = json!({
        "requests": {"cpu": "50m", "memory": "0"},
        "limits": {"memory": "2Gi", "cpu": 2},
    });
    assert_eq!(*resources, expected);
    let deployment = find(&objects, "Deployment", NAME).unwrap();
    let arguments = words(&deployment["spec"]["template"]["spec"]["containers"][0]["args"]);
    for argument in [
        "--agent-request=cpu=50m",
        "--agent-limit=memory=2Gi",
        "--agent-limit=cpu=2",
    ] {
        assert!(arguments.iter().any(|it| it == argument), "{arguments:?}");
    }
}

#[test]
fn agents_on_nodes_have_a_memory_limit_by_default_and_reserve_nothing() {
    let objects = objects(&["operator.agent.mode=node"]);
    let agents = find(&objects, "DaemonSet", AGENTS).unwrap();
    let resources = &agents["spec"]["template"]["spec"]["containers"][0]["resources"];
    let expected = json!({"requests": {"memory": "0"}, "limits": {"memory": "1Gi"}});
    assert_eq!(*resources, expected);
}

#[test]
fn agents_have_the_image_of_the_charts_own_version() {
    let chart: Value = serde_saphyr::from_str(&read("charts/standin-operator/Chart.yaml")).unwrap();
    let version = chart["version"].as_str().unwrap();
    let digest = format!("sha256:{}", "ab".repeat(32));
    let by_digest = format!("operator.image.digest={digest}");
    for (settings, operator, agent) in [
        (vec![], format!("ghcr.io/standin/standind:{version}"), None),
        (
            vec!["operator.image.repository=a.b/c"],
            format!("a.b/c:{version}"),
            None,
        ),
        (
            vec!["operator.image.repository=a.b/c", "operator.image.tag=x"],
            "a.b/c:x".to_owned(),
            None,
        ),
        (
            vec!["operator.image.tag=x", &by_digest],
            format!("ghcr.io/standin/standind@{digest}"),
            None,
        ),
        (
            vec!["operator.agent.image=d.e/f:2"],
            format!("ghcr.io/standin/standind:{version}"),
            Some("d.e/f:2"),
        ),
    ] {
        let objects = objects(&settings);
        let deployment = find(&objects, "Deployment", NAME).unwrap();
        let container = &deployment["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["image"], *operator, "{settings:?}");
        let argument = format!("--agent-image={}", agent.unwrap_or(&operator));
        let arguments = words(&container["args"]);
        assert!(
            arguments.contains(&argument),
            "{argument} is not in {arguments:?}"
        );
        let job = find(&objects, "Job", UNINSTALL).unwrap();
        let uninstall = &job["spec"]["template"]["spec"]["containers"][0]["image"];
        assert_eq!(*uninstall, *operator, "{settings:?}");
    }
}

#[test]
fn the_operators_own_pods_have_no_privileges() {
    let objects = objects(&[]);
    for (kind, name) in [("Deployment", NAME), ("Job", UNINSTALL)] {
        let pod = &find(&objects, kind, name).unwrap()["spec"]["template"]["spec"];
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{kind}");
        assert_eq!(
            pod["securityContext"]["seccompProfile"]["type"],
            "RuntimeDefault"
        );
        for key in ["hostNetwork", "hostPID", "hostIPC", "volumes"] {
            assert_eq!(pod.get(key), None, "{kind}: {key}");
        }
        for container in pod["containers"].as_array().unwrap() {
            let expected = json!({
                "allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": true,
                "capabilities": {"drop": ["ALL"]},
            });
            assert_eq!(container["securityContext"], expected, "{kind}");
        }
    }
}

#[test]
fn agents_on_nodes_have_exactly_what_entering_a_container_takes() {
    assert!(find(&objects(&[]), "DaemonSet", AGENTS).is_none());
    let objects = objects(&["operator.agent.mode=node", "operator.agent.image=a.b/c:1"]);
    let agents = find(&objects, "DaemonSet", AGENTS).unwrap();
    let pod = &agents["spec"]["template"]["spec"];
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert_eq!(pod["hostPID"], true);
    for key in ["hostNetwork", "hostIPC", "serviceAccountName"] {
        assert_eq!(pod.get(key), None, "{key}");
    }
    let container = &pod["containers"][0];
    assert_eq!(container["image"], "a.b/c:1");
    let context = &container["securityContext"];
    assert_eq!(context["privileged"], false);
    assert_eq!(context["readOnlyRootFilesystem"], true);
    assert_eq!(words(&context["capabilities"]["drop"]), ["ALL"]);
    let mut added = words(&context["capabilities"]["add"]);
    added.sort();
    let expected = ["NET_ADMIN", "SETGID", "SETUID", "SYS_ADMIN", "SYS_PTRACE"];
    assert_eq!(added, expected);
    // Whatever selects the operator leaves the agents alone.
    let service = &find(&objects, "Service", NAME).unwrap()["spec"]["selector"];
    let labels = &agents["spec"]["template"]["metadata"]["labels"];
    assert!(!selects(service, labels), "{labels}");
}

#[test]
fn every_custom_resource_of_the_chart_is_guarded() {
    let guard = read("charts/standin-operator/templates/guard.yaml");
    let objects = objects(&[]);
    let names: Vec<&str> = objects
        .iter()
        .filter(|object| object["kind"] == "CustomResourceDefinition")
        .filter_map(|object| object["metadata"]["name"].as_str())
        .collect();
    assert!(names.len() >= 3, "{names:?}");
    for name in names {
        assert!(
            guard.contains(&format!("{name:?}")),
            "{name} is not in guard.yaml"
        );
    }
}

#[test]
fn the_api_goes_before_everything_else() {
    let objects = objects(&[]);
    let job = find(&objects, "Job", UNINSTALL).unwrap();
    assert_eq!(job["metadata"]["annotations"]["helm.sh/hook"], "pre-delete");
    let container = &job["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(words(&container["args"]), ["operator-uninstall"]);
}

/// A Primary must not change sessions in a member, and each of its members has its own Secret for tokens.
#[test]
fn a_primary_cannot_change_sessions_of_a_member() {
    let objects = objects(&["operator.multiClusterMember=true"]);
    let of_primary = |object: &&Value| {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        object["kind"] == "ClusterRole" && name.starts_with("mirrord-operator-envoy")
    };
    let roles: Vec<&Value> = objects.iter().filter(of_primary).collect();
    assert_eq!(roles.len(), 2);
    for role in roles {
        for rule in role["rules"].as_array().unwrap() {
            let text = rule.to_string();
            let changes = ["patch", "update", "deletecollection", "*"];
            assert!(
                !changes
                    .iter()
                    .any(|verb| text.contains(&format!("\"{verb}\""))),
                "{text}"
            );
            assert!(!text.contains("multiclustersessions"), "{text}");
        }
    }
    let policy = find(
        &objects,
        "ValidatingAdmissionPolicy",
        "mirrord-operator-sessions",
    )
    .unwrap();
    let validations = policy["spec"]["validations"].to_string();
    assert!(
        validations.contains("object.spec == oldObject.spec"),
        "{validations}"
    );
    for name in [
        "mirrordclustersessions.mirrord.metalbear.co",
        "mirrordmulticlustersessions.operator.metalbear.co",
    ] {
        let definition = find(&objects, "CustomResourceDefinition", name).unwrap();
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let rules = &schema["properties"]["spec"]["x-kubernetes-validations"];
        assert_eq!(rules[0]["rule"], "self == oldSelf", "{name}");
    }
}

use super::*;

fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

/// The cells of the listed targets.
fn listed_cells(found: &[Workload], sessions: &[MirrordClusterSession]) -> Vec<String> {
    targets(found, sessions)
        .iter()
        .map(|target| {
            let cells: Vec<String> = target
                .cells()
                .iter()
                .map(|cell| cell.as_str().unwrap_or_default().to_owned())
                .collect();
            cells.join(" ")
        })
        .collect()
}

fn named(kind: TargetKind, name: &str, workload: Option<Workload>) -> Workload {
    let workload = workload.unwrap();
    assert_eq!(workload.kind, Some(kind));
    Workload {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        ..workload
    }
}

fn pods() -> Value {
    json!({"spec": {"containers": [{"name": "app", "ports": [{"containerPort": 80}]}, {"name": "sidecar"}]}})
}

#[test]
fn workloads_are_listed_without_the_workloads_that_they_own() {
    let deployment: Deployment =
        object(json!({"spec": {"replicas": 2, "selector": {}, "template": pods()}}));
    let set: ReplicaSet =
        object(json!({"spec": {"replicas": 2, "selector": {}, "template": pods()}}));
    let pod: Pod = object(json!({"spec": pods()["spec"], "status": {"phase": "Running"}}));
    let service: Service = object(json!({"spec": {"selector": {"app": "web"}}}));
    let labels = BTreeMap::from([("app".to_owned(), "web".to_owned())]);
    let found = [
        named(TargetKind::Service, "web", service.as_workload()),
        named(TargetKind::Deployment, "web", deployment.as_workload()),
        Workload {
            is_owned: true,
            ..named(TargetKind::ReplicaSet, "web-1", set.as_workload())
        },
        Workload {
            is_owned: true,
            labels,
            ..named(TargetKind::Pod, "web-1-a", pod.as_workload())
        },
        named(TargetKind::ReplicaSet, "alone", set.as_workload()),
    ];
    assert_eq!(
        listed_cells(&found, &[]),
        [
            "deployment.web app,sidecar 2 - 80 - -",
            "pod.web-1-a app,sidecar - - 80 - -",
            "replicaset.alone app,sidecar 2 - 80 - -",
            "service.web app,sidecar - - 80 - -",
        ]
    );
}

#[test]
fn workloads_without_running_pods_are_no_targets() {
    let pending: Pod = object(json!({"spec": pods()["spec"], "status": {"phase": "Pending"}}));
    assert_eq!(pending.as_workload(), None);
    let headless: Service = object(json!({"spec": {}}));
    assert_eq!(headless.as_workload(), None);
    let finished: Job = object(json!({"spec": {"template": pods()}, "status": {"succeeded": 1}}));
    assert_eq!(finished.as_workload(), None);
    // It selects no pod.
    let service: Service = object(json!({"spec": {"selector": {"app": "web"}}}));
    let found = [named(TargetKind::Service, "web", service.as_workload())];
    assert_eq!(listed_cells(&found, &[]), Vec::<String>::new());
}

#[test]
fn targets_list_their_sessions() {
    let deployment: Deployment =
        object(json!({"spec": {"replicas": 1, "selector": {}, "template": pods()}}));
    let session = |namespace: &str, target: &str| -> MirrordClusterSession {
        object(json!({
            "apiVersion": "mirrord.metalbear.co/v1alpha", "kind": "MirrordClusterSession",
            "metadata": {"name": "session-000000000000001f"},
            "spec": {
                "owner": {"userId": "", "username": "", "hostname": "", "k8sUsername": "anna"},
                "namespace": namespace, "target": target, "resumeWindowSecs": 60, "clientCertificate": "",
            },
            "status": {"ports": [{"port": 80, "protocol": "TCP", "mode": "steal", "filter": "path ^/a"}]},
        }))
    };
    let found = [named(
        TargetKind::Deployment,
        "web",
        deployment.as_workload(),
    )];
    let cases = [
        ("shop", "deployment/web", "anna"),
        ("shop", "deployment/web/container/app", "anna"),
        ("shop", "deployment/other", "-"),
        ("other", "deployment/web", "-"),
    ];
    for (namespace, target, user) in cases {
        let traffic = match user {
            "-" => "-",
            _ => "anna: 80 (steal, path ^/a)",
        };
        assert_eq!(
            listed_cells(&found, &[session(namespace, target)]),
            [format!(
                "deployment.web app,sidecar 1 {user} 80 - {traffic}"
            )]
        );
    }
}

use super::*;

fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

/// Names, containers and sessions of what is listed.
fn shown(found: &[Workload], sessions: &[MirrordClusterSession]) -> Vec<String> {
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
fn workloads_are_listed_and_what_they_made_is_not() {
    let deployment: Deployment =
        object(json!({"spec": {"replicas": 2, "selector": {}, "template": pods()}}));
    let set: ReplicaSet =
        object(json!({"spec": {"replicas": 2, "selector": {}, "template": pods()}}));
    let pod: Pod = object(json!({"spec": pods()["spec"], "status": {"phase": "Running"}}));
    let service: Service = object(json!({"spec": {"selector": {"app": "web"}}}));
    let labels = BTreeMap::from([("app".to_owned(), "web".to_owned())]);
    let found = [
        named(TargetKind::Service, "web", service.describe()),
        named(TargetKind::Deployment, "web", deployment.describe()),
        Workload {
            is_owned: true,
            ..named(TargetKind::ReplicaSet, "web-1", set.describe())
        },
        Workload {
            is_owned: true,
            labels,
            ..named(TargetKind::Pod, "web-1-a", pod.describe())
        },
        named(TargetKind::ReplicaSet, "alone", set.describe()),
    ];
    assert_eq!(
        shown(&found, &[]),
        [
            "deployment.web app,sidecar 2 - 80 - -",
            "pod.web-1-a app,sidecar - - 80 - -",
            "replicaset.alone app,sidecar 2 - 80 - -",
            "service.web app,sidecar - - 80 - -",
        ]
    );
}

#[test]
fn what_cannot_have_an_agent_is_no_target() {
    let pending: Pod = object(json!({"spec": pods()["spec"], "status": {"phase": "Pending"}}));
    assert_eq!(pending.describe(), None);
    let headless: Service = object(json!({"spec": {}}));
    assert_eq!(headless.describe(), None);
    let finished: Job = object(json!({"spec": {"template": pods()}, "status": {"succeeded": 1}}));
    assert_eq!(finished.describe(), None);
    // Nobody is behind it.
    let service: Service = object(json!({"spec": {"selector": {"app": "web"}}}));
    let found = [named(TargetKind::Service, "web", service.describe())];
    assert_eq!(shown(&found, &[]), Vec::<String>::new());
}

#[test]
fn whoever_is_at_a_target_is_shown() {
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
    let found = [named(TargetKind::Deployment, "web", deployment.describe())];
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
            shown(&found, &[session(namespace, target)]),
            [format!(
                "deployment.web app,sidecar 1 {user} 80 - {traffic}"
            )]
        );
    }
}

//! The chart's values: each one has an effect, and invalid ones are rejected.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::rendering::{OPERATOR, read, template_of};
use super::tunnel_values;

/// A chart, and the settings that its values are tested with.
pub(crate) struct ChartValues {
    pub(crate) chart: &'static str,
    /// For each value, a setting that changes the rendered chart. `+` joins settings that are needed together.
    pub(crate) settings: &'static [(&'static str, &'static str)],
    /// Settings that must be rejected, and a part of the error.
    pub(crate) wrong: &'static [(&'static str, &'static str)],
}

const CHARTS: &[ChartValues] = &[
    ChartValues {
        chart: OPERATOR,
        settings: SETTINGS,
        wrong: WRONG,
    },
    tunnel_values::HUB_VALUES,
    tunnel_values::TUNNEL_AGENT_VALUES,
];

const SETTINGS: &[(&str, &str)] = &[
    ("grafanaDashboard.enabled", "grafanaDashboard.enabled=true"),
    (
        "grafanaDashboard.labels",
        "grafanaDashboard.enabled=true+grafanaDashboard.labels.team=a",
    ),
    (
        "networkPolicy.apiServerCidrs",
        "networkPolicy.enabled=true+networkPolicy.apiServerCidrs={10.0.0.1/32}",
    ),
    ("networkPolicy.enabled", "networkPolicy.enabled=true"),
    (
        "networkPolicy.metricsFrom",
        "networkPolicy.enabled=true+networkPolicy.metricsFrom[0].podSelector.matchLabels.app=prometheus",
    ),
    (
        "operator.affinity",
        r#"operator.affinity={"nodeAffinity":{}}"#,
    ),
    ("operator.agent.image", "operator.agent.image=a.b/c:1"),
    ("operator.agent.log", "operator.agent.log=debug"),
    ("operator.agent.mode", "operator.agent.mode=node"),
    (
        "operator.agent.resources.limits",
        "operator.agent.resources.limits.memory=1Gi",
    ),
    (
        "operator.agent.resources.requests",
        "operator.agent.resources.requests.cpu=50m",
    ),
    (
        "operator.agent.targetless",
        "operator.agent.targetless=false",
    ),
    (
        "operator.defaultNamespace",
        "operator.defaultNamespace=shop",
    ),
    (
        "operator.image.digest",
        "operator.image.digest=sha256:00000000000000000000000000000000000000000000000000000000000000aa",
    ),
    (
        "operator.image.pullPolicy",
        "operator.image.pullPolicy=Always",
    ),
    (
        "operator.image.repository",
        "operator.image.repository=localhost:5000/standind",
    ),
    ("operator.image.tag", "operator.image.tag=v2"),
    (
        "operator.imagePullSecrets",
        "operator.imagePullSecrets={registry}",
    ),
    ("operator.licenseSecret", "operator.licenseSecret=licence"),
    ("operator.log.json", "operator.log.json=false"),
    ("operator.log.level", "operator.log.level=debug"),
    ("operator.nodeSelector", "operator.nodeSelector.disk=ssd"),
    ("operator.podAnnotations", "operator.podAnnotations.a=b"),
    ("operator.podLabels", "operator.podLabels.a=b"),
    (
        "operator.priorityClassName",
        "operator.priorityClassName=high",
    ),
    ("operator.replicas", "operator.replicas=3"),
    (
        "operator.resources.limits.memory",
        "operator.resources.limits.memory=1Gi",
    ),
    (
        "operator.resources.requests.cpu",
        "operator.resources.requests.cpu=1",
    ),
    (
        "operator.resources.requests.memory",
        "operator.resources.requests.memory=1Gi",
    ),
    (
        "operator.session.maxResumeSecs",
        "operator.session.maxResumeSecs=901",
    ),
    ("operator.session.maxSecs", "operator.session.maxSecs=3600"),
    (
        "operator.session.rightsReviewSecs",
        "operator.session.rightsReviewSecs=60",
    ),
    (
        "operator.session.policyConfirmationSecs",
        "operator.session.policyConfirmationSecs=11",
    ),
    (
        "operator.session.showFilterPatterns",
        "operator.session.showFilterPatterns=false",
    ),
    ("operator.session.ttlSecs", "operator.session.ttlSecs=61"),
    (
        "operator.tolerations",
        r#"operator.tolerations=[{"operator":"Exists"}]"#,
    ),
    (
        "podDisruptionBudget.enabled",
        "podDisruptionBudget.enabled=false",
    ),
    (
        "podDisruptionBudget.maxUnavailable",
        "podDisruptionBudget.maxUnavailable=50%",
    ),
    ("sa.annotations", "sa.annotations.a=b"),
    ("sa.roleArn", "sa.roleArn=arn:aws:iam::1:role/a"),
    ("serviceMonitor.enabled", "serviceMonitor.enabled=true"),
    (
        "serviceMonitor.interval",
        "serviceMonitor.enabled=true+serviceMonitor.interval=5s",
    ),
    (
        "serviceMonitor.labels",
        "serviceMonitor.enabled=true+serviceMonitor.labels.a=b",
    ),
    ("userRole.create", "userRole.create=false"),
    ("userRole.groups", "userRole.groups={developers}"),
];

/// Values that are valid only together with others, and that other tests cover.
fn is_tested_elsewhere(path: &str) -> bool {
    path.starts_with("operator.multiCluster") || path == "networkPolicy.memberCidrs"
}

const WRONG: &[(&str, &str)] = &[
    ("operatr.replicas=2", "'operatr' not allowed"),
    ("operator.replica=2", "'replica' not allowed"),
    ("operator.replicas=0", "minimum: got 0, want 1"),
    ("operator.replicas=two", "got string, want integer"),
    ("operator.image.repository=", "/operator/image/repository"),
    (
        "operator.image.repository=Upper/Case",
        "/operator/image/repository",
    ),
    (
        "operator.image.repository=a.b/c:1",
        "/operator/image/repository",
    ),
    ("operator.image.tag=a b", "/operator/image/tag"),
    ("operator.image.digest=sha256:12", "/operator/image/digest"),
    (
        "operator.image.pullPolicy=Sometimes",
        "/operator/image/pullPolicy",
    ),
    (
        "operator.imagePullSecrets={Not_a_name}",
        "/operator/imagePullSecrets/0",
    ),
    (
        "operator.defaultNamespace=a.b",
        "/operator/defaultNamespace",
    ),
    ("operator.licenseSecret=UPPER", "/operator/licenseSecret"),
    ("operator.session.ttlSecs=0", "/operator/session/ttlSecs"),
    ("operator.session.maxSecs=-1", "/operator/session/maxSecs"),
    (
        "operator.session.rightsReviewSecs=0",
        "/operator/session/rightsReviewSecs",
    ),
    (
        "operator.multiClusterMember=true+operator.multiClusterMemberUserAuthorization=true",
        "`operator.multiClusterMemberGroupPrefix` is missing",
    ),
    (
        "operator.multiClusterMember=true+operator.multiClusterMemberUserAuthorization=true\
         +operator.multiClusterMemberGroupPrefix=system:",
        "`operator.multiClusterMemberGroupPrefix` begins with `system:`",
    ),
    (
        "operator.multiClusterMember=true+operator.multiClusterMemberUserAuthorization=true\
         +operator.multiClusterMemberGroupPrefix=hub:+operator.multiClusterMemberUserPrefix=system:serviceaccount:",
        "`operator.multiClusterMemberUserPrefix` begins with `system:`",
    ),
    (
        "operator.session.showFilterPatterns=some",
        "/operator/session/showFilterPatterns",
    ),
    (
        "operator.session.policyConfirmationSecs=0",
        "/operator/session/policyConfirmationSecs",
    ),
    (
        "operator.session.maxResumeSecs=100000",
        "/operator/session/maxResumeSecs",
    ),
    (
        "operator.session.maxResumeSecs=60+operator.session.ttlSecs=61",
        "operator.session.maxResumeSecs (60) is less than",
    ),
    ("operator.agent.mode=magic", "/operator/agent/mode"),
    (
        "operator.agent.targetless=maybe",
        "/operator/agent/targetless",
    ),
    ("operator.agent.log=loud", "/operator/agent/log"),
    (
        "operator.agent.resources.request.cpu=1",
        "'request' not allowed",
    ),
    (
        "operator.agent.resources.requests.cpu=much",
        "/operator/agent/resources/requests/cpu",
    ),
    (
        "operator.resources.limits.memory=1GB",
        "/operator/resources/limits/memory",
    ),
    ("operator.agent.image=a b", "/operator/agent/image"),
    ("operator.log.json=1", "got number, want boolean"),
    ("operator.resources.limit.memory=1Gi", "'limit' not allowed"),
    (
        r#"operator.tolerations=[{"efect":"NoSchedule"}]"#,
        "'efect' not allowed",
    ),
    (
        r#"operator.tolerations=[{"effect":"Never"}]"#,
        "/operator/tolerations/0/effect",
    ),
    (
        r#"operator.affinity={"podAfinity":{}}"#,
        "'podAfinity' not allowed",
    ),
    (
        r#"operator.podLabels={"app.kubernetes.io/name":"mine"}"#,
        "invalid propertyName",
    ),
    ("sa.name=other", "'name' not allowed"),
    ("userRole.groups=developers", "got string, want array"),
    (
        "podDisruptionBudget.maxUnavailable=0",
        "/podDisruptionBudget/maxUnavailable",
    ),
    (
        "podDisruptionBudget.maxUnavailable=half",
        "/podDisruptionBudget/maxUnavailable",
    ),
    (
        "networkPolicy.apiServerCidrs={10.0.0.1}",
        "/networkPolicy/apiServerCidrs/0",
    ),
    (
        "networkPolicy.memberCidrs={10.0.0.1}",
        "/networkPolicy/memberCidrs/0",
    ),
    (
        "networkPolicy.memberCidrs=10.0.0.1/32",
        "/networkPolicy/memberCidrs",
    ),
    (
        "networkPolicy.apiServerCidrs={10.0.0.1/32}+networkPolicy.memberCidrs={10.0.0.2/32}",
        "`networkPolicy.memberCidrs` is set, and `operator.multiCluster.enabled` is not",
    ),
    (
        "networkPolicy.metricsFrom[0].namespace=monitoring",
        "/networkPolicy/metricsFrom/0",
    ),
    ("serviceMonitor.interval=often", "/serviceMonitor/interval"),
    ("grafanaDashboard.labels.a=1", "got number, want string"),
];

fn split(settings: &str) -> Vec<&str> {
    settings.split('+').collect()
}

#[test]
fn wrong_values_are_refused_by_name() {
    for ChartValues { chart, wrong, .. } in CHARTS {
        for (settings, reason) in *wrong {
            let refused = template_of(chart, &split(settings));
            let message = refused.expect_err(settings);
            assert!(message.contains(reason), "{settings}: {message}");
        }
    }
}

#[test]
fn every_value_does_something() {
    for ChartValues {
        chart, settings, ..
    } in CHARTS
    {
        values_do_something(chart, settings);
    }
}

fn values_do_something(chart: &str, settings: &[(&str, &str)]) {
    let template = |settings: &[&str]| template_of(chart, settings);
    let usual = template(&[]).unwrap();
    for (path, settings) in settings {
        let settings = split(settings);
        // Enabling a part must not count as the effect of that part's values.
        let before = match settings.as_slice() {
            [enabling, _] => template(&[enabling]).unwrap(),
            _ => usual.clone(),
        };
        let after = template(&settings).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert!(after != before, "{path} of {chart} does nothing");
    }
    let listed: BTreeSet<&str> = settings.iter().map(|(path, _)| *path).collect();
    let missing: Vec<String> = leaves(&values(chart))
        .into_iter()
        .filter(|path| !covers(&listed, path) && !is_tested_elsewhere(path))
        .collect();
    assert!(missing.is_empty(), "no setting for {missing:?} of {chart}");
}

/// A value that is a map with free keys is listed by its own path.
fn covers(listed: &BTreeSet<&str>, path: &str) -> bool {
    listed.contains(path)
        || path
            .rsplit_once('.')
            .is_some_and(|(parent, _)| listed.contains(parent))
}

#[test]
fn schema_and_values_have_the_same_keys() {
    for values in CHARTS {
        check_keys(values.chart);
    }
}

fn check_keys(chart: &str) {
    let schema = read(&format!("charts/{chart}/values.schema.json"));
    let schema: Value = serde_json::from_str(&schema).unwrap();
    let mut schema_keys = BTreeMap::new();
    keys_of_schema(&schema, "", &mut schema_keys);
    let values = values(chart);
    for path in leaves(&values) {
        let is_in_schema = schema_keys.contains_key(&path)
            || path.rsplit_once('.').is_some_and(|(parent, _)| {
                schema_keys.get(parent).is_some_and(|takes_any| *takes_any)
            });
        assert!(
            is_in_schema,
            "{path} is in values.yaml and not in the schema"
        );
    }
    for path in schema_keys.keys().filter(|path| *path != "global") {
        assert!(
            has_default(&values, path),
            "{path} is in the schema and has no default in values.yaml"
        );
    }
}

/// An empty map has free keys.
fn has_default(values: &Value, path: &str) -> bool {
    let mut value = values;
    for key in path.split('.') {
        match value.get(key) {
            Some(found) => value = found,
            None => return value.as_object().is_some_and(serde_json::Map::is_empty),
        }
    }
    true
}

fn values(chart: &str) -> Value {
    serde_saphyr::from_str(&read(&format!("charts/{chart}/values.yaml"))).unwrap()
}

/// The paths of all values that are no maps, or empty ones.
fn leaves(values: &Value) -> Vec<String> {
    fn collect(value: &Value, path: &str, found: &mut Vec<String>) {
        match value.as_object() {
            Some(map) if !map.is_empty() => {
                for (key, value) in map {
                    let separator = if path.is_empty() { "" } else { "." };
                    collect(value, &format!("{path}{separator}{key}"), found);
                }
            }
            _ => found.push(path.to_owned()),
        }
    }
    let mut found = Vec::new();
    collect(values, "", &mut found);
    found
}

/// The paths of all properties, and whether each takes keys of the user's choice.
fn keys_of_schema(schema: &Value, path: &str, schema_keys: &mut BTreeMap<String, bool>) {
    for (key, property) in schema["properties"].as_object().into_iter().flatten() {
        let separator = if path.is_empty() { "" } else { "." };
        let path = format!("{path}{separator}{key}");
        let is_closed = property["properties"].is_object();
        schema_keys.insert(path.clone(), !is_closed);
        keys_of_schema(property, &path, schema_keys);
        assert!(
            !is_closed || property["additionalProperties"] == false,
            "{path} accepts unknown keys"
        );
    }
}

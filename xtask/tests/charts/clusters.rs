//! Charts of Primaries: the example of the specification, credentials, and configurations that an administrator writes.

use serde_json::{Value, json};

use super::rendering::{find, in_namespace, objects, template, words};

const CERTIFICATE: &str =
    "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCllRPT0KLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo=";
const KEY: &str = "LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0tLS0tCg==";
const ROLE_ARN: &str = "arn:aws:iam::123456789012:role/standin";

/// The values that the specification of sessions over several clusters has as its example, with all methods at once. Its
/// certificates are abbreviated, so others are in their place.
fn example() -> Value {
    json!({
        "enabled": true,
        "clusterName": "primary",
        "defaultCluster": "staging-cluster",
        "managementOnly": true,
        "clusters": {
            "staging-cluster": {
                "authType": "bearerToken",
                "server": "https://api.staging.example.com:6443",
                "caData": CERTIFICATE,
                "bearerToken": "eyJhbGciOiJS...",
                "isDefault": true,
            },
            "my-eks-cluster": {
                "authType": "eks",
                "region": "eu-north-1",
                "server": "https://ABCDEF1234567890.gr7.eu-north-1.eks.amazonaws.com",
                "caData": CERTIFICATE,
            },
            "on-prem-cluster": {
                "authType": "mtls",
                "server": "https://api.onprem.example.com:6443",
                "caData": CERTIFICATE,
                "tlsCrt": CERTIFICATE,
                "tlsKey": KEY,
            },
        },
    })
}

fn setting(multi_cluster: &Value) -> String {
    format!("operator.multiCluster={multi_cluster}")
}

/// The chart of a Primary with these values, and with a role in AWS.
fn primary(multi_cluster: &Value) -> Vec<Value> {
    let role = format!("sa.roleArn={ROLE_ARN}");
    objects(&[&setting(multi_cluster), &role])
}

fn configuration(objects: &[Value]) -> Value {
    let config_map = find(objects, "ConfigMap", "mirrord-operator-clusters").unwrap();
    let text = config_map["data"]["clusters-config.yaml"].as_str().unwrap();
    serde_saphyr::from_str(text).unwrap()
}

/// The Secrets of administrators that the operator may read.
fn readable_credentials(objects: &[Value]) -> Vec<String> {
    let role = find(objects, "Role", "mirrord-operator-clusters").unwrap();
    let mut rules = role["rules"].as_array().unwrap().iter();
    let rule = rules
        .find(|rule| words(&rule["resources"]) == ["secrets"] && words(&rule["verbs"])[0] == "get");
    let mut names = words(&rule.unwrap()["resourceNames"]);
    names.retain(|name| name.starts_with("mirrord-cluster-"));
    names.sort();
    names
}

#[test]
fn the_example_of_the_specification_is_accepted() {
    let objects = primary(&example());
    let configuration = configuration(&objects);
    assert_eq!(configuration["defaultCluster"], "staging-cluster");
    let clusters = configuration["clusters"].as_array().unwrap();
    let names: Vec<&Value> = clusters.iter().map(|cluster| &cluster["name"]).collect();
    assert_eq!(
        names,
        ["my-eks-cluster", "on-prem-cluster", "staging-cluster"]
    );
    for cluster in clusters {
        for secret in ["bearerToken", "tlsCrt", "tlsKey"] {
            assert!(cluster.get(secret).is_none(), "{cluster}");
        }
    }
    let keys = |member: &str| {
        let secret = find(&objects, "Secret", &format!("mirrord-cluster-{member}"))?;
        let label =
            &secret["metadata"]["labels"]["operator.metalbear.co/remote-cluster-credentials"];
        assert_eq!(label, "true");
        Some(
            secret["data"]
                .as_object()?
                .keys()
                .cloned()
                .collect::<Vec<_>>(),
        )
    };
    assert_eq!(keys("staging-cluster").unwrap(), ["bearerToken"]);
    assert_eq!(keys("on-prem-cluster").unwrap(), ["tls.crt", "tls.key"]);
    assert_eq!(keys("my-eks-cluster"), None);
    let expected = [
        "mirrord-cluster-on-prem-cluster",
        "mirrord-cluster-staging-cluster",
    ];
    assert_eq!(readable_credentials(&objects), expected);
    let account = find(&objects, "ServiceAccount", "mirrord-operator").unwrap();
    let annotations = &account["metadata"]["annotations"];
    assert_eq!(annotations["eks.amazonaws.com/role-arn"], ROLE_ARN);
}

/// The commands and the trust policy of the specification name the namespace `mirrord`.
#[test]
fn accounts_are_in_the_namespace_of_the_release() {
    let is_member = "operator.multiClusterMember=true";
    let objects = in_namespace(
        "mirrord",
        &[is_member, &setting(&example()), "sa.roleArn=a"],
    );
    for account in ["mirrord-operator", "mirrord-operator-envoy"] {
        let account = find(&objects, "ServiceAccount", account).unwrap();
        assert_eq!(account["metadata"]["namespace"], "mirrord");
    }
    let policy = "ValidatingAdmissionPolicy";
    let policy = find(&objects, policy, "mirrord-operator-sessions").unwrap();
    for account in ["mirrord-operator", "mirrord-operator-envoy"] {
        let name = format!("'system:serviceaccount:mirrord:{account}'");
        assert!(policy.to_string().contains(&name), "{policy}");
    }
}

/// GNU `base64` wraps its output, and files end with a line end.
#[test]
fn wrapped_values_are_accepted() {
    let wrap = |text: &str| {
        let (start, end) = text.split_at(20);
        json!(format!("{start}\n{end}\n"))
    };
    let mut wrapped = example();
    for (member, key) in [
        ("staging-cluster", "caData"),
        ("staging-cluster", "bearerToken"),
        ("on-prem-cluster", "tlsCrt"),
        ("on-prem-cluster", "tlsKey"),
    ] {
        let value = &mut wrapped["clusters"][member][key];
        if key == "bearerToken" {
            *value = json!("eyJhbGciOiJS.eyJhbGciOiJS.eyJhbGciOiJS");
        }
        *value = wrap(value.as_str().unwrap());
    }
    let mut joined = example();
    joined["clusters"]["staging-cluster"]["bearerToken"] =
        json!("eyJhbGciOiJS.eyJhbGciOiJS.eyJhbGciOiJS");
    assert_eq!(primary(&wrapped), primary(&joined));
}

#[test]
fn authorities_may_be_left_out_except_for_eks() {
    let mut values = example();
    for member in ["staging-cluster", "on-prem-cluster"] {
        values["clusters"][member]
            .as_object_mut()
            .unwrap()
            .remove("caData");
    }
    let configuration = configuration(&primary(&values));
    let clusters = configuration["clusters"].as_array().unwrap().iter();
    let with = clusters.filter(|cluster| cluster.get("caData").is_some());
    assert_eq!(
        with.map(|cluster| &cluster["name"]).collect::<Vec<_>>(),
        ["my-eks-cluster"]
    );
    let eks = &mut values["clusters"]["my-eks-cluster"];
    eks.as_object_mut().unwrap().remove("caData");
    let error = template(&[&setting(&values), "sa.roleArn=a"]).unwrap_err();
    let expected = "`operator.multiCluster.clusters.my-eks-cluster.caData` is missing";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn members_may_have_every_name_that_a_secret_may_have() {
    let named = |name: &str| {
        let member = json!({"authType": "mtls", "server": "https://a"});
        let values = json!({"enabled": true, "clusterName": "hub", "defaultCluster": "hub", "clusters": {name: member}});
        template(&[&setting(&values)])
    };
    let longest = "a".repeat(220);
    for name in ["prod.k8s.example.com", "1", "a-b.c-d", longest.as_str()] {
        let rendered = named(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(
            rendered.contains(&format!("- mirrord-cluster-{name}\n")),
            "{name}"
        );
    }
    let too_long = "a".repeat(221);
    for name in [
        "gke_a_b",
        "admin@prod",
        "Prod",
        "a..b",
        "a.",
        "a.-b",
        too_long.as_str(),
    ] {
        let error = named(name).unwrap_err();
        let expected =
            format!("`operator.multiCluster.clusters.{name}` must be a name of small letters");
        assert!(error.contains(&expected), "{error}");
    }
}

/// Without members in the values, the administrator writes the ConfigMap.
#[test]
fn the_config_map_alone_is_a_configuration() {
    let values = json!({"enabled": true, "configMapClusters": ["staging", "prod.example.com"], "managementOnly": true});
    let objects = objects(&[&setting(&values)]);
    assert!(find(&objects, "ConfigMap", "mirrord-operator-clusters").is_none());
    let expected = [
        "mirrord-cluster-prod.example.com",
        "mirrord-cluster-staging",
    ];
    assert_eq!(readable_credentials(&objects), expected);
    let deployment = find(&objects, "Deployment", "mirrord-operator").unwrap();
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let arguments = words(&container["args"]);
    let config_map = "--clusters-config-map=mirrord-operator-clusters".to_owned();
    assert!(arguments.contains(&config_map), "{arguments:?}");
    let variables = container["env"].as_array().unwrap();
    let expected = json!({"name": "PRIMARY_MANAGEMENT_ONLY", "value": "true"});
    assert!(variables.contains(&expected), "{variables:?}");

    for (key, value, expected) in [
        (
            "clusterName",
            json!("hub"),
            "`operator.multiCluster.clusterName` is set, and",
        ),
        (
            "defaultCluster",
            json!("a"),
            "`operator.multiCluster.defaultCluster` is set, and",
        ),
        (
            "configMapClusters",
            json!(["A"]),
            "`operator.multiCluster.configMapClusters` has A, which",
        ),
    ] {
        let mut wrong = values.clone();
        wrong[key] = value;
        let error = template(&[&setting(&wrong)]).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    let settings = [
        setting(&values),
        "networkPolicy.enabled=true".to_owned(),
        "networkPolicy.apiServerCidrs={10.0.0.1/32}".to_owned(),
    ];
    let error = template(&settings.each_ref().map(String::as_str)).unwrap_err();
    assert!(
        error.contains("`networkPolicy.memberCidrs` is missing"),
        "{error}"
    );
}

/// A change of the members takes effect without new pods.
#[test]
fn pods_do_not_depend_on_the_members() {
    let pods = |values: &Value| {
        let objects = primary(values);
        find(&objects, "Deployment", "mirrord-operator").unwrap()["spec"]["template"].clone()
    };
    let mut fewer = example();
    fewer["clusters"]
        .as_object_mut()
        .unwrap()
        .remove("on-prem-cluster");
    assert_eq!(pods(&fewer), pods(&example()));
    let mut coordinating = example();
    coordinating["managementOnly"] = json!(false);
    assert_ne!(pods(&coordinating), pods(&example()));
}

#[test]
fn timeouts_are_arguments_of_the_operator() {
    let arguments = |changes: &[(&str, u64)]| {
        let mut values = example();
        for (key, value) in changes {
            values[key] = json!(value);
        }
        let objects = primary(&values);
        let deployment = find(&objects, "Deployment", "mirrord-operator").unwrap();
        words(&deployment["spec"]["template"]["spec"]["containers"][0]["args"])
    };
    let has =
        |arguments: &[String], expected: &str| arguments.iter().any(|found| found == expected);
    let usual = arguments(&[]);
    assert!(has(&usual, "--remote-session-timeout=75"), "{usual:?}");
    assert!(
        !usual
            .iter()
            .any(|found| found.starts_with("--multi-cluster-session-ttl"))
    );
    let other = arguments(&[("sessionTtlSecs", 30), ("remoteSessionTimeoutSecs", 300)]);
    assert!(has(&other, "--remote-session-timeout=300"), "{other:?}");
    assert!(has(&other, "--multi-cluster-session-ttl=30"), "{other:?}");
    for (key, value, expected) in [
        ("sessionTtlSecs", 5, "/operator/multiCluster/sessionTtlSecs"),
        (
            "sessionTtlSecs",
            901,
            "is less than operator.multiCluster.sessionTtlSecs (901)",
        ),
        (
            "remoteSessionTimeoutSecs",
            0,
            "/operator/multiCluster/remoteSessionTimeoutSecs",
        ),
    ] {
        let mut values = example();
        values[key] = json!(value);
        let error = template(&[&setting(&values), "sa.roleArn=a"]).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

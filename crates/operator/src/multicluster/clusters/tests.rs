use super::*;

fn authority() -> String {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec!["authority".to_owned()])
        .unwrap()
        .self_signed(&key)
        .unwrap();
    STANDARD.encode(certificate.pem())
}

/// Parses a valid configuration with some lines replaced.
fn read(changes: &[(&str, &str)]) -> Result<MultiCluster, InvalidClusters> {
    let mut text = format!(
        "clusterName: primary\n\
         defaultCluster: staging\n\
         managementOnly: true\n\
         clusters:\n\
         - {{name: staging, authType: bearerToken, server: 'https://staging:6443', caData: {authority}, namespace: tools}}\n\
         - {{name: Blue_1, authType: eks, region: eu-north-1, server: 'https://blue', caData: {authority}}}\n\
         - {{name: on-prem, authType: mtls, server: 'https://on-prem', caData: {authority}}}\n",
        authority = authority()
    );
    for (old, new) in changes {
        assert!(text.contains(old), "{old} is not in {text}");
        text = text.replacen(old, new, 1);
    }
    MultiCluster::read(&text, false)
}

#[test]
fn the_configuration_of_the_chart_is_parsed() {
    let clusters = read(&[]).unwrap();
    assert_eq!(clusters.default, "staging");
    assert_eq!(
        clusters.workload_clusters(),
        ["staging", "Blue_1", "on-prem"]
    );
    assert_eq!(clusters.members[0].method, AuthMethod::BearerToken);
    assert_eq!(clusters.members[0].secret(), "mirrord-cluster-staging");
    assert_eq!(clusters.members[0].namespace.as_deref(), Some("tools"));
    let region = "eu-north-1".to_owned();
    assert_eq!(clusters.members[1].method, AuthMethod::Eks { region });
    assert_eq!(object_part(&clusters.members[1].name), "blue-1");

    assert_eq!(clusters.on_unreachable, OnUnreachable::Fail);
    let tolerant = read(&[(
        "managementOnly: true",
        "managementOnly: true\nonUnreachable: continue",
    )]);
    assert_eq!(tolerant.unwrap().on_unreachable, OnUnreachable::Continue);

    let with_targets = read(&[("managementOnly: true", "managementOnly: false")]).unwrap();
    assert_eq!(with_targets.workload_clusters()[0], "primary");
    let marked = read(&[
        ("defaultCluster: staging\n", ""),
        ("name: on-prem", "name: on-prem, isDefault: true"),
    ]);
    assert_eq!(marked.unwrap().default, "on-prem");
}

#[test]
fn errors_name_the_invalid_key() {
    let cases: &[(&[(&str, &str)], &str)] = &[
        (
            &[("clusterName: primary\n", "")],
            "`operator.multiCluster.clusterName` is missing",
        ),
        (
            &[("clusterName: primary", "clusterName: Prim")],
            "`operator.multiCluster.clusterName` must be a name of small",
        ),
        (
            &[("defaultCluster: staging\n", "")],
            "`operator.multiCluster.defaultCluster` is missing",
        ),
        (
            &[("defaultCluster: staging", "defaultCluster: other")],
            "`operator.multiCluster.defaultCluster` is other, which is neither",
        ),
        (
            &[("defaultCluster: staging", "defaultCluster: primary")],
            "`operator.multiCluster.defaultCluster` is primary, which has no targets because managementOnly",
        ),
        (
            &[("name: on-prem", "name: on-prem, isDefault: true")],
            "`operator.multiCluster.defaultCluster` is staging, and clusters.on-prem.isDefault is set",
        ),
        (
            &[
                ("name: on-prem", "name: on-prem, isDefault: true"),
                ("name: Blue_1", "name: Blue_1, isDefault: true"),
            ],
            "`operator.multiCluster.clusters.on-prem.isDefault` is set, and so is that of Blue_1",
        ),
        (
            &[("authType: bearerToken, ", "")],
            "`operator.multiCluster.clusters.staging.authType` is missing; it can be bearerToken, eks, mtls or tunnel",
        ),
        (
            &[("authType: bearerToken", "authType: password")],
            "`operator.multiCluster.clusters.staging.authType` is `password`; it can",
        ),
        (
            &[("region: eu-north-1, ", "")],
            "`operator.multiCluster.clusters.Blue_1.region` is missing",
        ),
        (
            &[("authType: mtls", "authType: mtls, region: x")],
            "`operator.multiCluster.clusters.on-prem.region` is only for",
        ),
        (
            &[("server: 'https://staging:6443', ", "")],
            "`operator.multiCluster.clusters.staging.server` is missing",
        ),
        (
            &[("https://staging", "http://staging")],
            "`operator.multiCluster.clusters.staging.server` must begin with https",
        ),
        (
            &[("name: on-prem", "name: On_Prem")],
            "`operator.multiCluster.clusters.On_Prem` must be a name of small",
        ),
        (
            &[("name: on-prem", "name: blue-1")],
            "`operator.multiCluster.clusters.blue-1` has the same name as `Blue_1`",
        ),
        (
            &[("name: on-prem", "name: primary")],
            "`operator.multiCluster.clusters.primary` has the same name as `primary`",
        ),
        (
            &[("managementOnly: true", "onUnreachable: wait")],
            "`operator.multiCluster.onUnreachable` is `wait`; it can be fail or continue",
        ),
        (
            &[("managementOnly", "managmentOnly")],
            "`operator.multiCluster` cannot be read",
        ),
    ];
    for (changes, expected) in cases {
        let message = read(changes).unwrap_err().to_string();
        assert!(message.starts_with(expected), "{message}\n{expected}");
    }
}

#[test]
fn members_behind_a_hub_have_a_path_of_their_own() {
    let with = |server: &str| {
        let tunnel = "authType: tunnel, server: '";
        read(&[(
            "authType: mtls, server: 'https://on-prem",
            &format!("{tunnel}{server}"),
        )])
    };
    for server in [
        "https://hub:6443",
        "https://hub:6443/",
        "https://hub:6443/clusters/on-prem",
    ] {
        let clusters = with(server).unwrap();
        let member = clusters.members.iter().find(|it| it.name == "on-prem");
        let member = member.unwrap();
        assert_eq!(member.method, AuthMethod::Tunnel);
        assert_eq!(member.server, "https://hub:6443/clusters/on-prem");
    }
    for server in ["https://hub:6443/clusters/other", "https://hub/x"] {
        let error = with(server).unwrap_err().to_string();
        let expected = "`operator.multiCluster.clusters.on-prem.server` has a path";
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn servers_are_validated() {
    let good = [
        "https://staging",
        "https://10.0.0.1:6443",
        "https://[fd00::1]:6443",
        "https://[fd00::1]",
        "https://gate.example.com/clusters/staging",
    ];
    for server in good {
        let clusters = read(&[("https://staging:6443", server)]).unwrap();
        let expected: Uri = server.parse().unwrap();
        assert_eq!(clusters.members[0].server, expected);
    }
    let wrong = [
        "https://",
        "https:///path",
        "https://:6443",
        "https://staging:",
        "https://staging:port",
        "https://staging:65536",
        "https://anna@staging",
        "https://stag ing",
        "https://staging?watch",
    ];
    for server in wrong {
        let message = read(&[("https://staging:6443", server)]).unwrap_err();
        let expected = "`operator.multiCluster.clusters.staging.server` names no host";
        assert!(
            message.to_string().starts_with(expected),
            "{server}: {message}"
        );
    }
}

#[test]
fn authorities_are_validated() {
    let entry = |data: &str| {
        format!(
            "{{clusterName: a, defaultCluster: b, clusters: [{{name: b, authType: mtls, server: 'https://b', caData: '{data}'}}]}}"
        )
    };
    let key = "LS0tLS1CRUdJTiBYIEtFWS0tLS0tCkFBQUEKLS0tLS1FTkQgWCBLRVktLS0tLQo=";
    for (data, expected) in [
        ("?", "is not base64"),
        ("QUFB", "is not base64 of certificates in PEM"),
        (key, "is not base64 of certificates in PEM"),
    ] {
        let message = MultiCluster::read(&entry(data), false)
            .unwrap_err()
            .to_string();
        let expected = format!("`operator.multiCluster.clusters.b.caData` {expected}");
        assert!(message.starts_with(&expected), "{message}");
    }
    let empty = MultiCluster::read("{clusterName: a, defaultCluster: a}", false).unwrap_err();
    assert!(empty.to_string().contains("clusters` names no cluster"));
}

/// Without authorities, the certificate of the API server is verified with the public ones. Those of EKS are private.
#[test]
fn authorities_may_be_left_out() {
    let without = |line: &str| {
        let with = format!("{line}, caData: {}", authority());
        let text = format!(
            "{{clusterName: a, defaultCluster: b, clusters: [{{{line}}}, {{{}}}]}}",
            with.replace("name: b", "name: c")
        );
        MultiCluster::read(&text, false)
    };
    for method in ["bearerToken", "mtls"] {
        let line = format!("name: b, authType: {method}, server: 'https://b'");
        let clusters = without(&line).unwrap();
        assert_eq!(clusters.members[0].authorities, None, "{method}");
        let configured = clusters.members[1].authorities.as_ref();
        assert_eq!(configured.map(Vec::len), Some(1), "{method}");
    }
    let eks = without("name: b, authType: eks, region: eu-north-1, server: 'https://b'");
    let message = eks.unwrap_err().to_string();
    let expected = "`operator.multiCluster.clusters.b.caData` is missing: `authType: eks` needs it";
    assert!(message.starts_with(expected), "{message}");
}

/// Line ends are what `base64` of GNU writes.
#[test]
fn wrapped_authorities_are_accepted() {
    let data = authority();
    let (first, rest) = data.split_at(76);
    let text = format!(
        "clusterName: a\ndefaultCluster: b\nclusters:\n- name: b\n  authType: mtls\n  server: https://b\n  caData: |\n    {first}\n    {rest}\n"
    );
    let clusters = MultiCluster::read(&text, false).unwrap();
    assert_eq!(clusters.members[0].authorities.as_ref().unwrap().len(), 1);
}

#[test]
fn names_are_those_of_secrets() {
    let named = |name: &str| read(&[("name: on-prem", &format!("name: '{name}'"))]);
    let longest = "a".repeat(MAX_NAME_LENGTH);
    for name in ["prod.k8s.example.com", "1", "a-b.c-d", longest.as_str()] {
        let clusters = named(name).unwrap();
        assert_eq!(
            clusters.members[2].secret(),
            format!("mirrord-cluster-{name}")
        );
    }
    let too_long = "a".repeat(MAX_NAME_LENGTH + 1);
    let wrong = [
        "gke_project_zone_cluster",
        "admin@prod",
        "Prod",
        "a..b",
        ".a",
        "a.",
        "a.-b",
        "a-.b",
        "a/b",
        too_long.as_str(),
    ];
    for name in wrong {
        let message = named(name).unwrap_err().to_string();
        let expected =
            format!("`operator.multiCluster.clusters.{name}` must be a name of small letters");
        assert!(message.starts_with(&expected), "{message}");
    }
}

#[test]
fn the_environment_makes_a_primary_management_only() {
    let text = |default: &str, value: &str| {
        format!(
            "{{clusterName: a, defaultCluster: {default}, managementOnly: {value}, clusters: [{{name: b, authType: mtls, server: 'https://b'}}]}}"
        )
    };
    for (in_file, in_environment, expected) in [
        ("false", false, false),
        ("false", true, true),
        ("true", false, true),
    ] {
        let clusters = MultiCluster::read(&text("b", in_file), in_environment).unwrap();
        assert_eq!(clusters.is_management_only, expected);
    }
    // The Default must have targets.
    let message = MultiCluster::read(&text("a", "false"), true).unwrap_err();
    let expected = "`operator.multiCluster.defaultCluster` is a, which has no targets";
    assert!(message.to_string().starts_with(expected), "{message}");
}

/// The specification's example sets the Default in both ways.
#[test]
fn the_default_may_be_set_twice_if_both_agree() {
    let twice = read(&[("name: staging", "name: staging, isDefault: true")]).unwrap();
    assert_eq!(twice.default, "staging");
}

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
    MultiCluster::read(&text)
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
            "`operator.multiCluster.clusters.staging.authType` is missing; it can be bearerToken, eks or mtls",
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
        ("", "is missing"),
        ("?", "is not base64"),
        ("QUFB", "is not base64 of certificates in PEM"),
        (key, "is not base64 of certificates in PEM"),
    ] {
        let message = MultiCluster::read(&entry(data)).unwrap_err().to_string();
        let expected = format!("`operator.multiCluster.clusters.b.caData` {expected}");
        assert!(message.starts_with(&expected), "{message}");
    }
    let empty = MultiCluster::read("{clusterName: a, defaultCluster: a}").unwrap_err();
    assert!(empty.to_string().contains("clusters` names no cluster"));
}

//! The values of the charts of the hub and of the tunnel agent, for the tests of values.

use super::rendering::{HUB, TUNNEL_AGENT};
use super::values::ChartValues;

pub(crate) const HUB_VALUES: ChartValues = ChartValues {
    chart: HUB,
    settings: &[
        (
            "agent.authorityLifetimeSecs",
            "agent.authorityLifetimeSecs=86400",
        ),
        ("agent.caSecretName", "agent.caSecretName=ours"),
        (
            "agent.certificateLifetimeSecs",
            "agent.certificateLifetimeSecs=3600",
        ),
        ("agent.chart", "agent.chart=oci://registry/agent"),
        (
            "agent.limits.bytesInFlight",
            "agent.limits.bytesInFlight=1048576",
        ),
        (
            "agent.limits.newStreamsPerSecond",
            "agent.limits.newStreamsPerSecond=10",
        ),
        (
            "agent.limits.resumeWindowSecs",
            "agent.limits.resumeWindowSecs=60",
        ),
        ("agent.limits.streams", "agent.limits.streams=10"),
        (
            "agent.registrationURL",
            "agent.registrationURL=https://console.example.com",
        ),
        ("agent.registrations.burst", "agent.registrations.burst=2"),
        (
            "agent.registrations.perSecond",
            "agent.registrations.perSecond=2",
        ),
        ("agent.tlsSecretName", "agent.tlsSecretName=public"),
        ("agent.tokenLifetimeSecs", "agent.tokenLifetimeSecs=60"),
        ("agent.tunnelSANs", "agent.tunnelSANs={hub.example.com}"),
        ("agent.url", "agent.url=wss://hub.example.com:8443"),
        ("apiSANs", "apiSANs={10.0.0.1}"),
        ("apiURL", "apiURL=https://hub.example.com:6443"),
        ("authentication.audiences", "authentication.audiences={hub}"),
        ("authentication.clientCA", "authentication.clientCA=PEM"),
        (
            "authentication.oidc",
            r#"authentication.oidc=[{"issuer":"https://a","audiences":["b"]}]"#,
        ),
        ("clusters", "clusters[0].name=prod-eu"),
        ("hub.affinity", r#"hub.affinity={"nodeAffinity":{}}"#),
        (
            "hub.image.digest",
            "hub.image.digest=sha256:00000000000000000000000000000000000000000000000000000000000000aa",
        ),
        ("hub.image.pullPolicy", "hub.image.pullPolicy=Always"),
        (
            "hub.image.repository",
            "hub.image.repository=localhost:5000/hub",
        ),
        ("hub.image.tag", "hub.image.tag=v2"),
        ("hub.imagePullSecrets", "hub.imagePullSecrets={registry}"),
        ("hub.log.json", "hub.log.json=false"),
        ("hub.log.level", "hub.log.level=debug"),
        ("hub.nodeSelector", "hub.nodeSelector.disk=ssd"),
        ("hub.podAnnotations", "hub.podAnnotations.a=b"),
        ("hub.podLabels", "hub.podLabels.a=b"),
        ("hub.priorityClassName", "hub.priorityClassName=high"),
        ("hub.replicas", "hub.replicas=3"),
        (
            "hub.resources.limits.memory",
            "hub.resources.limits.memory=2Gi",
        ),
        ("hub.resources.requests.cpu", "hub.resources.requests.cpu=1"),
        (
            "hub.resources.requests.memory",
            "hub.resources.requests.memory=1Gi",
        ),
        (
            "hub.tolerations",
            r#"hub.tolerations=[{"operator":"Exists"}]"#,
        ),
        (
            "loadBalancer.annotations",
            "loadBalancer.enabled=true+loadBalancer.annotations.a=b",
        ),
        ("loadBalancer.enabled", "loadBalancer.enabled=true"),
        (
            "loadBalancer.sourceRanges",
            "loadBalancer.enabled=true+loadBalancer.sourceRanges={10.0.0.0/8}",
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
            "podDisruptionBudget.enabled",
            "podDisruptionBudget.enabled=false",
        ),
        (
            "podDisruptionBudget.maxUnavailable",
            "podDisruptionBudget.maxUnavailable=50%",
        ),
        (
            "proxy.allowServiceAccounts",
            "proxy.allowServiceAccounts=false",
        ),
        ("proxy.primaryOperators", "proxy.primaryOperators={a}"),
        ("proxy.responseTimeoutSecs", "proxy.responseTimeoutSecs=10"),
        ("service.annotations", "service.annotations.a=b"),
        ("service.sessionAffinity", "service.sessionAffinity=None"),
        (
            "service.nodePorts",
            "service.type=NodePort+service.nodePorts.agents=30443",
        ),
        ("service.type", "service.type=NodePort"),
        (
            "serviceAccount.annotations",
            "serviceAccount.annotations.a=b",
        ),
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
    ],
    wrong: &[
        ("cluster[0].name=a", "'cluster' not allowed"),
        ("clusters[0].name=A", "/clusters/0/name"),
        ("clusters[0].backend=agent", "missing property 'name'"),
        (
            "clusters[0].name=a+clusters[0].backend=eks",
            "/clusters/0/backend",
        ),
        ("agent.url=http://hub", "/agent/url"),
        ("agent.url=wss://hub/path", "/agent/url"),
        ("agent.registrationURL=wss://hub", "/agent/registrationURL"),
        ("agent.tunnelSANs={a b}", "/agent/tunnelSANs/0"),
        ("agent.caSecretName=", "/agent/caSecretName"),
        ("agent.tokenLifetimeSecs=1", "/agent/tokenLifetimeSecs"),
        ("agent.limits.stream=1", "'stream' not allowed"),
        ("apiURL=http://hub", "/apiURL"),
        (
            r#"authentication.oidc=[{"issuer":"http://a","audiences":["b"]}]"#,
            "/authentication/oidc/0/issuer",
        ),
        (
            r#"authentication.oidc=[{"issuer":"https://a","audiences":[]}]"#,
            "/authentication/oidc/0/audiences",
        ),
        ("hub.replicas=0", "/hub/replicas"),
        ("hub.image.tag=a b", "/hub/image/tag"),
        (
            r#"hub.podLabels={"app.kubernetes.io/name":"mine"}"#,
            "invalid propertyName",
        ),
        ("service.type=ExternalName", "/service/type"),
        ("service.nodePorts.metrics=30082", "'metrics' not allowed"),
        (
            "networkPolicy.memberCidrs={10.0.0.1/32}",
            "'memberCidrs' not allowed",
        ),
    ],
};

pub(crate) const TUNNEL_AGENT_VALUES: ChartValues = ChartValues {
    chart: TUNNEL_AGENT,
    settings: &[
        ("agent.affinity", r#"agent.affinity={"nodeAffinity":{}}"#),
        ("agent.allow.extraKeys", "agent.allow.extraKeys={scopes}"),
        ("agent.allow.groups", "agent.allow.groups={team-a}"),
        ("agent.allow.users", "agent.allow.users={anna}"),
        ("agent.cluster", "agent.cluster=other"),
        (
            "agent.image.digest",
            "agent.image.digest=sha256:00000000000000000000000000000000000000000000000000000000000000aa",
        ),
        ("agent.image.pullPolicy", "agent.image.pullPolicy=Always"),
        (
            "agent.image.repository",
            "agent.image.repository=localhost:5000/hub",
        ),
        ("agent.image.tag", "agent.image.tag=v2"),
        (
            "agent.imagePullSecrets",
            "agent.imagePullSecrets={registry}",
        ),
        ("agent.log.json", "agent.log.json=false"),
        ("agent.log.level", "agent.log.level=debug"),
        ("agent.noProxy", "agent.noProxy=example.com"),
        ("agent.nodeSelector", "agent.nodeSelector.disk=ssd"),
        ("agent.podAnnotations", "agent.podAnnotations.a=b"),
        ("agent.podLabels", "agent.podLabels.a=b"),
        ("agent.priorityClassName", "agent.priorityClassName=high"),
        ("agent.proxy", "agent.proxy=http://proxy:3128"),
        ("agent.proxySecretName", "agent.proxySecretName=proxy"),
        ("agent.registrationToken", "agent.registrationToken=abc"),
        (
            "agent.registrationTokenSecretName",
            "agent.registrationTokenSecretName=token",
        ),
        (
            "agent.registrationURL",
            "agent.registrationURL=https://console.example.com",
        ),
        (
            "agent.resources.limits.memory",
            "agent.resources.limits.memory=1Gi",
        ),
        (
            "agent.resources.requests.cpu",
            "agent.resources.requests.cpu=1",
        ),
        (
            "agent.resources.requests.memory",
            "agent.resources.requests.memory=1Gi",
        ),
        ("agent.serverCA", "agent.serverCA=PEM"),
        (
            "agent.serverCAHash",
            "agent.serverCAHash=sha256:00000000000000000000000000000000000000000000000000000000000000aa",
        ),
        ("agent.serverURL", "agent.serverURL=wss://other:8443"),
        ("agent.stateSecretName", "agent.stateSecretName=state"),
        (
            "agent.tolerations",
            r#"agent.tolerations=[{"operator":"Exists"}]"#,
        ),
        (
            "networkPolicy.apiServerCidrs",
            "networkPolicy.enabled=true+networkPolicy.apiServerCidrs={10.0.0.1/32}",
        ),
        ("networkPolicy.enabled", "networkPolicy.enabled=true"),
        (
            "networkPolicy.hubCidrs",
            "networkPolicy.enabled=true+networkPolicy.apiServerCidrs={10.0.0.1/32}+networkPolicy.hubCidrs={10.0.0.2/32}",
        ),
        (
            "serviceAccount.annotations",
            "serviceAccount.annotations.a=b",
        ),
    ],
    wrong: &[
        ("agent.cluster=", "`agent.cluster` is missing"),
        ("agent.serverURL=", "`agent.serverURL` is missing"),
        ("agent.cluster=Prod", "/agent/cluster"),
        ("agent.serverURL=hub:8443", "/agent/serverURL"),
        ("agent.serverURL=ws://hub:8443", "/agent/serverURL"),
        ("agent.serverURL=wss://hub/api", "/agent/serverURL"),
        ("agent.registrationURL=wss://hub", "/agent/registrationURL"),
        ("agent.serverCAHash=sha256:12", "/agent/serverCAHash"),
        ("agent.registrationToken=a b", "/agent/registrationToken"),
        ("agent.allow.users={a*b}", "/agent/allow/users/0"),
        ("agent.allow.extraKeys={a*}", "/agent/allow/extraKeys/0"),
        ("agent.allow.user={a}", "'user' not allowed"),
        ("agent.proxy=https://proxy", "/agent/proxy"),
        ("agent.proxy=http://me:SECRET@proxy:1", "/agent/proxy"),
        ("agent.stateSecretName=", "/agent/stateSecretName"),
        ("agent.replicas=2", "'replicas' not allowed"),
    ],
};

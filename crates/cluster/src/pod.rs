//! Decides which pods an agent can be started for, and which of their containers is the target. Pure functions.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt as _;

/// Container names of service meshes and similar sidecars, which are never the default target.
const SIDECARS: &[&str] = &[
    "istio-proxy",
    "istio-init",
    "linkerd-proxy",
    "linkerd-init",
    "linkerd-network-validator",
    "kuma-sidecar",
    "kuma-init",
    "proxyv2",
    "consul-dataplane",
    "envoy-sidecar",
    "aws-appmesh-envoy",
    "vault-agent",
    "vault-agent-init",
    "cloudsql-proxy",
];

/// The annotation by which `kubectl` chooses the default container.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// The prefix of the names of agent containers.
pub(crate) const AGENT_PREFIX: &str = "standin-agent-";

/// A pod whose target container runs, so that an agent can be started for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replica {
    pub pod: String,
    pub uid: String,
    pub namespace: String,
    pub node: String,
    pub container: String,
    /// Without the prefix of the runtime. It changes with each restart.
    pub container_id: String,
    pub ready: bool,
    /// The creation time of the pod, in seconds since the epoch.
    pub created: i64,
    /// How many agents were started in the pod. The entries of ephemeral containers cannot be removed.
    pub finished_agents: usize,
    /// Whether the pod shares the addresses of its node.
    pub is_in_host_network: bool,
    /// Ports and paths of the kubelet's HTTP probes. They must not be stolen, or the kubelet would restart the pod.
    pub probes: BTreeMap<u16, Vec<String>>,
}

/// Why a pod cannot be used now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnusablePod {
    /// It is being deleted.
    Terminating,
    /// It has not started yet, or has ended.
    NotRunning(String),
    /// It has no container with this name.
    NoContainer {
        name: String,
        available: Vec<String>,
    },
    /// The container is starting, is crashing, or has ended.
    ContainerNotRunning {
        container: String,
        why: String,
    },
    Windows,
}

/// Checks whether an agent can be started for a container of this pod.
pub fn check_pod(pod: &Pod, container: Option<&str>) -> Result<Replica, UnusablePod> {
    if pod.metadata.deletion_timestamp.is_some() {
        return Err(UnusablePod::Terminating);
    }
    let spec = pod.spec.clone().unwrap_or_default();
    let status = pod.status.clone().unwrap_or_default();
    let phase = status.phase.clone().unwrap_or_default();
    if phase != "Running" {
        let why = status.message.or(status.reason).unwrap_or_default();
        return Err(UnusablePod::NotRunning(join(&phase, &why)));
    }
    if spec.os.is_some_and(|os| os.name == "windows") {
        return Err(UnusablePod::Windows);
    }
    let name = choose_container(pod, container)?;
    let statuses = status.container_statuses.iter().flatten();
    let statuses = statuses.chain(status.init_container_statuses.iter().flatten());
    let running = statuses
        .filter(|status| status.name == name)
        .find_map(running_id);
    let Some(container_id) = running else {
        return Err(UnusablePod::ContainerNotRunning {
            why: why_not_running(pod, &name),
            container: name,
        });
    };
    let conditions = status.conditions.iter().flatten();
    let ready = conditions
        .clone()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let agents = spec.ephemeral_containers.iter().flatten();
    Ok(Replica {
        pod: pod.name_any(),
        uid: pod.uid().unwrap_or_default(),
        namespace: pod.namespace().unwrap_or_default(),
        node: spec.node_name.unwrap_or_default(),
        container: name,
        container_id,
        ready,
        created: pod
            .creation_timestamp()
            .map_or(0, |time| time.0.as_second()),
        finished_agents: agents
            .filter(|container| container.name.starts_with(AGENT_PREFIX))
            .count(),
        is_in_host_network: spec.host_network == Some(true),
        probes: probes(&spec.containers),
    })
}

/// The probes of all containers, because they share their ports. A probe of `/` is left out, since otherwise no request for
/// that page would ever be stolen. It is recognized by the kubelet's user agent instead.
fn probes(containers: &[Container]) -> BTreeMap<u16, Vec<String>> {
    let mut probes: BTreeMap<u16, Vec<String>> = BTreeMap::new();
    for container in containers {
        let all = [
            &container.liveness_probe,
            &container.readiness_probe,
            &container.startup_probe,
        ];
        for http in all
            .into_iter()
            .flatten()
            .filter_map(|probe| probe.http_get.as_ref())
        {
            let path = http.path.clone().unwrap_or_default();
            let path = match path.starts_with('/') {
                true => path,
                false => format!("/{path}"),
            };
            let Some(port) = port_of(container, &http.port).filter(|_| path != "/") else {
                continue;
            };
            let paths = probes.entry(port).or_default();
            if !paths.contains(&path) {
                paths.push(path);
            }
        }
    }
    probes
}

/// Resolves a port number or the name of a container port.
fn port_of(container: &Container, port: &IntOrString) -> Option<u16> {
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => {
            let mut ports = container.ports.iter().flatten();
            let named = ports.find(|port| port.name.as_deref() == Some(name));
            match named {
                Some(port) => port.container_port,
                None => name.parse().ok()?,
            }
        }
    };
    u16::try_from(number).ok()
}

/// The containers of a pod that can be targets, the default one first.
pub fn containers(pod: &Pod) -> Vec<String> {
    let spec = pod.spec.as_ref();
    let all: Vec<String> = spec
        .map(|spec| spec.containers.iter().map(|container| &container.name))
        .into_iter()
        .flatten()
        .cloned()
        .collect();
    let (sidecars, mut names): (Vec<String>, Vec<String>) = all
        .into_iter()
        .partition(|name| SIDECARS.contains(&name.as_str()));
    if let Some(default) = pod.annotations().get(DEFAULT_CONTAINER)
        && let Some(position) = names.iter().position(|name| name == default)
    {
        let default = names.remove(position);
        names.insert(0, default);
    }
    names.extend(sidecars);
    names
}

fn choose_container(pod: &Pod, name: Option<&str>) -> Result<String, UnusablePod> {
    let available = containers(pod);
    let Some(name) = name else {
        let default = available.into_iter().next();
        return default.ok_or_else(|| UnusablePod::NoContainer {
            name: "container".to_owned(),
            available: Vec::new(),
        });
    };
    // Sidecar containers are declared among the init containers.
    let initial = pod.spec.iter().flat_map(|spec| &spec.init_containers);
    let mut initial = initial.flatten().map(|container| &container.name);
    if available.iter().any(|other| other == name) || initial.any(|other| other == name) {
        return Ok(name.to_owned());
    }
    let name = name.to_owned();
    Err(UnusablePod::NoContainer { name, available })
}

/// The id of a running container.
fn running_id(status: &ContainerStatus) -> Option<String> {
    status.state.as_ref()?.running.as_ref()?;
    let id = status.container_id.as_deref()?;
    let id = id.rsplit_once("//").map_or(id, |(_, id)| id);
    (!id.is_empty()).then(|| id.to_owned())
}

fn why_not_running(pod: &Pod, container: &str) -> String {
    let statuses = pod.status.iter().flat_map(|status| {
        let usual = status.container_statuses.iter().flatten();
        usual.chain(status.init_container_statuses.iter().flatten())
    });
    let state = statuses
        .filter(|status| status.name == container)
        .find_map(|status| status.state.clone());
    let Some(state) = state else {
        return "it has not been started".to_owned();
    };
    let waiting = state.waiting.map(|waiting| {
        let reason = waiting.reason.unwrap_or_else(|| "waiting".to_owned());
        join(&reason, &waiting.message.unwrap_or_default())
    });
    let ended = state.terminated.map(|ended| {
        let reason = ended.reason.unwrap_or_else(|| "ended".to_owned());
        join(&reason, &ended.message.unwrap_or_default())
    });
    waiting
        .or(ended)
        .unwrap_or_else(|| "it is being started".to_owned())
}

fn join(reason: &str, message: &str) -> String {
    match (reason, message.trim()) {
        (reason, "") => reason.to_owned(),
        ("", message) => message.to_owned(),
        (reason, message) => format!("{reason}, {message}"),
    }
}

impl Replica {
    /// Sorts ready pods first, and older pods before younger ones, because they are more likely to stay.
    pub(crate) fn rank(&self) -> impl Ord + use<> {
        (!self.ready, self.created, self.pod.clone())
    }
}

impl fmt::Display for UnusablePod {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Terminating => formatter.write_str("is being removed"),
            Self::NotRunning(why) => write!(formatter, "is not running ({why})"),
            Self::NoContainer { name, available } => write!(
                formatter,
                "has no container {name}; it has {}",
                available.join(", ")
            ),
            Self::ContainerNotRunning { container, why } => {
                write!(
                    formatter,
                    "its container {container} is not running ({why})"
                )
            }
            Self::Windows => formatter.write_str("runs Windows, and agents need Linux"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(change: impl FnOnce(&mut Value)) -> Pod {
        let mut pod = json!({
            "metadata": {"name": "web-1", "namespace": "shop", "uid": "u", "creationTimestamp": "1970-01-01T00:01:00Z"},
            "spec": {
                "nodeName": "east-1",
                "containers": [{"name": "istio-proxy"}, {"name": "web"}, {"name": "helper"}],
                "initContainers": [{"name": "warm"}],
                "ephemeralContainers": [{"name": "standin-agent-1"}, {"name": "debugger"}],
            },
            "status": {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [
                    {"name": "web", "containerID": "containerd://abc", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                     "state": {"running": {}}},
                    {"name": "helper", "image": "", "imageID": "", "ready": false, "restartCount": 3,
                     "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}},
                ],
            },
        });
        change(&mut pod);
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn a_running_pod_is_a_replica() {
        let replica = check_pod(&pod(|_| {}), None).unwrap();
        assert_eq!(
            replica,
            Replica {
                pod: "web-1".to_owned(),
                uid: "u".to_owned(),
                namespace: "shop".to_owned(),
                node: "east-1".to_owned(),
                container: "web".to_owned(),
                container_id: "abc".to_owned(),
                ready: true,
                created: 60,
                finished_agents: 1,
                is_in_host_network: false,
                probes: BTreeMap::new(),
            }
        );
    }

    #[test]
    fn unusable_pods_have_a_reason() {
        let check = |change: fn(&mut Value), container: Option<&str>, expected: &str| {
            let reason = check_pod(&pod(change), container).unwrap_err();
            assert_eq!(reason.to_string(), expected);
        };
        check(
            |pod| pod["metadata"]["deletionTimestamp"] = json!("2020-01-01T00:00:00Z"),
            None,
            "is being removed",
        );
        check(
            |pod| {
                pod["status"]["phase"] = json!("Failed");
                pod["status"]["reason"] = json!("Evicted");
            },
            None,
            "is not running (Failed, Evicted)",
        );
        check(
            |_| {},
            Some("nowhere"),
            "has no container nowhere; it has web, helper, istio-proxy",
        );
        check(
            |_| {},
            Some("helper"),
            "its container helper is not running (CrashLoopBackOff, back-off)",
        );
        check(
            |_| {},
            Some("warm"),
            "its container warm is not running (it has not been started)",
        );
        check(
            |pod| pod["spec"]["os"] = json!({"name": "windows"}),
            None,
            "runs Windows, and agents need Linux",
        );
    }

    #[test]
    fn the_default_container_of_kubectl_is_the_first() {
        let annotated = pod(|pod| {
            pod["metadata"]["annotations"] = json!({DEFAULT_CONTAINER: "helper"});
        });
        assert_eq!(containers(&annotated), ["helper", "web", "istio-proxy"]);
        assert_eq!(containers(&pod(|_| {})), ["web", "helper", "istio-proxy"]);
    }

    #[test]
    fn ready_and_old_pods_are_preferred() {
        let replica = |ready, created| Replica {
            ready,
            created,
            ..check_pod(&pod(|_| {}), None).unwrap()
        };
        let mut replicas = [
            replica(false, 1),
            replica(true, 3),
            replica(true, 2),
            replica(false, 0),
        ];
        replicas.sort_by_key(Replica::rank);
        let order = replicas.map(|replica| replica.created);
        assert_eq!(order, [2, 3, 0, 1]);
    }

    #[test]
    fn probes_are_found_by_port_and_path() {
        let probes_of = |probes: Value| {
            let pod = pod(|pod| {
                let container = &mut pod["spec"]["containers"][1];
                container["ports"] = json!([{"name": "http", "containerPort": 8080}]);
                for (name, probe) in probes.as_object().unwrap() {
                    container[name] = probe.clone();
                }
            });
            check_pod(&pod, Some("web")).unwrap().probes
        };
        let get =
            |port: Value, path: Option<&str>| json!({"httpGet": {"port": port, "path": path}});
        let check = |probe: Value, expected: &[(u16, &[&str])]| {
            let expected: BTreeMap<u16, Vec<String>> = expected
                .iter()
                .map(|(port, paths)| (*port, paths.iter().map(ToString::to_string).collect()))
                .collect();
            assert_eq!(probes_of(json!({"livenessProbe": probe})), expected);
        };
        check(get(json!(8080), Some("/healthz")), &[(8080, &["/healthz"])]);
        check(
            get(json!("http"), Some("ready?deep=1")),
            &[(8080, &["/ready?deep=1"])],
        );
        check(
            get(json!("9090"), Some("/healthz")),
            &[(9090, &["/healthz"])],
        );
        check(get(json!("unknown"), Some("/healthz")), &[]);
        // Clients request this page as well.
        check(get(json!(8080), Some("/")), &[]);
        check(get(json!(8080), None), &[]);
        check(json!({"tcpSocket": {"port": 8080}}), &[]);
        let all = probes_of(json!({
            "livenessProbe": get(json!(8080), Some("/live")),
            "readinessProbe": get(json!(8080), Some("/ready")),
            "startupProbe": get(json!("http"), Some("/live")),
        }));
        assert_eq!(all[&8080], ["/live", "/ready"]);
    }
}

//! The manifests of an agent: an ephemeral container in the target's pod, or a Job whose pod runs on the target's node.
//!
//! Every user who may read pods can read them, so they contain no secret: only the fingerprint of the client's certificate,
//! which grants no access.

use std::net::SocketAddr;
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use link::tls::Fingerprint;
use serde_json::{Map, Value, json};

use super::settings::{AgentSettings, PodSettings, Toleration};
use crate::pod::Replica;

/// The capabilities of an agent in the target's own pod, whose namespaces it already shares: to change network rules, to
/// inspect the target's processes, and to act as the target's user.
const IN_POD_CAPABILITIES: &[&str] = &["NET_ADMIN", "SYS_PTRACE", "SETUID", "SETGID"];
/// On the node, the agent must also enter the pod's namespaces.
const ON_NODE_CAPABILITIES: &[&str] = &["NET_ADMIN", "SYS_PTRACE", "SETUID", "SETGID", "SYS_ADMIN"];

/// Kubernetes removes the Job this long after the agent has ended, even if no client is left to do it.
const JOB_TTL_SECONDS: u32 = 10;

/// One agent that is to be started.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan<'plan> {
    pub(super) name: &'plan str,
    /// The address it listens on. On localhost, only the pod itself and port-forwards can connect. On `::`, every peer in the
    /// pod network can connect, but is rejected without the right certificate.
    pub(super) listen: SocketAddr,
    pub(super) client: Fingerprint,
    /// The peer that may end it, besides its client.
    pub(super) ended_by: Option<Fingerprint>,
    /// How long it waits for the first connection of its client.
    pub(super) first_client_timeout: Duration,
    /// The grant of its sessions, as JSON.
    pub(super) grant: Option<&'plan str>,
    pub(super) settings: &'plan AgentSettings,
}

impl Plan<'_> {
    /// A patch of `pods/ephemeralcontainers`. The uid ensures that it is still the same pod.
    pub(super) fn ephemeral_container(self, replica: &Replica) -> Value {
        let container = json!({
            "name": self.name,
            "targetContainerName": replica.container,
            "image": self.settings.image,
            "imagePullPolicy": self.settings.image_pull_policy,
            "args": self.arguments(Some(&replica.container_id)),
            "securityContext": security_context(IN_POD_CAPABILITIES),
            // Puts the end of the log into the pod's status if the agent fails to start.
            "terminationMessagePolicy": "FallbackToLogsOnError",
        });
        json!({
            "metadata": { "uid": replica.uid },
            "spec": { "ephemeralContainers": [container] },
        })
    }

    /// A Job with a pod on the replica's node, or on any node without a replica.
    pub(super) fn job(self, replica: Option<&Replica>) -> Result<Job, serde_json::Error> {
        let PodSettings {
            labels,
            annotations,
            ..
        } = &self.settings.pod;
        let mut all_labels = json!({
            "app.kubernetes.io/name": "standin-agent",
            // A mesh must not inject its proxy into the agent's own pod.
            "sidecar.istio.io/inject": "false",
            "kuma.io/sidecar-injection": "disabled",
        });
        merge(&mut all_labels, labels);
        let mut all_annotations = json!({
            "linkerd.io/inject": "disabled",
            // The autoscaler must not evict the pod during a session.
            "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        });
        merge(&mut all_annotations, annotations);
        serde_json::from_value(json!({
            "metadata": { "name": self.name, "labels": all_labels, "annotations": all_annotations },
            "spec": {
                "backoffLimit": 0,
                "ttlSecondsAfterFinished": JOB_TTL_SECONDS,
                "template": {
                    "metadata": { "labels": all_labels, "annotations": all_annotations },
                    "spec": self.pod(replica),
                },
            },
        }))
    }

    fn pod(self, replica: Option<&Replica>) -> Value {
        let AgentSettings { pod: settings, .. } = self.settings;
        let container = json!({
            "name": "agent",
            "image": self.settings.image,
            "imagePullPolicy": self.settings.image_pull_policy,
            "args": self.arguments(replica.map(|replica| replica.container_id.as_str())),
            "securityContext": match replica {
                Some(_) => security_context(ON_NODE_CAPABILITIES),
                None => unprivileged(),
            },
            "resources": { "requests": settings.requests, "limits": settings.limits },
            "terminationMessagePolicy": "FallbackToLogsOnError",
        });
        let secrets = self.settings.image_pull_secrets.iter();
        let secrets: Vec<Value> = secrets.map(|name| json!({ "name": name })).collect();
        let mut spec = json!({
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 3,
            "automountServiceAccountToken": false,
            "imagePullSecrets": secrets,
            "tolerations": tolerations(settings.tolerations.as_deref(), replica.is_some()),
            "containers": [container],
        });
        let mut set = |key: &str, value: Value| spec[key] = value;
        match replica {
            Some(replica) => {
                set("nodeName", json!(replica.node));
                set("hostPID", json!(true));
                set("enableServiceLinks", json!(false));
            }
            None => {
                // The image is for Linux, and a cluster may have other nodes.
                let mut selector = json!({ "kubernetes.io/os": "linux" });
                merge(&mut selector, &settings.node_selector);
                set("nodeSelector", selector);
            }
        }
        if let Some(account) = &settings.service_account {
            set("serviceAccountName", json!(account));
        }
        if let Some(class) = &settings.priority_class {
            set("priorityClassName", json!(class));
        }
        spec
    }

    fn arguments(self, container_id: Option<&str>) -> Vec<String> {
        let mut arguments = vec!["agent".to_owned()];
        match container_id {
            Some(id) => arguments.extend(["--container".to_owned(), id.to_owned()]),
            None => arguments.push("--targetless".to_owned()),
        }
        arguments.extend([
            format!("--listen={}", self.listen),
            format!("--client-certificate={}", self.client),
            format!("--resume-window={}", self.settings.resume_window.as_secs()),
            format!("--log={}", self.settings.log_level),
            "--end-with-session".to_owned(),
            format!("--startup-timeout={}", self.first_client_timeout.as_secs()),
        ]);
        if let Some(certificate) = self.ended_by {
            let port = api::node::operator_port(self.listen.port());
            let listen = SocketAddr::new(self.listen.ip(), port);
            arguments.push(format!("--ended-by-certificate={certificate}"));
            arguments.push(format!("--listen-for-operator={listen}"));
        }
        if let Some(grant) = self.grant {
            // The kubelet expands `$(NAME)` in arguments; `$$` is an escaped dollar.
            arguments.push(format!("--grant={}", grant.replace('$', "$$")));
        }
        arguments
    }
}

fn security_context(capabilities: &[&str]) -> Value {
    let mut context = json!({
        "runAsUser": 0,
        "runAsGroup": 0,
        // The pod's security context may demand otherwise of its containers.
        "runAsNonRoot": false,
        "privileged": false,
        "readOnlyRootFilesystem": true,
        "capabilities": { "drop": ["ALL"], "add": capabilities },
    });
    // Kubernetes rejects it in combination with SYS_ADMIN, which implies privilege escalation.
    if !capabilities.contains(&"SYS_ADMIN") {
        context["allowPrivilegeEscalation"] = json!(false);
    }
    context
}

/// Without a target the agent needs no privileges: the strictest Pod Security level allows it.
fn unprivileged() -> Value {
    json!({
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "runAsNonRoot": true,
        "privileged": false,
        "readOnlyRootFilesystem": true,
        "allowPrivilegeEscalation": false,
        "capabilities": { "drop": ["ALL"] },
        "seccompProfile": { "type": "RuntimeDefault" },
    })
}

fn tolerations(settings: Option<&[Toleration]>, has_target: bool) -> Value {
    let Some(settings) = settings else {
        return match has_target {
            true => json!([{ "operator": "Exists" }]),
            false => json!([]),
        };
    };
    let tolerations = settings.iter().map(|toleration| {
        let mut map = Map::new();
        for (key, value) in [
            ("key", &toleration.key),
            ("operator", &toleration.operator),
            ("value", &toleration.value),
            ("effect", &toleration.effect),
        ] {
            if let Some(value) = value {
                map.insert(key.to_owned(), json!(value));
            }
        }
        Value::Object(map)
    });
    tolerations.collect()
}

fn merge(object: &mut Value, others: &std::collections::BTreeMap<String, String>) {
    for (key, value) in others {
        object[key.as_str()] = json!(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> AgentSettings {
        AgentSettings {
            image: "registry.test/standind:1".to_owned(),
            image_pull_policy: "IfNotPresent".to_owned(),
            image_pull_secrets: vec!["registry".to_owned()],
            log_level: "info".to_owned(),
            ephemeral: None,
            startup_timeout: Duration::from_secs(60),
            resume_window: Duration::from_secs(600),
            pod: PodSettings {
                labels: [("team".to_owned(), "shop".to_owned())].into(),
                ..PodSettings::default()
            },
        }
    }

    fn replica() -> Replica {
        Replica {
            pod: "web-1".to_owned(),
            uid: "uid-1".to_owned(),
            namespace: "shop".to_owned(),
            node: "east-1".to_owned(),
            container: "web".to_owned(),
            container_id: "abc".to_owned(),
            ready: true,
            created: 0,
            finished_agents: 0,
            is_in_host_network: false,
            probes: std::collections::BTreeMap::new(),
        }
    }

    fn plan(settings: &AgentSettings) -> Plan<'_> {
        Plan {
            name: "standin-agent-1",
            listen: ([127, 0, 0, 1], 20001).into(),
            ended_by: None,
            first_client_timeout: Duration::from_secs(90),
            grant: Some("{\"hiddenVariables\":[\"$(A)\"]}"),
            client: Fingerprint([7; 32]),
            settings,
        }
    }

    #[test]
    fn an_agent_in_the_pod_has_exactly_four_capabilities() {
        let patch = plan(&settings()).ephemeral_container(&replica());
        let container = &patch["spec"]["ephemeralContainers"][0];
        assert_eq!(
            container["securityContext"],
            json!({
                "runAsUser": 0,
                "runAsGroup": 0,
                "runAsNonRoot": false,
                "privileged": false,
                "readOnlyRootFilesystem": true,
                "allowPrivilegeEscalation": false,
                "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN", "SYS_PTRACE", "SETUID", "SETGID"]},
            })
        );
        assert_eq!(container["targetContainerName"], "web");
        assert_eq!(patch["metadata"]["uid"], "uid-1");
        let arguments: Vec<&str> = container["args"]
            .as_array()
            .unwrap()
            .iter()
            .map(|argument| argument.as_str().unwrap())
            .collect();
        assert_eq!(&arguments[..3], ["agent", "--container", "abc"]);
        assert!(arguments.contains(&"--listen=127.0.0.1:20001"));
        assert!(arguments.contains(&"--end-with-session"));
        assert!(arguments.contains(&"--startup-timeout=90"));
        // The kubelet would expand an unescaped variable.
        assert!(arguments.contains(&"--grant={\"hiddenVariables\":[\"$$(A)\"]}"));
    }

    #[test]
    fn an_agent_on_the_node_may_enter_namespaces_and_its_job_has_a_ttl() {
        let job = plan(&settings()).job(Some(&replica())).unwrap();
        let labels = job.metadata.labels.as_ref().unwrap();
        assert_eq!(labels["team"], "shop");
        let spec = job.spec.unwrap();
        assert_eq!(spec.ttl_seconds_after_finished, Some(10));
        let pod = spec.template.spec.unwrap();
        assert_eq!(pod.node_name.as_deref(), Some("east-1"));
        assert_eq!(pod.host_pid, Some(true));
        assert_eq!(pod.host_network, None);
        assert_eq!(pod.automount_service_account_token, Some(false));
        assert_eq!((pod.service_account_name, pod.volumes), (None, None));
        let [container] = pod.containers.as_slice() else {
            panic!("not one container: {:?}", pod.containers);
        };
        assert_eq!(container.volume_mounts, None);
        assert_eq!(
            json!(container.security_context),
            json!({
                "runAsUser": 0,
                "runAsGroup": 0,
                "runAsNonRoot": false,
                "privileged": false,
                "readOnlyRootFilesystem": true,
                "capabilities": {
                    "drop": ["ALL"],
                    "add": ["NET_ADMIN", "SYS_PTRACE", "SETUID", "SETGID", "SYS_ADMIN"],
                },
            })
        );
    }

    #[test]
    fn an_agent_without_a_target_is_unprivileged() {
        let job = plan(&settings()).job(None).unwrap();
        let pod = job.spec.unwrap().template.spec.unwrap();
        assert_eq!((pod.node_name, pod.host_pid), (None, None));
        let linux = ("kubernetes.io/os".to_owned(), "linux".to_owned());
        assert_eq!(pod.node_selector, Some([linux].into()));
        assert_eq!(pod.automount_service_account_token, Some(false));
        assert_eq!((pod.service_account_name, pod.volumes), (None, None));
        let container = &pod.containers[0];
        assert_eq!(
            json!(container.security_context),
            json!({
                "runAsUser": 65532,
                "runAsGroup": 65532,
                "runAsNonRoot": true,
                "privileged": false,
                "readOnlyRootFilesystem": true,
                "allowPrivilegeEscalation": false,
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
            })
        );
        let arguments = container.args.clone().unwrap();
        assert!(arguments.contains(&"--targetless".to_owned()));
    }

    #[test]
    fn all_taints_are_tolerated_unless_tolerations_are_set() {
        let named = [Toleration {
            key: Some("gpu".to_owned()),
            operator: Some("Exists".to_owned()),
            ..Toleration::default()
        }];
        let check = |settings: Option<&[Toleration]>, has_target, expected: Value| {
            assert_eq!(tolerations(settings, has_target), expected);
        };
        check(None, true, json!([{"operator": "Exists"}]));
        check(None, false, json!([]));
        check(
            Some(&named),
            true,
            json!([{"key": "gpu", "operator": "Exists"}]),
        );
        check(Some(&[]), true, json!([]));
    }
}

//! A pod that opens many connections to the listeners of other pods and authenticates with none of them.

use serde_json::{Value, json};

use crate::image::recipes::PYTHON;

const PROGRAM: &str = include_str!("../images/hostile/hostile.py");

/// The name of the pod.
pub const POD: &str = "hostile";
/// What the pod prints when it has opened all connections.
pub const LOADED: &str = "loaded";

/// The connections of the pod.
#[derive(Clone, Debug)]
pub struct HostileConnections {
    /// To each listener.
    pub count: usize,
    /// To each listener, per second. Connections that a listener closes are opened again at this rate.
    pub rate: usize,
    /// As addresses with ports.
    pub listeners: Vec<String>,
}

impl HostileConnections {
    /// The manifest of the pod and of its program.
    pub fn manifest(&self) -> String {
        let numbers = [self.count.to_string(), self.rate.to_string()];
        let arguments: Vec<&String> = numbers.iter().chain(&self.listeners).collect();
        let program = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": POD},
            "data": {"hostile.py": PROGRAM},
        });
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": POD},
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 0,
                "volumes": [{"name": "program", "configMap": {"name": POD}}],
                "containers": [{
                    "name": POD,
                    "image": PYTHON,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["python3", "/program/hostile.py"],
                    "args": arguments,
                    "volumeMounts": [{"name": "program", "mountPath": "/program"}],
                }],
            },
        });
        // YAML includes JSON.
        format!("{program}\n---\n{pod}\n")
    }
}

/// The addresses of every port of pods, as `kubectl get pods --output=json` prints them.
pub fn listeners_of_pods(pods: &Value) -> Vec<String> {
    let pods = pods["items"].as_array().into_iter().flatten();
    let addresses = pods.flat_map(|pod| {
        let host = pod["status"]["podIP"].as_str().unwrap_or_default();
        let ports = pod["spec"]["containers"][0]["ports"].as_array();
        let ports = ports.into_iter().flatten();
        ports.map(move |port| address(host, &port["containerPort"]))
    });
    addresses.collect()
}

/// The addresses for the clients of sessions, from `kubectl get mirrordclustersessions --output=json`.
pub fn listeners_of_sessions(sessions: &Value) -> Vec<String> {
    let sessions = sessions["items"].as_array().into_iter().flatten();
    let pods = sessions.flat_map(|session| session["status"]["pods"].as_array());
    let addresses = pods.flatten().filter_map(|pod| pod["address"].as_str());
    addresses.map(str::to_owned).collect()
}

/// What must not change because of the pod, from `kubectl get --output=json` of pods and events: how often containers have
/// restarted, and the probes that failed.
pub fn health(pods: &Value, events: &Value) -> Vec<String> {
    let pods = pods["items"].as_array().into_iter().flatten();
    let restarts = pods.map(|pod| {
        let statuses = pod["status"]["containerStatuses"].as_array();
        let statuses = statuses.into_iter().flatten();
        let counts: Vec<&Value> = statuses.map(|status| &status["restartCount"]).collect();
        format!("{}: {counts:?}", pod["metadata"]["name"])
    });
    let events = events["items"].as_array().into_iter().flatten();
    let events = events.filter(|event| event["reason"] == "Unhealthy");
    let failed_probes = events.map(|event| {
        let (pod, message) = (&event["involvedObject"]["name"], &event["message"]);
        format!("{pod}: {message}, {} times", event["count"])
    });
    let mut health: Vec<String> = restarts.chain(failed_probes).collect();
    health.sort_unstable();
    health
}

fn address(host: &str, port: &Value) -> String {
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_read_from_pods_and_sessions() {
        let pod = |host: &str, ports: Value| json!({"status": {"podIP": host}, "spec": {"containers": [{"ports": ports}]}});
        let pods = json!({"items": [
            pod("10.0.0.1", json!([{"containerPort": 8443}, {"containerPort": 8081}])),
            pod("fd00::1", json!([{"containerPort": 20000}])),
            pod("10.0.0.2", Value::Null),
        ]});
        let expected = ["10.0.0.1:8443", "10.0.0.1:8081", "[fd00::1]:20000"];
        assert_eq!(listeners_of_pods(&pods), expected);
        let sessions = json!({"items": [
            {"status": {"pods": [{"address": "10.0.0.3:20002"}, {"name": "pending"}]}},
            {},
        ]});
        assert_eq!(listeners_of_sessions(&sessions), ["10.0.0.3:20002"]);
    }
}

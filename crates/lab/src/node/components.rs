//! The components of a node, their arguments and their configuration files. Pure functions from plans to text.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{NODE_MOUNT, PROGRAMS_MOUNT};
use crate::image::recipes;
use crate::plan::{ClusterPlan, NodePlan, NodeRole, Shape};

/// The image of every pod's sandbox. The lab loads it into each node.
const SANDBOX_IMAGE: &str = recipes::SANDBOX;

pub const ETCD: &str = "etcd";
pub const API_SERVER: &str = "kube-apiserver";
pub const CONTROLLER_MANAGER: &str = "kube-controller-manager";
pub const SCHEDULER: &str = "kube-scheduler";
pub const CONTAINERD: &str = "containerd";
pub const KUBELET: &str = "kubelet";
pub const KUBE_PROXY: &str = "kube-proxy";

/// One component of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Component {
    pub name: String,
    pub program: String,
    pub arguments: Vec<String>,
    pub environment: Vec<(String, String)>,
}

/// Paths that differ between hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MachinePrograms {
    pub(crate) runc: String,
    pub(crate) network_plugins: String,
}

/// The components of a node in the order in which they start.
pub(crate) fn components(cluster: &ClusterPlan, node: &NodePlan) -> Vec<Component> {
    let mut list = Vec::new();
    if node.role == NodeRole::First {
        list.extend([
            etcd(),
            api_server(cluster, node),
            controller_manager(cluster),
        ]);
    }
    if cluster.shape == Shape::Full {
        if node.role == NodeRole::First {
            list.push(scheduler());
        }
        list.extend([containerd(), kubelet(node), kube_proxy()]);
    }
    list
}

/// The configuration files of a node, relative to its folder.
pub(crate) fn files(
    cluster: &ClusterPlan,
    node: &NodePlan,
    group: &str,
    machine: &MachinePrograms,
) -> Vec<(&'static str, String)> {
    vec![
        ("containerd.toml", containerd_configuration(machine)),
        ("cni/10-lab.conflist", network_configuration(node)),
        ("kubelet.yaml", kubelet_configuration(cluster, group)),
        ("kube-proxy.yaml", kube_proxy_configuration(cluster, node)),
        // The kubelet requires this file. Pods with the node's DNS policy use the cluster's DNS server.
        (
            "resolv.conf",
            format!("nameserver {}\n", cluster.dns_address),
        ),
    ]
}

fn kubernetes(name: &str, arguments: Vec<String>) -> Component {
    Component {
        name: name.to_owned(),
        program: format!("{PROGRAMS_MOUNT}/{name}"),
        arguments,
        // Garbage collection runs earlier than Go's default: memory of idle clusters matters here, not throughput.
        environment: vec![("GOGC".to_owned(), "50".to_owned())],
    }
}

fn pki(file: &str) -> String {
    format!("{NODE_MOUNT}/pki/{file}")
}

fn etcd() -> Component {
    let client = "http://127.0.0.1:2379";
    let peer = "http://127.0.0.1:2380";
    kubernetes(
        ETCD,
        vec![
            "--name=lab".to_owned(),
            format!("--data-dir={NODE_MOUNT}/etcd"),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=lab={peer}"),
            // A lab is started from scratch after a power failure, so durability is not needed.
            "--unsafe-no-fsync".to_owned(),
            "--log-level=warn".to_owned(),
        ],
    )
}

fn api_server(cluster: &ClusterPlan, node: &NodePlan) -> Component {
    kubernetes(
        API_SERVER,
        vec![
            format!("--advertise-address={}", node.address),
            "--bind-address=0.0.0.0".to_owned(),
            "--secure-port=6443".to_owned(),
            "--etcd-servers=http://127.0.0.1:2379".to_owned(),
            format!("--service-cluster-ip-range={}", cluster.service_range),
            "--allow-privileged=true".to_owned(),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            format!("--client-ca-file={}", pki("ca.crt")),
            format!("--tls-cert-file={}", pki("apiserver.crt")),
            format!("--tls-private-key-file={}", pki("apiserver.key")),
            format!(
                "--kubelet-client-certificate={}",
                pki("apiserver-kubelet.crt")
            ),
            format!("--kubelet-client-key={}", pki("apiserver-kubelet.key")),
            format!("--kubelet-certificate-authority={}", pki("ca.crt")),
            "--kubelet-preferred-address-types=InternalIP,Hostname".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local".to_owned(),
            format!("--service-account-key-file={}", pki("sa.pub")),
            format!("--service-account-signing-key-file={}", pki("sa.key")),
            format!(
                "--requestheader-client-ca-file={}",
                pki("front-proxy-ca.crt")
            ),
            "--requestheader-allowed-names=front-proxy".to_owned(),
            "--requestheader-username-headers=X-Remote-User".to_owned(),
            "--requestheader-group-headers=X-Remote-Group".to_owned(),
            "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
            format!("--proxy-client-cert-file={}", pki("front-proxy.crt")),
            format!("--proxy-client-key-file={}", pki("front-proxy.key")),
            // Aggregated APIs are reached through their endpoints, so that they work where no kube-proxy runs.
            "--enable-aggregator-routing=true".to_owned(),
            "--profiling=false".to_owned(),
        ],
    )
}

fn controller_manager(cluster: &ClusterPlan) -> Component {
    kubernetes(
        CONTROLLER_MANAGER,
        vec![
            format!("--kubeconfig={}", pki("controller-manager.kubeconfig")),
            format!("--cluster-cidr={}", cluster.pod_range),
            format!("--service-cluster-ip-range={}", cluster.service_range),
            "--allocate-node-cidrs=false".to_owned(),
            format!("--cluster-signing-cert-file={}", pki("ca.crt")),
            format!("--cluster-signing-key-file={}", pki("ca.key")),
            format!("--root-ca-file={}", pki("ca.crt")),
            format!("--service-account-private-key-file={}", pki("sa.key")),
            "--use-service-account-credentials=true".to_owned(),
            "--kube-api-qps=200".to_owned(),
            "--kube-api-burst=400".to_owned(),
            "--leader-elect=false".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
        ],
    )
}

fn scheduler() -> Component {
    kubernetes(
        SCHEDULER,
        vec![
            format!("--kubeconfig={}", pki("scheduler.kubeconfig")),
            "--leader-elect=false".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
        ],
    )
}

fn containerd() -> Component {
    Component {
        program: CONTAINERD.to_owned(),
        ..kubernetes(
            CONTAINERD,
            vec![
                "--config".to_owned(),
                format!("{NODE_MOUNT}/containerd.toml"),
            ],
        )
    }
}

fn kubelet(node: &NodePlan) -> Component {
    kubernetes(
        KUBELET,
        vec![
            format!("--config={NODE_MOUNT}/kubelet.yaml"),
            format!("--kubeconfig={}", pki("kubelet.kubeconfig")),
            format!("--node-ip={}", node.address),
            format!("--hostname-override={}", node.name),
        ],
    )
}

fn kube_proxy() -> Component {
    kubernetes(
        KUBE_PROXY,
        vec![format!("--config={NODE_MOUNT}/kube-proxy.yaml")],
    )
}

fn containerd_configuration(machine: &MachinePrograms) -> String {
    let runc = &machine.runc;
    let plugins = &machine.network_plugins;
    format!(
        r#"version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.internal.v1.opt",
  "io.containerd.tracing.processor.v1.otlp",
  "io.containerd.internal.v1.tracing",
]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  # Without CAP_SYS_RESOURCE no process may lower its oom_score_adj below its parent's.
  restrict_oom_score_adj = true
  # A profile would be loaded into the host's kernel and stay there.
  disable_apparmor = true
  sandbox_image = "{SANDBOX_IMAGE}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
        BinaryName = "{runc}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{NODE_MOUNT}/cni"
"#
    )
}

/// Each pod has a routed point-to-point link. With a bridge, replies between two pods of a node would bypass kube-proxy's
/// rules unless the kernel also filters bridged packets, which not every host supports.
fn network_configuration(node: &NodePlan) -> String {
    json!({
        "cniVersion": "0.4.0",
        "name": "lab",
        "plugins": [
            {
                "type": "ptp",
                "ipMasq": false,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{ "subnet": node.pod_subnet }]],
                    "routes": [{ "dst": "0.0.0.0/0" }],
                },
            },
            { "type": "portmap", "capabilities": { "portMappings": true } },
        ],
    })
    .to_string()
}

fn kubelet_configuration(cluster: &ClusterPlan, group: &str) -> String {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "0.0.0.0",
        "authentication": {
            "anonymous": { "enabled": false },
            "webhook": { "enabled": true },
            "x509": { "clientCAFile": pki("ca.crt") },
        },
        "authorization": { "mode": "Webhook" },
        "tlsCertFile": pki("kubelet-server.crt"),
        "tlsPrivateKeyFile": pki("kubelet-server.key"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": group,
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "clusterDomain": "cluster.local",
        "clusterDNS": [cluster.dns_address],
        "resolvConf": format!("{NODE_MOUNT}/resolv.conf"),
        "failSwapOn": false,
        "failCgroupV1": false,
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
        },
        // Images cannot be pulled again, so the kubelet must never delete one.
        "imageGCHighThresholdPercent": 100,
        "serializeImagePulls": false,
        "nodeStatusUpdateFrequency": "5s",
        "podPidsLimit": -1,
        // The default is a folder of the host, which the kubelet would create.
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "oomScoreAdj": 0,
    })
    .to_string()
}

fn kube_proxy_configuration(cluster: &ClusterPlan, node: &NodePlan) -> String {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clusterCIDR": cluster.pod_range,
        "clientConnection": { "kubeconfig": pki("proxy.kubeconfig") },
        "hostnameOverride": node.name,
        "oomScoreAdj": 0,
        // These settings are global to the host and cannot be written from a namespace.
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{ClusterRequest, Network};

    fn plan(nodes: usize, shape: Shape) -> ClusterPlan {
        let request = ClusterRequest {
            name: "east".to_owned(),
            nodes,
            shape,
        };
        ClusterPlan::new(Network::in_slot(0), 1, &request)
    }

    fn names(cluster: &ClusterPlan, node: usize) -> Vec<String> {
        components(cluster, &cluster.nodes[node])
            .into_iter()
            .map(|component| component.name)
            .collect()
    }

    #[test]
    fn each_role_runs_its_components() {
        let full = plan(2, Shape::Full);
        assert_eq!(
            names(&full, 0),
            [
                ETCD,
                API_SERVER,
                CONTROLLER_MANAGER,
                SCHEDULER,
                CONTAINERD,
                KUBELET,
                KUBE_PROXY
            ]
        );
        assert_eq!(names(&full, 1), [CONTAINERD, KUBELET, KUBE_PROXY]);
        let control_plane = plan(1, Shape::ControlPlaneOnly);
        assert_eq!(
            names(&control_plane, 0),
            [ETCD, API_SERVER, CONTROLLER_MANAGER]
        );
    }

    #[test]
    fn configuration_files_are_valid_json() {
        let cluster = plan(1, Shape::Full);
        let machine = MachinePrograms {
            runc: "/usr/sbin/runc".to_owned(),
            network_plugins: "/usr/lib/cni".to_owned(),
        };
        for (name, text) in files(
            &cluster,
            &cluster.nodes[0],
            "/standin-lab/standin0/east-1",
            &machine,
        ) {
            if name.ends_with(".yaml") || name.ends_with(".conflist") {
                serde_json::from_str::<serde_json::Value>(&text).unwrap();
            }
            assert!(!text.contains("{}"), "{name} has an empty placeholder");
        }
    }
}

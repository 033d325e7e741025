//! Health probes of the cluster. The original application keeps answering them.

use crate::filter::RequestView;

/// How probes are recognized. Never by their source address: many clients share the address of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Probes {
    /// Probe paths of this port in the target's specification, including the query if there is one.
    pub paths: Vec<String>,
}

/// The `User-Agent` prefix of the kubelet's probes.
const KUBELET_USER_AGENT: &str = "kube-probe/";

impl Probes {
    pub(crate) fn is_probe(&self, request: &RequestView<'_>) -> bool {
        let is_kubelet = request
            .header("user-agent")
            .is_some_and(|agent| agent.starts_with(KUBELET_USER_AGENT));
        is_kubelet
            || (request.method() == "GET"
                && self
                    .paths
                    .iter()
                    .any(|path| path == request.path_and_query()))
    }
}

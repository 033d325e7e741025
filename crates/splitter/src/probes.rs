//! Health probes of the cluster, which the original application goes on answering.

use crate::filter::RequestView;

/// How probes are known. Never by where they come from: behind a node there are many.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Probes {
    /// Paths that the target's specification names for this port, with their query if they have one.
    pub paths: Vec<String>,
}

/// What the cluster's own prober calls itself.
const PROBER: &str = "kube-probe/";

impl Probes {
    pub(crate) fn is_probe(&self, request: &RequestView<'_>) -> bool {
        let is_prober = request
            .header("user-agent")
            .is_some_and(|agent| agent.starts_with(PROBER));
        is_prober
            || (request.method() == "GET"
                && self
                    .paths
                    .iter()
                    .any(|path| path == request.path_and_query()))
    }
}

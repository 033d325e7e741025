//! Every environment variable that the stories read.

/// Contexts of the user's kubeconfig, separated by commas, to tell the stories on instead of a lab.
pub(crate) const CONTEXTS: &str = "STANDIN_CONTEXTS";

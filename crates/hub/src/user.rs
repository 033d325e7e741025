//! The user of a request.

use std::collections::BTreeMap;

/// The prefix of all names that Kubernetes keeps for itself.
const SYSTEM: &str = "system:";
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// An authenticated user, as Kubernetes describes users.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) uid: Option<String>,
    pub(crate) groups: Vec<String>,
    pub(crate) extra: BTreeMap<String, Vec<String>>,
}

impl User {
    pub(crate) fn is_service_account(&self) -> bool {
        self.name.starts_with(SERVICE_ACCOUNT)
    }

    /// Whether Kubernetes keeps the name for itself: components of a control plane, nodes, anonymous users.
    pub(crate) fn is_system(&self) -> bool {
        is_system(&self.name) && !self.is_service_account()
    }
}

/// Whether Kubernetes keeps the name of a user or a group for itself.
pub(crate) fn is_system(name: &str) -> bool {
    name.starts_with(SYSTEM)
}

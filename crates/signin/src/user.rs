//! Users and groups, as Kubernetes describes them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The prefix of all names that Kubernetes keeps for itself.
const SYSTEM: &str = "system:";
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// An authenticated user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct User {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    pub fn is_service_account(&self) -> bool {
        self.name.starts_with(SERVICE_ACCOUNT)
    }

    /// Whether Kubernetes keeps the name for itself: components of a control plane, nodes, anonymous users.
    pub fn is_system(&self) -> bool {
        is_system(&self.name) && !self.is_service_account()
    }
}

/// Whether Kubernetes keeps the name of a user or a group for itself.
pub fn is_system(name: &str) -> bool {
    name.starts_with(SYSTEM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_system_are_recognised() {
        for (name, is_system, is_account) in [
            ("anna", false, false),
            ("systemd", false, false),
            ("system:admin", true, false),
            ("system:node:a", true, false),
            ("system:serviceaccount:shop:default", false, true),
        ] {
            let user = User {
                name: name.to_owned(),
                ..User::default()
            };
            assert_eq!(user.is_system(), is_system, "{name}");
            assert_eq!(user.is_service_account(), is_account, "{name}");
        }
    }
}

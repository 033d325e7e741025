//! What an operator can do, as clients read it from `supported_features`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Names that clients know. An operator lists those that work, and a client uses nothing that is not listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Feature {
    /// Connecting below `proxy/`, where requests may last.
    ProxyApi,
    /// Sessions can be listed and ended.
    SessionManagement,
    /// A session goes on over another connection.
    LayerReconnect,
    /// Connect parameters in a header, for those that are too long for an address.
    ConnectParamsInHeader,
    /// Targets that are chosen by labels.
    LabelTargeting,
}

impl Feature {
    /// What the operator of this version can do.
    pub const SUPPORTED: [Feature; 4] = [
        Feature::ProxyApi,
        Feature::SessionManagement,
        Feature::LayerReconnect,
        Feature::ConnectParamsInHeader,
    ];
}

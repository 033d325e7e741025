//! What an operator can do, as clients read it from `supported_features`.

/// Names that clients know. An operator lists those that work, and a client uses nothing that is not listed. In objects
/// they are text, because a newer operator lists features that an older client has never heard of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// Connecting below `proxy/`, where requests may last.
    ProxyApi,
    /// Sessions can be listed and ended.
    SessionManagement,
    /// A session goes on over another connection.
    LayerReconnect,
    /// Connect parameters in a header, for those that are too long for an address.
    ConnectParamsInHeader,
    /// Targets by labels.
    LabelTargeting,
    /// Sessions over several clusters begin here. Only an operator that has members lists it.
    MultiClusterPrimary,
}

impl Feature {
    /// What every operator of this version can do.
    pub const SUPPORTED: [Feature; 5] = [
        Feature::ProxyApi,
        Feature::SessionManagement,
        Feature::LayerReconnect,
        Feature::ConnectParamsInHeader,
        Feature::LabelTargeting,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::ProxyApi => "ProxyApi",
            Self::SessionManagement => "SessionManagement",
            Self::LayerReconnect => "LayerReconnect",
            Self::ConnectParamsInHeader => "ConnectParamsInHeader",
            Self::LabelTargeting => "LabelTargeting",
            Self::MultiClusterPrimary => "MultiClusterPrimary",
        }
    }
}

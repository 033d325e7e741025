//! The features that an operator advertises to clients in `supported_features`.

/// Features that clients know by name. An operator lists those that work, and a client uses only features that are
/// listed. In objects they are text, because a newer operator may list features that an older client does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// Connections below `proxy/`, where the API server sets no request timeout.
    ProxyApi,
    /// Sessions can be listed and ended.
    SessionManagement,
    /// A client can reconnect to its session.
    LayerReconnect,
    /// Connect parameters in a header, for those that are too long for a URL.
    ConnectParamsInHeader,
    /// Targets that are selected by labels.
    LabelTargeting,
    /// The operator coordinates sessions over several clusters. Only an operator that has member clusters lists it.
    MultiClusterPrimary,
}

impl Feature {
    /// The features of every operator of this version.
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

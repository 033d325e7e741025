//! Why an order was not placed.

use axum::http::StatusCode;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The caller's fault.
    #[error("{0}")]
    BadOrder(String),
    /// Another service rejected the request.
    #[error("{neighbour} refuses: {reason}")]
    Refused {
        neighbour: &'static str,
        status: StatusCode,
        reason: String,
    },
    /// Another service is unreachable, too slow, or responded with something unexpected.
    #[error("{neighbour} at {address} failed")]
    Failed {
        neighbour: &'static str,
        address: String,
        source: anyhow::Error,
    },
}

impl Error {
    pub(crate) fn failed(
        neighbour: &'static str,
        address: &str,
        source: impl Into<anyhow::Error>,
    ) -> Self {
        Self::Failed {
            neighbour,
            address: address.to_owned(),
            source: source.into(),
        }
    }

    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::BadOrder(_) => StatusCode::BAD_REQUEST,
            Self::Refused { status, .. } => *status,
            Self::Failed { .. } => StatusCode::BAD_GATEWAY,
        }
    }

    pub(crate) fn neighbour(&self) -> Option<&'static str> {
        match self {
            Self::BadOrder(_) => None,
            Self::Refused { neighbour, .. } | Self::Failed { neighbour, .. } => Some(neighbour),
        }
    }

    /// The error and its causes in one line.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Failed { source, .. } => format!("{self}: {source:#}"),
            Self::BadOrder(_) | Self::Refused { .. } => self.to_string(),
        }
    }
}

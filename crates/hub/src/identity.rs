//! Who an agent is, and whether it may connect. No I/O and no clock.
//!
//! A handshake accepts any client certificate, after the proof that the client has its key. What it is worth is decided
//! here, so that an agent gets an error that says what to do, and not a TLS alert.

use std::time::Duration;

use authority::Facts;
use http::StatusCode;
use jiff::Timestamp;
use rustls::CertificateError;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;

use crate::registry::{Clusters, is_revoked};
use crate::responses::Failure;

/// An agent whose certificate one of the hub's authorities has signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AgentIdentity {
    pub(crate) cluster: String,
    pub(crate) certificate: Facts,
}

/// Why an agent may not connect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("no client certificate")]
    NoCertificate {
        /// Headers of the request that only a proxy adds.
        through_proxy: bool,
    },
    #[error("the certificate cannot be read: {0}")]
    Unreadable(String),
    #[error("the certificate of {cluster} expired at {at}")]
    Expired { cluster: String, at: Timestamp },
    #[error(
        "the certificate of {cluster} is valid only from {from}; compare the clocks of hub and agent"
    )]
    NotYetValid { cluster: String, from: Timestamp },
    #[error("the certificate was signed by another authority: {0}")]
    ForeignAuthority(String),
    #[error("the certificate is not one of a client")]
    NotOfClient,
    #[error(
        "the certificate is for the cluster {certified}, and the agent says that it is {claimed}"
    )]
    AnotherCluster { certified: String, claimed: String },
    #[error("the cluster {cluster} is not registered")]
    NotRegistered { cluster: String },
    #[error("the certificate of {cluster} is revoked")]
    Revoked { cluster: String },
}

impl Refusal {
    /// For metrics and logs.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::NoCertificate { .. } => "no_certificate",
            Self::Unreadable(_) => "unreadable",
            Self::Expired { .. } => "expired",
            Self::NotYetValid { .. } => "not_yet_valid",
            Self::ForeignAuthority(_) => "foreign_authority",
            Self::NotOfClient => "not_of_client",
            Self::AnotherCluster { .. } => "another_cluster",
            Self::NotRegistered { .. } => "not_registered",
            Self::Revoked { .. } => "revoked",
        }
    }

    /// The cluster of a certificate that an authority of the hub has signed.
    pub(crate) fn cluster(&self) -> Option<&str> {
        match self {
            Self::Expired { cluster, .. }
            | Self::NotYetValid { cluster, .. }
            | Self::NotRegistered { cluster }
            | Self::Revoked { cluster } => Some(cluster),
            Self::AnotherCluster { certified, .. } => Some(certified),
            Self::NoCertificate { .. }
            | Self::Unreadable(_)
            | Self::ForeignAuthority(_)
            | Self::NotOfClient => None,
        }
    }

    fn hint(&self) -> &'static str {
        const REGISTER: &str = "register again: empty the Secret of the agent's certificate, and give the agent a new token \
            (`standin cluster token`)";
        match self {
            Self::NoCertificate {
                through_proxy: true,
            } => {
                "a load balancer that terminates TLS is in between and removes the agent's certificate: this port needs a \
                 load balancer for TCP, or TLS passthrough"
            }
            Self::NoCertificate {
                through_proxy: false,
            } => {
                "this address is for tunnel agents. If this is one, then something between it and the hub terminates TLS: \
                 this port needs a load balancer for TCP, or TLS passthrough"
            }
            Self::NotYetValid { .. } => "compare the clocks of hub and agent",
            Self::AnotherCluster { .. } => {
                "the agent's setting `agent.cluster` must be the cluster for which it was registered"
            }
            Self::NotRegistered { .. } => {
                "add the cluster to the hub (`standin cluster add`), or uninstall the agent"
            }
            Self::Unreadable(_)
            | Self::Expired { .. }
            | Self::ForeignAuthority(_)
            | Self::NotOfClient
            | Self::Revoked { .. } => REGISTER,
        }
    }

    pub(crate) fn failure(&self) -> Failure {
        let code = match self {
            Self::AnotherCluster { .. } | Self::NotRegistered { .. } | Self::Revoked { .. } => {
                StatusCode::FORBIDDEN
            }
            _ => StatusCode::UNAUTHORIZED,
        };
        Failure::new(code, self.to_string()).hint(self.hint())
    }
}

/// Verifies the certificate that a client has presented.
pub(crate) fn verify(
    certificates: &[CertificateDer<'static>],
    authorities: &dyn ClientCertVerifier,
    now: Timestamp,
) -> Result<AgentIdentity, Refusal> {
    let through_proxy = false;
    let (leaf, intermediates) = certificates
        .split_first()
        .ok_or(Refusal::NoCertificate { through_proxy })?;
    let facts = Facts::from_der(leaf).map_err(|error| Refusal::Unreadable(error.to_string()))?;
    let cluster = facts.common_name.clone();
    let verify_at = |time: Timestamp| {
        let seconds = u64::try_from(time.as_second()).unwrap_or_default();
        let time = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        authorities.verify_client_cert(leaf, intermediates, time)
    };
    if let Err(error) = verify_at(now) {
        // A foreign certificate may say anything of itself, so its time only matters if an authority of ours has signed it.
        let is_ours_at = |time| verify_at(time).is_ok();
        let foreign = || Refusal::ForeignAuthority(error.to_string());
        return Err(match kind(&error) {
            Some(Kind::Expired) if is_ours_at(facts.not_after) => Refusal::Expired {
                cluster,
                at: facts.not_after,
            },
            Some(Kind::NotYetValid) if is_ours_at(facts.not_before) => Refusal::NotYetValid {
                cluster,
                from: facts.not_before,
            },
            Some(Kind::Purpose) => Refusal::NotOfClient,
            _ => foreign(),
        });
    }
    if !facts.is_client || facts.is_authority {
        return Err(Refusal::NotOfClient);
    }
    Ok(AgentIdentity {
        cluster,
        certificate: facts,
    })
}

enum Kind {
    Expired,
    NotYetValid,
    Purpose,
}

fn kind(error: &rustls::Error) -> Option<Kind> {
    let rustls::Error::InvalidCertificate(error) = error else {
        return None;
    };
    match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => Some(Kind::Expired),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            Some(Kind::NotYetValid)
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            Some(Kind::Purpose)
        }
        _ => None,
    }
}

impl AgentIdentity {
    /// Whether the agent may connect as the cluster that it claims to be.
    pub(crate) fn admit(&self, claimed: Option<&str>, clusters: &Clusters) -> Result<(), Refusal> {
        if let Some(claimed) = claimed.filter(|claimed| *claimed != self.cluster) {
            return Err(Refusal::AnotherCluster {
                certified: self.cluster.clone(),
                claimed: claimed.chars().take(64).collect(),
            });
        }
        let cluster = self.cluster.clone();
        let Some(object) = clusters.get(&cluster) else {
            return Err(Refusal::NotRegistered { cluster });
        };
        if is_revoked(object, &self.certificate) {
            return Err(Refusal::Revoked { cluster });
        }
        Ok(())
    }
}

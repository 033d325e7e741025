//! The object `mirrordoperators/operator`: version, features, clusters and sessions of this operator.

use api::operator::{ConnectedCluster, License, MultiClusterRoles, RunningSession, Statistics};
use api::session::Session;
use api::{Feature, MirrordOperator, MirrordOperatorSpec, MirrordOperatorStatus};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::error::{KubeResultExt as _, Result};
use crate::response::{Column, ListedObject};
use crate::settings::Settings;

/// The version of the protocol between agents and clients. It changes with incompatible changes of the protocol.
const PROTOCOL_VERSION: &str = "1.0.0";

pub(crate) fn operator(
    settings: &Settings,
    license: Option<License>,
    sessions: &[Session],
    members: Option<(MultiClusterRoles, Vec<ConnectedCluster>)>,
    statistics: Option<Statistics>,
) -> MirrordOperator {
    let (roles, connected_clusters) = members.unzip();
    let primary = roles.is_some().then_some(Feature::MultiClusterPrimary);
    let spec = MirrordOperatorSpec {
        copy_target_enabled: false,
        default_namespace: settings.default_namespace.clone(),
        features: vec![Feature::ProxyApi.as_str().to_owned()],
        license,
        multi_cluster: roles,
        operator_namespace: settings.namespace.clone(),
        operator_version: env!("CARGO_PKG_VERSION").to_owned(),
        protocol_version: PROTOCOL_VERSION.to_owned(),
        supported_features: Feature::SUPPORTED
            .into_iter()
            .chain(primary)
            .map(|feature| feature.as_str().to_owned())
            .collect(),
    };
    let status = MirrordOperatorStatus {
        connected_clusters: connected_clusters.unwrap_or_default(),
        copy_targets: Vec::new(),
        sessions: sessions.iter().map(running).collect(),
        statistics,
    };
    MirrordOperator::new(spec, status)
}

fn running(session: &Session) -> RunningSession {
    let spec = session.spec.clone();
    RunningSession {
        id: spec.id,
        user: spec.user,
        target: spec.target,
        namespace: Some(spec.namespace),
        duration_secs: spec.duration_secs,
        ports: spec.ports,
    }
}

/// The licence data of the administrator's Secret, if one is configured.
pub(crate) async fn license(client: &Client, settings: &Settings) -> Result<Option<License>> {
    let Some(name) = &settings.license_secret else {
        return Ok(None);
    };
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &settings.namespace);
    let secret = secrets
        .get_opt(name)
        .await
        .action(format!("read the Secret {name}"))?;
    Ok(secret.and_then(|secret| license_of(&secret)))
}

fn license_of(secret: &Secret) -> Option<License> {
    let data = secret.data.as_ref()?;
    let value = |key: &str| String::from_utf8(data.get(key)?.0.clone()).ok();
    Some(License {
        name: value("name")?,
        organization: value("organization")?,
        expire_at: value("expire_at"),
        fingerprint: value("fingerprint"),
        subscription_id: value("subscription_id"),
    })
}

impl ListedObject for MirrordOperator {
    const KIND: &str = MirrordOperator::KIND;
    const COLUMNS: &[Column] = &[
        Column {
            name: "Name",
            kind: "string",
            description: "Always operator",
            wide: false,
        },
        Column {
            name: "Version",
            kind: "string",
            description: "The operator's version",
            wide: false,
        },
        Column {
            name: "Sessions",
            kind: "integer",
            description: "The number of sessions",
            wide: false,
        },
        Column {
            name: "Namespace",
            kind: "string",
            description: "The namespace of the operator",
            wide: true,
        },
    ];

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn cells(&self) -> Vec<Value> {
        vec![
            json!(api::operator::NAME),
            json!(self.spec.operator_version),
            json!(self.status.sessions.len()),
            json!(self.spec.operator_namespace),
        ]
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    #[test]
    fn a_licence_needs_all_required_keys() {
        let secret = |pairs: &[(&str, &str)]| Secret {
            data: Some(
                pairs
                    .iter()
                    .map(|(key, value)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec())))
                    .collect(),
            ),
            ..Secret::default()
        };
        let pairs = [
            ("name", "Team"),
            ("organization", "Shop"),
            ("expire_at", "2030-01-01"),
        ];
        let license = license_of(&secret(&pairs)).unwrap();
        assert_eq!(
            (license.name.as_str(), license.organization.as_str()),
            ("Team", "Shop")
        );
        assert_eq!(license.expire_at.as_deref(), Some("2030-01-01"));
        assert_eq!(license.fingerprint, None);
        assert_eq!(license_of(&secret(&pairs[..1])), None);
        assert_eq!(license_of(&Secret::default()), None);
    }
}

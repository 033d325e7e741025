//! Sessions, as people list and end them.

use api::multicluster::parent_name;
use api::session::{Session, SessionId, SessionSpec};
use api::{MirrordClusterSession, MirrordMultiClusterSession};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::answer::{Column, Listed};
use crate::error::{Doing as _, Result};

/// The stored objects of all sessions.
pub(crate) async fn list(client: &Client) -> Result<Vec<MirrordClusterSession>> {
    let sessions: Api<MirrordClusterSession> = Api::all(client.clone());
    let list = sessions
        .list(&ListParams::default().match_any())
        .await
        .doing("list sessions")?;
    Ok(list.items)
}

pub(crate) async fn find(client: &Client, id: SessionId) -> Result<Option<MirrordClusterSession>> {
    let sessions: Api<MirrordClusterSession> = Api::all(client.clone());
    sessions
        .get_opt(&id.object_name())
        .await
        .doing(format!("read the session {id}"))
}

/// Ends a session: its object is kept until its agents are gone. Says whether there was one.
pub(crate) async fn end(client: &Client, id: SessionId) -> Result<bool> {
    let sessions: Api<MirrordClusterSession> = Api::all(client.clone());
    delete(&sessions, &id.object_name()).await
}

/// The same for one over several clusters, whose parts end with it.
pub(crate) async fn end_parent(client: &Client, id: SessionId) -> Result<bool> {
    let parents: Api<MirrordMultiClusterSession> = Api::all(client.clone());
    delete(&parents, &parent_name(id)).await
}

async fn delete<Object>(objects: &Api<Object>, name: &str) -> Result<bool>
where
    Object: Clone + std::fmt::Debug + DeserializeOwned,
{
    match objects.delete(name, &DeleteParams::default()).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error).doing(format!("end the session {name}")),
    }
}

/// A session's number in hexadecimal digits.
pub(crate) fn id_of(session: &MirrordClusterSession) -> String {
    let name = session.metadata.name.as_deref().unwrap_or_default();
    SessionId::from_object_name(name).map_or_else(|| name.to_owned(), |id| id.to_string())
}

pub(crate) fn age_in_seconds(session: &MirrordClusterSession, now: Timestamp) -> u64 {
    let created = session.metadata.creation_timestamp.as_ref();
    let age = created.map(|created| created.0.duration_until(now).as_secs());
    age.and_then(|seconds| u64::try_from(seconds).ok())
        .unwrap_or_default()
}

/// The stored object as it is served.
pub(crate) fn served(session: &MirrordClusterSession, now: Timestamp) -> Session {
    let id = id_of(session);
    let status = session.status.clone().unwrap_or_default();
    let metadata = ObjectMeta {
        name: Some(id.clone()),
        creation_timestamp: session.metadata.creation_timestamp.clone(),
        deletion_timestamp: session.metadata.deletion_timestamp.clone(),
        ..ObjectMeta::default()
    };
    let phase = status.phase.map_or("Pending", |phase| phase.as_str());
    let spec = SessionSpec {
        id,
        user: session.spec.owner.k8s_username.clone(),
        target: session.spec.target.clone(),
        namespace: session.spec.namespace.clone(),
        phase: phase.to_owned(),
        duration_secs: age_in_seconds(session, now),
        pods: status.pods.into_iter().map(|pod| pod.name).collect(),
    };
    Session::new(metadata, spec)
}

const fn column(name: &'static str, description: &'static str) -> Column {
    Column {
        name,
        kind: "string",
        description,
        wide: false,
    }
}

impl Listed for Session {
    const KIND: &str = Session::KIND;
    const COLUMNS: &[Column] = &[
        column("Name", "The session's id"),
        column("User", "Who runs it"),
        column("Namespace", "Where its target is"),
        column("Target", "What it is for"),
        column("Phase", "Where it is in its life"),
        column("Pods", "How many pods take part"),
        column("Age", "How long it runs"),
    ];

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn cells(&self) -> Vec<Value> {
        let spec = &self.spec;
        vec![
            json!(spec.id),
            json!(spec.user),
            json!(spec.namespace),
            json!(spec.target),
            json!(spec.phase),
            json!(spec.pods.len().to_string()),
            json!(age(spec.duration_secs)),
        ]
    }
}

/// As kubectl writes ages: the largest unit that is not too coarse.
fn age(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_short() {
        let cases = [
            (5, "5s"),
            (119, "119s"),
            (120, "2m"),
            (7200, "2h"),
            (864_000, "10d"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(age(seconds), expected);
        }
    }
}

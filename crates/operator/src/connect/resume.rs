//! A client's session that exists already: it is resumed if it belongs to the client.

use std::fmt::Debug;

use api::session::SessionClosed;
use api::{MirrordClusterSession, MirrordMultiClusterSession};
use kube::api::PostParams;
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::KubeResultExt as _;
use crate::response::Refusal;

/// The stored object of a client's session.
pub(crate) trait ClientSession:
    Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned
{
    fn identity(&self) -> SessionIdentity<'_>;

    /// Why the session has ended, if it has.
    fn closed(&self) -> Option<&SessionClosed>;

    fn has_ended(&self) -> bool {
        self.closed().is_some() || self.meta().deletion_timestamp.is_some()
    }
}

/// The user, client and target of a session. A client may resume a session only if all of it is the same.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SessionIdentity<'a> {
    user: &'a str,
    certificate: &'a str,
    namespace: &'a str,
    target: &'a str,
    labels: Option<&'a str>,
}

impl ClientSession for MirrordClusterSession {
    fn identity(&self) -> SessionIdentity<'_> {
        SessionIdentity {
            user: &self.spec.owner.k8s_username,
            certificate: &self.spec.client_certificate,
            namespace: &self.spec.namespace,
            target: &self.spec.target,
            labels: self.spec.label_target.as_deref(),
        }
    }

    fn closed(&self) -> Option<&SessionClosed> {
        self.status.as_ref()?.closed.as_ref()
    }
}

/// The clusters are not compared: the session keeps those with which it began.
impl ClientSession for MirrordMultiClusterSession {
    fn identity(&self) -> SessionIdentity<'_> {
        SessionIdentity {
            user: &self.spec.owner.k8s_username,
            certificate: &self.spec.client_certificate,
            namespace: &self.spec.namespace,
            target: &self.spec.target,
            labels: self.spec.label_target.as_deref(),
        }
    }

    fn closed(&self) -> Option<&SessionClosed> {
        self.status.as_ref()?.closed.as_ref()
    }
}

/// Creates the session, or returns the existing one if it belongs to the client.
pub(crate) async fn find_or_create<S: ClientSession>(
    client: &Client,
    session: &S,
) -> Result<S, Refusal> {
    let objects: Api<S> = Api::all(client.clone());
    match objects.create(&PostParams::default(), session).await {
        Ok(created) => Ok(created),
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
            let name = session.name_any();
            let found = objects.get(&name).await.action(format!("read {name}"))?;
            check_resume(&found, session)?;
            Ok(found)
        }
        Err(error) => Err(error).action("create a session")?,
    }
}

/// Checks that an existing session belongs to the client and has not ended.
pub(crate) fn check_resume<S: ClientSession>(found: &S, requested: &S) -> Result<(), Refusal> {
    if found.identity() != requested.identity() {
        return Err(Refusal::conflict(
            "a session of another client has this ID; start a new session",
        ));
    }
    match found.closed() {
        // The client may create the session again once this one is removed.
        Some(closed) if closed.reason == "ClientGone" => {
            Err(Refusal::expired(closed.message.clone()))
        }
        Some(closed) => Err(Refusal::gone(format!(
            "the session has ended: {}",
            closed.message
        ))),
        None if found.meta().deletion_timestamp.is_some() => {
            Err(Refusal::gone("the session was ended"))
        }
        None => Ok(()),
    }
}

//! A session that is there already: made by this client before, or somebody else's.

use std::fmt::Debug;

use api::session::SessionClosed;
use api::{MirrordClusterSession, MirrordMultiClusterSession};
use kube::api::PostParams;
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::answer::Refusal;
use crate::error::Doing as _;

/// An object that a client's session is known by.
pub(crate) trait ClientSession:
    Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned
{
    fn belonging(&self) -> Belonging<'_>;

    /// Why it is over, when it is.
    fn closed(&self) -> Option<&SessionClosed>;
}

/// Whom a session is for, and what.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Belonging<'a> {
    user: &'a str,
    certificate: &'a str,
    namespace: &'a str,
    target: &'a str,
    labels: Option<&'a str>,
}

impl ClientSession for MirrordClusterSession {
    fn belonging(&self) -> Belonging<'_> {
        Belonging {
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

/// Its clusters do not count: they are those of the session's beginning.
impl ClientSession for MirrordMultiClusterSession {
    fn belonging(&self) -> Belonging<'_> {
        Belonging {
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

/// A session that is there already is the client's own, or the client is refused.
pub(crate) async fn find_or_make<S: ClientSession>(
    client: &Client,
    wanted: &S,
) -> Result<S, Refusal> {
    let objects: Api<S> = Api::all(client.clone());
    match objects.create(&PostParams::default(), wanted).await {
        Ok(made) => Ok(made),
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
            let name = wanted.name_any();
            let found = objects.get(&name).await.doing(format!("read {name}"))?;
            may_return(&found, wanted)?;
            Ok(found)
        }
        Err(error) => Err(error).doing("make a session")?,
    }
}

/// Whether a client that comes back is the one that the session is for, and the session still is.
pub(crate) fn may_return<S: ClientSession>(found: &S, wanted: &S) -> Result<(), Refusal> {
    if found.belonging() != wanted.belonging() {
        return Err(Refusal::conflict(
            "there is a session with this number that is not yours; start another one",
        ));
    }
    match found.closed() {
        // The client may begin anew, when nothing of this one is left.
        Some(closed) if closed.reason == "ClientGone" => {
            Err(Refusal::expired(closed.message.clone()))
        }
        Some(closed) => Err(Refusal::gone(format!(
            "the session is over: {}",
            closed.message
        ))),
        None if found.meta().deletion_timestamp.is_some() => {
            Err(Refusal::gone("the session was ended"))
        }
        None => Ok(()),
    }
}

//! A session that is there already: made by this client before, or somebody else's.

use std::fmt::Debug;

use api::session::SessionClosed;
use kube::api::PostParams;
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::answer::Refusal;
use crate::error::Doing as _;

/// An object as the API server has it, and whether it was made just now.
pub(crate) async fn make_or_find<K>(client: &Client, wanted: &K) -> Result<(K, bool), Refusal>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
{
    let objects: Api<K> = Api::all(client.clone());
    match objects.create(&PostParams::default(), wanted).await {
        Ok(made) => Ok((made, true)),
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
            let name = wanted.name_any();
            let found = objects.get(&name).await.doing(format!("read {name}"))?;
            Ok((found, false))
        }
        Err(error) => Err(error).doing("make a session")?,
    }
}

/// Whom a session is for, and what.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Belonging<'a> {
    pub(crate) user: &'a str,
    pub(crate) certificate: &'a str,
    pub(crate) namespace: &'a str,
    pub(crate) target: &'a str,
    pub(crate) labels: Option<&'a str>,
}

/// Whether a client that comes back is the one that the session is for, and the session still is.
pub(crate) fn may_return(
    found: &Belonging<'_>,
    wanted: &Belonging<'_>,
    closed: Option<&SessionClosed>,
    is_deleted: bool,
) -> Result<(), Refusal> {
    if found != wanted {
        return Err(Refusal::conflict(
            "there is a session with this number that is not yours; start another one",
        ));
    }
    match closed {
        // The client may begin anew, when nothing of this one is left.
        Some(closed) if closed.reason == "ClientGone" => {
            Err(Refusal::expired(closed.message.clone()))
        }
        Some(closed) => Err(Refusal::gone(format!(
            "the session is over: {}",
            closed.message
        ))),
        None if is_deleted => Err(Refusal::gone("the session was ended")),
        None => Ok(()),
    }
}

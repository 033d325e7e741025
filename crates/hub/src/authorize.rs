//! What a user may do with clusters: the rules of the hub's cluster decide, by a `SubjectAccessReview` for `managedclusters`.

use std::time::Duration;

use error_chain::error_chain;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec, SubjectAccessReviewStatus,
};
use kube::api::PostParams;
use kube::{Api, Client};
use thiserror::Error;
use tokio::time::timeout;

use crate::cache::{Cache, Loaded};
use crate::status::Status;
use crate::user::User;

const GROUP: &str = "standin.dev";
const VERSION: &str = "v1alpha1";
const RESOURCE: &str = "managedclusters";
/// How long a right may be used after it was removed.
const ALLOWED_TTL: Duration = Duration::from_secs(5);
/// How long a new right may have no effect.
const DENIED_TTL: Duration = Duration::from_secs(2);
const CAPACITY: usize = 8192;
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);

/// A right that rules of the hub's cluster can give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Right {
    /// To send requests to the API server of a cluster.
    Proxy,
    /// To read the list of clusters.
    List,
    Get,
    Create,
    Update,
    Delete,
    /// To create registration tokens.
    CreateToken,
    ReadAudit,
}

impl Right {
    /// Verb and subresource.
    fn attributes(self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::Proxy => ("proxy", None),
            Self::List => ("list", None),
            Self::Get => ("get", None),
            Self::Create => ("create", None),
            Self::Update => ("update", None),
            Self::Delete => ("delete", None),
            Self::CreateToken => ("create", Some("token")),
            Self::ReadAudit => ("get", Some("audit")),
        }
    }
}

/// Why a request is not authorized.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum Forbidden {
    #[error("{0}")]
    Denied(String),
    /// It is unknown whether the user has the right.
    #[error("the hub cannot review the rights of the user: {0}; try again")]
    Unavailable(String),
}

impl Forbidden {
    pub(crate) fn status(&self) -> Status {
        let message = self.to_string();
        match self {
            Self::Denied(_) => Status::forbidden(message),
            // Nothing was done, so the request can be repeated.
            Self::Unavailable(_) => Status::unavailable(message).retry_after(1),
        }
    }
}

type Key = (User, Right, Option<String>);

pub(crate) struct Authorizer {
    client: Client,
    /// The hub's namespace, where the clusters are objects.
    namespace: String,
    cache: Cache<Key, bool>,
}

impl std::fmt::Debug for Authorizer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Authorizer")
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl Authorizer {
    pub(crate) fn new(client: Client, namespace: String) -> Self {
        Self {
            client,
            namespace,
            cache: Cache::new(CAPACITY),
        }
    }

    /// Whether a user has a right to one cluster, or to all of them.
    pub(crate) async fn authorize(
        &self,
        user: &User,
        right: &Right,
        cluster: Option<&str>,
    ) -> Result<(), Forbidden> {
        let key = (user.clone(), *right, cluster.map(str::to_owned));
        let load = async || {
            let review = review(user, *right, &self.namespace, cluster);
            let is_allowed = timeout(REVIEW_TIMEOUT, self.review(&review))
                .await
                .map_err(|_| {
                    Forbidden::Unavailable("the API server does not respond".to_owned())
                })??;
            Ok(Loaded {
                value: is_allowed,
                ttl: if is_allowed { ALLOWED_TTL } else { DENIED_TTL },
                is_valuable: is_allowed,
            })
        };
        if self.cache.get(&key, load).await? {
            Ok(())
        } else {
            let refusal = refusal(user, *right, &self.namespace, cluster);
            Err(Forbidden::Denied(refusal))
        }
    }

    async fn review(&self, review: &SubjectAccessReview) -> Result<bool, Forbidden> {
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let reviewed = reviews.create(&PostParams::default(), review).await;
        let reviewed = reviewed.map_err(|error| Forbidden::Unavailable(error_chain(&error)))?;
        is_allowed(reviewed.status.as_ref())
    }
}

/// The decision of a review. An authorizer that has failed has not decided, so the request can be repeated.
fn is_allowed(status: Option<&SubjectAccessReviewStatus>) -> Result<bool, Forbidden> {
    let Some(status) = status else {
        return Ok(false);
    };
    match &status.evaluation_error {
        Some(error) if !status.allowed && status.denied != Some(true) => {
            Err(Forbidden::Unavailable(error.clone()))
        }
        _ => Ok(status.allowed),
    }
}

fn review(
    user: &User,
    right: Right,
    namespace: &str,
    cluster: Option<&str>,
) -> SubjectAccessReview {
    let (verb, subresource) = right.attributes();
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.name.clone()),
            uid: user.uid.clone(),
            groups: Some(groups(user)),
            extra: Some(user.extra.clone()),
            resource_attributes: Some(ResourceAttributes {
                group: Some(GROUP.to_owned()),
                version: Some(VERSION.to_owned()),
                resource: Some(RESOURCE.to_owned()),
                subresource: subresource.map(str::to_owned),
                verb: Some(verb.to_owned()),
                namespace: Some(namespace.to_owned()),
                name: cluster.map(str::to_owned),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    }
}

/// The groups of a user who was authenticated. An API server adds the last one to users of its own.
fn groups(user: &User) -> Vec<String> {
    const AUTHENTICATED: &str = "system:authenticated";
    let mut groups = user.groups.clone();
    if !groups.iter().any(|group| group == AUTHENTICATED) {
        groups.push(AUTHENTICATED.to_owned());
    }
    groups
}

/// The message of a refusal, with the rule that an administrator has to add.
fn refusal(user: &User, right: Right, namespace: &str, cluster: Option<&str>) -> String {
    let (verb, subresource) = right.attributes();
    let resource = subresource.map_or_else(
        || RESOURCE.to_owned(),
        |subresource| format!("{RESOURCE}/{subresource}"),
    );
    let object = cluster.map_or_else(String::new, |cluster| format!(" {cluster:?}"));
    // Rules for `create` cannot name objects.
    let names = cluster
        .filter(|_| right != Right::Create)
        .map_or_else(String::new, |cluster| {
            format!("resourceNames: [{cluster}], ")
        });
    format!(
        "user {:?} may not {verb} {resource}{object}; ask for this rule in a Role in the hub's namespace {namespace:?}: \
         {{apiGroups: [{GROUP}], resources: [{resource}], {names}verbs: [{verb}]}}",
        user.name,
    )
}

#[cfg(test)]
mod tests;

//! The Secrets for renewed tokens, which only the operator writes: one for each member, so that no member can use up the space of
//! another one's token. The chart creates them empty, and removes them with their members. For a member that is not in the chart's
//! values, the operator creates the Secret, marks it as its own, and removes it when the member is not configured any more.
//!
//! An older operator had one Secret for all members. Its tokens are moved once.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, ResourceExt as _};

use super::bearer::{self, Token};
use crate::error::{KubeResultExt as _, Result};
use crate::multicluster::clusters::object_part;

/// The Secret of an older operator for all members.
pub(crate) const SHARED: &str = "mirrord-operator-cluster-tokens";
/// Marks the Secrets that the operator has created. Those of the chart have `Helm` there.
const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "standin-operator");
const CONFLICT: u16 = 409;
const NOT_FOUND: u16 = 404;

type Data = BTreeMap<String, ByteString>;

/// The name of a member's Secret.
pub(crate) fn name(member: &str) -> String {
    format!("mirrord-operator-cluster-token-{}", object_part(member))
}

/// Stores a member's token.
pub(crate) async fn store(secrets: &Api<Secret>, member: &str, token: &Token) -> Result<()> {
    update(secrets, &name(member), |secret| {
        bearer::insert(secret, member, token)
    })
    .await
}

/// Removes a member's Secret, if the operator has created it. Returns whether there was one.
pub(crate) async fn remove(secrets: &Api<Secret>, member: &str) -> Result<bool> {
    let name = name(member);
    let found = secrets.get_opt(&name).await;
    let found = found.action(format!("read the Secret {name}"))?;
    let (key, value) = MANAGED_BY;
    let is_own = |secret: &Secret| secret.labels().get(key).map(String::as_str) == Some(value);
    let Some(secret) = found.filter(is_own) else {
        return Ok(false);
    };
    // Only this object: an administrator may have replaced it.
    let preconditions = Preconditions {
        uid: secret.uid(),
        resource_version: secret.resource_version(),
    };
    let parameters = DeleteParams::default().preconditions(preconditions);
    match secrets.delete(&name, &parameters).await {
        Err(kube::Error::Api(status)) if status.code == NOT_FOUND => Ok(false),
        deleted => deleted
            .map(|_| true)
            .action(format!("remove the Secret {name}")),
    }
}

/// Moves the tokens of these members to their own Secrets, and removes the shared one.
pub(crate) async fn migrate(secrets: &Api<Secret>, members: &[&str]) -> Result<()> {
    let found = secrets.get_opt(SHARED).await;
    let found = found.action(format!("read the Secret {SHARED}"))?;
    let Some(shared) = found else {
        return Ok(());
    };
    let shared = shared.data.unwrap_or_default();
    for member in members {
        let moved = entries(&shared, member);
        if moved.contains_key(*member) {
            update(secrets, &name(member), |secret| {
                adopt(secret, member, &moved)
            })
            .await?;
        }
    }
    match secrets.delete(SHARED, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == NOT_FOUND => Ok(()),
        deleted => deleted
            .map(drop)
            .action(format!("remove the Secret {SHARED}")),
    }
}

/// The entries of a member in the shared Secret. The name of another member may begin with its name.
fn entries(shared: &Data, member: &str) -> Data {
    let all = shared.iter();
    let own = all.filter(|(key, _)| {
        let rest = key.strip_prefix(member);
        rest.is_some_and(|rest| matches!(rest, "" | ".received" | ".expires" | ".lifetime"))
    });
    own.map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// Adds the entries, unless the Secret has a token already: that one is newer.
fn adopt(mut secret: Secret, member: &str, entries: &Data) -> Secret {
    let data = secret.data.get_or_insert_default();
    if !data.contains_key(member) {
        data.extend(entries.clone());
    }
    secret
}

/// Changes a Secret, which is created if it does not exist.
async fn update(
    secrets: &Api<Secret>,
    name: &str,
    change: impl Fn(Secret) -> Secret,
) -> Result<()> {
    let writing = format!("write the Secret {name}");
    loop {
        let found = secrets.get_opt(name).await.action(&writing)?;
        let parameters = PostParams::default();
        let written = match found {
            Some(found) => secrets.replace(name, &parameters, &change(found)).await,
            None => secrets.create(&parameters, &change(empty(name))).await,
        };
        match written {
            Ok(_) => return Ok(()),
            // Another replica has written in between.
            Err(kube::Error::Api(status)) if status.code == CONFLICT => {}
            Err(error) => return Err(error).action(writing),
        }
    }
}

fn empty(name: &str) -> Secret {
    Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(
                [MANAGED_BY]
                    .map(|(key, value)| (key.to_owned(), value.to_owned()))
                    .into(),
            ),
            ..ObjectMeta::default()
        },
        ..Secret::default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::{Method, Request, Response, StatusCode};
    use kube::Client;
    use kube::client::Body;
    use parking_lot::Mutex;
    use serde_json::{Value, json};

    use super::*;

    type Stored = Arc<Mutex<BTreeMap<String, Value>>>;

    fn secret(name: &str, keys: &[(&str, &str)]) -> Value {
        let data: BTreeMap<&str, &str> = keys.iter().copied().collect();
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data})
    }

    /// An API server with Secrets. The first write conflicts with another one.
    fn server(secrets: &[Value]) -> (Api<Secret>, Stored) {
        let all = secrets.iter().map(|secret| {
            let name = secret["metadata"]["name"].as_str().unwrap();
            (name.to_owned(), secret.clone())
        });
        let stored = Arc::new(Mutex::new(all.collect::<BTreeMap<_, _>>()));
        let (server, mut writes) = (Arc::clone(&stored), 0);
        let service = tower::service_fn(move |request: Request<Body>| {
            let method = request.method().clone();
            if matches!(method, Method::PUT | Method::POST) {
                writes += 1;
            }
            let is_conflict = writes == 1;
            let name = request.uri().path().rsplit('/').next().unwrap().to_owned();
            let server = Arc::clone(&server);
            async move {
                let body = request.into_body().collect_bytes().await.unwrap();
                let written: Option<Value> = serde_json::from_slice(&body).ok();
                let (code, value) =
                    respond(&mut server.lock(), &method, &name, written, is_conflict);
                let body = Body::from(value.to_string().into_bytes());
                let response = Response::builder().status(code).body(body);
                Ok::<_, std::convert::Infallible>(response.unwrap())
            }
        });
        (
            Api::namespaced(Client::new(service, "tools"), "tools"),
            stored,
        )
    }

    fn respond(
        stored: &mut BTreeMap<String, Value>,
        method: &Method,
        name: &str,
        written: Option<Value>,
        is_conflict: bool,
    ) -> (StatusCode, Value) {
        let failure = |code: StatusCode| {
            let reason = match code {
                StatusCode::NOT_FOUND => "NotFound",
                _ => "Conflict",
            };
            let status = json!({
                "kind": "Status", "status": "Failure", "code": code.as_u16(), "reason": reason, "message": "",
            });
            (code, status)
        };
        match *method {
            Method::GET => match stored.get(name) {
                Some(secret) => (StatusCode::OK, secret.clone()),
                None => failure(StatusCode::NOT_FOUND),
            },
            Method::DELETE => match stored.remove(name) {
                Some(secret) => (StatusCode::OK, secret),
                None => failure(StatusCode::NOT_FOUND),
            },
            _ if is_conflict => failure(StatusCode::CONFLICT),
            _ => {
                let secret = written.unwrap();
                let name = secret["metadata"]["name"].as_str().unwrap().to_owned();
                stored.insert(name, secret.clone());
                (StatusCode::OK, secret)
            }
        }
    }

    /// The chart removes its own, and may have been given one of the operator.
    #[tokio::test]
    async fn only_secrets_of_the_operator_are_removed() {
        let labelled = |member: &str, labels: Value| {
            let mut secret = secret(&name(member), &[(member, "eA==")]);
            secret["metadata"]["labels"] = labels;
            secret
        };
        let helm = json!({"app.kubernetes.io/managed-by": "Helm"});
        let (secrets, stored) = server(&[
            labelled("east", helm),
            labelled(
                "north",
                json!({"app.kubernetes.io/name": "standin-operator"}),
            ),
        ]);
        // Created by the operator, after a conflict.
        let create = |secret: Secret| secret;
        update(&secrets, &name("west"), create).await.unwrap();
        let cases = [
            ("east", false),
            ("north", false),
            ("west", true),
            ("west", false),
            ("never", false),
        ];
        for (member, expected) in cases {
            assert_eq!(
                remove(&secrets, member).await.unwrap(),
                expected,
                "{member}"
            );
        }
        let stored = stored.lock();
        let left: Vec<&str> = stored.keys().map(String::as_str).collect();
        assert_eq!(left, [name("east"), name("north")]);
    }

    #[tokio::test]
    async fn the_tokens_of_an_older_operator_are_moved_once() {
        let shared = secret(
            SHARED,
            &[
                ("east", "ZWFzdA=="),
                ("east.received", "bm93"),
                ("east.2", "MjI="),
                ("west", "b2xk"),
                ("removed", "eA=="),
            ],
        );
        let empty = secret(&name("east"), &[]);
        let newer = secret(&name("west"), &[("west", "bmV3")]);
        let (secrets, stored) = server(&[shared, empty, newer]);
        for _ in 0..2 {
            migrate(&secrets, &["east", "east.2", "west", "unknown"])
                .await
                .unwrap();
            let stored = stored.lock();
            let names: Vec<&str> = stored.keys().map(String::as_str).collect();
            assert_eq!(names, [name("east"), name("east.2"), name("west")]);
            let data = |member: &str| stored[&name(member)]["data"].clone();
            assert_eq!(
                data("east"),
                json!({"east": "ZWFzdA==", "east.received": "bm93"})
            );
            assert_eq!(data("east.2"), json!({"east.2": "MjI="}));
            assert_eq!(data("west"), json!({"west": "bmV3"}), "it is newer");
        }
    }
}

//! A stubbed API server: Secrets and ManagedClusters in memory, watches, and reviews of tokens and rights.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::stream;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::NAMESPACE;

type StubResponse = Response<UnsyncBoxBody<Bytes, io::Error>>;
/// Kind and name.
type Key = (String, String);

/// Clones share their objects.
#[derive(Clone)]
pub(crate) struct StubApiServer(Arc<State>);

struct State {
    objects: Mutex<Objects>,
    version: watch::Sender<u64>,
}

#[derive(Default)]
struct Objects {
    current: BTreeMap<Key, Value>,
    /// Version, kind and event.
    events: Vec<(u64, String, Value)>,
}

impl StubApiServer {
    /// With the empty Secrets that the chart creates.
    pub(crate) fn new() -> Self {
        let server = Self(Arc::new(State {
            objects: Mutex::default(),
            version: watch::Sender::new(1),
        }));
        for name in ["standin-hub-ca", "standin-hub-server", "standin-hub-tokens"] {
            let secret =
                json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name } });
            server.store("secrets", name, "ADDED", secret);
        }
        server
    }

    pub(crate) fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap();
                let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
                let query = parts.uri.query().unwrap_or_default();
                Ok::<_, io::Error>(server.respond(&parts.method, parts.uri.path(), query, body))
            }
        });
        Client::new(service, NAMESPACE)
    }

    pub(crate) fn object(&self, kind: &str, name: &str) -> Option<Value> {
        let key = (kind.to_owned(), name.to_owned());
        self.0.objects.lock().current.get(&key).cloned()
    }

    pub(crate) fn secret_text(&self, name: &str, key: &str) -> Option<String> {
        let secret = self.object("secrets", name)?;
        let value = STANDARD.decode(secret["data"][key].as_str()?).unwrap();
        Some(String::from_utf8(value).unwrap())
    }

    /// Adds a value to a Secret, as `kubectl patch` does.
    pub(crate) fn add_to_secret(&self, name: &str, key: &str, value: &str) {
        let mut secret = self.object("secrets", name).unwrap();
        secret["data"][key] = json!(STANDARD.encode(value));
        self.store("secrets", name, "MODIFIED", secret);
    }

    fn store(&self, kind: &str, name: &str, event: &str, mut object: Value) -> Value {
        let mut objects = self.0.objects.lock();
        let version = *self.0.version.borrow() + 1;
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        let key = (kind.to_owned(), name.to_owned());
        match event {
            "DELETED" => drop(objects.current.remove(&key)),
            _ => drop(objects.current.insert(key, object.clone())),
        }
        let event = json!({ "type": event, "object": object });
        objects.events.push((version, kind.to_owned(), event));
        drop(objects);
        self.0.version.send_replace(version);
        object
    }

    fn respond(&self, method: &Method, path: &str, query: &str, body: Value) -> StubResponse {
        let segments: Vec<&str> = path.split('/').filter(|it| !it.is_empty()).collect();
        match segments.as_slice() {
            [.., "tokenreviews"] => reply(StatusCode::CREATED, &token_review(&body)),
            [.., "subjectaccessreviews"] => reply(StatusCode::CREATED, &access_review(&body)),
            [.., "namespaces", NAMESPACE, kind] => match *method {
                Method::GET if query.contains("watch=true") => self.watch(kind, query),
                Method::GET => self.list(kind),
                _ => self.create(kind, body),
            },
            [.., "namespaces", NAMESPACE, kind, name] => self.change(method, kind, name, "", body),
            [.., "namespaces", NAMESPACE, kind, name, part] => {
                self.change(method, kind, name, part, body)
            }
            _ => failure(StatusCode::NOT_FOUND),
        }
    }

    fn list(&self, kind: &str) -> StubResponse {
        let objects = self.0.objects.lock();
        let items = objects
            .current
            .iter()
            .filter(|((found, _), _)| found == kind);
        let items: Vec<&Value> = items.map(|(_, object)| object).collect();
        let version = self.0.version.borrow().to_string();
        let list = json!({ "metadata": { "resourceVersion": version }, "items": items });
        reply(StatusCode::OK, &list)
    }

    fn watch(&self, kind: &str, query: &str) -> StubResponse {
        let mut pairs = query.split('&');
        let from = pairs.find_map(|pair| pair.strip_prefix("resourceVersion="));
        let from: u64 = from.unwrap().parse().unwrap();
        let state = (
            self.clone(),
            kind.to_owned(),
            from,
            self.0.version.subscribe(),
        );
        let events = stream::unfold(state, async |(server, kind, from, mut versions)| {
            loop {
                let next = {
                    let objects = server.0.objects.lock();
                    let mut events = objects.events.iter();
                    let event = events.find(|(version, of, _)| *version > from && *of == kind);
                    event.cloned()
                };
                if let Some((version, _, event)) = next {
                    let frame = Frame::data(Bytes::from(format!("{event}\n")));
                    let state = (server, kind, version, versions);
                    return Some((Ok::<_, io::Error>(frame), state));
                }
                versions.changed().await.ok()?;
            }
        });
        Response::new(StreamBody::new(Box::pin(events)).boxed_unsync())
    }

    fn create(&self, kind: &str, mut object: Value) -> StubResponse {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        if self.object(kind, &name).is_some() {
            return failure(StatusCode::CONFLICT);
        }
        object["metadata"]["namespace"] = json!(NAMESPACE);
        reply(
            StatusCode::CREATED,
            &self.store(kind, &name, "ADDED", object),
        )
    }

    fn change(
        &self,
        method: &Method,
        kind: &str,
        name: &str,
        part: &str,
        body: Value,
    ) -> StubResponse {
        let Some(mut object) = self.object(kind, name) else {
            return failure(StatusCode::NOT_FOUND);
        };
        match *method {
            Method::GET => return reply(StatusCode::OK, &object),
            Method::DELETE => {
                return reply(StatusCode::OK, &self.store(kind, name, "DELETED", object));
            }
            Method::PATCH if part == "status" => merge(&mut object["status"], &body["status"]),
            Method::PATCH => {
                let status = object["status"].clone();
                merge(&mut object, &body);
                object["status"] = status;
            }
            _ => {
                let version = &body["metadata"]["resourceVersion"];
                if *version != object["metadata"]["resourceVersion"] {
                    return failure(StatusCode::CONFLICT);
                }
                if part == "status" {
                    object["status"] = body["status"].clone();
                } else {
                    let status = object["status"].clone();
                    object = body;
                    object["status"] = status;
                }
            }
        }
        if object["status"].is_null() {
            object.as_object_mut().unwrap().remove("status");
        }
        reply(StatusCode::OK, &self.store(kind, name, "MODIFIED", object))
    }
}

/// RFC 7396.
fn merge(target: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (name, value) in fields {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(name);
        } else {
            merge(&mut target[name], value);
        }
    }
}

/// `token-of-NAME` is a token of the user of that name.
fn token_review(review: &Value) -> Value {
    let token = review["spec"]["token"].as_str().unwrap();
    let status = match token.strip_prefix("token-of-") {
        Some(name) => json!({ "authenticated": true, "user": { "username": name } }),
        None => json!({ "authenticated": false }),
    };
    json!({ "metadata": {}, "spec": review["spec"], "status": status })
}

/// The user `admin` may do everything, and `reader` may list clusters.
fn access_review(review: &Value) -> Value {
    let user = review["spec"]["user"].as_str().unwrap();
    let verb = review["spec"]["resourceAttributes"]["verb"]
        .as_str()
        .unwrap();
    let allowed = user == "admin" || user == "reader" && matches!(verb, "list" | "get");
    json!({ "metadata": {}, "spec": review["spec"], "status": { "allowed": allowed } })
}

fn failure(code: StatusCode) -> StubResponse {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": code.to_string(), "reason": "Stubbed", "code": code.as_u16(),
    });
    reply(code, &status)
}

fn reply(code: StatusCode, value: &Value) -> StubResponse {
    let body = Full::new(Bytes::from(value.to_string()));
    let mut response = Response::new(body.map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = code;
    response
}

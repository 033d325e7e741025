//! The agent's Secret, with the few fields that the agent needs.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::{Request, StatusCode, header};
use serde_json::Value;

use super::ApiServer;
use crate::error::{Error, Result};

/// The content of a Secret, and the object that it was read from. A change keeps everything else of the object.
#[derive(Clone)]
pub(crate) struct Secret {
    object: Value,
    pub(crate) data: BTreeMap<String, Vec<u8>>,
}

/// What became of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Update {
    Stored,
    /// Another process has changed the Secret meanwhile: read it again.
    Conflict,
}

impl Secret {
    pub(crate) fn parse(object: Value) -> Option<Self> {
        let mut data = BTreeMap::new();
        for (key, value) in object["data"].as_object().into_iter().flatten() {
            data.insert(key.clone(), BASE64_STANDARD.decode(value.as_str()?).ok()?);
        }
        object["metadata"]["resourceVersion"].as_str()?;
        Some(Self { object, data })
    }

    /// The object with the changed content, and with the version that was read: the API server refuses it if the Secret
    /// was changed since.
    fn to_object(&self) -> Value {
        let mut object = self.object.clone();
        let encode = |(key, value): (&String, &Vec<u8>)| {
            (key.clone(), Value::from(BASE64_STANDARD.encode(value)))
        };
        object["data"] = Value::Object(self.data.iter().map(encode).collect());
        object
    }

    /// A text of the content. An empty value is as good as none: charts create Secrets so.
    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        let text = str::from_utf8(self.data.get(key)?).ok()?;
        (!text.trim().is_empty()).then_some(text)
    }

    pub(crate) fn set(&mut self, key: &str, text: &str) {
        self.data.insert(key.to_owned(), text.as_bytes().to_vec());
    }

    pub(crate) fn remove(&mut self, key: &str) {
        self.data.remove(key);
    }
}

impl ApiServer {
    /// Reads a Secret of the agent's namespace.
    pub(crate) async fn secret(&self, name: &str) -> Result<Secret> {
        let request = Request::get(self.secret_path(name));
        let (status, body) = self.own_request(request, Bytes::new()).await?;
        let unexpected = Error::Secret {
            name: name.to_owned(),
            namespace: self.namespace.clone(),
            verb: "get",
            status,
        };
        match status {
            StatusCode::OK => serde_json::from_slice(&body)
                .ok()
                .and_then(Secret::parse)
                .ok_or(unexpected),
            StatusCode::NOT_FOUND => Err(Error::NoSecret {
                name: name.to_owned(),
                namespace: self.namespace.clone(),
            }),
            _ => Err(unexpected),
        }
    }

    /// Replaces a Secret that was read, unless it was changed meanwhile.
    pub(crate) async fn update_secret(&self, name: &str, secret: &Secret) -> Result<Update> {
        let request =
            Request::put(self.secret_path(name)).header(header::CONTENT_TYPE, "application/json");
        let object = secret.to_object().to_string();
        let (status, _) = self.own_request(request, object.into()).await?;
        match status {
            StatusCode::OK => Ok(Update::Stored),
            StatusCode::CONFLICT => Ok(Update::Conflict),
            _ => Err(Error::Secret {
                name: name.to_owned(),
                namespace: self.namespace.clone(),
                verb: "update",
                status,
            }),
        }
    }

    fn secret_path(&self, name: &str) -> String {
        format!("/api/v1/namespaces/{}/secrets/{name}", self.namespace)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_change_keeps_the_rest_of_the_object() {
        let object = json!({
            "kind": "Secret",
            "metadata": { "name": "a", "resourceVersion": "7", "labels": { "b": "c" } },
            "type": "Opaque",
            "data": { "tls.crt": "QQ==", "other": "Qg==" },
        });
        let mut secret = Secret::parse(object).unwrap();
        assert_eq!(secret.text("tls.crt"), Some("A"));
        secret.set("tls.crt", "C");
        secret.set("tls.key", "D");
        secret.remove("other");
        let expected = json!({
            "kind": "Secret",
            "metadata": { "name": "a", "resourceVersion": "7", "labels": { "b": "c" } },
            "type": "Opaque",
            "data": { "tls.crt": "Qw==", "tls.key": "RA==" },
        });
        assert_eq!(secret.to_object(), expected);
    }

    #[test]
    fn empty_values_and_no_content_are_nothing() {
        for data in [json!(null), json!({}), json!({ "tls.crt": "" })] {
            let object = json!({ "metadata": { "resourceVersion": "1" }, "data": data });
            let secret = Secret::parse(object).unwrap();
            assert_eq!(secret.text("tls.crt"), None);
        }
    }

    #[test]
    fn other_objects_are_no_secrets() {
        for object in [
            json!({ "kind": "Status" }),
            json!({ "metadata": { "resourceVersion": "1" }, "data": { "a": "%" } }),
            json!([]),
        ] {
            assert!(Secret::parse(object).is_none());
        }
    }
}

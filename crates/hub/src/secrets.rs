//! A Secret that several replicas change. Each write contains the version that was read, so that a change in between is a
//! conflict, and is then repeated with what the other replica has written.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::Mutex;

use crate::error::{Error, KubeResultExt as _, Result};

const CONFLICT: u16 = 409;
/// With this many replicas writing at the same moment, the last one still succeeds.
const MAX_ATTEMPTS: usize = 20;

/// The contents of a Secret.
pub(crate) type Data = BTreeMap<String, Vec<u8>>;

/// A Secret that exists: the chart creates it, and the hub may only read and update it.
pub(crate) struct SharedSecret {
    secrets: Api<Secret>,
    name: String,
    /// The changes of this replica do not conflict with one another.
    changing: Mutex<()>,
}

impl std::fmt::Debug for SharedSecret {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("SharedSecret")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl SharedSecret {
    pub(crate) fn new(client: Client, namespace: &str, name: &str) -> Self {
        Self {
            secrets: Api::namespaced(client, namespace),
            name: name.to_owned(),
            changing: Mutex::new(()),
        }
    }

    pub(crate) async fn read(&self) -> Result<Data> {
        Ok(data(&self.get().await?))
    }

    /// Applies a change and writes the result, if it differs. `change` is repeated after a conflict.
    pub(crate) async fn update<T>(
        &self,
        mut change: impl FnMut(&mut Data) -> Result<T> + Send,
    ) -> Result<T> {
        let _changing = self.changing.lock().await;
        for _ in 0..MAX_ATTEMPTS {
            let mut secret = self.get().await?;
            let found = data(&secret);
            let mut changed = found.clone();
            let outcome = change(&mut changed)?;
            if changed == found {
                return Ok(outcome);
            }
            secret.data = Some(
                changed
                    .into_iter()
                    .map(|(key, value)| (key, ByteString(value)))
                    .collect(),
            );
            let written = self
                .secrets
                .replace(&self.name, &PostParams::default(), &secret)
                .await;
            match written {
                Ok(_) => return Ok(outcome),
                Err(kube::Error::Api(status)) if status.code == CONFLICT => {}
                Err(error) => {
                    return Err(error).action(format!("write the Secret {}", self.name));
                }
            }
        }
        Err(Error::Conflict {
            name: self.name.clone(),
        })
    }

    /// The error for a value that cannot be used.
    pub(crate) fn invalid(
        &self,
        key: &'static str,
        hint: &'static str,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Error {
        Error::InvalidSecret {
            name: self.name.clone(),
            key,
            hint,
            source: Box::new(source),
        }
    }

    async fn get(&self) -> Result<Secret> {
        let found = self.secrets.get_opt(&self.name).await;
        let found = found.action(format!("read the Secret {}", self.name))?;
        found.ok_or_else(|| Error::NoSecret {
            name: self.name.clone(),
        })
    }
}

fn data(secret: &Secret) -> Data {
    let data = secret.data.iter().flatten();
    data.map(|(key, value)| (key.clone(), value.0.clone()))
        .collect()
}

/// A value of a Secret as text.
pub(crate) fn text<'a>(data: &'a Data, key: &str) -> Option<&'a str> {
    let value = std::str::from_utf8(data.get(key)?).ok()?;
    (!value.trim().is_empty()).then_some(value)
}

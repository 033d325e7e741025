//! The few requests that the lab sends to an API server while a cluster starts.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use ureq::Agent;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

use crate::error::{Error, ErrorContext as _, Result};
use crate::plan::ClusterPlan;

pub(crate) struct ApiServer {
    cluster: String,
    address: String,
    agent: Agent,
}

impl ApiServer {
    /// `pki` is the folder with the administrator's certificate.
    pub(crate) fn new(cluster: &ClusterPlan, pki: &Path) -> Result<Self> {
        let read = |name: &str| {
            let path = pki.join(name);
            fs::read(&path).with_context(|| format!("read {}", path.display()))
        };
        let invalid = |error: ureq::Error| Error::Api {
            cluster: cluster.name.clone(),
            path: pki.display().to_string(),
            message: error.to_string(),
        };
        let certificate = Certificate::from_pem(&read("admin.crt")?).map_err(invalid)?;
        let key = PrivateKey::from_pem(&read("admin.key")?).map_err(invalid)?;
        let authority = Certificate::from_pem(&read("ca.crt")?).map_err(invalid)?;
        let tls = TlsConfig::builder()
            .client_cert(Some(ClientCert::new_with_certs(&[certificate], key)))
            .root_certs(RootCerts::new_with_certs(&[authority]))
            .build();
        let agent = Agent::config_builder()
            .tls_config(tls)
            .timeout_global(Some(Duration::from_secs(5)))
            .http_status_as_error(false)
            // An HTTP proxy from the environment cannot reach the lab.
            .proxy(None)
            .build()
            .new_agent();
        Ok(ApiServer {
            cluster: cluster.name.clone(),
            address: cluster.api_server(),
            agent,
        })
    }

    /// Whether the server reports that it is ready. A server that does not respond is not ready.
    pub(crate) fn is_ready(&self) -> bool {
        self.agent
            .get(format!("{}/readyz", self.address))
            .call()
            .is_ok_and(|response| response.status().is_success())
    }

    /// The object at a path, or `None` if it does not exist.
    pub(crate) fn get(&self, path: &str) -> Result<Option<Value>> {
        let failed = |message: String| Error::Api {
            cluster: self.cluster.clone(),
            path: path.to_owned(),
            message,
        };
        let mut response = self
            .agent
            .get(format!("{}{path}", self.address))
            .call()
            .map_err(|error| failed(error.to_string()))?;
        match response.status().as_u16() {
            200 => response
                .body_mut()
                .read_json()
                .map(Some)
                .map_err(|error| failed(error.to_string())),
            404 => Ok(None),
            status => {
                let text = response.body_mut().read_to_string().unwrap_or_default();
                Err(failed(format!("{status} {text}")))
            }
        }
    }

    /// Whether an object has a condition with status `True`.
    pub(crate) fn has_condition(&self, path: &str, condition: &str) -> bool {
        let Ok(Some(object)) = self.get(path) else {
            return false;
        };
        object["status"]["conditions"]
            .as_array()
            .is_some_and(|list| {
                list.iter()
                    .any(|entry| entry["type"] == condition && entry["status"] == "True")
            })
    }
}

//! Everything that configures checkout: its environment, the shop's configuration file and its secret.

use std::env;
use std::fmt;
use std::path::PathBuf;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Listening ports, addresses of the other services, and files to read.
#[derive(Clone)]
pub struct Settings {
    pub http_port: u16,
    pub grpc_port: u16,
    /// `host:port` of inventory's gRPC.
    pub inventory: String,
    pub pricing_url: String,
    /// `host:port` of pricing's line protocol and of its datagrams.
    pub pricing_tcp: String,
    pub pricing_udp: String,
    /// Holds a password.
    pub database_url: String,
    pub stage: String,
    pub config_file: PathBuf,
    pub api_key_file: PathBuf,
}

impl Settings {
    pub fn from_environment() -> anyhow::Result<Self> {
        Ok(Self {
            http_port: port("HTTP_PORT", 8080)?,
            grpc_port: port("GRPC_PORT", 9000)?,
            inventory: variable("INVENTORY_ADDRESS", "inventory:9000"),
            pricing_url: variable("PRICING_URL", "http://pricing:8080"),
            pricing_tcp: variable("PRICING_TCP_ADDRESS", "pricing:7000"),
            pricing_udp: variable("PRICING_UDP_ADDRESS", "pricing:7001"),
            database_url: variable("DATABASE_URL", "postgres://shop@database:5432/shop"),
            stage: variable("SHOP_STAGE", "local"),
            config_file: variable("SHOP_CONFIG", "/etc/shop/shop.json").into(),
            api_key_file: variable("SHOP_API_KEY_FILE", "/var/run/secrets/shop/api-key").into(),
        })
    }

    /// Reads the file on each call: it is small, and it changes while the pod runs. Without a readable file the defaults
    /// apply.
    pub(crate) async fn shop_config(&self) -> ShopConfig {
        let text = tokio::fs::read(&self.config_file).await.unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    pub(crate) async fn api_key(&self) -> ApiKey {
        let secret = tokio::fs::read(&self.api_key_file).await.ok();
        ApiKey {
            present: secret.is_some(),
            fingerprint: secret.map(|secret| fingerprint(&secret)),
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Settings")
            .field("inventory", &self.inventory)
            .field("pricing", &self.pricing_url)
            .finish_non_exhaustive()
    }
}

/// The ConfigMap that all services of the shop share.
#[derive(Debug, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct ShopConfig {
    pub(crate) greeting: String,
    pub(crate) currency: String,
    pub(crate) discount_percent: u32,
    pub(crate) low_stock: u32,
}

impl Default for ShopConfig {
    fn default() -> Self {
        Self {
            greeting: "Welcome".to_owned(),
            currency: "EUR".to_owned(),
            discount_percent: 0,
            low_stock: 10,
        }
    }
}

/// Whether the secret exists, and its fingerprint, without revealing the secret.
#[derive(Debug, Serialize)]
pub(crate) struct ApiKey {
    present: bool,
    fingerprint: Option<String>,
}

fn fingerprint(secret: &[u8]) -> String {
    let hex: String = Sha256::digest(secret)
        .iter()
        .take(6)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("sha256:{hex}")
}

pub(crate) fn variable(name: &str, default: &str) -> String {
    env::var(name)
        .ok()
        .filter(|value| !value.is_empty())
        .unwrap_or_else(|| default.to_owned())
}

fn port(name: &str, default: u16) -> anyhow::Result<u16> {
    variable(name, &default.to_string())
        .parse()
        .with_context(|| format!("{name} is not a port"))
}

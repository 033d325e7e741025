//! Incoming: connections to the target as raw streams.

use std::fmt;
use std::net::SocketAddr;

use http::HeaderMap;

use crate::Result;
use crate::rpc::TargetTls;
use crate::stream::{get_bytes, require, set, set_bytes};

pub const ACCEPT: &str = "/standin.session.v1/incoming/accept";

/// The first byte of the request body of [`ACCEPT`]: the application has accepted the connection.
pub const ACCEPTED: u8 = 1;

const SUBSCRIPTION: &str = "standin-subscription";
const CLIENT: &str = "standin-client";
const SERVER: &str = "standin-server";
const SERVER_NAME: &str = "standin-server-name";
const MIRROR: &str = "standin-mirror";
const APPLICATION_PROTOCOL: &str = "standin-application-protocol";

const AN_ADDRESS: &str = "an address with a port, such as 192.0.2.1:80 or [2001:db8::1]:80";

/// Waits for the next connection of a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accept {
    /// The id that `Incoming.Subscribe` returned.
    pub subscription: u64,
}

impl Accept {
    #[must_use]
    pub fn to_headers(self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        set(&mut headers, SUBSCRIPTION, self.subscription);
        headers
    }

    pub fn from_headers(headers: &HeaderMap) -> Result<Self> {
        let subscription = require(headers, SUBSCRIPTION, "a number")?;
        Ok(Self { subscription })
    }
}

/// Metadata of an incoming connection: its addresses as the client sees them, and its TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionMeta {
    pub client: SocketAddr,
    pub server: SocketAddr,
    /// Set if the agent has terminated the client's TLS.
    pub tls: Option<ClientTls>,
    /// A mirrored connection: responses are discarded, so they need not be sent.
    pub is_mirrored: bool,
}

/// The parameters of a client's TLS handshake.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientTls {
    pub server_name: Option<String>,
    /// The negotiated protocol, such as `h2`.
    pub application_protocol: Option<Vec<u8>>,
}

impl ConnectionMeta {
    #[must_use]
    pub fn to_headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        set(&mut headers, CLIENT, self.client);
        set(&mut headers, SERVER, self.server);
        if let Some(tls) = &self.tls {
            // The server name is always sent, even if empty: its presence means TLS.
            let name = tls.server_name.as_deref().unwrap_or_default();
            set_bytes(&mut headers, SERVER_NAME, name.as_bytes());
            if let Some(protocol) = &tls.application_protocol {
                set_bytes(&mut headers, APPLICATION_PROTOCOL, protocol);
            }
        }
        if self.is_mirrored {
            set(&mut headers, MIRROR, 1);
        }
        headers
    }

    pub fn from_headers(headers: &HeaderMap) -> Result<Self> {
        let name = get_bytes(headers, SERVER_NAME)?;
        let application_protocol = get_bytes(headers, APPLICATION_PROTOCOL)?;
        let tls = name.map(|name| ClientTls {
            server_name: Some(String::from_utf8_lossy(&name).into_owned())
                .filter(|name| !name.is_empty()),
            application_protocol,
        });
        Ok(Self {
            client: require(headers, CLIENT, AN_ADDRESS)?,
            server: require(headers, SERVER, AN_ADDRESS)?,
            tls,
            is_mirrored: headers.contains_key(MIRROR),
        })
    }
}

/// Keys are never shown.
impl fmt::Debug for TargetTls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("TargetTls")
            .field("certificate_path", &self.certificate_path)
            .field("key_path", &self.key_path)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subscription_survives_as_headers() {
        let accept = Accept { subscription: 7 };
        assert_eq!(Accept::from_headers(&accept.to_headers()), Ok(accept));
        assert!(Accept::from_headers(&HeaderMap::new()).is_err());
    }

    #[test]
    fn connection_metadata_survives_as_headers() {
        let check = |tls: Option<ClientTls>| {
            let meta = ConnectionMeta {
                is_mirrored: tls.is_some(),
                client: "[2001:db8::7]:50000".parse().unwrap(),
                server: "192.0.2.1:443".parse().unwrap(),
                tls,
            };
            assert_eq!(ConnectionMeta::from_headers(&meta.to_headers()), Ok(meta));
        };
        check(None);
        check(Some(ClientTls::default()));
        check(Some(ClientTls {
            server_name: Some("shop.example".to_owned()),
            application_protocol: Some(b"h2".to_vec()),
        }));
    }

    #[test]
    fn a_key_is_never_shown() {
        let tls = TargetTls {
            key_path: "/tls/key.pem".into(),
            key: "secret".into(),
            ..TargetTls::default()
        };
        let shown = format!("{tls:?}");
        assert!(
            shown.contains("/tls/key.pem") && !shown.contains("secret"),
            "{shown}"
        );
    }
}

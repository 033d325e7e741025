//! Incoming: what arrives at the target, as raw streams.

use std::fmt;
use std::net::SocketAddr;

use http::HeaderMap;

use crate::Result;
use crate::rpc::TargetTls;
use crate::stream::{get_bytes, require, set, set_bytes};

pub const ACCEPT: &str = "/standin.session.v1/incoming/accept";

/// The first byte of the request body of [`ACCEPT`]: the application has taken the connection.
pub const TAKEN: u8 = 1;

const SUBSCRIPTION: &str = "standin-subscription";
const CLIENT: &str = "standin-client";
const SERVER: &str = "standin-server";
const SERVER_NAME: &str = "standin-server-name";
const COPY: &str = "standin-copy";
const APPLICATION_PROTOCOL: &str = "standin-application-protocol";

const AN_ADDRESS: &str = "an address with a port, such as 192.0.2.1:80 or [2001:db8::1]:80";

/// Waits for the next connection of a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accept {
    /// As `Incoming.Subscribe` named it.
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

/// A connection that has arrived: its two ends as the client sees them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrived {
    pub client: SocketAddr,
    pub server: SocketAddr,
    /// What the client said when it asked for TLS, if it did and the agent has read it.
    pub tls: Option<ArrivedTls>,
    /// A copy: nobody hears what is answered, so it need not be sent.
    pub is_copy: bool,
}

/// What a client said when it asked for TLS.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ArrivedTls {
    pub server_name: Option<String>,
    /// What was agreed on, such as `h2`.
    pub application_protocol: Option<Vec<u8>>,
}

impl Arrived {
    #[must_use]
    pub fn to_headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        set(&mut headers, CLIENT, self.client);
        set(&mut headers, SERVER, self.server);
        if let Some(tls) = &self.tls {
            // Either of them says that there is TLS.
            let name = tls.server_name.as_deref().unwrap_or_default();
            set_bytes(&mut headers, SERVER_NAME, name.as_bytes());
            if let Some(protocol) = &tls.application_protocol {
                set_bytes(&mut headers, APPLICATION_PROTOCOL, protocol);
            }
        }
        if self.is_copy {
            set(&mut headers, COPY, 1);
        }
        headers
    }

    pub fn from_headers(headers: &HeaderMap) -> Result<Self> {
        let name = get_bytes(headers, SERVER_NAME)?;
        let application_protocol = get_bytes(headers, APPLICATION_PROTOCOL)?;
        let tls = name.map(|name| ArrivedTls {
            server_name: Some(String::from_utf8_lossy(&name).into_owned())
                .filter(|name| !name.is_empty()),
            application_protocol,
        });
        Ok(Self {
            client: require(headers, CLIENT, AN_ADDRESS)?,
            server: require(headers, SERVER, AN_ADDRESS)?,
            tls,
            is_copy: headers.contains_key(COPY),
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
    fn arrivals_survive_as_headers() {
        let check = |tls: Option<ArrivedTls>| {
            let arrived = Arrived {
                is_copy: tls.is_some(),
                client: "[2001:db8::7]:50000".parse().unwrap(),
                server: "192.0.2.1:443".parse().unwrap(),
                tls,
            };
            assert_eq!(Arrived::from_headers(&arrived.to_headers()), Ok(arrived));
        };
        check(None);
        check(Some(ArrivedTls::default()));
        check(Some(ArrivedTls {
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

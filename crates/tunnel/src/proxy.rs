//! HTTP proxies: which connections use one, and `CONNECT`.
//!
//! The rules are those of `HTTPS_PROXY` and `NO_PROXY` as curl and most programs understand them. The program reads the
//! variables; here are only their values.

use std::fmt;
use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Uri;
use percent_encoding::percent_decode_str;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};

use crate::dial::read_head;
use crate::error::Error;

/// An HTTP proxy.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    host: String,
    port: u16,
    /// The value of `Proxy-Authorization`. It is never printed.
    authorization: Option<String>,
}

/// Which connections use a proxy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProxyRules {
    proxy: Option<Proxy>,
    exceptions: Vec<Exception>,
}

/// A destination that is reached directly.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Exception {
    All,
    Network {
        address: IpAddr,
        prefix: u8,
    },
    /// A name and every name below it, on one port or all.
    Name {
        name: String,
        port: Option<u16>,
    },
}

impl ProxyRules {
    /// The values of `HTTPS_PROXY` and `NO_PROXY`. An empty value is like none.
    ///
    /// # Errors
    /// When the address of the proxy cannot be used.
    pub fn new(https_proxy: Option<&str>, no_proxy: Option<&str>) -> Result<Self, Error> {
        let proxy = https_proxy.map(str::trim).filter(|proxy| !proxy.is_empty());
        let exceptions = no_proxy.unwrap_or_default();
        Ok(Self {
            proxy: proxy.map(Proxy::parse).transpose()?,
            exceptions: exceptions.split(',').filter_map(Exception::parse).collect(),
        })
    }

    /// The proxy for a destination, if it needs one.
    pub fn proxy_for(&self, host: &str, port: u16) -> Option<&Proxy> {
        let is_direct = self
            .exceptions
            .iter()
            .any(|exception| exception.includes(host, port));
        self.proxy.as_ref().filter(|_| !is_direct)
    }
}

impl Exception {
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim().to_ascii_lowercase();
        if text.is_empty() {
            return None;
        }
        if text == "*" {
            return Some(Self::All);
        }
        let (address, prefix) = text.split_once('/').unwrap_or((&text, "128"));
        if let Ok(address) = address.trim_matches(['[', ']']).parse::<IpAddr>() {
            let prefix = prefix.parse().ok()?;
            return Some(Self::Network { address, prefix });
        }
        let (name, port) = match text.rsplit_once(':') {
            Some((name, port)) => (name, Some(port.parse().ok()?)),
            None => (text.as_str(), None),
        };
        let name = name.trim_start_matches("*.").trim_start_matches('.');
        Some(Self::Name {
            name: name.to_owned(),
            port,
        })
    }

    fn includes(&self, host: &str, port: u16) -> bool {
        match self {
            Self::All => true,
            Self::Network { address, prefix } => host
                .parse::<IpAddr>()
                .is_ok_and(|host| is_in(host, *address, *prefix)),
            Self::Name { name, port: only } => {
                let host = host.to_ascii_lowercase();
                let is_below = |rest: &str| rest.is_empty() || rest.ends_with('.');
                only.is_none_or(|only| only == port)
                    && host.strip_suffix(name.as_str()).is_some_and(is_below)
            }
        }
    }
}

/// Whether an address is in a network.
fn is_in(address: IpAddr, network: IpAddr, prefix: u8) -> bool {
    let (address, network, bits): (u128, u128, u32) = match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) => {
            (u32::from(address).into(), u32::from(network).into(), 32)
        }
        (IpAddr::V6(address), IpAddr::V6(network)) => (address.into(), network.into(), 128),
        _ => return false,
    };
    let host_bits = bits - u32::from(prefix).min(bits);
    let without_host = |address: u128| address.checked_shr(host_bits).unwrap_or(0);
    without_host(address) == without_host(network)
}

impl Proxy {
    /// Parses an address such as `http://user:password@proxy.example.com:3128`.
    fn parse(url: &str) -> Result<Self, Error> {
        // The address may contain a password, so it is not repeated.
        let invalid = |why: &str| Error::Setting(format!("the proxy's address {why}"));
        let with_scheme = match url.contains("://") {
            true => url.to_owned(),
            false => format!("http://{url}"),
        };
        let uri: Uri = with_scheme
            .parse()
            .map_err(|_| invalid("is no URL, such as http://proxy.example.com:3128"))?;
        if uri.scheme_str() != Some("http") {
            return Err(invalid("has to start with http://"));
        }
        let authority = uri.authority().ok_or_else(|| invalid("has no host name"))?;
        let user = authority.as_str().rsplit_once('@').map(|(user, _)| user);
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        if host.is_empty() {
            return Err(invalid("has no host name"));
        }
        Ok(Self {
            host,
            port: uri.port_u16().unwrap_or(80),
            authorization: user.map(|user| {
                let user: Vec<u8> = percent_decode_str(user).collect();
                format!("Basic {}", STANDARD.encode(user))
            }),
        })
    }

    /// Host and port.
    pub fn address(&self) -> (&str, u16) {
        (&self.host, self.port)
    }

    /// Asks the proxy for a connection to `authority`.
    pub async fn connect(
        &self,
        connection: &mut (impl AsyncRead + AsyncWrite + Unpin),
        authority: &str,
    ) -> Result<(), Error> {
        let failed = |reason: String| Error::Proxy {
            proxy: self.to_string(),
            address: authority.to_owned(),
            reason,
        };
        let authorization = self
            .authorization
            .as_ref()
            .map(|value| format!("Proxy-Authorization: {value}\r\n"))
            .unwrap_or_default();
        let request =
            format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n{authorization}\r\n");
        let lost = |error: std::io::Error| failed(error.to_string());
        connection
            .write_all(request.as_bytes())
            .await
            .map_err(lost)?;
        let (head, rest) = match read_head(connection, lost).await {
            Err(Error::Intermediary { .. }) => {
                return Err(failed("it is no HTTP proxy".to_owned()));
            }
            other => other?,
        };
        match head.status {
            200..=299 if rest.is_empty() => Ok(()),
            200..=299 => Err(failed("it sends bytes that were not asked for".to_owned())),
            407 => Err(failed(
                "it requires a user name and a password (HTTP 407); add them to its address"
                    .to_owned(),
            )),
            status => Err(failed(format!("it answers HTTP {status}"))),
        }
    }
}

impl fmt::Display for Proxy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.host, self.port)
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Proxy({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_a_proxy() {
        let check = |url: &str, expected: Result<(&str, u16, Option<&str>), &str>| {
            let parsed = Proxy::parse(url).map_err(|error| error.to_string());
            let parsed = parsed.as_ref().map(|proxy| {
                (
                    proxy.host.as_str(),
                    proxy.port,
                    proxy.authorization.as_deref(),
                )
            });
            let expected = expected.map_err(|why| format!("the proxy's address {why}"));
            assert_eq!(parsed.map_err(Clone::clone), expected);
        };
        check("http://proxy:3128", Ok(("proxy", 3128, None)));
        check("proxy:3128", Ok(("proxy", 3128, None)));
        check("http://proxy/", Ok(("proxy", 80, None)));
        check("http://[::1]:1", Ok(("::1", 1, None)));
        check(
            "http://me:p%40ss@proxy:1",
            Ok(("proxy", 1, Some("Basic bWU6cEBzcw=="))),
        );
        check("https://proxy:1", Err("has to start with http://"));
        check(
            "http://a b",
            Err("is no URL, such as http://proxy.example.com:3128"),
        );
    }

    #[test]
    fn a_password_is_never_printed() {
        let proxy = Proxy::parse("http://me:secret@proxy:1").unwrap();
        assert_eq!(format!("{proxy} {proxy:?}"), "proxy:1 Proxy(proxy:1)");
    }

    #[test]
    fn which_connections_use_the_proxy() {
        let check = |no_proxy: &str, host: &str, uses_proxy: bool| {
            let rules = ProxyRules::new(Some("http://proxy:3128"), Some(no_proxy)).unwrap();
            let found = rules.proxy_for(host, 8443).is_some();
            assert_eq!(found, uses_proxy, "{host} with {no_proxy}");
        };
        check("", "hub.example.com", true);
        check("*", "hub.example.com", false);
        check("example.com", "hub.example.com", false);
        check("example.com", "example.com", false);
        check(".example.com", "hub.example.com", false);
        check("*.example.com", "hub.example.com", false);
        check("example.com", "hub-example.com", true);
        check("other.com, HUB.example.com ", "hub.EXAMPLE.com", false);
        check("example.com:8443", "hub.example.com", false);
        check("example.com:443", "hub.example.com", true);
        check("10.0.0.0/8", "10.1.2.3", false);
        check("10.0.0.0/8", "11.1.2.3", true);
        check("10.1.2.3", "10.1.2.3", false);
        check("10.1.2.3", "10.1.2.4", true);
        check("fd00::/8", "fd12::1", false);
        check("0.0.0.0/0", "10.1.2.3", false);
        let none = ProxyRules::new(Some(" "), None).unwrap();
        assert_eq!(none.proxy_for("hub", 1), None);
    }
}

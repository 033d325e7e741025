//! Addresses of servers, as administrators write them.

use std::fmt;
use std::str::FromStr;

use http::Uri;
use http::uri::Scheme as UriScheme;
use rustls::pki_types::ServerName;

/// An address such as `wss://hub.example.com:8443`: a scheme, a host and a port, and no path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    scheme: Scheme,
    /// Without the brackets of an IPv6 address.
    host: String,
    port: u16,
}

/// The protocols that agents speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    Https,
    Http,
    Wss,
    Ws,
}

/// Why a text is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEndpoint {
    #[error("`{0}` is no URL: write it as wss://HOST:PORT or https://HOST:PORT")]
    Malformed(String),
    #[error(
        "`{0}` has the scheme `{1}`: use wss:// for the agents' address, and https:// for the registration"
    )]
    Scheme(String, String),
    #[error("`{0}` has a path: write only the scheme, the host and the port")]
    Path(String),
    #[error("`{0}` contains a user name or a password: remove it")]
    UserInfo(String),
}

impl Scheme {
    const fn name(self) -> &'static str {
        match self {
            Self::Https => "https",
            Self::Http => "http",
            Self::Wss => "wss",
            Self::Ws => "ws",
        }
    }

    const fn default_port(self) -> u16 {
        match self {
            Self::Https | Self::Wss => 443,
            Self::Http | Self::Ws => 80,
        }
    }

    /// The scheme of ordinary requests to a server that is reached with this one.
    const fn for_requests(self) -> Self {
        match self {
            Self::Https | Self::Wss => Self::Https,
            Self::Http | Self::Ws => Self::Http,
        }
    }

    /// Whether connections are encrypted.
    #[must_use]
    pub const fn is_encrypted(self) -> bool {
        matches!(self, Self::Https | Self::Wss)
    }
}

impl Endpoint {
    /// An address with https.
    #[must_use]
    pub fn https(host: &str, port: u16) -> Self {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Self {
            scheme: Scheme::Https,
            host: host.to_owned(),
            port,
        }
    }

    /// Where an agent with this server registers, unless another address is set: the same host and port, with `https` for
    /// `wss` and `http` for `ws`.
    #[must_use]
    pub fn for_registration(&self) -> Self {
        Self {
            scheme: self.scheme.for_requests(),
            ..self.clone()
        }
    }

    #[must_use]
    pub const fn scheme(&self) -> Scheme {
        self.scheme
    }

    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Host and port, as in the header `Host` and in `CONNECT`.
    #[must_use]
    pub fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }

    /// The name that the server's certificate has to have.
    pub fn server_name(&self) -> Result<ServerName<'static>, InvalidEndpoint> {
        ServerName::try_from(self.host.clone())
            .map_err(|_| InvalidEndpoint::Malformed(self.to_string()))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}://{}", self.scheme.name(), self.authority())
    }
}

impl FromStr for Endpoint {
    type Err = InvalidEndpoint;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let malformed = || InvalidEndpoint::Malformed(text.to_owned());
        let uri: Uri = text.parse().map_err(|_| malformed())?;
        let scheme = uri.scheme().map(UriScheme::as_str).ok_or_else(malformed)?;
        let authority = uri.authority().ok_or_else(malformed)?;
        let scheme = match scheme {
            "https" => Scheme::Https,
            "http" => Scheme::Http,
            "wss" => Scheme::Wss,
            "ws" => Scheme::Ws,
            other => return Err(InvalidEndpoint::Scheme(text.to_owned(), other.to_owned())),
        };
        if authority.as_str().contains('@') {
            // Without the text: it may contain a password.
            return Err(InvalidEndpoint::UserInfo(authority.host().to_owned()));
        }
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(InvalidEndpoint::Path(text.to_owned()));
        }
        let host = authority.host();
        let port = match authority.port() {
            Some(port) => port.as_str().parse().map_err(|_| malformed())?,
            // The port after the colon may be missing or too large.
            None if authority.as_str() != host => return Err(malformed()),
            None => scheme.default_port(),
        };
        let endpoint = Self {
            scheme,
            host: host
                .trim_start_matches('[')
                .trim_end_matches(']')
                .to_owned(),
            port,
        };
        endpoint.server_name().map_err(|_| malformed())?;
        Ok(endpoint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_for_registrations_are_derived() {
        for (server, registration) in [
            ("wss://hub.example.com:8443", "https://hub.example.com:8443"),
            ("wss://hub.example.com", "https://hub.example.com:443"),
            ("ws://hub.example.com:8080/", "http://hub.example.com:8080"),
            ("ws://10.0.0.1", "http://10.0.0.1:80"),
            ("wss://[fd00::1]:8443", "https://[fd00::1]:8443"),
            ("https://hub.example.com", "https://hub.example.com:443"),
        ] {
            let endpoint: Endpoint = server.parse().unwrap();
            assert_eq!(endpoint.for_registration().to_string(), registration);
        }
    }

    #[test]
    fn other_texts_are_refused_with_the_reason() {
        for (text, reason) in [
            ("hub.example.com:8443", "is no URL"),
            ("", "is no URL"),
            ("wss://", "is no URL"),
            ("wss://hub:99999", "is no URL"),
            ("wss://hub:", "is no URL"),
            ("wss://hub_name..example", "is no URL"),
            ("tcp://hub:1", "has the scheme `tcp`"),
            ("wss://hub:8443/api/agents/connect", "has a path"),
            ("wss://hub:8443?a=b", "has a path"),
            ("wss://anna:SECRET@hub:8443", "user name or a password"),
        ] {
            let error = text.parse::<Endpoint>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
            assert!(!error.contains("SECRET"), "{error}");
        }
    }
}

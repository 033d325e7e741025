//! The address of a hub for Kubernetes clients.

use std::fmt;
use std::str::FromStr;

use axum::http::Uri;

const DEFAULT_PORT: u16 = 6443;

/// The host and the port of a hub. It is always reached with TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HubAddress {
    /// Without the brackets of an IPv6 address.
    pub(super) host: String,
    pub(super) port: u16,
}

impl HubAddress {
    /// How people and kubeconfigs name the hub: the host, and the port if it is not the default.
    pub(super) fn name(&self) -> String {
        match self.port {
            DEFAULT_PORT => self.bracketed_host(),
            port => format!("{}:{port}", self.bracketed_host()),
        }
    }

    pub(super) fn url(&self) -> String {
        format!("https://{}", self.authority())
    }

    /// The host and the port, as in URLs and in the header `Host`.
    pub(super) fn authority(&self) -> String {
        format!("{}:{}", self.bracketed_host(), self.port)
    }

    /// The name of the file with the login. The characters of hosts are limited, so it cannot leave its folder.
    pub(super) fn file_name(&self) -> String {
        let host = self.host.replace(':', "_");
        match self.port {
            DEFAULT_PORT => format!("{host}.json"),
            port => format!("{host}_{port}.json"),
        }
    }

    fn bracketed_host(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]", self.host),
            false => self.host.clone(),
        }
    }
}

impl FromStr for HubAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || format!("`{text}` is not an address such as https://hub.example.com");
        let url = match text.contains("://") {
            true => text.to_owned(),
            false => format!("https://{text}"),
        };
        let url: Uri = url.parse().map_err(|_| invalid())?;
        if url.scheme_str() != Some("https") {
            return Err(
                "a hub is reached with https; without TLS your token could be read".to_owned(),
            );
        }
        if !matches!(url.path(), "" | "/") || url.query().is_some() {
            return Err("a hub's address has neither a path nor a query".to_owned());
        }
        let authority = url.authority().ok_or_else(invalid)?;
        let host = authority.host().trim_start_matches('[');
        let host = host.trim_end_matches(']').to_lowercase();
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-:".contains(&byte);
        let is_host = host.bytes().all(is_plain) && !host.is_empty() && !host.starts_with('.');
        if !is_host || authority.as_str().contains('@') {
            return Err(invalid());
        }
        let has_port = authority.as_str().len() > authority.host().len();
        let port = match has_port {
            true => url.port_u16().ok_or_else(invalid)?,
            false => DEFAULT_PORT,
        };
        Ok(Self { host, port })
    }
}

impl fmt::Display for HubAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed() {
        #[rustfmt::skip] // A table is read by its columns.
        let table = [
            ("https://hub.example.com",       Ok(("hub.example.com",      "https://hub.example.com:6443", "hub.example.com.json"))),
            ("https://Hub.example.com:6443/", Ok(("hub.example.com",      "https://hub.example.com:6443", "hub.example.com.json"))),
            ("hub.example.com",               Ok(("hub.example.com",      "https://hub.example.com:6443", "hub.example.com.json"))),
            ("hub:443",                       Ok(("hub:443",              "https://hub:443",              "hub_443.json"))),
            ("https://[::1]:7000",            Ok(("[::1]:7000",           "https://[::1]:7000",           "__1_7000.json"))),
            ("http://hub.example.com",        Err("without TLS")),
            ("https://hub/clusters/a",        Err("neither a path")),
            ("https://hub/?a=b",              Err("neither a path")),
            ("https://me@hub",                Err("is not an address")),
            ("https://hub:port",              Err("is not an address")),
            ("https://..",                    Err("is not an address")),
            ("",                              Err("is not an address")),
        ];
        for (text, expected) in table {
            let parsed = text.parse::<HubAddress>();
            match (&parsed, expected) {
                (Ok(address), Ok((name, url, file))) => {
                    assert_eq!(address.name(), name, "{text}");
                    assert_eq!(address.url(), url, "{text}");
                    assert_eq!(address.file_name(), file, "{text}");
                    assert_eq!(name.parse::<HubAddress>().as_ref(), Ok(address), "{text}");
                }
                (Err(error), Err(expected)) => assert!(error.contains(expected), "{text}: {error}"),
                _ => panic!("{text}: {parsed:?}"),
            }
        }
    }
}

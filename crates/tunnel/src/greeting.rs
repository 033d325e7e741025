//! The upgrade request of an agent and the hub's response, without I/O.
//!
//! The request is a WebSocket upgrade with the protocol's version and the name of the cluster. A hub says its own version in
//! every response, so an agent knows a hub from a load balancer that answers in its place.

use http::{HeaderMap, StatusCode, Uri, header};
use httparse::{EMPTY_HEADER, Status};
use link::websocket::Upgrade;
use rustls::pki_types::ServerName;

use crate::error::Error;

/// The version of the protocol that this crate implements.
pub const VERSION: u16 = 1;
/// The oldest version that it works with: the one before its own.
pub const MIN_VERSION: u16 = VERSION.saturating_sub(1);
/// Says the version of the sender.
pub const VERSION_HEADER: &str = "standin-tunnel-version";
/// Says the name of the agent's cluster.
pub const CLUSTER_HEADER: &str = "standin-tunnel-cluster";
/// Where a hub accepts tunnels, unless the agent's settings say otherwise.
pub const CONNECT_PATH: &str = "/api/agents/connect";
/// Requests below this path are for the tunnel itself, and never forwarded.
pub const RESERVED_PATH: &str = "/.standin/";
/// The subprotocol of the WebSocket.
pub(crate) const SUBPROTOCOL: &str = "standin.tunnel.v1";

/// Maximum size of the head of a response. A hub's has a few hundred bytes.
pub(crate) const MAX_HEAD: usize = 16 * 1024;
const MAX_HEADERS: usize = 100;
/// How much of an error is shown.
const MAX_TEXT: usize = 512;

/// Whether peers with these versions work together: those at most one apart.
pub(crate) fn is_compatible(ours: u16, theirs: u16) -> bool {
    ours.abs_diff(theirs) <= 1
}

/// The hub's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) path: String,
}

impl Endpoint {
    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        let invalid = |why: &str| Error::Setting(format!("the hub's address `{url}` {why}"));
        let uri: Uri = url
            .parse()
            .map_err(|_| invalid("is no URL, such as wss://hub.example.com:8443"))?;
        match uri.scheme_str() {
            Some("wss" | "https") => {}
            _ => return Err(invalid("has to start with wss://")),
        }
        let host = uri.host().ok_or_else(|| invalid("has no host name"))?;
        let path = match uri.path() {
            "" | "/" => CONNECT_PATH,
            path => path,
        };
        Ok(Self {
            host: host.trim_matches(['[', ']']).to_owned(),
            port: uri.port_u16().unwrap_or(443),
            path: path.to_owned(),
        })
    }

    /// The name that the hub's certificate has to have.
    pub(crate) fn server_name(&self) -> Result<ServerName<'static>, Error> {
        ServerName::try_from(self.host.clone())
            .map_err(|_| Error::Setting(format!("`{}` is no host name", self.host)))
    }

    /// Host and port, as in a URL.
    pub(crate) fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

/// The head of an agent's upgrade request.
pub(crate) fn request_head(
    endpoint: &Endpoint,
    cluster: &str,
    ours: u16,
    upgrade: &Upgrade,
) -> Result<Vec<u8>, Error> {
    let request = upgrade
        .add_headers(http::Request::get(&endpoint.path))
        .header(header::HOST, endpoint.authority())
        .header(VERSION_HEADER, ours)
        .header(CLUSTER_HEADER, cluster)
        .body(());
    let request = request
        .map_err(|_| Error::Setting(format!("`{cluster}` cannot be the name of a cluster")))?;
    let mut head = format!("GET {} HTTP/1.1\r\n", endpoint.path).into_bytes();
    for (name, value) in request.headers() {
        head.extend_from_slice(name.as_str().as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    Ok(head)
}

/// The head of an HTTP response.
#[derive(Debug)]
pub(crate) struct ResponseHead {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    /// How many bytes it has.
    pub(crate) length: usize,
}

/// Parses the head of a response. `None` means that more bytes are needed.
pub(crate) fn parse_response(bytes: &[u8]) -> Result<Option<ResponseHead>, Error> {
    let no_http = || Error::Intermediary {
        found: "the response is not HTTP".to_owned(),
    };
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let length = match response.parse(bytes).map_err(|_| no_http())? {
        Status::Complete(length) => length,
        Status::Partial if bytes.len() < MAX_HEAD => return Ok(None),
        Status::Partial => return Err(no_http()),
    };
    let mut map = HeaderMap::new();
    for header in response.headers.iter() {
        let name = header::HeaderName::from_bytes(header.name.as_bytes());
        let value = header::HeaderValue::from_bytes(header.value);
        if let (Ok(name), Ok(value)) = (name, value) {
            map.append(name, value);
        }
    }
    Ok(Some(ResponseHead {
        status: response.code.unwrap_or_default(),
        headers: map,
        length,
    }))
}

/// Whether the response opens the tunnel; otherwise why not. `body` is the beginning of the response's body.
pub(crate) fn check_response(
    head: &ResponseHead,
    ours: u16,
    upgrade: &Upgrade,
    body: &[u8],
) -> Result<(), Error> {
    let theirs = version(&head.headers);
    if head.status == StatusCode::SWITCHING_PROTOCOLS.as_u16() {
        return match theirs {
            Some(theirs) if !is_compatible(ours, theirs) => {
                Err(Error::VersionMismatch { ours, theirs })
            }
            Some(_) if upgrade.is_accepted(&head.headers) => Ok(()),
            _ => Err(Error::Intermediary {
                found: "the upgrade was answered by something that is no hub".to_owned(),
            }),
        };
    }
    let Some(theirs) = theirs else {
        return Err(Error::Intermediary {
            found: foreign_response(head, body),
        });
    };
    if head.status == StatusCode::UPGRADE_REQUIRED.as_u16() {
        return match is_compatible(ours, theirs) {
            false => Err(Error::VersionMismatch { ours, theirs }),
            // The hub has not seen the upgrade that this agent has sent.
            true => Err(Error::Intermediary {
                found: "the upgrade headers did not reach the hub".to_owned(),
            }),
        };
    }
    Err(Error::Refused {
        status: head.status,
        text: error_text(body),
    })
}

/// Describes a response that does not come from a hub.
fn foreign_response(head: &ResponseHead, body: &[u8]) -> String {
    let is_html = head
        .headers
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"text/html"))
        || body.trim_ascii_start().starts_with(b"<");
    let kind = if is_html { " and a web page" } else { "" };
    let server = head
        .headers
        .get(header::SERVER)
        .and_then(|server| server.to_str().ok())
        .map(|server| format!(" from `{}`", truncated(server, 64)))
        .unwrap_or_default();
    format!("the response is HTTP {}{kind}{server}", head.status)
}

/// The text of a hub's error, which is JSON.
fn error_text(body: &[u8]) -> String {
    #[derive(serde::Deserialize)]
    struct Body {
        #[serde(alias = "message")]
        error: String,
    }
    match serde_json::from_slice::<Body>(body) {
        Ok(body) => truncated(&body.error, MAX_TEXT),
        Err(_) => truncated(&String::from_utf8_lossy(body), MAX_TEXT),
    }
}

/// The first characters, without those that could garble a terminal.
fn truncated(text: &str, max: usize) -> String {
    let readable = |character: &char| !character.is_control();
    text.trim().chars().filter(readable).take(max).collect()
}

/// The version of the peer with these headers.
pub(crate) fn version(headers: &HeaderMap) -> Option<u16> {
    headers.get(VERSION_HEADER)?.to_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_hubs() {
        let check = |url: &str, expected: Result<(&str, u16, &str), &str>| {
            let expected = expected
                .map(|(host, port, path)| (host.to_owned(), port, path.to_owned()))
                .map_err(|text| format!("the hub's address `{url}` {text}"));
            let parsed = Endpoint::parse(url)
                .map(|endpoint| (endpoint.host, endpoint.port, endpoint.path))
                .map_err(|error| error.to_string());
            assert_eq!(parsed, expected);
        };
        check("wss://hub:8443", Ok(("hub", 8443, CONNECT_PATH)));
        check("wss://hub/", Ok(("hub", 443, CONNECT_PATH)));
        check("https://hub:1/other", Ok(("hub", 1, "/other")));
        check("wss://[::1]:8443", Ok(("::1", 8443, CONNECT_PATH)));
        check("ws://hub:8443", Err("has to start with wss://"));
        check("hub:8443", Err("has to start with wss://"));
        let no_url = "is no URL, such as wss://hub.example.com:8443";
        check("wss://", Err(no_url));
        check("a b", Err(no_url));
    }

    /// Checks a response that is written with `VERSION` and `ACCEPT` for what belongs there.
    fn check(response: &str, expected: Result<(), &str>) {
        let upgrade = Upgrade::to(SUBPROTOCOL);
        let request = upgrade.add_headers(http::Request::get("/")).body(());
        let request = request.unwrap();
        let key = request.headers()["sec-websocket-key"].to_str().unwrap();
        let response = response
            .replace("ACCEPT", &link::websocket::accept_key(key))
            .replace("SUB", SUBPROTOCOL)
            .replace('\n', "\r\n");
        let head = parse_response(response.as_bytes());
        let result = head.and_then(|head| {
            let head = head.unwrap();
            check_response(
                &head,
                VERSION,
                &upgrade,
                &response.as_bytes()[head.length..],
            )
        });
        let result = result.map_err(|error| error.to_string());
        assert_eq!(result, expected.map_err(str::to_owned));
    }

    #[test]
    fn the_response_of_a_hub() {
        let opened = "HTTP/1.1 101 x\nSec-WebSocket-Accept: ACCEPT\nSec-WebSocket-Protocol: SUB\n";
        check(&format!("{opened}Standin-Tunnel-Version: 1\n\n"), Ok(()));
        check(&format!("{opened}Standin-Tunnel-Version: 2\n\n"), Ok(()));
        check(
            &format!("{opened}Standin-Tunnel-Version: 3\n\n"),
            Err(
                "the hub uses version 3 of the tunnel protocol and this agent version 1: upgrade the older one",
            ),
        );
        check(
            "HTTP/1.1 426 x\nStandin-Tunnel-Version: 9\n\n{}",
            Err(
                "the hub uses version 9 of the tunnel protocol and this agent version 1: upgrade the older one",
            ),
        );
        check(
            "HTTP/1.1 403 x\nStandin-Tunnel-Version: 1\n\n{\"error\":\"the certificate of prod-eu is revoked\"}",
            Err("the hub refuses the tunnel (403): the certificate of prod-eu is revoked"),
        );
    }

    #[test]
    fn what_is_no_hub_is_named() {
        let hint = "something between agent and hub terminates TLS or HTTP, such as a load balancer. Use TCP passthrough for the hub's agent address";
        let check = |response: &str, found: &str| {
            check(response, Err(&format!("{found}: {hint}")));
        };
        check(
            "HTTP/1.1 400 x\nServer: awselb/2.0\nContent-Type: text/html\n\n<html>",
            "the response is HTTP 400 and a web page from `awselb/2.0`",
        );
        check(
            "HTTP/1.1 502 x\n\n <html>",
            "the response is HTTP 502 and a web page",
        );
        check("HTTP/1.1 200 OK\n\nhello", "the response is HTTP 200");
        check(
            "HTTP/1.1 101 x\nUpgrade: websocket\n\n",
            "the upgrade was answered by something that is no hub",
        );
        check(
            "HTTP/1.1 426 x\nStandin-Tunnel-Version: 1\n\n{}",
            "the upgrade headers did not reach the hub",
        );
        check("SSH-2.0-x\n\n", "the response is not HTTP");
    }

    #[test]
    fn versions_one_apart_work_together() {
        let check = |ours, theirs, expected| assert_eq!(is_compatible(ours, theirs), expected);
        check(1, 1, true);
        check(1, 2, true);
        check(2, 1, true);
        check(1, 3, false);
        check(4, 2, false);
    }
}

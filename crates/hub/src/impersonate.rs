//! The headers of a request on the route through the hub: which of a client's headers are dropped, and how the user is named.
//!
//! The API server of a managed cluster believes the tunnel agent, and the agent believes the hub. So no header with which a
//! client could name a user, a proxy or a credential may pass: they are dropped by name and by prefix, and only then are the
//! headers for the authenticated user added.

use std::fmt::Write as _;

use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, FORWARDED, HOST, HeaderName,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL, SET_COOKIE, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderValue};
use thiserror::Error;

use crate::user::User;

const IMPERSONATE: &str = "impersonate-";
const USER: HeaderName = HeaderName::from_static("impersonate-user");
const UID: HeaderName = HeaderName::from_static("impersonate-uid");
const GROUP: HeaderName = HeaderName::from_static("impersonate-group");
const EXTRA: &str = "impersonate-extra-";

/// Prefixes of headers that no client may set. The last one is of the headers between hubs and agents.
const DROPPED_PREFIXES: &[&str] = &[IMPERSONATE, "x-remote-", "x-forwarded-", "standin-"];

/// Headers that end here: credentials, addresses of other proxies, and what is about one connection.
const DROPPED: [HeaderName; 6] = [
    AUTHORIZATION,
    COOKIE,
    FORWARDED,
    HOST,
    // The body has its own length.
    CONTENT_LENGTH,
    // The hub answers it when it reads the body.
    EXPECT,
];

/// Headers about one connection. Those that `Connection` lists are, too.
const HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    HeaderName::from_static("proxy-connection"),
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Kubernetes accepts a token in this WebSocket subprotocol, because browsers cannot set headers.
const TOKEN_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// Groups that an API server adds itself, and refuses in a request.
const ADDED_GROUPS: &[&str] = &["system:authenticated", "system:unauthenticated"];

/// A user who cannot be named in headers.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum Unnamable {
    #[error("the user has no name")]
    Empty,
    /// HTTP removes surrounding spaces, so the name of another user would be received.
    #[error("the {what} of user {user:?} has characters that a header cannot carry")]
    Characters { user: String, what: &'static str },
}

/// The headers with which a request is sent to the agent.
pub(crate) fn request_headers(headers: &HeaderMap, user: &User) -> Result<HeaderMap, Unnamable> {
    let mut kept = HeaderMap::with_capacity(headers.len() + 4);
    let listed = listed_in_connection(headers);
    for (name, value) in headers {
        let is_dropped = DROPPED.contains(name)
            || HOP_BY_HOP.contains(name)
            || listed.contains(name)
            || has_dropped_prefix(name);
        if !is_dropped {
            kept.append(name, value.clone());
        }
    }
    drop_token_protocols(&mut kept);
    name_user(&mut kept, user)?;
    Ok(kept)
}

/// Drops what is about one connection from a response, and what a managed cluster must not set in a client of the hub.
pub(crate) fn clean_response(headers: &mut HeaderMap) {
    for name in listed_in_connection(headers) {
        headers.remove(name);
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
    // Cookies would be the hub's own.
    headers.remove(SET_COOKIE);
    let internal: Vec<HeaderName> = headers
        .keys()
        .filter(|name| name.as_str().starts_with("standin-"))
        .cloned()
        .collect();
    for name in internal {
        headers.remove(name);
    }
}

/// Whether the client asked to act as another user. The hub ignores that, so the client should know.
pub(crate) fn names_another_user(headers: &HeaderMap) -> bool {
    headers
        .keys()
        .any(|name| name.as_str().starts_with(IMPERSONATE))
}

/// The tokens of WebSocket subprotocols, still encoded.
pub(crate) fn protocol_tokens(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    protocols(headers).filter_map(|protocol| protocol.strip_prefix(TOKEN_PROTOCOL))
}

fn protocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    headers
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
}

fn drop_token_protocols(headers: &mut HeaderMap) {
    if protocol_tokens(headers).next().is_none() {
        return;
    }
    let kept: Vec<&str> = protocols(headers)
        .filter(|protocol| !protocol.starts_with(TOKEN_PROTOCOL) && !protocol.is_empty())
        .collect();
    let kept = HeaderValue::from_str(&kept.join(", "));
    headers.remove(SEC_WEBSOCKET_PROTOCOL);
    if let Ok(kept) = kept
        && !kept.is_empty()
    {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, kept);
    }
}

fn has_dropped_prefix(name: &HeaderName) -> bool {
    // Header names are in lower case already.
    DROPPED_PREFIXES
        .iter()
        .any(|prefix| name.as_str().starts_with(prefix))
}

fn listed_in_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        .collect()
}

fn name_user(headers: &mut HeaderMap, user: &User) -> Result<(), Unnamable> {
    if user.name.is_empty() {
        return Err(Unnamable::Empty);
    }
    let value = |text: &str, what| {
        header_value(text).ok_or_else(|| Unnamable::Characters {
            user: user.name.clone(),
            what,
        })
    };
    headers.insert(USER, value(&user.name, "name")?);
    if let Some(uid) = user.uid.as_deref().filter(|uid| !uid.is_empty()) {
        headers.insert(UID, value(uid, "uid")?);
    }
    let groups = user.groups.iter().map(String::as_str);
    for group in groups.filter(|group| !group.is_empty() && !ADDED_GROUPS.contains(group)) {
        headers.append(GROUP, value(group, "group")?);
    }
    for (key, values) in &user.extra {
        let name = extra_name(key).ok_or_else(|| Unnamable::Characters {
            user: user.name.clone(),
            what: "extra key",
        })?;
        for text in values {
            headers.append(&name, value(text, "extra value")?);
        }
    }
    Ok(())
}

/// A value that is received as it was sent. HTTP allows the bytes of UTF-8.
fn header_value(text: &str) -> Option<HeaderValue> {
    if text.trim_matches([' ', '\t']) != text {
        return None;
    }
    HeaderValue::from_bytes(text.as_bytes()).ok()
}

/// The name of the header for an extra key. API servers convert it to lower case, and then decode it.
fn extra_name(key: &str) -> Option<HeaderName> {
    let mut name = EXTRA.to_owned();
    for byte in key.bytes() {
        if is_plain(byte) {
            name.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(name, "%{byte:02X}");
        }
    }
    (!key.is_empty())
        .then(|| HeaderName::from_bytes(name.as_bytes()).ok())
        .flatten()
}

/// Whether a byte of a key needs no encoding.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"!#$&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests;

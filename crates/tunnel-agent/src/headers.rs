//! Which headers of a request reach the API server, and which of its response reach the hub.
//!
//! The hub has removed what clients must not send. These rules hold whatever the hub does: the credential is always this
//! agent's own, and a request without a user, which the API server would execute with the agent's own rights, is refused.

use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, COOKIE, FORWARDED, HOST, HeaderMap, HeaderName,
    HeaderValue, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
    VIA,
};

use crate::allow_list::Identity;

/// Headers that concern one connection only.
const HOP_BY_HOP: [HeaderName; 8] = [
    CONNECTION,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
];

/// Headers that identify a client or describe the path of a request. The API server needs none of them.
const REMOVED: [HeaderName; 6] = [
    AUTHORIZATION,
    COOKIE,
    FORWARDED,
    HOST,
    VIA,
    HeaderName::from_static("x-real-ip"),
];

/// The beginnings of further names that are removed. An API server with a front proxy reads users from `x-remote-…`.
const REMOVED_PREFIXES: [&str; 4] = ["x-forwarded-", "x-remote-", "standin-", "proxy-"];

const IMPERSONATE: &str = "impersonate-";
const USER: HeaderName = HeaderName::from_static("impersonate-user");
const GROUP: HeaderName = HeaderName::from_static("impersonate-group");
const UID: HeaderName = HeaderName::from_static("impersonate-uid");
const EXTRA: &str = "impersonate-extra-";

/// Extra keys with which an API server describes the credential of a user. They have no meaning in another cluster.
const CREDENTIAL_KEYS: &str = "authentication.kubernetes.io/";

/// Why the headers of a request are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unacceptable {
    #[error(
        "the request has no user: the tunnel agent executes requests only as the user that the hub names \
         (`Impersonate-User`)"
    )]
    NoUser,
    #[error("the request has more than one `{0}`")]
    Repeated(&'static str),
    #[error("the request has the header `{0}`, which the tunnel agent does not know")]
    Unknown(String),
    #[error("the value of `{0}` is no text")]
    NotText(String),
    /// HTTP/1.1 removes such spaces, so the API server would receive another name than the one that was checked.
    #[error("the value of `{0}` begins or ends with a space")]
    Surrounded(String),
}

/// Removes everything from a request that the API server must not get, and returns the user that the request is for.
pub(crate) fn sanitize_request(headers: &mut HeaderMap) -> Result<Identity, Unacceptable> {
    remove_hop_by_hop(headers);
    let is_credential_key =
        |name: &HeaderName| extra_key(name).is_some_and(|key| key.starts_with(CREDENTIAL_KEYS));
    let removed: Vec<HeaderName> = headers
        .keys()
        .filter(|name| {
            REMOVED.contains(name)
                || REMOVED_PREFIXES
                    .iter()
                    .any(|prefix| name.as_str().starts_with(prefix))
                || is_credential_key(name)
        })
        .cloned()
        .collect();
    for name in removed {
        headers.remove(name);
    }
    identity(headers)
}

/// Removes what concerns only the connection to the API server.
pub(crate) fn sanitize_response(headers: &mut HeaderMap) {
    remove_hop_by_hop(headers);
    // A server that announces other addresses of itself means addresses of this cluster.
    headers.remove(http::header::ALT_SVC);
    // These are between the hub and this agent.
    let internal: Vec<HeaderName> = headers
        .keys()
        .filter(|name| name.as_str().starts_with("standin-"))
        .cloned()
        .collect();
    for name in internal {
        headers.remove(name);
    }
}

/// The credential of this agent, which replaces any other.
pub(crate) fn set_token(headers: &mut HeaderMap, token: &HeaderValue) {
    headers.insert(AUTHORIZATION, token.clone());
}

fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let listed: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        // A peer must not be able to remove the user of a request, or the end of its body.
        .filter(|name: &HeaderName| !is_impersonation(name) && *name != CONTENT_LENGTH)
        .collect();
    for name in HOP_BY_HOP.iter().chain(&listed) {
        headers.remove(name);
    }
}

fn is_impersonation(name: &HeaderName) -> bool {
    name.as_str().starts_with(IMPERSONATE)
}

/// The user of a request whose headers are clean.
fn identity(headers: &HeaderMap) -> Result<Identity, Unacceptable> {
    let mut identity = Identity::default();
    let impersonation = headers.iter().filter(|(name, _)| is_impersonation(name));
    let (mut has_user, mut has_uid) = (false, false);
    for (name, value) in impersonation {
        // Names of users may have any characters, so this is not limited to ASCII.
        let text = str::from_utf8(value.as_bytes())
            .map_err(|_| Unacceptable::NotText(name.to_string()))?;
        if text.starts_with([' ', '\t']) || text.ends_with([' ', '\t']) {
            return Err(Unacceptable::Surrounded(name.to_string()));
        }
        if *name == USER {
            if has_user {
                return Err(Unacceptable::Repeated("Impersonate-User"));
            }
            has_user = true;
            text.clone_into(&mut identity.user);
        } else if *name == GROUP {
            identity.groups.push(text.to_owned());
        } else if *name == UID {
            if has_uid {
                return Err(Unacceptable::Repeated("Impersonate-Uid"));
            }
            has_uid = true;
        } else if let Some(key) = extra_key(name) {
            if !identity.extra_keys.contains(&key) {
                identity.extra_keys.push(key);
            }
        } else {
            return Err(Unacceptable::Unknown(name.to_string()));
        }
    }
    match identity.user.is_empty() {
        true => Err(Unacceptable::NoUser),
        false => Ok(identity),
    }
}

/// The key of an extra header. Its characters that no header name may have are percent-encoded.
fn extra_key(name: &HeaderName) -> Option<String> {
    let encoded = name.as_str().strip_prefix(EXTRA)?;
    let decoded = percent_encoding::percent_decode_str(encoded).decode_utf8_lossy();
    Some(decoded.to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        lines
            .iter()
            .map(|(name, value)| {
                let name: HeaderName = name.parse().unwrap();
                (name, HeaderValue::from_bytes(value.as_bytes()).unwrap())
            })
            .collect()
    }

    /// The lines as text, sorted.
    fn lines(headers: &HeaderMap) -> Vec<String> {
        let line = |(name, value): (&HeaderName, &HeaderValue)| {
            format!("{name}: {}", String::from_utf8_lossy(value.as_bytes()))
        };
        let mut lines: Vec<String> = headers.iter().map(line).collect();
        lines.sort();
        lines
    }

    fn check(before: &[(&str, &str)], after: &[&str]) -> Identity {
        let mut with_user = vec![("impersonate-user", "anna")];
        with_user.extend(before);
        let mut request = headers(&with_user);
        let identity = sanitize_request(&mut request).unwrap();
        let mut expected = vec!["impersonate-user: anna"];
        expected.extend(after);
        expected.sort_unstable();
        assert_eq!(lines(&request), expected);
        identity
    }

    #[test]
    fn names_that_http_would_change_are_refused() {
        for (name, value) in [
            ("impersonate-group", " system:masters"),
            ("impersonate-group", "\tsystem:masters"),
            ("impersonate-group", "system:masters "),
            ("impersonate-user", " system:admin"),
            ("impersonate-uid", "1\t"),
            ("impersonate-extra-scopes", " view"),
        ] {
            let mut request = headers(&[("impersonate-user", "anna"), (name, value)]);
            if name == "impersonate-user" {
                request = headers(&[(name, value)]);
            }
            let refused = sanitize_request(&mut request).unwrap_err();
            assert_eq!(
                refused,
                Unacceptable::Surrounded(name.to_owned()),
                "{value:?}"
            );
        }
    }

    #[test]
    fn an_api_server_cannot_speak_to_the_hub() {
        let mut response = headers(&[("standin-hub-unsent", "true"), ("audit-id", "1")]);
        sanitize_response(&mut response);
        assert_eq!(lines(&response), ["audit-id: 1"]);
    }

    #[test]
    fn ordinary_headers_are_kept() {
        check(
            &[
                ("accept", "application/json;as=Table"),
                ("accept-encoding", "gzip"),
                ("content-type", "application/json"),
                ("content-length", "2"),
                ("user-agent", "kubectl"),
                ("audit-id", "1"),
            ],
            &[
                "accept: application/json;as=Table",
                "accept-encoding: gzip",
                "audit-id: 1",
                "content-length: 2",
                "content-type: application/json",
                "user-agent: kubectl",
            ],
        );
    }

    #[test]
    fn credentials_and_traces_of_proxies_are_removed() {
        check(
            &[
                ("authorization", "Bearer stolen"),
                ("cookie", "a=b"),
                ("proxy-authorization", "Basic a"),
                ("forwarded", "for=1.2.3.4"),
                ("via", "1.1 proxy"),
                ("host", "elsewhere"),
                ("x-forwarded-for", "1.2.3.4"),
                ("x-forwarded-proto", "https"),
                ("x-forwarded-host", "hub"),
                ("x-real-ip", "1.2.3.4"),
                ("x-remote-user", "admin"),
                ("x-remote-group", "system:masters"),
                ("x-remote-extra-scopes", "all"),
                ("standin-tunnel-upgrade", "websocket"),
            ],
            &[],
        );
    }

    #[test]
    fn headers_of_a_connection_are_removed_but_not_the_user() {
        let identity = check(
            &[
                (
                    "connection",
                    "keep-alive, x-custom, Impersonate-User, content-length",
                ),
                ("connection", "x-other"),
                ("keep-alive", "timeout=5"),
                ("te", "trailers"),
                ("trailer", "x"),
                ("transfer-encoding", "chunked"),
                ("upgrade", "h2c"),
                ("x-custom", "1"),
                ("x-other", "2"),
                ("content-length", "5"),
            ],
            &["content-length: 5"],
        );
        assert_eq!(identity.user, "anna");
    }

    #[test]
    fn the_identity_is_read_from_the_headers() {
        let identity = check(
            &[
                ("impersonate-group", "team-a"),
                ("impersonate-group", "team-b"),
                ("impersonate-uid", "1"),
                ("impersonate-extra-scopes", "view"),
                ("impersonate-extra-scopes", "edit"),
                ("impersonate-extra-example.com%2fdepartment", "a"),
                (
                    "impersonate-extra-authentication.kubernetes.io%2Fpod-name",
                    "pod",
                ),
            ],
            &[
                "impersonate-extra-example.com%2fdepartment: a",
                "impersonate-extra-scopes: edit",
                "impersonate-extra-scopes: view",
                "impersonate-group: team-a",
                "impersonate-group: team-b",
                "impersonate-uid: 1",
            ],
        );
        assert_eq!(identity.groups, ["team-a", "team-b"]);
        let mut keys = identity.extra_keys;
        keys.sort();
        assert_eq!(keys, ["example.com/department", "scopes"]);
    }

    #[test]
    fn requests_without_exactly_one_user_are_refused() {
        for (lines, expected) in [
            (&[][..], Unacceptable::NoUser),
            (&[("impersonate-user", "")], Unacceptable::NoUser),
            (
                &[("impersonate-group", "system:masters")],
                Unacceptable::NoUser,
            ),
            (
                &[("impersonate-user", "a"), ("impersonate-user", "b")],
                Unacceptable::Repeated("Impersonate-User"),
            ),
            (
                &[
                    ("impersonate-user", "a"),
                    ("impersonate-uid", "1"),
                    ("impersonate-uid", "2"),
                ],
                Unacceptable::Repeated("Impersonate-Uid"),
            ),
            (
                &[("impersonate-user", "a"), ("impersonate-other", "b")],
                Unacceptable::Unknown("impersonate-other".to_owned()),
            ),
        ] {
            let refused = sanitize_request(&mut headers(lines));
            assert_eq!(refused, Err(expected), "{lines:?}");
        }
        let mut not_text = HeaderMap::new();
        not_text.insert(USER, HeaderValue::from_bytes(b"\xff").unwrap());
        let expected = Unacceptable::NotText("impersonate-user".to_owned());
        assert_eq!(sanitize_request(&mut not_text), Err(expected));
    }

    #[test]
    fn responses_lose_only_what_concerns_the_connection() {
        let mut response = headers(&[
            ("connection", "close, x-hop"),
            ("x-hop", "1"),
            ("transfer-encoding", "chunked"),
            ("keep-alive", "timeout=5"),
            ("alt-svc", "h3=\":443\""),
            ("audit-id", "1"),
            ("content-type", "application/json"),
        ]);
        sanitize_response(&mut response);
        assert_eq!(
            lines(&response),
            ["audit-id: 1", "content-type: application/json"]
        );
    }
}

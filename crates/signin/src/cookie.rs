//! The session of a browser as a cookie, and the check that a request comes from the page itself.
//!
//! The cookie is `HttpOnly` and `SameSite=Strict`, so neither a script nor another site can use it. Requests that change something
//! must also say that they come from this page, because browsers of users may be old, and other programs may listen at other
//! ports of the same host.

use http::header::{COOKIE, HOST, HeaderValue, ORIGIN};
use http::{HeaderMap, Method, Uri};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::seal::{SealError, Sealer};
use crate::user::User;

/// What a session is sealed for.
const PURPOSE: &str = "session";
/// Browsers keep cookies of 4096 bytes at most, with their name and attributes.
const MAX_COOKIE: usize = 3800;

/// Who uses a browser.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    pub user: User,
    pub signed_in: Timestamp,
    pub expires: Timestamp,
}

/// Why there can be no cookie.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CookieError {
    #[error("the session cannot be sealed")]
    Seal(#[from] SealError),
    #[error(
        "the user {user} is in {groups} groups, which do not fit into a cookie; let the provider send only the groups that this page needs"
    )]
    TooManyGroups { user: String, groups: usize },
}

/// The request does not come from the page itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the request comes from another site; reload the page and try again")]
pub struct CrossSite;

/// Reads and writes the cookies of sessions.
#[derive(Debug)]
pub struct Cookies {
    sealer: Sealer,
    name: String,
    lifetime: SignedDuration,
    is_secure: bool,
}

impl Cookies {
    /// `is_secure`: browsers reach the page by HTTPS only. `name` contains the port where several pages share a host, as with
    /// `kubectl port-forward`, because all ports of a host share their cookies.
    pub fn new(sealer: Sealer, name: &str, lifetime: SignedDuration, is_secure: bool) -> Self {
        // With this prefix, browsers accept the cookie only from this host, and only by HTTPS.
        let prefix = if is_secure { "__Host-" } else { "" };
        Self {
            sealer,
            name: format!("{prefix}{name}"),
            lifetime,
            is_secure,
        }
    }

    pub fn sealer(&self) -> &Sealer {
        &self.sealer
    }

    /// The `Set-Cookie` header after a sign-in.
    pub fn start(&self, user: User, now: Timestamp) -> Result<HeaderValue, CookieError> {
        let session = Session {
            signed_in: now,
            expires: now + self.lifetime,
            user,
        };
        let content = serde_json::to_vec(&session).unwrap_or_default();
        let sealed = self.sealer.seal(PURPOSE, &content)?;
        let cookie = self.set(&sealed, self.lifetime.as_secs());
        let too_many = || CookieError::TooManyGroups {
            user: session.user.name.clone(),
            groups: session.user.groups.len(),
        };
        if sealed.len() > MAX_COOKIE {
            return Err(too_many());
        }
        HeaderValue::from_str(&cookie).map_err(|_| too_many())
    }

    /// The `Set-Cookie` header that ends a session.
    pub fn end(&self) -> Option<HeaderValue> {
        HeaderValue::from_str(&self.set("", 0)).ok()
    }

    fn set(&self, value: &str, max_age: i64) -> String {
        let secure = if self.is_secure { "; Secure" } else { "" };
        format!(
            "{}={value}; Path=/; Max-Age={max_age}; HttpOnly; SameSite=Strict{secure}",
            self.name
        )
    }

    /// The session of a request. A request that changes something must come from the page itself.
    pub fn session(
        &self,
        method: &Method,
        headers: &HeaderMap,
        now: Timestamp,
    ) -> Result<Option<Session>, CrossSite> {
        let session = values(headers, &self.name)
            .filter_map(|value| self.sealer.open(PURPOSE, value))
            .filter_map(|content| serde_json::from_slice::<Session>(&content).ok())
            .find(|session| now < session.expires);
        if session.is_some() {
            check_origin(method, headers)?;
        }
        Ok(session)
    }
}

/// The values of a cookie in a request. There may be several, of other paths and by other programs.
pub fn values<'h>(
    headers: &'h HeaderMap,
    name: &'h str,
) -> impl Iterator<Item = &'h str> + use<'h> {
    headers
        .get_all(COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|cookies| cookies.split(';'))
        .filter_map(|cookie| cookie.trim().split_once('='))
        .filter(move |(key, _)| *key == name)
        .map(|(_, value)| value)
}

/// Refuses a request that a page of another site may have caused.
fn check_origin(method: &Method, headers: &HeaderMap) -> Result<(), CrossSite> {
    let is_upgrade = headers.contains_key("upgrade");
    let only_reads = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let Some(origin) = headers.get(ORIGIN) else {
        return (only_reads && !is_upgrade).then_some(()).ok_or(CrossSite);
    };
    let origin = origin.to_str().ok().and_then(|it| it.parse::<Uri>().ok());
    let origin = origin.and_then(|it| it.authority().map(ToString::to_string));
    // The scheme is not compared, because TLS may end before this server.
    let is_own = match (origin, text(HOST)) {
        (Some(origin), Some(host)) => origin.eq_ignore_ascii_case(host),
        _ => false,
    };
    is_own.then_some(()).ok_or(CrossSite)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn cookies(is_secure: bool) -> Cookies {
        let sealer = Sealer::new([[1; 32]]).unwrap();
        let lifetime = SignedDuration::from_hours(8);
        Cookies::new(sealer, "standin-hub", lifetime, is_secure)
    }

    fn anna(groups: usize) -> User {
        User {
            name: "anna".to_owned(),
            groups: (0..groups)
                .map(|number| format!("group-{number}"))
                .collect(),
            ..User::default()
        }
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    /// What a browser sends back.
    fn sent(cookies: &Cookies, user: User) -> String {
        let set = cookies.start(user, at(0)).unwrap();
        set.to_str().unwrap().split_once(';').unwrap().0.to_owned()
    }

    #[test]
    fn a_session_lasts_until_it_expires() {
        let cookies = cookies(true);
        let cookie = format!("other=1; {}; last=2", sent(&cookies, anna(2)));
        let headers = headers(&[("cookie", &cookie)]);
        let session = |now| cookies.session(&Method::GET, &headers, now).unwrap();
        assert_eq!(session(at(1)).unwrap().user, anna(2));
        assert_eq!(session(at(8 * 3600 - 1)).unwrap().signed_in, at(0));
        assert_eq!(session(at(8 * 3600)), None);
    }

    #[test]
    fn attributes_keep_the_cookie_from_scripts_and_other_sites() {
        let text = |cookies: &Cookies| {
            let set = cookies.start(anna(0), at(0)).unwrap();
            set.to_str().unwrap().to_owned()
        };
        let secure = text(&cookies(true));
        assert!(secure.starts_with("__Host-standin-hub="), "{secure}");
        let attributes = "; Path=/; Max-Age=28800; HttpOnly; SameSite=Strict; Secure";
        assert!(secure.ends_with(attributes), "{secure}");
        let local = text(&cookies(false));
        assert!(local.starts_with("standin-hub="), "{local}");
        assert!(local.ends_with("SameSite=Strict"), "{local}");
        let end = cookies(true).end().unwrap();
        assert!(end.to_str().unwrap().contains("=; Path=/; Max-Age=0;"));
    }

    #[test]
    fn other_cookies_are_no_session() {
        let cookies = cookies(false);
        let real = sent(&cookies, anna(0));
        let flow = cookies.sealer().seal("flow", b"{}").unwrap();
        let flow = format!("standin-hub={flow}");
        let renamed = real.replace("standin-hub=", "standin-other=");
        for cookie in [
            "",
            "standin-hub",
            "standin-hub=",
            "standin-hub=abc",
            &flow,
            &renamed,
        ] {
            let headers = headers(&[("cookie", cookie)]);
            let session = cookies.session(&Method::GET, &headers, at(1));
            assert_eq!(session, Ok(None), "{cookie}");
        }
        // A cookie of another program with the same name does not hide it.
        let headers = headers(&[("cookie", "standin-hub=abc"), ("cookie", &real)]);
        let session = cookies.session(&Method::GET, &headers, at(1)).unwrap();
        assert!(session.is_some());
    }

    #[test]
    fn changes_come_from_the_page_itself() {
        let cookies = cookies(false);
        let cookie = sent(&cookies, anna(0));
        let check = |method: Method, more: &[(&'static str, &str)], expected: bool| {
            let host = ("host", "hub.example.com");
            let all = [&[("cookie", cookie.as_str()), host], more].concat();
            let session = cookies.session(&method, &headers(&all), at(1));
            assert_eq!(session.is_ok(), expected, "{method} {more:?}");
        };
        check(Method::GET, &[], true);
        check(Method::POST, &[], false);
        check(
            Method::DELETE,
            &[("origin", "https://hub.example.com")],
            true,
        );
        check(Method::POST, &[("origin", "https://HUB.example.com")], true);
        check(
            Method::POST,
            &[("origin", "https://hub.example.com:444")],
            false,
        );
        check(Method::POST, &[("origin", "https://example.com")], false);
        check(Method::POST, &[("origin", "null")], false);
        check(Method::GET, &[("origin", "https://evil.example")], false);
        check(Method::GET, &[("upgrade", "websocket")], false);
        let own = ("origin", "http://hub.example.com");
        check(Method::GET, &[("upgrade", "websocket"), own], true);
    }

    #[test]
    fn too_many_groups_are_an_error_that_says_so() {
        let error = cookies(true).start(anna(1000), at(0)).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("the user anna is in 1000 groups"),
            "{error}"
        );
    }
}

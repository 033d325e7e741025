//! Authenticates requests: only the browser that was opened with the token has access, not every local process or web page.
//!
//! Every request must name this server in `Host`, which prevents DNS rebinding. If it has an `Origin`, that must be the own
//! page. It must have the token, in the URL, the cookie or the `Authorization` header. Requests that change something must
//! have an `Origin`.

use axum::extract::{Request, State};
use axum::http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, COOKIE, HOST, HeaderName, HeaderValue,
    ORIGIN, REFERRER_POLICY, SET_COOKIE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::Shared;

const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

#[derive(Debug)]
pub(super) struct Guard {
    port: u16,
    token: String,
    policy: HeaderValue,
}

/// Why a request is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    OtherHost,
    OtherOrigin,
    NoToken,
}

/// Where a valid token was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenSource {
    Url,
    Header,
}

impl Guard {
    pub(super) fn new(port: u16, is_development: bool) -> Self {
        let token = format!("{:032x}", rand::random::<u128>());
        let policy = policy(port, is_development);
        Self {
            port,
            token,
            policy: HeaderValue::from_str(&policy)
                .unwrap_or_else(|_| HeaderValue::from_static("default-src 'none'")),
        }
    }

    pub(super) fn url(&self) -> String {
        format!("http://localhost:{}/?token={}", self.port, self.token)
    }

    /// The name contains the port, because cookies are shared by all ports of a host, and several servers may run.
    fn cookie_name(&self) -> String {
        format!("standin-{}", self.port)
    }

    fn cookie(&self) -> Option<HeaderValue> {
        let (name, token) = (self.cookie_name(), &self.token);
        let text = format!("{name}={token}; Path=/; HttpOnly; SameSite=Strict");
        HeaderValue::from_str(&text).ok()
    }

    fn authenticate(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<TokenSource, Refusal> {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let port = self.port;
        let host = text(HOST).filter(|host| {
            *host == format!("localhost:{port}") || *host == format!("127.0.0.1:{port}")
        });
        let host = host.ok_or(Refusal::OtherHost)?;
        let is_upgrade = headers.contains_key("upgrade");
        let needs_origin = is_upgrade || !matches!(*method, Method::GET | Method::HEAD);
        match headers.get(ORIGIN) {
            Some(origin) if origin.as_bytes() != format!("http://{host}").as_bytes() => {
                return Err(Refusal::OtherOrigin);
            }
            None if needs_origin => return Err(Refusal::OtherOrigin),
            _ => {}
        }
        let in_url = uri.query().and_then(|query| {
            let mut pairs = query.split('&');
            pairs.find_map(|pair| pair.strip_prefix("token="))
        });
        if in_url.is_some_and(|token| self.is_token(token)) {
            return Ok(TokenSource::Url);
        }
        let name = self.cookie_name();
        let mut cookies = headers
            .get_all(COOKIE)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|cookies| cookies.split(';'))
            .filter_map(|cookie| cookie.trim().split_once('='));
        let in_cookie = cookies.any(|(key, value)| key == name && self.is_token(value));
        let bearer = text(AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
        if in_cookie || bearer.is_some_and(|token| self.is_token(token)) {
            return Ok(TokenSource::Header);
        }
        Err(Refusal::NoToken)
    }

    /// Compares in constant time.
    fn is_token(&self, text: &str) -> bool {
        let (ours, theirs) = (self.token.as_bytes(), text.as_bytes());
        let differs = |sum: u8, (one, other): (&u8, &u8)| sum | (one ^ other);
        ours.len() == theirs.len() && ours.iter().zip(theirs).fold(0, differs) == 0
    }
}

/// The content security policy: all resources only from this server. A development server needs more.
fn policy(port: u16, is_development: bool) -> String {
    let hosts = format!("ws://localhost:{port} ws://127.0.0.1:{port}");
    let (script, style, more) = if is_development {
        (
            "'self' 'unsafe-inline'",
            "'self' 'unsafe-inline'",
            " ws: http:",
        )
    } else {
        ("'self'", "'self'", "")
    };
    format!(
        "default-src 'none'; script-src {script}; style-src {style}; img-src 'self'; font-src 'self'; connect-src 'self' \
         {hosts}{more}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
}

pub(super) async fn check(State(shared): State<Shared>, request: Request, next: Next) -> Response {
    let guard = &shared.guard;
    let authenticated = guard.authenticate(request.method(), request.uri(), request.headers());
    let mut response = match authenticated {
        Ok(_) => next.run(request).await,
        Err(refusal) => refuse(refusal),
    };
    let headers = response.headers_mut();
    if authenticated == Ok(TokenSource::Url)
        && let Some(cookie) = guard.cookie()
    {
        headers.insert(SET_COOKIE, cookie);
    }
    let fixed = |text| HeaderValue::from_static(text);
    headers.insert(CONTENT_SECURITY_POLICY, guard.policy.clone());
    headers.insert(X_CONTENT_TYPE_OPTIONS, fixed("nosniff"));
    headers.insert(X_FRAME_OPTIONS, fixed("DENY"));
    headers.insert(REFERRER_POLICY, fixed("no-referrer"));
    headers.insert(OPENER_POLICY, fixed("same-origin"));
    headers.insert(RESOURCE_POLICY, fixed("same-origin"));
    headers
        .entry(CACHE_CONTROL)
        .or_insert_with(|| fixed("no-store"));
    response
}

fn refuse(refusal: Refusal) -> Response {
    let (status, text) = match refusal {
        Refusal::OtherHost => (
            StatusCode::MISDIRECTED_REQUEST,
            "This server answers at localhost only.\n",
        ),
        Refusal::OtherOrigin => (
            StatusCode::FORBIDDEN,
            "This request does not come from the page of `standin ui`.\n",
        ),
        Refusal::NoToken => (
            StatusCode::UNAUTHORIZED,
            "Open the address that `standin ui` has printed: it contains the required token.\n",
        ),
    };
    (status, text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn authenticate(
        guard: &Guard,
        method: &Method,
        uri: &str,
        headers: &[(&str, &str)],
    ) -> Result<TokenSource, Refusal> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            map.append(name, value.parse().unwrap());
        }
        guard.authenticate(method, &uri.parse().unwrap(), &map)
    }

    #[test]
    fn requests_need_the_host_the_origin_and_the_token() {
        let guard = Guard::new(5000, false);
        let cookie = format!("other=1; standin-5000={}", guard.token);
        let with_token = format!("/?x=1&token={}", guard.token);
        let bearer = format!("Bearer {}", guard.token);
        let here = ("host", "localhost:5000");
        let cookie = ("cookie", cookie.as_str());
        let origin = ("origin", "http://localhost:5000");
        let upgrade = ("upgrade", "websocket");
        let get =
            |uri: &str, headers: &[(&str, &str)]| authenticate(&guard, &Method::GET, uri, headers);
        let post = |headers: &[(&str, &str)]| authenticate(&guard, &Method::POST, "/api", headers);

        assert_eq!(get(&with_token, &[here]), Ok(TokenSource::Url));
        assert_eq!(get("/", &[here, cookie]), Ok(TokenSource::Header));
        assert_eq!(
            get("/", &[here, ("authorization", &bearer)]),
            Ok(TokenSource::Header)
        );
        assert_eq!(get("/", &[here]), Err(Refusal::NoToken));
        assert_eq!(get("/?token=", &[here]), Err(Refusal::NoToken));
        let of_other_port = format!("standin-5001={}", guard.token);
        assert_eq!(
            get("/", &[here, ("cookie", &of_other_port)]),
            Err(Refusal::NoToken)
        );

        for host in [
            "localhost",
            "localhost:5001",
            "evil.example:5000",
            "LOCALHOST:5000",
        ] {
            assert_eq!(
                get(&with_token, &[("host", host)]),
                Err(Refusal::OtherHost),
                "{host}"
            );
        }
        assert_eq!(get(&with_token, &[]), Err(Refusal::OtherHost));
        for origin in [
            "null",
            "http://localhost:5001",
            "https://localhost:5000",
            "http://127.0.0.1:5000",
        ] {
            let headers = [here, cookie, ("origin", origin)];
            assert_eq!(get("/", &headers), Err(Refusal::OtherOrigin), "{origin}");
        }
        assert_eq!(post(&[here, cookie, origin]), Ok(TokenSource::Header));
        assert_eq!(post(&[here, cookie]), Err(Refusal::OtherOrigin));
        assert_eq!(
            get("/ws", &[here, cookie, upgrade]),
            Err(Refusal::OtherOrigin)
        );
        assert_eq!(
            get("/ws", &[here, cookie, upgrade, origin]),
            Ok(TokenSource::Header)
        );
    }

    #[test]
    fn scripts_are_never_inline() {
        assert!(!policy(1, false).contains("unsafe"));
    }
}

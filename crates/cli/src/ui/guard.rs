//! Authenticates requests: only the browser that was opened with the token has access, not every local process or web page.
//!
//! Every request must name this server in `Host`, which prevents DNS rebinding. If it has an `Origin`, that must be the own
//! page. It must have the token, in the URL, the cookie or the `Authorization` header. Requests that change something must
//! have an `Origin`.
//!
//! A browser is opened with a code instead of the token, because other users can read the arguments of programs. The code
//! is exchanged for the cookie, once, for a client of this user.

use std::net::SocketAddr;
use std::time::Duration;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, COOKIE, HOST, HeaderName, HeaderValue,
    LOCATION, ORIGIN, REFERRER_POLICY, SET_COOKIE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Shared, peer};

const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// The port that URLs and headers omit.
const HTTP_PORT: u16 = 80;
/// How long a browser has to start and to redeem its code.
const CODE_TTL: Duration = Duration::from_secs(120);

pub(super) struct Guard {
    address: SocketAddr,
    token: String,
    /// The code that a browser was opened with, until it is redeemed.
    code: Mutex<Option<(String, Instant)>>,
    policy: HeaderValue,
}

/// Not derived: the token is a secret.
impl std::fmt::Debug for Guard {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = formatter.debug_struct("Guard");
        debug
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
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
    /// A code was redeemed.
    Code,
}

impl Guard {
    pub(super) fn new(address: SocketAddr, is_development: bool) -> Self {
        let policy = policy(address.port(), is_development);
        Self {
            address,
            token: new_secret(),
            code: Mutex::default(),
            policy: HeaderValue::from_str(&policy)
                .unwrap_or_else(|_| HeaderValue::from_static("default-src 'none'")),
        }
    }

    /// The address with the token.
    pub(super) fn url(&self) -> String {
        format!("{}/?token={}", self.origin(), self.token)
    }

    /// An address that works once and soon. An earlier one no longer works.
    pub(super) fn url_with_code(&self) -> String {
        let code = new_secret();
        let url = format!("{}/?code={code}", self.origin());
        *self.code.lock() = Some((code, Instant::now() + CODE_TTL));
        url
    }

    fn origin(&self) -> String {
        match self.address.port() {
            HTTP_PORT => "http://localhost".to_owned(),
            port => format!("http://localhost:{port}"),
        }
    }

    /// The name contains the port, because cookies are shared by all ports of a host, and several servers may run.
    fn cookie_name(&self) -> String {
        format!("standin-{}", self.address.port())
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
        is_own: impl FnOnce() -> bool,
    ) -> Result<TokenSource, Refusal> {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let host = text(HOST).filter(|host| self.is_host(host));
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
        if parameter(uri, "token").is_some_and(|token| self.is_token(token)) {
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
        match parameter(uri, "code").is_some_and(|code| self.redeem(code, is_own)) {
            true => Ok(TokenSource::Code),
            false => Err(Refusal::NoToken),
        }
    }

    fn is_host(&self, host: &str) -> bool {
        let port = self.address.port();
        let (name, of_header) = match host.rsplit_once(':') {
            Some((name, of_header)) => (name, Some(of_header)),
            None => (host, None),
        };
        let is_port = match of_header {
            Some(of_header) => of_header == port.to_string(),
            None => port == HTTP_PORT,
        };
        is_port && (name == "localhost" || name == "127.0.0.1")
    }

    /// Whether this is the code, which is then worthless. A client of another user cannot redeem it.
    fn redeem(&self, text: &str, is_own: impl FnOnce() -> bool) -> bool {
        let mut code = self.code.lock();
        let is_code = code
            .as_ref()
            .is_some_and(|(code, end)| is_same(code, text) && Instant::now() < *end);
        let is_redeemed = is_code && is_own();
        if is_redeemed {
            *code = None;
        }
        is_redeemed
    }

    fn is_token(&self, text: &str) -> bool {
        is_same(&self.token, text)
    }
}

fn new_secret() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// Compares in constant time.
fn is_same(ours: &str, theirs: &str) -> bool {
    let (ours, theirs) = (ours.as_bytes(), theirs.as_bytes());
    let differs = |sum: u8, (one, other): (&u8, &u8)| sum | (one ^ other);
    ours.len() == theirs.len() && ours.iter().zip(theirs).fold(0, differs) == 0
}

/// A parameter of the query.
fn parameter<'uri>(uri: &'uri Uri, name: &str) -> Option<&'uri str> {
    let mut pairs = uri
        .query()?
        .split('&')
        .filter_map(|pair| pair.split_once('='));
    pairs.find_map(|(key, value)| (key == name).then_some(value))
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
    let client: Option<&ConnectInfo<SocketAddr>> = request.extensions().get();
    let is_own = || client.is_some_and(|client| peer::is_own(client.0, guard.address));
    let (method, uri, headers) = (request.method(), request.uri(), request.headers());
    let authenticated = guard.authenticate(method, uri, headers, is_own);
    let mut response = match authenticated {
        Ok(TokenSource::Code) => (StatusCode::SEE_OTHER, [(LOCATION, "/")]).into_response(),
        Ok(_) => next.run(request).await,
        Err(refusal) => refuse(refusal),
    };
    let headers = response.headers_mut();
    if matches!(authenticated, Ok(TokenSource::Url | TokenSource::Code))
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
        guard.authenticate(method, &uri.parse().unwrap(), &map, || true)
    }

    fn guard(port: u16) -> Guard {
        Guard::new(SocketAddr::from(([127, 0, 0, 1], port)), false)
    }

    #[test]
    fn the_port_of_http_is_in_no_header() {
        let guard = guard(80);
        assert!(guard.url().starts_with("http://localhost/?token="));
        let bearer = format!("Bearer {}", guard.token);
        let bearer = ("authorization", bearer.as_str());
        let post = |host, origin| {
            let headers = [bearer, ("host", host), ("origin", origin)];
            authenticate(&guard, &Method::POST, "/api", &headers)
        };
        let accepted = Ok(TokenSource::Header);
        assert_eq!(post("localhost", "http://localhost"), accepted);
        assert_eq!(post("127.0.0.1", "http://127.0.0.1"), accepted);
        assert_eq!(post("localhost:80", "http://localhost:80"), accepted);
        assert_eq!(
            post("evil.example", "http://evil.example"),
            Err(Refusal::OtherHost)
        );
        assert_eq!(
            post("localhost", "http://localhost:81"),
            Err(Refusal::OtherOrigin)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_code_is_redeemed_once_in_time_and_by_its_user() {
        let guard = guard(5000);
        let headers = HeaderMap::from_iter([(HOST, HeaderValue::from_static("localhost:5000"))]);
        let get = |url: &str, is_own: bool| {
            let uri = url.parse().unwrap();
            guard.authenticate(&Method::GET, &uri, &headers, || is_own)
        };
        let url = guard.url_with_code();
        assert!(!url.contains(&guard.token));
        assert_eq!(get("/?code=", true), Err(Refusal::NoToken));
        assert_eq!(get(&url, false), Err(Refusal::NoToken));
        assert_eq!(get(&url, true), Ok(TokenSource::Code));
        assert_eq!(get(&url, true), Err(Refusal::NoToken));
        let late = guard.url_with_code();
        tokio::time::advance(CODE_TTL).await;
        assert_eq!(get(&late, true), Err(Refusal::NoToken));
    }

    #[test]
    fn requests_need_the_host_the_origin_and_the_token() {
        let guard = guard(5000);
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

//! The authorization code flow of OIDC, with PKCE: the redirect to the provider, and the check of the provider's response.
//!
//! The browser keeps the flow in a sealed cookie meanwhile, so that any replica can complete it. That cookie is `SameSite=Lax`:
//! the provider's redirect is a request from another site.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::HeaderValue;
use jiff::{SignedDuration, Timestamp};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::seal::{SealError, Sealer};

/// What a flow is sealed for.
const PURPOSE: &str = "flow";
/// How long a user may take to sign in at the provider.
const LIFETIME: SignedDuration = SignedDuration::from_mins(10);

/// A sign-in at a provider that was started in this browser.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthorizationFlow {
    state: String,
    nonce: String,
    verifier: String,
    return_to: String,
    expires: Timestamp,
}

/// What is the same for every sign-in at a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    pub authorization_endpoint: String,
    pub client_id: String,
    /// The address of this page to which the provider sends the browser back.
    pub redirect_uri: String,
    pub scopes: Vec<String>,
}

/// Why a sign-in at a provider failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FlowError {
    #[error("this browser has not started a sign-in, or took too long; sign in again")]
    NotStarted,
    #[error("the response belongs to another sign-in; sign in again")]
    OtherState,
    #[error("the provider refused the sign-in: {0}")]
    Refused(String),
    #[error("the provider's response has no code; sign in again")]
    NoCode,
}

/// A completed redirect.
#[derive(Clone, PartialEq, Eq)]
pub struct Authorized {
    /// To be exchanged for an ID token, together with the verifier.
    pub code: String,
    pub verifier: String,
    /// The ID token must have it.
    pub nonce: String,
    /// The path of the page on which the sign-in was started.
    pub return_to: String,
}

impl AuthorizationFlow {
    /// `return_to` is the path that the browser was on.
    pub fn start(return_to: &str, now: Timestamp) -> Result<Self, SealError> {
        let random = || Ok(URL_SAFE_NO_PAD.encode(Sealer::new_key()?));
        Ok(Self {
            state: random()?,
            nonce: random()?,
            verifier: random()?,
            return_to: local_path(return_to).to_owned(),
            expires: now + LIFETIME,
        })
    }

    /// Where the browser is sent.
    pub fn authorization_url(&self, client: &Client) -> String {
        let challenge = digest(&SHA256, self.verifier.as_bytes());
        let challenge = URL_SAFE_NO_PAD.encode(challenge);
        let scopes = client.scopes.join(" ");
        let parameters = [
            ("response_type", "code"),
            ("client_id", &client.client_id),
            ("redirect_uri", &client.redirect_uri),
            ("scope", &scopes),
            ("state", &self.state),
            ("nonce", &self.nonce),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
        ];
        let query: Vec<String> = parameters
            .iter()
            .map(|(key, value)| format!("{key}={}", utf8_percent_encode(value, NON_ALPHANUMERIC)))
            .collect();
        let endpoint = &client.authorization_endpoint;
        let separator = if endpoint.contains('?') { '&' } else { '?' };
        format!("{endpoint}{separator}{}", query.join("&"))
    }

    /// The `Set-Cookie` header with the flow.
    pub fn cookie(
        &self,
        sealer: &Sealer,
        name: &str,
        is_secure: bool,
    ) -> Result<Option<HeaderValue>, SealError> {
        let content = serde_json::to_vec(self).unwrap_or_default();
        let sealed = sealer.seal(PURPOSE, &content)?;
        let secure = if is_secure { "; Secure" } else { "" };
        let max_age = LIFETIME.as_secs();
        let text =
            format!("{name}={sealed}; Path=/; Max-Age={max_age}; HttpOnly; SameSite=Lax{secure}");
        Ok(HeaderValue::from_str(&text).ok())
    }

    /// The flow of a cookie's value.
    pub fn open(sealer: &Sealer, value: &str, now: Timestamp) -> Result<Self, FlowError> {
        let content = sealer.open(PURPOSE, value).ok_or(FlowError::NotStarted)?;
        let flow: Self = serde_json::from_slice(&content).map_err(|_| FlowError::NotStarted)?;
        (now < flow.expires)
            .then_some(flow)
            .ok_or(FlowError::NotStarted)
    }

    /// Checks the query with which the provider sends the browser back.
    pub fn complete(self, query: &str) -> Result<Authorized, FlowError> {
        let parameter = |name: &str| {
            let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            let (_, value) = pairs.find(|(key, _)| *key == name)?;
            let value = value.replace('+', " ");
            let value = percent_decode_str(&value).decode_utf8().ok()?;
            Some(value.into_owned())
        };
        if parameter("state").as_ref() != Some(&self.state) {
            return Err(FlowError::OtherState);
        }
        if let Some(error) = parameter("error") {
            let description = parameter("error_description");
            let text = description.filter(|text| !text.is_empty()).unwrap_or(error);
            return Err(FlowError::Refused(text.chars().take(200).collect()));
        }
        let code = parameter("code").filter(|code| !code.is_empty());
        Ok(Authorized {
            code: code.ok_or(FlowError::NoCode)?,
            verifier: self.verifier,
            nonce: self.nonce,
            return_to: self.return_to,
        })
    }
}

/// A path of this page, and never an address of another one.
fn local_path(path: &str) -> &str {
    let is_local = path.starts_with('/')
        && !path.starts_with("//")
        && !path.contains('\\')
        && path.bytes().all(|byte| byte.is_ascii_graphic());
    if is_local { path } else { "/" }
}

impl std::fmt::Debug for AuthorizationFlow {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = formatter.debug_struct("AuthorizationFlow");
        debug
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Authorized {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = formatter.debug_struct("Authorized");
        debug
            .field("return_to", &self.return_to)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn flow() -> AuthorizationFlow {
        AuthorizationFlow {
            state: "s".to_owned(),
            nonce: "n".to_owned(),
            // The example of RFC 7636.
            verifier: "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk".to_owned(),
            return_to: "/clusters".to_owned(),
            expires: at(600),
        }
    }

    #[test]
    fn the_browser_is_sent_to_the_provider_with_a_challenge() {
        let client = Client {
            authorization_endpoint: "https://sso.example.com/auth?tenant=a".to_owned(),
            client_id: "hub".to_owned(),
            redirect_uri: "https://hub.example.com/signin/callback".to_owned(),
            scopes: vec!["openid".to_owned(), "groups".to_owned()],
        };
        assert_eq!(
            flow().authorization_url(&client),
            "https://sso.example.com/auth?tenant=a&response_type=code&client_id=hub\
             &redirect_uri=https%3A%2F%2Fhub%2Eexample%2Ecom%2Fsignin%2Fcallback&scope=openid%20groups&state=s&nonce=n\
             &code_challenge=E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw%2DcM&code_challenge_method=S256"
        );
    }

    #[test]
    fn responses_of_the_provider_are_checked() {
        let check = |query: &str, expected: Result<&str, FlowError>| {
            let code = flow().complete(query).map(|authorized| authorized.code);
            assert_eq!(code, expected.map(str::to_owned), "{query}");
        };
        check("code=a%2Fb&state=s", Ok("a/b"));
        check("state=s&code=a&iss=x", Ok("a"));
        check("code=a", Err(FlowError::OtherState));
        check("code=a&state=t", Err(FlowError::OtherState));
        check("state=s", Err(FlowError::NoCode));
        check("state=s&code=", Err(FlowError::NoCode));
        let refused = |text: &str| Err(FlowError::Refused(text.to_owned()));
        check("state=s&error=access_denied", refused("access_denied"));
        let described = "state=s&error=x&error_description=no+such%20user";
        check(described, refused("no such user"));
        // An error of another sign-in must not be shown.
        check("error=access_denied", Err(FlowError::OtherState));
    }

    #[test]
    fn a_flow_is_completed_in_the_browser_that_started_it() {
        let sealer = Sealer::new([[1; 32]]).unwrap();
        let started = AuthorizationFlow::start("/clusters?a=b", at(0)).unwrap();
        let cookie = started.cookie(&sealer, "flow", true).unwrap().unwrap();
        let cookie = cookie.to_str().unwrap();
        assert!(
            cookie.ends_with("HttpOnly; SameSite=Lax; Secure"),
            "{cookie}"
        );
        let value = cookie.strip_prefix("flow=").unwrap();
        let (value, _) = value.split_once(';').unwrap();
        let open = |now| AuthorizationFlow::open(&sealer, value, now);
        assert_eq!(open(at(599)), Ok(started));
        assert_eq!(open(at(600)), Err(FlowError::NotStarted));
        let other = AuthorizationFlow::open(&sealer, "abc", at(1));
        assert_eq!(other, Err(FlowError::NotStarted));
    }

    #[test]
    fn browsers_stay_on_this_site_after_the_sign_in() {
        for (path, expected) in [
            ("/", "/"),
            ("/clusters/a?b=c", "/clusters/a?b=c"),
            ("", "/"),
            ("clusters", "/"),
            ("//evil.example", "/"),
            ("/\\evil.example", "/"),
            ("/a\nb", "/"),
            ("https://evil.example", "/"),
        ] {
            assert_eq!(local_path(path), expected);
        }
    }
}

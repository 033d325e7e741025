use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, Ordering};

use http::Response;
use http_body_util::Full;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use serde_json::json;
use tempfile::NamedTempFile;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::super::jwt::tests::{NOW, Signer};
use super::*;

fn settings(text: &Value) -> OidcSettings {
    let mut all = json!({"issuer": "https://issuer", "audiences": ["hub"]});
    let text = text.as_object().unwrap().clone();
    all.as_object_mut().unwrap().extend(text);
    serde_json::from_value(all).unwrap()
}

#[test]
fn claims_become_a_user_as_at_an_api_server() {
    let claims = json!({
        "sub": "1", "email": "anna@corp", "email_verified": true, "login": "system:admin", "empty": "", "number": 5,
        "groups": ["a", "", "system:masters"], "group": "b", "mixed": ["a", 1],
    });
    let cases = [
        (json!({}), Ok(("https://issuer#1", ""))),
        (json!({"usernamePrefix": "-"}), Ok(("1", ""))),
        (json!({"usernamePrefix": "oidc:"}), Ok(("oidc:1", ""))),
        (json!({"usernameClaim": "email"}), Ok(("anna@corp", ""))),
        (
            json!({"usernameClaim": "email", "usernamePrefix": "x:"}),
            Ok(("x:anna@corp", "")),
        ),
        (json!({"usernameClaim": "empty"}), Err("no claim")),
        (json!({"usernameClaim": "number"}), Err("no claim")),
        (json!({"usernameClaim": "other"}), Err("no claim")),
        (
            json!({"usernameClaim": "login", "usernamePrefix": "-"}),
            Err("users of the system"),
        ),
        (
            json!({"usernameClaim": "login"}),
            Ok(("https://issuer#system:admin", "")),
        ),
        (
            json!({"usernamePrefix": "system:"}),
            Err("users of the system"),
        ),
        (
            json!({"usernamePrefix": "-", "groupsClaim": "groups"}),
            Ok(("1", "a")),
        ),
        (
            json!({"usernamePrefix": "-", "groupsClaim": "groups", "groupsPrefix": "g:"}),
            Ok(("1", "g:a g: g:system:masters")),
        ),
        (
            json!({"usernamePrefix": "-", "groupsClaim": "groups", "groupsPrefix": "system:"}),
            Ok(("1", "")),
        ),
        (
            json!({"usernamePrefix": "-", "groupsClaim": "group"}),
            Ok(("1", "b")),
        ),
        (
            json!({"usernamePrefix": "-", "groupsClaim": "none"}),
            Ok(("1", "")),
        ),
        (json!({"groupsClaim": "mixed"}), Err("no list of groups")),
        (json!({"groupsClaim": "number"}), Err("no list of groups")),
    ];
    let claims = claims.as_object().unwrap();
    for (text, expected) in cases {
        let found = user(&settings(&text), claims);
        match (found, expected) {
            (Ok(user), Ok((name, groups))) => {
                assert_eq!(
                    (user.name.as_str(), user.groups.join(" ").as_str()),
                    (name, groups),
                    "{text}"
                );
            }
            (Err(error), Err(part)) => assert!(error.contains(part), "{text}: {error}"),
            (found, expected) => panic!("{text}: {found:?}, not {expected:?}"),
        }
    }
    let unverified = json!({"email": "anna@corp", "email_verified": false});
    let email = settings(&json!({"usernameClaim": "email"}));
    assert!(user(&email, unverified.as_object().unwrap()).is_err());
}

#[test]
fn settings_that_are_not_secure_are_refused() {
    for issuer in [
        "http://issuer",
        "issuer",
        "",
        "https://issuer?x=1",
        "https://issuer#x",
    ] {
        assert!(
            Oidc::new(settings(&json!({"issuer": issuer}))).is_err(),
            "{issuer}"
        );
    }
    assert!(Oidc::new(settings(&json!({"audiences": []}))).is_err());
    assert!(Oidc::new(settings(&json!({"caFile": "/does/not/exist"}))).is_err());
    assert!(Oidc::new(settings(&json!({}))).is_ok());
    for algorithm in ["none", "HS256"] {
        let text = json!({"issuer": "https://i", "audiences": ["a"], "algorithms": [algorithm]});
        assert!(serde_json::from_value::<OidcSettings>(text).is_err());
    }
}

/// A provider on this machine.
struct Provider {
    issuer: String,
    authority: NamedTempFile,
    keys: Arc<parking_lot::Mutex<Option<Value>>>,
    fetches: Arc<AtomicU32>,
}

impl Provider {
    async fn start() -> Self {
        let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let authority = NamedTempFile::new().unwrap();
        std::fs::write(authority.path(), certified.cert.pem()).unwrap();
        let key = PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certified.cert.der().clone()], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let provider = Self {
            issuer: format!("https://localhost:{port}"),
            authority,
            keys: Arc::default(),
            fetches: Arc::default(),
        };
        let (issuer, keys, fetches) = (
            provider.issuer.clone(),
            Arc::clone(&provider.keys),
            Arc::clone(&provider.fetches),
        );
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (acceptor, issuer) = (acceptor.clone(), issuer.clone());
                let (keys, fetches) = (Arc::clone(&keys), Arc::clone(&fetches));
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else {
                        return;
                    };
                    let service = service_fn(move |request: Request<_>| {
                        let response =
                            respond(request.uri().path(), &issuer, &keys.lock(), &fetches);
                        async { Ok::<_, Infallible>(response) }
                    });
                    let builder = http1::Builder::new();
                    let _ = builder
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        provider
    }

    fn oidc(&self) -> Oidc {
        let text =
            json!({"issuer": self.issuer, "usernamePrefix": "-", "caFile": self.authority.path()});
        Oidc::new(settings(&text)).unwrap()
    }

    fn publish(&self, keys: &[&Signer]) {
        let keys: Vec<Value> = keys.iter().map(|key| key.jwk()).collect();
        *self.keys.lock() = Some(json!({ "keys": keys }));
    }

    fn token(&self, signer: &Signer) -> String {
        signer.sign(&json!({"iss": self.issuer, "aud": "hub", "sub": "anna", "exp": NOW + 60}))
    }
}

fn respond(
    path: &str,
    issuer: &str,
    keys: &Option<Value>,
    fetches: &AtomicU32,
) -> Response<Full<Bytes>> {
    let text = match (path, keys) {
        (DISCOVERY, _) => {
            json!({"issuer": issuer, "jwks_uri": format!("{issuer}/keys")}).to_string()
        }
        ("/keys", Some(keys)) => {
            fetches.fetch_add(1, Ordering::SeqCst);
            keys.to_string()
        }
        _ => String::new(),
    };
    let mut response = Response::new(Full::new(Bytes::from(text.clone())));
    if text.is_empty() {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    response
}

#[tokio::test]
async fn keys_are_fetched_kept_and_rotated() {
    let provider = Provider::start().await;
    let oidc = provider.oidc();
    let (first, second) = (Signer::new("1"), Signer::new("2"));
    let authenticate = async |signer| {
        let now = Timestamp::from_second(NOW).unwrap();
        oidc.authenticate(&provider.token(signer), now).await
    };
    let fetches = || provider.fetches.load(Ordering::SeqCst);

    let unavailable = authenticate(&first).await;
    assert!(
        matches!(unavailable, Err(Rejected::Unavailable(_))),
        "{unavailable:?}"
    );

    // The next request tries again at once.
    provider.publish(&[&first]);
    let found = tokio::join!(
        authenticate(&first),
        authenticate(&first),
        authenticate(&first)
    );
    for found in [found.0, found.1, found.2] {
        assert_eq!(found.unwrap().name, "anna");
    }
    assert_eq!(fetches(), 1);

    // A token with an unknown key does not cause another fetch so soon.
    let unknown = authenticate(&second).await;
    assert!(matches!(unknown, Err(Rejected::Invalid(_))), "{unknown:?}");
    assert_eq!(fetches(), 1);

    provider.publish(&[&first, &second]);
    oidc.keys.lock().await.tried = Instant::now().checked_sub(FETCH_INTERVAL);
    assert_eq!(authenticate(&second).await.unwrap().name, "anna");
    assert_eq!(fetches(), 2);

    // While the provider is away, its keys stay valid.
    *provider.keys.lock() = None;
    oidc.keys.lock().await.tried = None;
    oidc.keys.lock().await.fetched = Instant::now().checked_sub(KEYS_TTL);
    assert_eq!(authenticate(&first).await.unwrap().name, "anna");
}

#[tokio::test]
async fn a_provider_with_another_name_is_refused() {
    let provider = Provider::start().await;
    let signer = Signer::new("1");
    provider.publish(&[&signer]);
    let port = provider.issuer.rsplit(':').next().unwrap();
    let mut oidc = provider.oidc();
    // The same server, but not the name that it has.
    oidc.settings.issuer = format!("https://localhost:{port}/");
    let failed = oidc.fetch().await;
    assert!(
        matches!(failed, Err(FetchError::Issuer { .. })),
        "{failed:?}"
    );
}

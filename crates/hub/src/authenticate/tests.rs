use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use http::header::{HeaderName, SEC_WEBSOCKET_PROTOCOL};
use http::{HeaderValue, Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use serde_json::{Value, json};

use super::*;

/// An API server with one valid token, which counts its reviews.
fn api_server(reviews: &Arc<AtomicU32>) -> Client {
    let reviews = Arc::clone(reviews);
    let service = tower::service_fn(move |request: Request<Body>| {
        let reviews = Arc::clone(&reviews);
        async move {
            let body = request.into_body().collect_bytes().await.unwrap();
            let review: Value = serde_json::from_slice(&body).unwrap();
            let token = review["spec"]["token"].as_str().unwrap().to_owned();
            reviews.fetch_add(1, Ordering::SeqCst);
            let (code, response) = match token.as_str() {
                "valid" => (
                    201,
                    json!({"spec": {}, "status": {
                        "authenticated": true,
                        "user": {"username": "anna", "uid": "1", "groups": ["a"], "extra": {"k": ["v"]}},
                    }}),
                ),
                "broken" => (
                    500,
                    json!({"kind": "Status", "code": 500, "message": "m", "reason": "InternalError", "status": "Failure"}),
                ),
                _ => (201, json!({"spec": {}, "status": {"error": "invalid"}})),
            };
            let mut response = Response::new(Body::from(response.to_string().into_bytes()));
            *response.status_mut() = StatusCode::from_u16(code).unwrap();
            Ok::<_, std::io::Error>(response)
        }
    });
    Client::new(service, "standin")
}

struct Setup {
    authenticator: Authenticator,
    reviews: Arc<AtomicU32>,
}

impl Setup {
    fn new(authorities: Option<ClientAuthorities>) -> Self {
        let reviews = Arc::default();
        let tokens = TokenReviews::new(api_server(&reviews), Vec::new()).unwrap();
        Self {
            authenticator: Authenticator::new(tokens, Vec::new(), authorities),
            reviews,
        }
    }

    async fn authenticate(
        &self,
        headers: &[(HeaderName, &str)],
        certificates: &[CertificateDer<'static>],
    ) -> Result<User, Rejected> {
        let headers = headers
            .iter()
            .map(|(name, value)| (name.clone(), HeaderValue::from_str(value).unwrap()));
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name, value);
        }
        self.authenticator.authenticate(&map, certificates).await
    }
}

/// The user's name, or the kind of the rejection.
fn short(result: Result<User, Rejected>) -> String {
    match result {
        Ok(user) => user.name,
        Err(Rejected::NoCredential) => "none".to_owned(),
        Err(Rejected::Invalid(_)) => "invalid".to_owned(),
        Err(Rejected::Unavailable(_)) => "unavailable".to_owned(),
    }
}

#[tokio::test]
async fn tokens_are_found_and_reviewed() {
    let setup = Setup::new(None);
    let long = format!("Bearer {}", "x".repeat(MAX_TOKEN + 1));
    let protocol = "base64url.bearer.authorization.k8s.io.dmFsaWQ";
    let twice = format!("{protocol}, {protocol}");
    let cases: [(&[(HeaderName, &str)], &str); 15] = [
        (&[], "none"),
        (&[(AUTHORIZATION, "Bearer valid")], "anna"),
        (&[(AUTHORIZATION, "bearer  valid ")], "anna"),
        (&[(AUTHORIZATION, "Bearer other")], "invalid"),
        (&[(AUTHORIZATION, "Bearer broken")], "unavailable"),
        (&[(AUTHORIZATION, "Bearer ")], "invalid"),
        (&[(AUTHORIZATION, "Bearer valid valid")], "invalid"),
        (&[(AUTHORIZATION, "Basic dmFsaWQ6")], "invalid"),
        (&[(AUTHORIZATION, "valid")], "invalid"),
        (&[(AUTHORIZATION, &long)], "invalid"),
        (
            &[
                (AUTHORIZATION, "Bearer valid"),
                (AUTHORIZATION, "Bearer valid"),
            ],
            "invalid",
        ),
        (&[(SEC_WEBSOCKET_PROTOCOL, protocol)], "anna"),
        (&[(SEC_WEBSOCKET_PROTOCOL, &twice)], "invalid"),
        (&[(SEC_WEBSOCKET_PROTOCOL, "v5.channel.k8s.io")], "none"),
        // The header counts.
        (
            &[
                (SEC_WEBSOCKET_PROTOCOL, protocol),
                (AUTHORIZATION, "Bearer other"),
            ],
            "invalid",
        ),
    ];
    for (headers, expected) in cases {
        assert_eq!(
            short(setup.authenticate(headers, &[]).await),
            expected,
            "{headers:?}"
        );
    }
    let user = setup
        .authenticate(&[(AUTHORIZATION, "Bearer valid")], &[])
        .await
        .unwrap();
    assert_eq!(user.uid.as_deref(), Some("1"));
    assert_eq!(user.groups, ["a"]);
    assert_eq!(user.extra["k"], ["v"]);
}

#[tokio::test]
async fn results_are_kept_but_failures_are_not() {
    let setup = Setup::new(None);
    for (token, reviews) in [("valid", 1), ("other", 1), ("broken", 3)] {
        setup.reviews.store(0, Ordering::SeqCst);
        for _ in 0..3 {
            let header = format!("Bearer {token}");
            let _ = setup.authenticate(&[(AUTHORIZATION, &header)], &[]).await;
        }
        assert_eq!(setup.reviews.load(Ordering::SeqCst), reviews, "{token}");
    }
}

#[tokio::test]
async fn no_token_is_in_debug_output_or_messages() {
    let setup = Setup::new(None);
    let text = format!("{:?}", setup.authenticator);
    assert!(text.contains("TokenReviews"), "{text}");
    assert!(!text.contains("key"), "{text}");
}

struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            pem,
            issuer: Issuer::new(params, key),
        }
    }

    fn issue(
        &self,
        names: &[(DnType, &str)],
        change: impl FnOnce(&mut CertificateParams),
    ) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, value) in names {
            params.distinguished_name.push(kind.clone(), *value);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        params.signed_by(&key, &self.issuer).unwrap().der().clone()
    }
}

#[tokio::test]
async fn certificates_of_the_chosen_authority_name_users() {
    let (ours, other) = (Authority::new(), Authority::new());
    let setup = Setup::new(Some(ClientAuthorities::from_pem(&ours.pem).unwrap()));
    let name = [
        (DnType::CommonName, "berta"),
        (DnType::OrganizationName, "developers"),
    ];
    let good = ours.issue(&name, |_| ());
    let expired = ours.issue(&name, |params| {
        params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    });
    let for_servers = ours.issue(&name, |params| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    });
    let nameless = ours.issue(&[(DnType::OrganizationName, "developers")], |_| ());
    let foreign = other.issue(&name, |_| ());
    let none: &[(HeaderName, &str)] = &[];
    let token: &[(HeaderName, &str)] = &[(AUTHORIZATION, "Bearer valid")];
    let cases = [
        (none, &good, "berta"),
        (token, &good, "berta"),
        (none, &foreign, "invalid"),
        // A certificate for something else keeps no client from using its token.
        (token, &foreign, "anna"),
        (none, &expired, "invalid"),
        (none, &for_servers, "invalid"),
        (none, &nameless, "invalid"),
        (none, &CertificateDer::from(vec![1, 2, 3]), "invalid"),
    ];
    for (headers, certificate, expected) in cases {
        let found = setup
            .authenticate(headers, std::slice::from_ref(certificate))
            .await;
        assert_eq!(short(found), expected);
    }
    let found = setup
        .authenticate(none, std::slice::from_ref(&good))
        .await
        .unwrap();
    assert_eq!(found.groups, ["developers"]);
    // Without a chosen authority, certificates mean nothing.
    let setup = Setup::new(None);
    assert_eq!(short(setup.authenticate(none, &[good]).await), "none");
}

//! Tunnels that are refused, and what the agent says about it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use link::tls::TlsAcceptor;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;

use super::certificates::{Authority, Life};
use super::hub::{CLUSTER, Setup, Tunnel, serve, start_agent};
use super::network::ConnectProxy;
use super::service::{get, text};
use crate::{ProxyRules, Settings};

#[tokio::test]
async fn versions_one_apart_work_together_and_others_are_refused_by_name() {
    let with = |hub, agent| {
        let mut setup = Setup::default();
        (setup.acceptor.version, setup.settings.version) = (hub, agent);
        setup
    };
    for (hub, agent) in [(1, 1), (2, 1), (1, 2)] {
        let (_tunnel, session) = Tunnel::open_with(with(hub, agent)).await;
        assert_eq!(session.version(), agent);
        let response = get(&session, "/hello").await.unwrap();
        assert_eq!(text(response).await.unwrap(), "hello");
    }
    for (hub, agent) in [(3, 1), (1, 3)] {
        let error = Tunnel::start(with(hub, agent)).await.agent.error().await;
        let expected = format!(
            "the hub uses version {hub} of the tunnel protocol and this agent version {agent}: upgrade the older one"
        );
        assert_eq!(error, expected);
    }
}

#[tokio::test]
async fn an_agent_that_claims_another_cluster_is_refused() {
    let mut tunnel = Tunnel::start(Setup {
        peer: "prod-us",
        ..Setup::default()
    })
    .await;
    let expected = "the hub refuses the tunnel (403): the agent claims to be cluster `prod-eu`, but its certificate is for `prod-us`";
    assert_eq!(tunnel.agent.error().await, expected);
}

/// The error of an agent whose hub is a server that always responds in this way.
async fn error_behind(status: StatusCode, body: &'static str) -> String {
    let authority = Authority::new();
    let tls = authority.hub_tls(&authority.sign("localhost", Life::Valid));
    let address = serve(TlsAcceptor::from(Arc::new(tls)), move |_| {
        let mut response = Response::new(Full::new(Bytes::from_static(body.as_bytes())).boxed());
        *response.status_mut() = status;
        response
    })
    .await;
    let settings = Settings::new(format!("wss://localhost:{}", address.port()), CLUSTER);
    let identity = authority.sign(CLUSTER, Life::Valid);
    start_agent(settings, authority.credentials(&identity))
        .error()
        .await
}

#[tokio::test]
async fn a_load_balancer_in_between_is_recognised() {
    let hint = "something between agent and hub terminates TLS or HTTP, such as a load balancer. Use TCP passthrough for the hub's agent address";
    let check = async |status, body, found: &str| {
        assert_eq!(error_behind(status, body).await, format!("{found}: {hint}"));
    };
    let page = "<html><h1>Bad Gateway</h1></html>";
    check(
        StatusCode::BAD_GATEWAY,
        page,
        "the response is HTTP 502 and a web page",
    )
    .await;
    check(StatusCode::OK, "ok", "the response is HTTP 200").await;
    check(StatusCode::FORBIDDEN, "", "the response is HTTP 403").await;
}

/// The error of an agent with these certificates.
async fn error_with(name: &str, hub: Life, agent: Life, same_authority: bool) -> String {
    let authority = Authority::new();
    let tls = authority.hub_tls(&authority.sign(name, hub));
    let address = serve(TlsAcceptor::from(Arc::new(tls)), move |_| {
        Response::new(Full::default().boxed())
    })
    .await;
    let trusted = match same_authority {
        true => authority,
        false => Authority::new(),
    };
    let settings = Settings::new(format!("wss://localhost:{}", address.port()), CLUSTER);
    let identity = trusted.sign(CLUSTER, agent);
    start_agent(settings, trusted.credentials(&identity))
        .error()
        .await
}

#[tokio::test]
async fn certificate_errors_are_explained() {
    use Life::{Expired, Valid};
    let check = async |name, hub, agent, same_authority, expected: &str| {
        let error = error_with(name, hub, agent, same_authority).await;
        assert!(error.contains(expected), "{error}");
    };
    check(
        "localhost",
        Expired,
        Valid,
        true,
        "the hub's certificate has expired: renew it",
    )
    .await;
    check(
        "localhost",
        Valid,
        Expired,
        true,
        "this agent's certificate has expired: register",
    )
    .await;
    check(
        "localhost",
        Valid,
        Valid,
        false,
        "an authority that this agent does not know",
    )
    .await;
    check(
        "other",
        Valid,
        Valid,
        true,
        "is not valid for the name `localhost`",
    )
    .await;
}

#[tokio::test]
async fn a_server_without_tls_is_recognised() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"SSH-2.0-OpenSSH_9.9\r\n").await.unwrap();
        std::future::pending::<()>().await;
    });
    let authority = Authority::new();
    let identity = authority.sign(CLUSTER, Life::Valid);
    let settings = Settings::new(format!("wss://localhost:{port}"), CLUSTER);
    let mut agent = start_agent(settings, authority.credentials(&identity));
    let error = agent.error().await;
    assert!(error.contains("does not speak TLS"), "{error}");
}

#[tokio::test]
async fn an_agent_connects_through_a_proxy() {
    let proxy = ConnectProxy::start(Some("Proxy-Authorization: Basic bWU6c2VjcmV0\r\n")).await;
    let rules = |user: &str| {
        let url = format!("http://{user}{}", proxy.address);
        ProxyRules::new(Some(&url), Some("example.com")).unwrap()
    };
    let mut setup = Setup::default();
    setup.settings.proxy = rules("me:secret@");
    let (_tunnel, session) = Tunnel::open_with(setup).await;
    let response = get(&session, "/hello").await.unwrap();
    assert_eq!(text(response).await.unwrap(), "hello");
    assert_eq!(proxy.connections.load(Ordering::Relaxed), 1);

    let mut setup = Setup::default();
    setup.settings.proxy = rules("");
    let error = Tunnel::start(setup).await.agent.error().await;
    assert!(
        error.contains("requires a user name and a password"),
        "{error}"
    );
}

#[tokio::test]
async fn a_hub_that_is_away_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let authority = Authority::new();
    let identity = authority.sign(CLUSTER, Life::Valid);
    let settings = Settings::new(format!("wss://localhost:{port}"), CLUSTER);
    let mut agent = start_agent(settings, authority.credentials(&identity));
    let error = agent.error().await;
    assert!(
        error.starts_with(&format!("localhost:{port} cannot be reached")),
        "{error}"
    );
}

use rustls::pki_types::ServerName;
use tokio::net::{TcpListener, TcpStream};

use super::network::{exchange, settings, stream, token};
use crate::tls::{self, FirstSeen, Identity, TlsDialer, Trust};
use crate::{
    Accepted, Buffers, Dial, Link, LinkError, LinkServer, Pipe, ServerSettings, SharedToken,
    TcpDialer,
};

fn server() -> LinkServer<SharedToken> {
    LinkServer::new(ServerSettings::default(), SharedToken(token()))
}

async fn listen() -> (TcpListener, TcpDialer) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let dialer = TcpDialer::new(listener.local_addr().unwrap());
    (listener, dialer)
}

async fn check(dialer: impl Dial, accept: impl AsyncFn() -> Box<dyn Pipe>) {
    let server = server();
    let serving = async {
        let Accepted::New(link) = server.accept(accept().await).await.unwrap() else {
            unreachable!("there is no earlier link")
        };
        exchange(link, stream(1, 2_000_000)).await.unwrap()
    };
    let calling = async {
        let link = Link::connect(dialer, settings(Buffers::default()))
            .await
            .unwrap();
        exchange(link, stream(2, 3_000_000)).await.unwrap()
    };
    let (at_server, at_client) = tokio::join!(serving, calling);
    assert!(at_server == stream(2, 3_000_000) && at_client == stream(1, 2_000_000));
}

#[tokio::test]
async fn tcp() {
    let (listener, dialer) = listen().await;
    check(dialer, async || {
        Box::new(listener.accept().await.unwrap().0) as Box<dyn Pipe>
    })
    .await;
}

async fn accept_tls(
    listener: &TcpListener,
    acceptor: &tls::TlsAcceptor,
) -> std::io::Result<tokio_rustls::server::TlsStream<TcpStream>> {
    let (stream, _) = listener.accept().await?;
    acceptor.accept(stream).await
}

#[tokio::test]
async fn tls_with_a_pinned_certificate_and_with_an_authority() {
    let identity = Identity::generate_named("agent.test").unwrap();
    let acceptor = tls::acceptor(&identity).unwrap();
    let pinned = Trust::Pinned(identity.fingerprint());
    let authority = Trust::Authorities(vec![identity.certificate().clone()]);
    // The name of a pinned certificate is not verified.
    for (name, trust) in [("other.test", pinned), ("agent.test", authority)] {
        let (listener, dialer) = listen().await;
        let name = ServerName::try_from(name).unwrap();
        let dialer = TlsDialer::new(dialer, name, trust).unwrap();
        check(dialer, async || {
            Box::new(accept_tls(&listener, &acceptor).await.unwrap()) as Box<dyn Pipe>
        })
        .await;
    }
}

#[tokio::test]
async fn tls_with_an_untrusted_certificate() {
    let ours = Identity::generate_named("agent.test").unwrap();
    let acceptor = tls::acceptor(&ours).unwrap();
    let theirs = Identity::generate_named("agent.test").unwrap();
    for (name, trust) in [
        ("agent.test", Trust::Pinned(theirs.fingerprint())),
        (
            "agent.test",
            Trust::Authorities(vec![theirs.certificate().clone()]),
        ),
        (
            "other.test",
            Trust::Authorities(vec![ours.certificate().clone()]),
        ),
    ] {
        let (listener, dialer) = listen().await;
        let name = ServerName::try_from(name).unwrap();
        let dialer = TlsDialer::new(dialer, name, trust).unwrap();
        let connecting = Link::connect(dialer, settings(Buffers::default()));
        let (connected, accepted) = tokio::join!(connecting, accept_tls(&listener, &acceptor));
        let error = connected.unwrap_err();
        assert!(matches!(error, LinkError::Unreachable(_)), "{error}");
        assert!(accepted.is_err());
    }
}

#[tokio::test]
async fn tls_with_a_client_certificate_and_trust_on_first_use() {
    let (agent, other_agent) = (Identity::generate().unwrap(), Identity::generate().unwrap());
    let (client, other) = (Identity::generate().unwrap(), Identity::generate().unwrap());
    let first_seen = FirstSeen::default();
    let name = || ServerName::try_from("agent").unwrap();
    let accept = async |listener: &TcpListener, agent: &Identity| {
        let acceptor = tls::acceptor_for_clients(agent, &[client.fingerprint()]).unwrap();
        accept_tls(listener, &acceptor).await
    };
    // The certificate of the first connection is required on the second one.
    for _ in 0..2 {
        let (listener, dialer) = listen().await;
        let trust = Trust::FirstSeen(first_seen.clone());
        let dialer = TlsDialer::with_identity(dialer, name(), trust, &client).unwrap();
        check(dialer, async || {
            Box::new(accept(&listener, &agent).await.unwrap()) as Box<dyn Pipe>
        })
        .await;
    }
    let (listener, dialer) = listen().await;
    let trust = Trust::FirstSeen(first_seen.clone());
    let dialer = TlsDialer::with_identity(dialer, name(), trust, &client).unwrap();
    let (dialed, _) = tokio::join!(dialer.dial(), accept(&listener, &other_agent));
    assert!(dialed.is_err());
    // Clients with another certificate, or without one, are rejected.
    for identity in [Some(&other), None] {
        let (listener, dialer) = listen().await;
        let trust = Trust::FirstSeen(FirstSeen::default());
        let dialer = match identity {
            Some(identity) => TlsDialer::with_identity(dialer, name(), trust, identity).unwrap(),
            None => TlsDialer::new(dialer, name(), trust).unwrap(),
        };
        let (_, accepted) = tokio::join!(dialer.dial(), accept(&listener, &agent));
        assert!(accepted.is_err());
    }
}

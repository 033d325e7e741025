use std::io;
use std::sync::Arc;

use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use splitter::{
    BoxFuture, BoxStream, ConnectionMeta, Destination, Filter, Mode, OnConflict, Port, Settings,
    TlsTermination,
};
use tokio::io::AsyncWriteExt;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::fixture::{Behavior, TestUpstream, ToUpstream, claim, meta, read_until};

/// An upstream that uses TLS with the target's certificate.
struct Secure {
    upstream: ToUpstream,
    server: Arc<ServerConfig>,
}

impl Destination for Secure {
    fn open<'a>(&'a self, meta: &'a ConnectionMeta) -> BoxFuture<'a, io::Result<BoxStream>> {
        Box::pin(async move {
            let mut inner = self.upstream.open(meta).await?;
            let (ours, theirs) = tokio::io::duplex(64 * 1024);
            let acceptor = TlsAcceptor::from(self.server.clone());
            tokio::spawn(async move {
                if let Ok(mut stream) = acceptor.accept(theirs).await {
                    let _ = tokio::io::copy_bidirectional(&mut stream, &mut inner).await;
                }
            });
            Ok(Box::new(ours) as BoxStream)
        })
    }
}

fn configs() -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    let made = rcgen::generate_simple_self_signed(["shop.example".to_owned()]).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let certificate = made.cert.der().clone();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut server = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    server.alpn_protocols = vec![b"http/1.1".to_vec()];
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    (Arc::new(server), Arc::new(client))
}

#[tokio::test]
async fn requests_inside_tls_are_split_and_the_application_gets_tls() {
    let (server, client) = configs();
    let application = TestUpstream::new("application", Behavior::Responds);
    let secure = Secure {
        upstream: ToUpstream(application.clone()),
        server: server.clone(),
    };
    let port = Arc::new(Port::new(Arc::new(secure), Settings::default()));
    let alice = TestUpstream::new("alice", Behavior::Responds);
    let filter = Filter::header("^x-for: alice$").unwrap();
    let mut alices = claim(
        "alice",
        Mode::Steal,
        Some(filter),
        Arc::new(ToUpstream(alice.clone())),
    );
    alices.tls = Some(TlsTermination::new(server, client.clone()));
    let mut guard = Some(port.claims().claim(alices, OnConflict::Abort).unwrap());
    let mirror = TestUpstream::new("mirror", Behavior::Silent);
    let mirrors = claim(
        "mirror",
        Mode::Mirror,
        None,
        Arc::new(ToUpstream(mirror.clone())),
    );
    let _mirrors = port.claims().claim(mirrors, OnConflict::Abort).unwrap();
    let (plain_port, last_port) = (port.clone(), port.clone());

    let (ours, served) = tokio::io::duplex(64 * 1024);
    tokio::spawn(async move { port.serve(Box::new(served), meta()).await });
    let mut client_config = client.as_ref().clone();
    client_config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let name = ServerName::try_from("shop.example").unwrap();
    let mut stream = TlsConnector::from(Arc::new(client_config))
        .connect(name, ours)
        .await
        .unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    for (session, who) in [
        ("other", "application"),
        ("alice", "alice"),
        ("other", "application"),
    ] {
        let request = format!("GET /{session} HTTP/1.1\r\nX-For: {session}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        read_until(&mut stream, &format!("{who} GET /{session}")).await;
    }
    assert_eq!((application.opened(), alice.opened()), (1, 1));
    // A mirror gets the plain text.
    let request_for =
        |session: &str| format!("GET /{session} HTTP/1.1\r\nX-For: {session}\r\n\r\n");
    let all = ["other", "alice", "other"].map(request_for).concat();
    mirror.wait_until_received(&all).await;

    // Plain connections are mirrored from their first byte on.
    let (mut ours, served) = tokio::io::duplex(64 * 1024);
    tokio::spawn(async move { plain_port.serve(Box::new(served), meta()).await });
    ours.write_all(request_for("alice").as_bytes())
        .await
        .unwrap();
    read_until(&mut ours, "alice GET /alice").await;
    mirror
        .wait_until_received(&(all + &request_for("alice")))
        .await;

    // TLS termination ends with its session. After that encrypted connections are forwarded unchanged.
    let filter = Filter::header("^x-for: bob$").unwrap();
    let bob = TestUpstream::new("bob", Behavior::Responds);
    let bobs = claim(
        "bob",
        Mode::Steal,
        Some(filter),
        Arc::new(ToUpstream(bob.clone())),
    );
    let _bobs = last_port.claims().claim(bobs, OnConflict::Abort).unwrap();
    for (is_terminated, expected) in [(true, "bob GET /bob"), (false, "application GET /bob")] {
        let (ours, served) = tokio::io::duplex(64 * 1024);
        let port = last_port.clone();
        tokio::spawn(async move { port.serve(Box::new(served), meta()).await });
        let name = ServerName::try_from("shop.example").unwrap();
        let connector = TlsConnector::from(client.clone());
        let mut stream = connector.connect(name, ours).await.unwrap();
        stream
            .write_all(request_for("bob").as_bytes())
            .await
            .unwrap();
        read_until(&mut stream, expected).await;
        assert_eq!(guard.is_some(), is_terminated);
        drop(guard.take());
    }
}

use std::io;
use std::sync::Arc;

use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use splitter::{
    Arrival, BoxFuture, BoxStream, Destination, Filter, Mode, OnConflict, Port, Settings, Tls,
};
use tokio::io::AsyncWriteExt;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::stage::{Manner, Place, To, arrival, claim, read_until};

/// A place that speaks TLS with the target's certificate.
struct Secure {
    place: To,
    server: Arc<ServerConfig>,
}

impl Destination for Secure {
    fn open<'a>(&'a self, arrival: &'a Arrival) -> BoxFuture<'a, io::Result<BoxStream>> {
        Box::pin(async move {
            let mut inner = self.place.open(arrival).await?;
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
    let application = Place::new("application", Manner::Answers);
    let secure = Secure {
        place: To(application.clone()),
        server: server.clone(),
    };
    let port = Arc::new(Port::new(Arc::new(secure), Settings::default()));
    let alice = Place::new("alice", Manner::Answers);
    let filter = Filter::header("^x-for: alice$").unwrap();
    let mut alices = claim(
        "alice",
        Mode::Steal,
        Some(filter),
        Arc::new(To(alice.clone())),
    );
    alices.tls = Some(Tls::new(server, client.clone()));
    let mut guard = Some(port.claims().claim(alices, OnConflict::Abort).unwrap());
    let copy = Place::new("copy", Manner::Silent);
    let copies = claim("copy", Mode::Mirror, None, Arc::new(To(copy.clone())));
    let _copies = port.claims().claim(copies, OnConflict::Abort).unwrap();
    let (plain_port, last_port) = (port.clone(), port.clone());

    let (ours, served) = tokio::io::duplex(64 * 1024);
    tokio::spawn(async move { port.serve(Box::new(served), arrival()).await });
    let mut asking = client.as_ref().clone();
    asking.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let name = ServerName::try_from("shop.example").unwrap();
    let mut stream = TlsConnector::from(Arc::new(asking))
        .connect(name, ours)
        .await
        .unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    for (session, who) in [
        ("nobody", "application"),
        ("alice", "alice"),
        ("nobody", "application"),
    ] {
        let request = format!("GET /{session} HTTP/1.1\r\nX-For: {session}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        read_until(&mut stream, &format!("{who} GET /{session}")).await;
    }
    assert_eq!((application.opened(), alice.opened()), (1, 1));
    // A copy has what was said inside of TLS.
    let said = |session: &str| format!("GET /{session} HTTP/1.1\r\nX-For: {session}\r\n\r\n");
    let all = ["nobody", "alice", "nobody"].map(said).concat();
    copy.wait_until_got(&all).await;

    // What is not encrypted is copied from its first byte on.
    let (mut ours, served) = tokio::io::duplex(64 * 1024);
    tokio::spawn(async move { plain_port.serve(Box::new(served), arrival()).await });
    ours.write_all(said("alice").as_bytes()).await.unwrap();
    read_until(&mut ours, "alice GET /alice").await;
    copy.wait_until_got(&(all + &said("alice"))).await;

    // With the session goes what it knew: others get what is encrypted as it is.
    let filter = Filter::header("^x-for: bob$").unwrap();
    let bob = Place::new("bob", Manner::Answers);
    let bobs = claim("bob", Mode::Steal, Some(filter), Arc::new(To(bob.clone())));
    let _bobs = last_port.claims().claim(bobs, OnConflict::Abort).unwrap();
    for (is_known, expected) in [(true, "bob GET /bob"), (false, "application GET /bob")] {
        let (ours, served) = tokio::io::duplex(64 * 1024);
        let port = last_port.clone();
        tokio::spawn(async move { port.serve(Box::new(served), arrival()).await });
        let name = ServerName::try_from("shop.example").unwrap();
        let connector = TlsConnector::from(client.clone());
        let mut stream = connector.connect(name, ours).await.unwrap();
        stream.write_all(said("bob").as_bytes()).await.unwrap();
        read_until(&mut stream, expected).await;
        assert_eq!(guard.is_some(), is_known);
        drop(guard.take());
    }
}

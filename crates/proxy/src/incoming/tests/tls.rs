//! Applications that speak TLS.

use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use protocol::incoming::{Arrived, ArrivedTls};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::{World, arrived, bytes, listener};

/// An application with a certificate of its own, which is in `server.pem`; `other.pem` has somebody else's.
struct Application {
    folder: TempDir,
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl Application {
    fn new(listener: TcpListener) -> Self {
        let make = || generate_simple_self_signed(["shop.example".to_owned()]).unwrap();
        let CertifiedKey { cert, signing_key } = make();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("server.pem"), cert.pem()).unwrap();
        fs::write(folder.path().join("other.pem"), make().cert.pem()).unwrap();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(signing_key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Self {
            folder,
            listener,
            acceptor: TlsAcceptor::from(Arc::new(config)),
        }
    }

    /// Answers one question, and tells what it was asked for.
    async fn serve(&self) -> (Option<String>, Option<Vec<u8>>) {
        let (socket, _) = self.listener.accept().await.unwrap();
        let mut stream = self.acceptor.accept(socket).await.unwrap();
        let (_, session) = stream.get_ref();
        let name = session.server_name().map(ToOwned::to_owned);
        let protocol = session.alpn_protocol().map(ToOwned::to_owned);
        let mut question = [0; 8];
        stream.read_exact(&mut question).await.unwrap();
        assert_eq!(&question, b"question");
        stream.write_all(b"answer").await.unwrap();
        stream.shutdown().await.unwrap();
        (name, protocol)
    }
}

fn arrived_with_tls() -> Arrived {
    let tls = ArrivedTls {
        server_name: Some("shop.example".to_owned()),
        application_protocol: Some(b"h2".to_vec()),
    };
    Arrived {
        tls: Some(tls),
        ..arrived()
    }
}

#[tokio::test]
async fn what_was_inside_of_tls_gets_to_an_application_inside_of_tls() {
    let (listener, address) = listener().await;
    let application = Application::new(listener);
    let folder = application.folder.path().display();
    for delivery in [
        "{}".to_owned(),
        format!("{{server_cert: {folder}/server.pem}}"),
        format!("{{trust_roots: {folder}/server.pem}}"),
        format!("{{trust_roots: {folder}}}"),
    ] {
        let world = World::new(&format!("{{mode: steal, tls_delivery: {delivery}}}")).await;
        world.listen(address, false).await.unwrap();
        let mut client = world.agent.arrive(&arrived_with_tls()).await;
        let question = Bytes::from_static(b"question");
        client.to_application.send_data(question).await.unwrap();
        let (name, protocol) = application.serve().await;
        assert_eq!(name.as_deref(), Some("shop.example"), "{delivery}");
        assert_eq!(protocol.as_deref(), Some(b"h2".as_slice()), "{delivery}");
        let answer = bytes(&mut client.from_application, 7).await;
        assert_eq!(answer, b"\x01answer", "{delivery}");
    }
}

#[tokio::test]
async fn an_application_with_another_certificate_does_not_get_it() {
    let (listener, address) = listener().await;
    let application = Application::new(listener);
    let folder = application.folder.path().display();
    for key in ["server_cert", "trust_roots"] {
        let delivery = format!("{{{key}: {folder}/other.pem}}");
        let world = World::new(&format!("{{mode: steal, tls_delivery: {delivery}}}")).await;
        world.listen(address, false).await.unwrap();
        let client = world.agent.arrive(&arrived_with_tls()).await;
        let (socket, _) = application.listener.accept().await.unwrap();
        assert!(application.acceptor.accept(socket).await.is_err());
        drop(client.to_application);
        let rest = client.from_application.collect().await.unwrap();
        assert!(rest.to_bytes().is_empty(), "{key}");
    }
}

#[tokio::test]
async fn resets_are_resets_on_the_other_side_of_tls() {
    let (listener, address) = listener().await;
    let application = Application::new(listener);
    let world = World::new("{mode: steal, tls_delivery: {}}").await;
    world.listen(address, false).await.unwrap();
    let accept = async || {
        let (socket, _) = application.listener.accept().await.unwrap();
        application.acceptor.accept(socket).await.unwrap()
    };

    let mut client = world.agent.arrive(&arrived_with_tls()).await;
    let mut stream = accept().await;
    assert_eq!(bytes(&mut client.from_application, 1).await, [1]);
    client.to_application.abort("reset".into());
    let error = stream.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);

    let mut client = world.agent.arrive(&arrived_with_tls()).await;
    let stream = accept().await;
    assert_eq!(bytes(&mut client.from_application, 1).await, [1]);
    stream.get_ref().0.set_zero_linger().unwrap();
    drop(stream);
    assert!(client.from_application.frame().await.unwrap().is_err());

    // One that closes without saying so in TLS has ended all the same.
    let mut client = world.agent.arrive(&arrived_with_tls()).await;
    let mut stream = accept().await;
    assert_eq!(bytes(&mut client.from_application, 1).await, [1]);
    stream.get_mut().0.shutdown().await.unwrap();
    let rest = client.from_application.collect().await.unwrap();
    assert!(rest.to_bytes().is_empty());
}

#[tokio::test]
async fn an_application_without_tls_gets_what_was_inside() {
    let (listener, address) = listener().await;
    let world = World::new("{mode: steal, tls_delivery: {protocol: tcp}}").await;
    world.listen(address, false).await.unwrap();
    let mut client = world.agent.arrive(&arrived_with_tls()).await;
    let question = Bytes::from_static(b"question");
    client.to_application.send_data(question).await.unwrap();
    let mut application = super::accept(&listener).await;
    let mut heard = [0; 8];
    application.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"question");
}

/// It may be stopped, or wait for somebody who speaks first.
#[tokio::test]
async fn an_application_that_does_not_agree_on_tls_does_not_get_it() {
    let (listener, address) = listener().await;
    let world = World::new("{mode: steal, tls_delivery: {}}").await;
    world.listen(address, false).await.unwrap();
    let client = world.agent.arrive(&arrived_with_tls()).await;
    let _silent = super::accept(&listener).await;
    // From now on time passes by itself when nothing else happens.
    tokio::time::pause();
    let rest = client.from_application.collect();
    let rest = timeout(Duration::from_secs(24 * 60 * 60), rest).await;
    let rest = rest.expect("it is given back").unwrap();
    assert!(rest.to_bytes().is_empty());
}

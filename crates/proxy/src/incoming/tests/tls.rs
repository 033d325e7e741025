//! Tests with applications that speak TLS.

use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use protocol::incoming::{ClientTls, ConnectionMeta};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::{TestSession, bytes, listener, meta};

/// An application with a certificate of its own, which is in `server.pem`; `other.pem` has another one.
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

    /// Answers one request, and returns the server name and the application protocol of the handshake.
    async fn serve(&self) -> (Option<String>, Option<Vec<u8>>) {
        let (socket, _) = self.listener.accept().await.unwrap();
        let mut stream = self.acceptor.accept(socket).await.unwrap();
        let (_, tls) = stream.get_ref();
        let name = tls.server_name().map(ToOwned::to_owned);
        let protocol = tls.alpn_protocol().map(ToOwned::to_owned);
        let mut request = [0; 8];
        stream.read_exact(&mut request).await.unwrap();
        assert_eq!(&request, b"request!");
        stream.write_all(b"response").await.unwrap();
        stream.shutdown().await.unwrap();
        (name, protocol)
    }
}

fn meta_with_tls() -> ConnectionMeta {
    let tls = ClientTls {
        server_name: Some("shop.example".to_owned()),
        application_protocol: Some(b"h2".to_vec()),
    };
    ConnectionMeta {
        tls: Some(tls),
        ..meta()
    }
}

#[tokio::test]
async fn decrypted_traffic_is_encrypted_again_for_the_application() {
    let (listener, address) = listener().await;
    let application = Application::new(listener);
    let folder = application.folder.path().display();
    for delivery in [
        "{}".to_owned(),
        format!("{{server_cert: {folder}/server.pem}}"),
        format!("{{trust_roots: {folder}/server.pem}}"),
        format!("{{trust_roots: {folder}}}"),
    ] {
        let session = TestSession::new(&format!("{{mode: steal, tls_delivery: {delivery}}}")).await;
        session.listen(address, false).await.unwrap();
        let mut client = session.agent.incoming_connection(&meta_with_tls()).await;
        let request = Bytes::from_static(b"request!");
        client.to_application.send_data(request).await.unwrap();
        let (name, protocol) = application.serve().await;
        assert_eq!(name.as_deref(), Some("shop.example"), "{delivery}");
        assert_eq!(protocol.as_deref(), Some(b"h2".as_slice()), "{delivery}");
        let response = bytes(&mut client.from_application, 9).await;
        assert_eq!(response, b"\x01response", "{delivery}");
    }
}

#[tokio::test]
async fn a_connection_is_refused_when_the_application_has_another_certificate() {
    let (listener, address) = listener().await;
    let application = Application::new(listener);
    let folder = application.folder.path().display();
    for key in ["server_cert", "trust_roots"] {
        let delivery = format!("{{{key}: {folder}/other.pem}}");
        let session = TestSession::new(&format!("{{mode: steal, tls_delivery: {delivery}}}")).await;
        session.listen(address, false).await.unwrap();
        let client = session.agent.incoming_connection(&meta_with_tls()).await;
        let (socket, _) = application.listener.accept().await.unwrap();
        assert!(application.acceptor.accept(socket).await.is_err());
        drop(client.to_application);
        let rest = client.from_application.collect().await.unwrap();
        assert!(rest.to_bytes().is_empty(), "{key}");
    }
}

#[tokio::test]
async fn resets_are_passed_on_through_tls() {
    let (listener, address) = listener().await;
    let application = Application::new(listener);
    let session = TestSession::new("{mode: steal, tls_delivery: {}}").await;
    session.listen(address, false).await.unwrap();
    let accept = async || {
        let (socket, _) = application.listener.accept().await.unwrap();
        application.acceptor.accept(socket).await.unwrap()
    };

    let mut client = session.agent.incoming_connection(&meta_with_tls()).await;
    let mut stream = accept().await;
    assert_eq!(bytes(&mut client.from_application, 1).await, [1]);
    client.to_application.abort("reset".into());
    let error = stream.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);

    let mut client = session.agent.incoming_connection(&meta_with_tls()).await;
    let stream = accept().await;
    assert_eq!(bytes(&mut client.from_application, 1).await, [1]);
    stream.get_ref().0.set_zero_linger().unwrap();
    drop(stream);
    assert!(client.from_application.frame().await.unwrap().is_err());

    // A connection that is closed without close_notify ends normally.
    let mut client = session.agent.incoming_connection(&meta_with_tls()).await;
    let mut stream = accept().await;
    assert_eq!(bytes(&mut client.from_application, 1).await, [1]);
    stream.get_mut().0.shutdown().await.unwrap();
    let rest = client.from_application.collect().await.unwrap();
    assert!(rest.to_bytes().is_empty());
}

#[tokio::test]
async fn an_application_without_tls_gets_plaintext() {
    let (listener, address) = listener().await;
    let session = TestSession::new("{mode: steal, tls_delivery: {protocol: tcp}}").await;
    session.listen(address, false).await.unwrap();
    let mut client = session.agent.incoming_connection(&meta_with_tls()).await;
    let request = Bytes::from_static(b"request!");
    client.to_application.send_data(request).await.unwrap();
    let mut application = super::accept(&listener).await;
    let mut received = [0; 8];
    application.read_exact(&mut received).await.unwrap();
    assert_eq!(&received, b"request!");
}

/// The application may be stopped, or wait for the client to send first.
#[tokio::test]
async fn a_connection_is_refused_when_the_tls_handshake_times_out() {
    let (listener, address) = listener().await;
    let session = TestSession::new("{mode: steal, tls_delivery: {}}").await;
    session.listen(address, false).await.unwrap();
    let client = session.agent.incoming_connection(&meta_with_tls()).await;
    let _silent = super::accept(&listener).await;
    // From now on, time advances automatically when nothing else happens.
    tokio::time::pause();
    let rest = client.from_application.collect();
    let rest = timeout(Duration::from_secs(24 * 60 * 60), rest).await;
    let rest = rest.expect("the connection is refused").unwrap();
    assert!(rest.to_bytes().is_empty());
}

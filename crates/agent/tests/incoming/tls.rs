//! TLS with the target's certificate, and HTTP/2 with and without TLS.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use protocol::failure::Errno;
use protocol::incoming::ClientTls;
use protocol::rpc::{SubscribeRequest, TargetTls};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::environment::{Network, TARGET_IPV4, environment, socket_address};
use crate::programs::{Client, with_timeout};
use crate::session::{Session, with_header};

/// Serves HTTP/2 as gRPC does: a body of several messages, and trailers.
async fn serve(io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, name: &str) {
    let name = name.to_owned();
    let service = service_fn(move |request: Request<Incoming>| {
        let name = name.clone();
        async move {
            let path = request.uri().path().to_owned();
            let mut body = request.into_body();
            // Each message is echoed when it is received.
            let messages = async_stream(async move |to_client| {
                let _ = to_client
                    .send(Ok(Frame::data(format!("{name} {path}").into())))
                    .await;
                while let Some(Ok(frame)) = body.frame().await {
                    let Ok(data) = frame.into_data() else {
                        continue;
                    };
                    let _ = to_client.send(Ok(Frame::data(data))).await;
                }
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", "0".parse().unwrap());
                let _ = to_client.send(Ok(Frame::trailers(trailers))).await;
            });
            Ok::<_, Infallible>(Response::new(StreamBody::new(messages)))
        }
    });
    let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(io), service)
        .await;
}

type Part = Result<Frame<Bytes>, Infallible>;

fn async_stream<F: Future<Output = ()> + Send + 'static>(
    write: impl FnOnce(tokio::sync::mpsc::Sender<Part>) -> F,
) -> impl futures_util::Stream<Item = Part> {
    let (to_reader, parts) = tokio::sync::mpsc::channel(1);
    tokio::spawn(write(to_reader));
    futures_util::stream::unfold(parts, |mut parts| async move {
        let part = parts.recv().await?;
        Some((part, parts))
    })
}

/// One call with two messages in each direction, on its own connection.
async fn call(io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, header: &str) -> String {
    let (mut sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .handshake(TokioIo::new(io))
        .await
        .unwrap();
    tokio::spawn(connection);
    let (to_server, mut parts) = tokio::sync::mpsc::channel::<Bytes>(1);
    let body = futures_util::stream::poll_fn(move |context| {
        parts
            .poll_recv(context)
            .map(|part| part.map(|part| Ok::<_, Infallible>(Frame::data(part))))
    });
    let request = Request::post("http://shop/call")
        .header("x-user", header)
        .header("te", "trailers")
        .body(StreamBody::new(body))
        .unwrap();
    let response = with_timeout(sender.send_request(request)).await.unwrap();
    let mut response = response.into_body();
    let mut next = async || with_timeout(response.frame()).await.unwrap().unwrap();
    let first = next().await.into_data().unwrap();
    for message in ["one", "two"] {
        to_server.send(message.into()).await.unwrap();
        assert_eq!(next().await.into_data().unwrap(), message);
    }
    drop(to_server);
    let trailers = next().await.into_trailers().unwrap();
    assert_eq!(trailers["grpc-status"], "0");
    String::from_utf8(first.to_vec()).unwrap()
}

fn listen(network: &Network, port: u16) -> TcpListener {
    let listener = network.inside(|| std::net::TcpListener::bind(format!("[::]:{port}")).unwrap());
    listener.set_nonblocking(true).unwrap();
    TcpListener::from_std(listener).unwrap()
}

#[tokio::test]
#[ignore = "needs root"]
async fn http2_requests_are_routed_by_filter() {
    let environment = environment();
    let listener = listen(&environment.target, 80);
    let application = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, "original"));
        }
    });
    let session = Session::of(&environment.agent()).await;
    let subscription = session.subscribe(with_header(80, "Ada", "x-user: ada"));
    let subscription = subscription.await.unwrap();
    let _serving = subscription.serve(|_, stream| serve(stream, "ada"));
    let to = socket_address(TARGET_IPV4, 80);
    for (header, response) in [("ada", "ada /call"), ("grace", "original /call")] {
        let client = Client::connect(&environment.client, to).await;
        assert_eq!(call(client.stream, header).await, response);
    }
    application.abort();
}

struct Certificate {
    pem: String,
    key: String,
}

impl Certificate {
    fn new() -> Self {
        let generated = rcgen::generate_simple_self_signed(["shop.example".to_owned()]).unwrap();
        Self {
            pem: generated.cert.pem(),
            key: generated.signing_key.serialize_pem(),
        }
    }

    fn der(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.pem.as_bytes()).unwrap()
    }

    fn server(&self, protocols: &[&str]) -> Arc<ServerConfig> {
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![self.der()], key)
            .unwrap();
        server.alpn_protocols = protocols
            .iter()
            .map(|name| name.as_bytes().to_vec())
            .collect();
        Arc::new(server)
    }

    /// A client that trusts only this certificate.
    fn client(&self) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(self.der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        client.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        TlsConnector::from(Arc::new(client))
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn requests_inside_tls_are_routed_by_filter_and_the_application_gets_tls() {
    let environment = environment();
    let certificate = Certificate::new();
    let folder = tempfile::tempdir().unwrap();
    let (pem, key) = (
        folder.path().join("cert.pem"),
        folder.path().join("key.pem"),
    );
    std::fs::write(&pem, &certificate.pem).unwrap();
    std::fs::write(&key, &certificate.key).unwrap();
    let listener = listen(&environment.target, 443);
    let acceptor = TlsAcceptor::from(certificate.server(&["h2"]));
    let application = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    serve(stream, "original").await;
                }
            });
        }
    });
    let path = |path: &std::path::Path| path.to_str().unwrap().to_owned().into();
    let request = SubscribeRequest {
        tls: Some(TargetTls {
            certificate_path: path(&pem),
            key_path: path(&key),
            ..TargetTls::default()
        }),
        ..with_header(443, "Ada", "x-user: ada")
    };
    // One agent redirects the port, the other one reads the files.
    let first = Session::of(&environment.agent()).await;
    let _first = first
        .subscribe(with_header(443, "Grace", "x-user: grace"))
        .await
        .unwrap();
    let session = Session::of(&environment.agent()).await;
    let subscription = session.subscribe(request.clone()).await.unwrap();
    let _serving = subscription.serve(|meta, stream| async move {
        let expected = ClientTls {
            server_name: Some("shop.example".to_owned()),
            application_protocol: Some(b"h2".to_vec()),
        };
        assert_eq!(meta.tls, Some(expected));
        serve(stream, "ada").await;
    });
    for (header, response) in [("ada", "ada /call"), ("edsger", "original /call")] {
        let client = Client::connect(&environment.client, socket_address(TARGET_IPV4, 443)).await;
        let name = ServerName::try_from("shop.example").unwrap();
        let stream = with_timeout(certificate.client().connect(name, client.stream))
            .await
            .unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        assert_eq!(call(stream, header).await, response);
    }

    // The error names the file that cannot be used.
    let rejected = async |certificate_path: &str, key_path: &str| {
        let tls = TargetTls {
            certificate_path: certificate_path.to_owned().into(),
            key_path: key_path.to_owned().into(),
            ..TargetTls::default()
        };
        let request = SubscribeRequest {
            tls: Some(tls),
            ..with_header(444, "Ada", "x-user: ada")
        };
        session.subscribe(request).await.err().unwrap()
    };
    let (pem, key) = (pem.to_str().unwrap(), key.to_str().unwrap());
    assert_eq!(rejected("/no/such/file", key).await.errno(), Errno::Enoent);
    assert!(rejected(key, key).await.detail.contains("none in the file"));
    assert!(rejected(pem, pem).await.detail.contains("no private key"));
    application.abort();
}

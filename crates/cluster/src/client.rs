//! The client for an API server: the library's own, but with `TCP_NODELAY`.
//!
//! A session's link is one of the client's connections. With Nagle's algorithm, which is the default, a small message waits
//! until the server has acknowledged the one before: 40 ms if the server has nothing to send.

use http::Request;
use hyper_rustls::HttpsConnector;
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::retry::RetryPolicy;
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use kube::{Client, Config};
use link::tls::rustls::RootCertStore;
use link::tls::rustls::client::WebPkiServerVerifier;
use tower::ServiceBuilder;
use tower::retry::RetryLayer;

/// Creates a client. Through a proxy it is the library's unchanged client.
pub fn client(config: Config) -> kube::Result<Client> {
    if config.proxy_url.is_some() {
        return Client::try_from(config);
    }
    let connector = config.rustls_https_connector_with_connector(tcp_connector())?;
    connecting_with(config, connector)
}

/// Creates a client that verifies the server with these authorities, instead of those of the configuration or the machine.
pub fn client_with_roots(mut config: Config, roots: RootCertStore) -> kube::Result<Client> {
    // Otherwise the library would read the machine's authorities, and an image may have none.
    config.root_cert = Some(Vec::new());
    let mut tls = config.rustls_client_config()?;
    let verifier = WebPkiServerVerifier::builder(roots.into()).build();
    let verifier = verifier.map_err(|error| kube::Error::Service(error.into()))?;
    tls.dangerous().set_certificate_verifier(verifier);
    let connector = HttpsConnector::from((tcp_connector(), tls));
    connecting_with(config, connector)
}

fn tcp_connector() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector
}

fn connecting_with(
    config: Config,
    connector: HttpsConnector<HttpConnector>,
) -> kube::Result<Client> {
    let mut connector = TimeoutConnector::new(connector);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let sender: legacy::Client<_, Body> =
        legacy::Builder::new(TokioExecutor::new()).build(connector);
    let retries = config.default_retry;
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(retries.then(|| RetryLayer::new(RetryPolicy::server_retry())))
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_request(|request: Request<Body>| {
            tracing::debug!(method = %request.method(), path = request.uri().path(), "API server request");
            request
        })
        .map_err(tower::BoxError::from)
        .service(sender);
    Ok(ClientBuilder::new(service, config.default_namespace).build())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::SocketAddr;
    use std::os::fd::OwnedFd;

    use link::tls::Identity;
    use rustix::net::{getpeername, sockopt};
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    use super::*;

    /// This process's sockets that are connected to an address.
    fn connected_to(address: SocketAddr) -> Vec<OwnedFd> {
        let process = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
        let numbers = fs::read_dir("/proc/self/fd").unwrap();
        let numbers = numbers.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let copies = numbers
            .filter_map(|number| pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).ok());
        let is_connected = |socket: &OwnedFd| {
            let peer = getpeername(socket).ok().flatten();
            peer.and_then(|peer| SocketAddr::try_from(peer).ok()) == Some(address)
        };
        copies.filter(is_connected).collect()
    }

    #[tokio::test]
    async fn connections_have_nodelay_set() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = server.local_addr().unwrap();
        let config = Config::new(format!("http://{address}").parse().unwrap());
        let client = client(config).unwrap();
        let request = tokio::spawn(async move { client.apiserver_version().await });
        let (mut connection, _) = server.accept().await.unwrap();
        // The request was sent, so all socket options are set.
        connection.read_u8().await.unwrap();
        let sockets = connected_to(address);
        assert_eq!(sockets.len(), 1);
        assert!(sockopt::tcp_nodelay(&sockets[0]).unwrap());
        request.abort();
    }

    /// The server's certificate is accepted if it is one of the roots, and only then.
    #[tokio::test]
    async fn servers_are_verified_with_the_roots() {
        let own = Identity::generate_named("localhost").unwrap();
        let other = Identity::generate_named("localhost").unwrap();
        for (trusted, expected) in [(&own, true), (&other, false)] {
            let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = server.local_addr().unwrap().port();
            let config = Config::new(format!("https://localhost:{port}").parse().unwrap());
            let mut roots = RootCertStore::empty();
            roots.add(trusted.certificate().clone()).unwrap();
            let client = client_with_roots(config, roots).unwrap();
            let request = tokio::spawn(async move { client.apiserver_version().await });
            let acceptor = link::tls::acceptor(&own).unwrap();
            let (connection, _) = server.accept().await.unwrap();
            let accepted = acceptor.accept(connection).await;
            assert_eq!(accepted.is_ok(), expected);
            request.abort();
        }
    }
}

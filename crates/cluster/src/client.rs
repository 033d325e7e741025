//! Clients of API servers whose connections send at once.
//!
//! Sessions go over connections of such clients, and much of what they say is small and follows something small: an
//! acknowledgement, and then a request. A kernel that holds the second back until the first is acknowledged (Nagle's
//! algorithm) makes each operation slower by a round trip, and by the 40 ms for which the other side keeps its
//! acknowledgement. The library's own clients leave that to the kernel.

use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ConfigExt as _};
use kube::{Client, Config};
use tower::{BoxError, ServiceBuilder};

/// Whoever asks decides whether to ask again: nothing is repeated unasked.
pub fn client(config: Config) -> kube::Result<Client> {
    // How proxies are spoken to is the library's to know.
    if config.proxy_url.is_some() {
        return Client::try_from(config);
    }
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    let connector = config.rustls_https_connector_with_connector(connector)?;
    let mut connector = TimeoutConnector::new(connector);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let connections: legacy::Client<_, Body> =
        legacy::Client::builder(TokioExecutor::new()).build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(connections);
    Ok(Client::new(service, config.default_namespace))
}

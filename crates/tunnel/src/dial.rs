//! One connection of the agent to its hub: TCP or a proxy, TLS, and the upgrade.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use link::websocket::Upgrade;
use link::{Dial, set_tcp_options};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::error::Error;
use crate::greeting::{
    Endpoint, MAX_HEAD, ResponseHead, SUBPROTOCOL, check_response, parse_response, request_head,
};
use crate::proxy::{Proxy, ProxyRules};
use crate::run::Credentials;
use crate::settings::Settings;
use crate::tls;
use crate::websocket::{Role, WebSocketPipe};

/// How many bytes are read from the connection at once. Without it TLS would read a quarter of a record at once.
const READ_BUFFER: usize = 64 * 1024;
/// How many bytes are encrypted, and therefore written, at once.
const WRITE_BUFFER: usize = 256 * 1024;
/// How much of an error's body is read.
const MAX_ERROR_BODY: usize = 4 * 1024;

type Connection = TlsStream<BufReader<TcpStream>>;

/// Opens connections to one hub.
#[derive(Clone)]
pub(crate) struct Dialer {
    endpoint: Endpoint,
    name: ServerName<'static>,
    cluster: String,
    version: u16,
    proxy: ProxyRules,
    credentials: Arc<dyn Credentials>,
    connect_timeout: Duration,
    handshake_timeout: Duration,
}

impl Dialer {
    pub(crate) fn new(
        settings: &Settings,
        credentials: Arc<dyn Credentials>,
    ) -> Result<Self, Error> {
        let endpoint = Endpoint::parse(&settings.url)?;
        // A name that cannot be sent is better found now.
        request_head(
            &endpoint,
            &settings.cluster,
            settings.version,
            &Upgrade::to(SUBPROTOCOL),
        )?;
        Ok(Self {
            name: endpoint.server_name()?,
            endpoint,
            cluster: settings.cluster.clone(),
            version: settings.version,
            proxy: settings.proxy.clone(),
            credentials,
            connect_timeout: settings.connect_timeout,
            handshake_timeout: settings.handshake_timeout,
        })
    }

    async fn open(&self) -> Result<WebSocketPipe<Connection>, Error> {
        let tcp = self.connect().await?;
        let handshake = timeout(self.handshake_timeout, async {
            let connection = self.tls(tcp).await?;
            self.upgrade(connection).await
        });
        let timed_out = |_| self.lost(io::ErrorKind::TimedOut.into());
        handshake.await.map_err(timed_out)?
    }

    async fn connect(&self) -> Result<TcpStream, Error> {
        let (host, port) = (&self.endpoint.host, self.endpoint.port);
        let proxy = self.proxy.proxy_for(host, port);
        let (host, port) = proxy.map_or((host.as_str(), port), Proxy::address);
        let unreachable = |source: io::Error| Error::Unreachable {
            address: format!("{host}:{port}"),
            source: Arc::new(source),
        };
        let connected = timeout(self.connect_timeout, TcpStream::connect((host, port))).await;
        let connected = connected.map_err(|_| unreachable(io::ErrorKind::TimedOut.into()))?;
        let mut tcp = connected.map_err(unreachable)?;
        set_tcp_options(&tcp).map_err(unreachable)?;
        if let Some(proxy) = proxy {
            let authority = self.endpoint.authority();
            let tunnelled = timeout(self.handshake_timeout, proxy.connect(&mut tcp, &authority));
            tunnelled.await.map_err(|_| Error::Proxy {
                proxy: proxy.to_string(),
                address: authority,
                reason: "it does not answer".to_owned(),
            })??;
        }
        Ok(tcp)
    }

    async fn tls(&self, tcp: TcpStream) -> Result<Connection, Error> {
        let connector = TlsConnector::from(self.credentials.tls());
        let tcp = BufReader::with_capacity(READ_BUFFER, tcp);
        let connecting = connector.connect_with(self.name.clone(), tcp, |connection| {
            connection.set_buffer_limit(Some(WRITE_BUFFER));
        });
        connecting.await.map_err(|error| self.lost(error))
    }

    async fn upgrade(
        &self,
        mut connection: Connection,
    ) -> Result<WebSocketPipe<Connection>, Error> {
        let upgrade = Upgrade::to(SUBPROTOCOL);
        let request = request_head(&self.endpoint, &self.cluster, self.version, &upgrade)?;
        let lost = |error| self.lost(error);
        connection.write_all(&request).await.map_err(lost)?;
        connection.flush().await.map_err(lost)?;
        let (head, mut body) = read_head(&mut connection, lost).await?;
        if head.status != http::StatusCode::SWITCHING_PROTOCOLS.as_u16() {
            read_error(&mut connection, &head, &mut body).await;
        }
        check_response(&head, self.version, &upgrade, &body)?;
        if !body.is_empty() {
            // A hub waits for the agent's first bytes.
            return Err(Error::Intermediary {
                found: "bytes follow the response to the upgrade".to_owned(),
            });
        }
        Ok(WebSocketPipe::new(connection, Role::Client))
    }

    /// The connection failed: because of TLS, which is explained, or otherwise.
    fn lost(&self, error: io::Error) -> Error {
        let address = self.endpoint.authority();
        tls::explain(&error, &self.endpoint.host).unwrap_or_else(|| Error::Lost {
            address,
            source: Arc::new(error),
        })
    }
}

/// Reads the head of a response, and what was received with it.
pub(crate) async fn read_head(
    connection: &mut (impl AsyncRead + AsyncWrite + Unpin),
    lost: impl Fn(io::Error) -> Error,
) -> Result<(ResponseHead, Vec<u8>), Error> {
    let mut bytes = Vec::with_capacity(1024);
    loop {
        if connection.read_buf(&mut bytes).await.map_err(&lost)? == 0 {
            return Err(lost(io::ErrorKind::UnexpectedEof.into()));
        }
        if let Some(head) = parse_response(&bytes)? {
            let rest = bytes.split_off(head.length);
            return Ok((head, rest));
        }
        if bytes.len() > MAX_HEAD {
            return Err(lost(io::ErrorKind::InvalidData.into()));
        }
    }
}

/// Reads the body of an error, as far as it is received and of use.
async fn read_error(connection: &mut Connection, head: &ResponseHead, body: &mut Vec<u8>) {
    let length = head.headers.get(http::header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
    let length = length.unwrap_or(MAX_ERROR_BODY).min(MAX_ERROR_BODY);
    let reading = async {
        while body.len() < length && !matches!(connection.read_buf(body).await, Ok(0) | Err(_)) {}
    };
    // An error without its text is still an error.
    let _ = timeout(Duration::from_secs(2), reading).await;
}

impl Dial for Dialer {
    type Pipe = WebSocketPipe<Connection>;

    async fn dial(&self) -> io::Result<Self::Pipe> {
        self.open().await.map_err(|error| {
            tracing::debug!(
                error = error_chain::error_chain(&error),
                "connecting to the hub failed"
            );
            io::Error::other(error)
        })
    }
}

impl fmt::Debug for Dialer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("Dialer");
        debug
            .field("endpoint", &self.endpoint)
            .finish_non_exhaustive()
    }
}

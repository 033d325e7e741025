//! Terminates the application's TLS: the agent presents the target's certificate to clients, and uses TLS towards the
//! application.

use std::fs::File;
use std::io::Read as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use link::tls::CertificateVerifier;
use protocol::rpc::TargetTls;
use rustix::fs::{Mode, OFlags};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ServerConfig};
use splitter::TlsTermination;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::redirect;
use crate::agent::Agent;
use crate::files::Tree;
use crate::{Error, Result};

/// The maximum size of a file. A certificate with its chain, or a key, is far smaller.
const MAX_FILE_BYTES: u64 = 1024 * 1024;
/// The timeout of the TLS handshake that discovers the application's protocols.
const ALPN_PROBE_TIMEOUT: Duration = Duration::from_secs(2);

const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// Reads the certificate and key files with the rights of the target, and puts their contents into the request.
pub(super) async fn read(agent: &Agent, tls: &mut TargetTls) -> Result<()> {
    if tls.certificate.is_empty() {
        tls.certificate = read_file(agent, tls.certificate_path.clone()).await?;
        tls.key = read_file(agent, tls.key_path.clone()).await?;
    }
    Ok(())
}

async fn read_file(agent: &Agent, path: Bytes) -> Result<Bytes> {
    let target = agent.clone();
    let read = move || {
        let failed = Error::operation("read the target's certificate or its key");
        let file = Tree::of(&target, &target.rules()).open(&path, OFlags::RDONLY, Mode::empty());
        let file = File::from(file.map_err(failed)?);
        let mut content = Vec::new();
        let read = file.take(MAX_FILE_BYTES).read_to_end(&mut content);
        read.map_err(Error::io("read the target's certificate or its key"))?;
        Ok(Bytes::from(content))
    };
    agent.files().run(read).await
}

/// Parses the certificate and key, and discovers the protocols that the application supports (ALPN).
pub(super) async fn tls_termination(
    agent: &Agent,
    port: u16,
    content: &TargetTls,
) -> Result<TlsTermination> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&content.certificate)
        .collect::<Result<_, _>>()
        .map_err(|_| Error::Certificate("it is no certificate in PEM"))?;
    let first = chain.first().cloned();
    let first = first.ok_or(Error::Certificate("there is none in the file"))?;
    let key = PrivateKeyDer::from_pem_slice(&content.key)
        .map_err(|_| Error::Certificate("its key is no private key in PEM"))?;
    let versions = |_| Error::Certificate("this program speaks no version of TLS");
    let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(versions)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|_| Error::Certificate("its key belongs to another one"))?;
    // Any certificate is accepted: the application may have renewed its own, and whichever process listens on the port is
    // the application, also without the agent.
    let application = CertificateVerifier::new(&provider, move |shown| {
        if *shown != first {
            tracing::debug!("application presents another certificate");
        }
        Ok(())
    });
    let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(versions)?
        .dangerous()
        .with_custom_certificate_verifier(application)
        .with_no_client_auth();
    server.alpn_protocols = probe_alpn(agent, port, &client).await;
    Ok(TlsTermination::new(Arc::new(server), Arc::new(client)))
}

/// The protocols that the application supports inside TLS. HTTP/1.1 is assumed if it cannot be reached.
async fn probe_alpn(agent: &Agent, port: u16, client: &ClientConfig) -> Vec<Vec<u8>> {
    let mut config = client.clone();
    config.alpn_protocols = vec![HTTP2.to_vec(), HTTP1.to_vec()];
    let config = Arc::new(config);
    let addresses = redirect::own_addresses(agent).await.unwrap_or_default();
    let probe = async {
        for address in addresses {
            let to = SocketAddr::new(address, port);
            let Ok(stream) = redirect::connect_to_application(agent, to).await else {
                continue;
            };
            let connector = TlsConnector::from(Arc::clone(&config));
            let Ok(stream) = connector.connect(address.into(), stream).await else {
                continue;
            };
            return Some(stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec));
        }
        None
    };
    match timeout(ALPN_PROBE_TIMEOUT, probe).await {
        Ok(Some(Some(protocol))) if protocol == HTTP2 => vec![HTTP2.to_vec(), HTTP1.to_vec()],
        Ok(Some(None)) => Vec::new(),
        _ => vec![HTTP1.to_vec()],
    }
}

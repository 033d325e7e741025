//! TLS that is meant for the application: the target's certificate towards clients, and TLS again towards the application.

use std::fs::File;
use std::io::Read as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use link::tls::ByCertificate;
use protocol::rpc::TargetTls;
use rustix::fs::{Mode, OFlags};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ServerConfig};
use splitter::Tls;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::redirect;
use crate::agent::Agent;
use crate::files::Tree;
use crate::{Error, Result};

/// A certificate with its chain, or a key, is far smaller.
const LARGEST: u64 = 1024 * 1024;
/// How long the application may take to say which protocols it speaks.
const SPEAKS_WITHIN: Duration = Duration::from_secs(2);

const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// Puts the contents of the files into the request, read as the target.
pub(super) async fn read(agent: &Agent, tls: &mut TargetTls) -> Result<()> {
    if tls.certificate.is_empty() {
        tls.certificate = read_file(agent, tls.certificate_path.clone()).await?;
        tls.key = read_file(agent, tls.key_path.clone()).await?;
    }
    Ok(())
}

async fn read_file(agent: &Agent, path: Bytes) -> Result<Bytes> {
    let inside = agent.clone();
    let read = move || {
        let failed = Error::operation("read the target's certificate or its key");
        let file = Tree::of(&inside, &inside.rules()).open(&path, OFlags::RDONLY, Mode::empty());
        let file = File::from(file.map_err(failed)?);
        let mut content = Vec::new();
        let read = file.take(LARGEST).read_to_end(&mut content);
        read.map_err(Error::io("read the target's certificate or its key"))?;
        Ok(Bytes::from(content))
    };
    agent.files().run(read).await
}

/// Understands what was read, and finds out which protocols the application agrees on.
pub(super) async fn tls(agent: &Agent, port: u16, content: &TargetTls) -> Result<Tls> {
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
    // It may have got a new certificate meanwhile: whoever has the port is the application, also without us.
    let application = ByCertificate::new(&provider, move |shown| {
        if *shown != first {
            tracing::debug!("the application has another certificate than the one that was read");
        }
        Ok(())
    });
    let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(versions)?
        .dangerous()
        .with_custom_certificate_verifier(application)
        .with_no_client_auth();
    server.alpn_protocols = spoken(agent, port, &client).await;
    Ok(Tls::new(Arc::new(server), Arc::new(client)))
}

/// What the application speaks inside of TLS. One that cannot be asked speaks what everybody does.
async fn spoken(agent: &Agent, port: u16, client: &ClientConfig) -> Vec<Vec<u8>> {
    let mut asking = client.clone();
    asking.alpn_protocols = vec![HTTP2.to_vec(), HTTP1.to_vec()];
    let asking = Arc::new(asking);
    let addresses = redirect::own_addresses(agent).await.unwrap_or_default();
    let ask = async {
        for address in addresses {
            let to = SocketAddr::new(address, port);
            let Ok(stream) = redirect::connect_to_original(agent, to).await else {
                continue;
            };
            let connector = TlsConnector::from(Arc::clone(&asking));
            let Ok(stream) = connector.connect(address.into(), stream).await else {
                continue;
            };
            return Some(stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec));
        }
        None
    };
    match timeout(SPEAKS_WITHIN, ask).await {
        Ok(Some(Some(spoken))) if spoken == HTTP2 => vec![HTTP2.to_vec(), HTTP1.to_vec()],
        Ok(Some(None)) => Vec::new(),
        _ => vec![HTTP1.to_vec()],
    }
}

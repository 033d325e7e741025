//! TLS between replicas. Each of them issues itself a certificate of the authority that they share, with a name that no agent
//! can have.

use std::sync::Arc;
use std::time::Duration;

use authority::{Authority, Facts, PrivateKey, Profile, Usage};
use error_chain::error_chain;
use jiff::{SignedDuration, Timestamp};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::NoServerSessionStorage;
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::certificates::Certificates;
use crate::error::{Error, Result};
use crate::tls::{certified_key, client_verifier, provider};

/// The name of all replicas. A cluster's name has no dot.
pub(super) const NAME: &str = "peer.standin-hub";
const LIFETIME: SignedDuration = SignedDuration::from_hours(24);
/// How often it is checked whether the certificate is due, and the delay after a failure.
const POLL_INTERVAL: Duration = Duration::from_secs(60);
const PROTOCOL: &[u8] = b"h2";

/// The configurations of a moment. Connections that exist keep theirs.
#[derive(Debug)]
pub(super) struct PeerTls {
    pub(super) server: Arc<ServerConfig>,
    pub(super) client: Arc<ClientConfig>,
    certificate: Facts,
}

impl PeerTls {
    pub(super) fn issue(signing: &Authority, bundle: &str, now: Timestamp) -> Result<Self> {
        let key = PrivateKey::generate()?;
        let profile = Profile {
            common_name: NAME.to_owned(),
            names: vec![NAME.to_owned()],
            usage: Usage::Both,
            lifetime: LIFETIME,
        };
        let issued = signing.issue(&key, &profile, now)?;
        let certified = certified_key(&issued.certificate_pem, key.to_pem())?;
        let certified = Arc::new(SingleCertAndKey::from(certified));
        let tls13 = &[&rustls::version::TLS13];
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
            let unreadable = |error: rustls::pki_types::pem::Error| {
                Error::UnreadableCertificate(error.to_string())
            };
            roots.add(authority.map_err(unreadable)?)?;
        }
        let mut client = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(tls13)?
            .with_root_certificates(roots)
            .with_client_cert_resolver(Arc::clone(&certified) as Arc<_>);
        client.alpn_protocols = vec![PROTOCOL.to_vec()];
        // A resumed session would outlive the certificates.
        client.resumption = rustls::client::Resumption::disabled();
        let mut server = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(tls13)?
            .with_client_cert_verifier(client_verifier(bundle)?)
            .with_cert_resolver(certified);
        server.alpn_protocols = vec![PROTOCOL.to_vec()];
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        Ok(Self {
            server: Arc::new(server),
            client: Arc::new(client),
            certificate: issued.facts,
        })
    }

    pub(super) fn of(certificates: &Certificates) -> Result<Self> {
        let authorities = &certificates.authorities;
        let signing = authorities.trust().signing();
        Self::issue(signing, authorities.bundle(), Timestamp::now())
    }
}

/// The name that replicas expect of each other.
pub(super) fn server_name() -> Result<ServerName<'static>> {
    ServerName::try_from(NAME).map_err(|error| Error::UnreadableCertificate(error.to_string()))
}

/// Whether a certificate, which the handshake has verified, is a replica's and not an agent's.
pub(super) fn is_replica(certificates: Option<&[CertificateDer<'_>]>) -> bool {
    let own = certificates.and_then(<[_]>::first);
    let facts = own.and_then(|own| Facts::from_der(own).ok());
    facts.is_some_and(|facts| facts.common_name == NAME && facts.is_client && facts.is_server)
}

/// Issues another certificate when it is due, or when the authorities change. Never returns.
pub(super) async fn run(
    mut certificates: watch::Receiver<Certificates>,
    current: watch::Sender<Arc<PeerTls>>,
) {
    let mut has_failed = false;
    loop {
        let have_changed = tokio::select! {
            changed = certificates.changed() => match changed {
                Ok(()) => true,
                Err(_) => std::future::pending().await,
            },
            () = sleep(POLL_INTERVAL) => has_failed,
        };
        if !have_changed
            && !current
                .borrow()
                .certificate
                .is_renewal_due(Timestamp::now())
        {
            continue;
        }
        let issued = PeerTls::of(&certificates.borrow_and_update());
        has_failed = issued.is_err();
        match issued {
            Ok(issued) => drop(current.send_replace(Arc::new(issued))),
            Err(error) => {
                let error = error_chain(&error);
                tracing::warn!(error, "certificate for other replicas not issued");
            }
        }
    }
}

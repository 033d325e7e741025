//! A certificate for one run of an agent. Clients know it by its fingerprint, so it needs no authority.

use anyhow::{Context, Result};
use link::tls::rustls::pki_types::PrivateKeyDer;
use link::tls::{Fingerprint, TlsAcceptor, acceptor as accept_with};

pub(super) fn acceptor() -> Result<(TlsAcceptor, Fingerprint)> {
    let made = rcgen::generate_simple_self_signed(["agent".to_owned()])
        .context("a certificate cannot be made")?;
    let certificate = made.cert.der().clone();
    let fingerprint = Fingerprint::of(&certificate);
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    Ok((accept_with(vec![certificate], key)?, fingerprint))
}

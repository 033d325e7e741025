//! Listening on all addresses of the pod, of both address families.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::TcpListener;

use crate::error::{Error, Result};

/// Binds a listener. On the wildcard address `[::]`, the listener accepts IPv4 as well, and only IPv4 where the node has no
/// IPv6.
pub(crate) async fn listen(address: SocketAddr) -> Result<TcpListener> {
    let failed = |source| Error::Listen { address, source };
    match TcpListener::bind(address).await {
        Ok(listener) => Ok(listener),
        Err(error) => match ipv4_fallback(address, &error) {
            Some(fallback) => TcpListener::bind(fallback).await.map_err(failed),
            None => Err(failed(error)),
        },
    }
}

/// The address to try next if the kernel may have been started without IPv6. That is reported in several ways, so every
/// failure counts that has no other cause.
fn ipv4_fallback(address: SocketAddr, error: &io::Error) -> Option<SocketAddr> {
    let has_another_cause = matches!(
        error.kind(),
        io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied
    );
    let is_wildcard = address.ip() == Ipv6Addr::UNSPECIFIED;
    (is_wildcard && !has_another_cause)
        .then(|| SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port())))
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpStream;

    use super::*;

    #[test]
    fn only_a_missing_address_family_causes_a_fallback() {
        // "Address family not supported by protocol", which has no name in the standard library.
        let no_family = || io::Error::from_raw_os_error(97);
        for (address, error, expected) in [
            ("[::]:8443", no_family(), Some("0.0.0.0:8443")),
            (
                "[::]:8443",
                io::ErrorKind::AddrNotAvailable.into(),
                Some("0.0.0.0:8443"),
            ),
            ("[::]:8443", io::ErrorKind::AddrInUse.into(), None),
            ("[::]:443", io::ErrorKind::PermissionDenied.into(), None),
            ("[::1]:8443", no_family(), None),
            ("10.0.0.1:8443", no_family(), None),
        ] {
            let fallback = ipv4_fallback(address.parse().unwrap(), &error);
            let expected = expected.map(|text| text.parse().unwrap());
            assert_eq!(fallback, expected, "{address}: {error}");
        }
    }

    #[tokio::test]
    async fn ipv4_clients_can_connect_to_the_wildcard_address() {
        let listener = listen("[::]:0".parse().unwrap()).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let client = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
        let (accepted, connected) = tokio::join!(listener.accept(), client);
        accepted.unwrap();
        connected.unwrap();
    }
}

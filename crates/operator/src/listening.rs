//! Where the operator listens: on every address that its pod has, whichever families those are of.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::TcpListener;

use crate::error::{Error, Result};

/// Listens. On `[::]`, the address of everything, that is IPv4 as well, and IPv4 alone where the node has no IPv6.
pub(crate) async fn listen(address: SocketAddr) -> Result<TcpListener> {
    let failed = |source| Error::Listen { address, source };
    match TcpListener::bind(address).await {
        Ok(listener) => Ok(listener),
        Err(error) => match without_ipv6(address, &error) {
            Some(instead) => TcpListener::bind(instead).await.map_err(failed),
            None => Err(failed(error)),
        },
    }
}

/// What to try instead, in case the kernel was started without IPv6. It says so in several ways, so every failure counts
/// that has no other cause.
fn without_ipv6(address: SocketAddr, error: &io::Error) -> Option<SocketAddr> {
    let has_another_cause = matches!(
        error.kind(),
        io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied
    );
    let is_everything = address.ip() == Ipv6Addr::UNSPECIFIED;
    (is_everything && !has_another_cause)
        .then(|| SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port())))
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpStream;

    use super::*;

    #[test]
    fn only_a_missing_family_makes_it_listen_elsewhere() {
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
            let instead = without_ipv6(address.parse().unwrap(), &error);
            let expected = expected.map(|text| text.parse().unwrap());
            assert_eq!(instead, expected, "{address}: {error}");
        }
    }

    #[tokio::test]
    async fn clients_of_ipv4_are_heard_as_well() {
        let listener = listen("[::]:0".parse().unwrap()).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let client = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
        let (accepted, connected) = tokio::join!(listener.accept(), client);
        accepted.unwrap();
        connected.unwrap();
    }
}

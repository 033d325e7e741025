//! Listening on all addresses of a pod, and accepting connections as long as the process runs.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

/// The delay after a failed `accept`.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Binds a listener. On the wildcard address `[::]`, the listener accepts IPv4 as well, and only IPv4 where the node has no
/// IPv6.
pub async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Ok(listener) => Ok(listener),
        Err(error) => match ipv4_fallback(address, &error) {
            Some(fallback) => TcpListener::bind(fallback).await,
            None => Err(error),
        },
    }
}

/// Waits for the next connection.
pub async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    retry(|| listener.accept()).await
}

/// Raises this process's limit of file descriptors to its hard limit: each connection needs one.
pub fn raise_descriptor_limit() -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    Ok(setrlimit(Resource::Nofile, raised)?)
}

/// Repeats a failed `accept`. The process has no free file descriptor, or the peer has disconnected already. Both are
/// temporary and do not affect other connections.
async fn retry<T, F>(accept: impl Fn() -> F) -> T
where
    F: Future<Output = io::Result<T>>,
{
    loop {
        match accept().await {
            Ok(accepted) => return accepted,
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                sleep(RETRY_DELAY).await;
            }
        }
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
    use std::cell::Cell;
    use std::future::ready;

    use tokio::time::Instant;

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
        let (_, connected) = tokio::join!(accept(&listener), client);
        connected.unwrap();
    }

    /// Without a free file descriptor, `accept` fails at once, as often as it is called.
    #[tokio::test(start_paused = true)]
    async fn accepting_continues_after_failures_and_does_not_spin() {
        let (calls, started) = (Cell::new(0_u32), Instant::now());
        let no_descriptor = || io::Error::from_raw_os_error(24);
        let accepted = retry(|| {
            calls.set(calls.get() + 1);
            let is_over = started.elapsed() >= Duration::from_secs(1);
            ready(is_over.then_some(7).ok_or_else(no_descriptor))
        });
        assert_eq!(accepted.await, 7);
        assert!(calls.get() <= 11, "{} calls in a second", calls.get());
    }
}

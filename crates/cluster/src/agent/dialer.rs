//! Dials an agent by port-forward, or directly over the pod network, which is faster.
//!
//! The first connection is a port-forward. Only the cluster and the pod itself could redirect it, so the peer there is the
//! agent, and its certificate is pinned. Direct connections must present the same certificate, so they are safe on the
//! shared pod network. If direct connections do not work, for missing rights or because the API server cannot reach pods,
//! all connections are port-forwards.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use link::Dial;
use link::tls::TlsDialer;
use parking_lot::Mutex;
use tokio::time::timeout;
use tokio_util::either::Either;

use crate::forward::{PodProxy, PortForward};

/// The timeout of a direct connection when the link reconnects. The rest of the link's dial timeout is for the port-forward.
const DIRECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Dials an agent that was reached once.
#[derive(Debug)]
pub struct AgentDialer<F: Dial = TlsDialer<PortForward>, D: Dial = TlsDialer<PodProxy>> {
    first: Mutex<Option<Either<F::Pipe, D::Pipe>>>,
    forward: F,
    direct: Option<D>,
    /// Whether the last direct connection succeeded.
    prefers_direct: AtomicBool,
}

impl<F: Dial, D: Dial> AgentDialer<F, D> {
    /// `first` is the established first connection, which the first dial returns.
    pub(super) fn new(forward: F, first: F::Pipe) -> Self {
        Self {
            first: Mutex::new(Some(Either::Left(first))),
            forward,
            direct: None,
            prefers_direct: AtomicBool::new(false),
        }
    }

    /// Tries a direct connection, and prefers direct connections from then on if it succeeds.
    pub(super) async fn try_direct(
        &mut self,
        direct: D,
        direct_timeout: Duration,
    ) -> io::Result<()> {
        let pipe = with_timeout(direct_timeout, direct.dial()).await?;
        self.first = Mutex::new(Some(Either::Right(pipe)));
        self.direct = Some(direct);
        *self.prefers_direct.get_mut() = true;
        Ok(())
    }
}

impl<F: Dial, D: Dial> Dial for AgentDialer<F, D> {
    type Pipe = Either<F::Pipe, D::Pipe>;

    /// The link gives each of its attempts the same timeout, so both kinds of connection must be tried within one dial.
    async fn dial(&self) -> io::Result<Self::Pipe> {
        let first = self.first.lock().take();
        if let Some(pipe) = first {
            return Ok(pipe);
        }
        if let Some(direct) = &self.direct
            && self.prefers_direct.load(Ordering::Relaxed)
        {
            match with_timeout(DIRECT_TIMEOUT, direct.dial()).await {
                Ok(pipe) => return Ok(Either::Right(pipe)),
                Err(error) => tracing::debug!(%error, "direct agent connection failed"),
            }
        }
        let pipe = self.forward.dial().await?;
        // The API server and the agent are both reachable, so the network path between them is broken.
        self.prefers_direct.store(false, Ordering::Relaxed);
        Ok(Either::Left(pipe))
    }
}

async fn with_timeout<T>(
    limit: Duration,
    dial: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    let timed_out = |_| io::Error::new(io::ErrorKind::TimedOut, "the connection timed out");
    timeout(limit, dial).await.map_err(timed_out)?
}

#[cfg(test)]
mod tests {
    use tokio::io::{DuplexStream, duplex};

    use super::*;

    #[derive(Debug, Clone, Copy)]
    enum Behaviour {
        Connect,
        Refuse,
        Hang,
    }

    #[derive(Debug)]
    struct FakeDialer(Mutex<Behaviour>);

    impl FakeDialer {
        fn new(behaviour: Behaviour) -> Self {
            Self(Mutex::new(behaviour))
        }

        fn set(&self, behaviour: Behaviour) {
            *self.0.lock() = behaviour;
        }
    }

    impl Dial for FakeDialer {
        type Pipe = DuplexStream;

        async fn dial(&self) -> io::Result<DuplexStream> {
            let behaviour = *self.0.lock();
            match behaviour {
                Behaviour::Connect => Ok(duplex(1).0),
                Behaviour::Refuse => Err(io::ErrorKind::ConnectionRefused.into()),
                Behaviour::Hang => std::future::pending().await,
            }
        }
    }

    type Dialer = AgentDialer<FakeDialer, FakeDialer>;

    async fn dialer(direct: Behaviour) -> (Dialer, io::Result<()>) {
        let mut dialer = Dialer::new(FakeDialer::new(Behaviour::Connect), duplex(1).0);
        let direct_timeout = Duration::from_secs(1);
        let result = dialer
            .try_direct(FakeDialer::new(direct), direct_timeout)
            .await;
        (dialer, result)
    }

    /// Whether the next connection is a direct one, or why it failed.
    async fn next(dialer: &Dialer) -> Result<bool, io::ErrorKind> {
        let dialled = timeout(Duration::from_secs(10), dialer.dial()).await;
        let pipe = dialled.expect("the dial took longer than the link's timeout");
        let pipe = pipe.map_err(|error| error.kind())?;
        Ok(matches!(pipe, Either::Right(_)))
    }

    #[tokio::test(start_paused = true)]
    async fn direct_connections_are_used_if_they_work() {
        let (dialer, result) = dialer(Behaviour::Connect).await;
        result.unwrap();
        assert_eq!(next(&dialer).await, Ok(true));
        assert_eq!(next(&dialer).await, Ok(true));
        for behaviour in [Behaviour::Refuse, Behaviour::Hang] {
            let (dialer, result) = self::dialer(behaviour).await;
            result.unwrap_err();
            assert_eq!(next(&dialer).await, Ok(false));
            assert_eq!(next(&dialer).await, Ok(false));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn direct_connections_are_not_retried_after_a_port_forward_worked() {
        let (dialer, _) = dialer(Behaviour::Connect).await;
        next(&dialer).await.unwrap();
        let direct = dialer.direct.as_ref().unwrap();
        direct.set(Behaviour::Hang);
        assert_eq!(next(&dialer).await, Ok(false));
        direct.set(Behaviour::Connect);
        assert_eq!(next(&dialer).await, Ok(false));
    }

    #[tokio::test(start_paused = true)]
    async fn direct_connections_are_retried_after_a_network_outage() {
        let (dialer, _) = dialer(Behaviour::Connect).await;
        next(&dialer).await.unwrap();
        let direct = dialer.direct.as_ref().unwrap();
        direct.set(Behaviour::Refuse);
        dialer.forward.set(Behaviour::Refuse);
        let refused = Err(io::ErrorKind::ConnectionRefused);
        assert_eq!(next(&dialer).await, refused);
        direct.set(Behaviour::Connect);
        assert_eq!(next(&dialer).await, Ok(true));
    }
}

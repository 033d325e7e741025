//! The ways to an agent of ours.
//!
//! The first connection is a port-forward: nobody but the cluster and the pod itself could bend it, so whoever answers there is
//! the agent, and its certificate is the one that connections on the other way must show. So these may go over the pods'
//! network, where the faster way leads. Where that does not work, for want of rights or because the API server does not reach
//! pods, everything stays with port-forwards.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use link::Dial;
use link::tls::TlsDialer;
use tokio::time::timeout;
use tokio_util::either::Either;

use crate::forward::{PodProxy, PortForward};

/// So long may the faster way take when a connection was lost. What is left of a link's patience is for the other.
const DIRECT_PATIENCE: Duration = Duration::from_secs(3);

/// Dials an agent that has answered once.
#[derive(Debug)]
pub struct AgentDialer<F: Dial = TlsDialer<PortForward>, D: Dial = TlsDialer<PodProxy>> {
    first: Mutex<Option<Either<F::Pipe, D::Pipe>>>,
    forward: F,
    direct: Option<D>,
    /// The faster way has worked the last time.
    goes_directly: AtomicBool,
}

impl<F: Dial, D: Dial> AgentDialer<F, D> {
    /// With the first connection, which is there.
    pub(super) fn new(forward: F, first: F::Pipe) -> Self {
        Self {
            first: Mutex::new(Some(Either::Left(first))),
            forward,
            direct: None,
            goes_directly: AtomicBool::new(false),
        }
    }

    /// Tries the faster way, and stays with it if it works.
    pub(super) async fn go_directly(&mut self, direct: D, patience: Duration) -> io::Result<()> {
        let pipe = within(patience, direct.dial()).await?;
        self.first = Mutex::new(Some(Either::Right(pipe)));
        self.direct = Some(direct);
        *self.goes_directly.get_mut() = true;
        Ok(())
    }
}

impl<F: Dial, D: Dial> Dial for AgentDialer<F, D> {
    type Pipe = Either<F::Pipe, D::Pipe>;

    /// A link that could not be made is tried again, but always with the same patience, so both ways must have their turn in it.
    async fn dial(&self) -> io::Result<Self::Pipe> {
        let first = {
            let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
            first.take()
        };
        if let Some(pipe) = first {
            return Ok(pipe);
        }
        if let Some(direct) = &self.direct
            && self.goes_directly.load(Ordering::Relaxed)
        {
            match within(DIRECT_PATIENCE, direct.dial()).await {
                Ok(pipe) => return Ok(Either::Right(pipe)),
                Err(error) => tracing::debug!(%error, "the agent is not reached directly"),
            }
        }
        let pipe = self.forward.dial().await?;
        // The API server is there and the agent as well, so it is the way between them that is gone.
        self.goes_directly.store(false, Ordering::Relaxed);
        Ok(Either::Left(pipe))
    }
}

async fn within<T>(
    patience: Duration,
    dialled: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    let silent = |_| io::Error::new(io::ErrorKind::TimedOut, "nobody answers");
    timeout(patience, dialled).await.map_err(silent)?
}

#[cfg(test)]
mod tests {
    use tokio::io::{DuplexStream, duplex};

    use super::*;

    #[derive(Debug, Clone, Copy)]
    enum Way {
        Works,
        Fails,
        IsSilent,
    }

    #[derive(Debug)]
    struct Changing(Mutex<Way>);

    impl Changing {
        fn new(way: Way) -> Self {
            Self(Mutex::new(way))
        }

        fn becomes(&self, way: Way) {
            *self.0.lock().unwrap() = way;
        }
    }

    impl Dial for Changing {
        type Pipe = DuplexStream;

        async fn dial(&self) -> io::Result<DuplexStream> {
            let way = *self.0.lock().unwrap();
            match way {
                Way::Works => Ok(duplex(1).0),
                Way::Fails => Err(io::ErrorKind::ConnectionRefused.into()),
                Way::IsSilent => std::future::pending().await,
            }
        }
    }

    type Dialer = AgentDialer<Changing, Changing>;

    async fn dialer(direct: Way) -> (Dialer, io::Result<()>) {
        let mut dialer = Dialer::new(Changing::new(Way::Works), duplex(1).0);
        let patience = Duration::from_secs(1);
        let went = dialer.go_directly(Changing::new(direct), patience).await;
        (dialer, went)
    }

    /// Whether the next connection is a direct one, or why there is none.
    async fn next(dialer: &Dialer) -> Result<bool, io::ErrorKind> {
        let dialled = timeout(Duration::from_secs(10), dialer.dial()).await;
        let pipe = dialled.expect("a link has no more patience");
        let pipe = pipe.map_err(|error| error.kind())?;
        Ok(matches!(pipe, Either::Right(_)))
    }

    #[tokio::test(start_paused = true)]
    async fn the_faster_way_is_taken_where_it_works() {
        let (dialer, went) = dialer(Way::Works).await;
        went.unwrap();
        assert_eq!(next(&dialer).await, Ok(true));
        assert_eq!(next(&dialer).await, Ok(true));
        for way in [Way::Fails, Way::IsSilent] {
            let (dialer, went) = self::dialer(way).await;
            went.unwrap_err();
            assert_eq!(next(&dialer).await, Ok(false));
            assert_eq!(next(&dialer).await, Ok(false));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_faster_way_that_is_gone_is_not_tried_again() {
        let (dialer, _) = dialer(Way::Works).await;
        next(&dialer).await.unwrap();
        let direct = dialer.direct.as_ref().unwrap();
        direct.becomes(Way::IsSilent);
        assert_eq!(next(&dialer).await, Ok(false));
        direct.becomes(Way::Works);
        assert_eq!(next(&dialer).await, Ok(false));
    }

    #[tokio::test(start_paused = true)]
    async fn a_network_that_is_gone_says_nothing_about_the_faster_way() {
        let (dialer, _) = dialer(Way::Works).await;
        next(&dialer).await.unwrap();
        let direct = dialer.direct.as_ref().unwrap();
        direct.becomes(Way::Fails);
        dialer.forward.becomes(Way::Fails);
        let refused = Err(io::ErrorKind::ConnectionRefused);
        assert_eq!(next(&dialer).await, refused);
        direct.becomes(Way::Works);
        assert_eq!(next(&dialer).await, Ok(true));
    }
}

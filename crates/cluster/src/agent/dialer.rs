//! The ways to an agent of ours.
//!
//! The first connection is a port-forward: nobody but the cluster and the pod itself could bend it, so whoever answers there is
//! the agent, and its certificate is the one that all further connections must show. So they may go over the pods'
//! network, where the faster way leads; where that does not work, for want of rights or because the API server does not reach
//! pods, everything stays with port-forwards.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use link::tls::rustls::pki_types::ServerName;
use link::tls::{FirstSeen, Identity, TlsDialer, Trust};
use link::{Dial, LinkError};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_util::either::Either;

use crate::forward::{PodProxy, PortForward};

/// How long one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(10);
/// So much longer than the port-forward may the faster way take to be used: it has begun at the same time.
const GRACE: Duration = Duration::from_millis(200);

type Forwarded = <TlsDialer<PortForward> as Dial>::Pipe;
type Direct = <TlsDialer<PodProxy> as Dial>::Pipe;

/// Dials an agent that has answered once.
#[derive(Debug)]
pub struct AgentDialer {
    first: Mutex<Option<AgentPipe>>,
    ways: Ways,
    goes_directly: bool,
}

pub(super) type AgentPipe = Either<Forwarded, Direct>;

/// Both ways, to an agent that must show the same certificate on each.
#[derive(Debug)]
pub(super) struct Ways {
    forward: TlsDialer<PortForward>,
    direct: TlsDialer<PodProxy>,
    proxy: PodProxy,
}

impl Ways {
    pub(super) fn new(
        forward: PortForward,
        proxy: PodProxy,
        identity: &Identity,
    ) -> Result<Self, LinkError> {
        let name = ServerName::try_from("agent").map_err(|error| {
            LinkError::from(link::tls::rustls::Error::General(error.to_string()))
        })?;
        let trust = Trust::FirstSeen(FirstSeen::default());
        Ok(Self {
            forward: TlsDialer::with_identity(forward, name.clone(), trust.clone(), identity)?,
            direct: TlsDialer::with_identity(proxy.clone(), name, trust, identity)?,
            proxy,
        })
    }

    /// Tries to reach it for the first time.
    pub(super) async fn first(&self) -> io::Result<Answered> {
        let began = Instant::now();
        let proxy = self.proxy.clone();
        let direct = Attempt(tokio::spawn(async move { proxy.dial().await }));
        let forwarded = timeout(ATTEMPT, self.forward.dial()).await;
        let forwarded = forwarded.map_err(|_| io::Error::other("it is silent"))??;
        // The way that takes longer is the same for the answers on it.
        let patience = GRACE.max(began.elapsed());
        let direct = timeout(patience, self.direct(direct)).await;
        let why = match direct {
            Ok(Ok(pipe)) => {
                return Ok(Answered {
                    pipe: Either::Right(pipe),
                    goes_directly: true,
                });
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it is silent".to_owned(),
        };
        tracing::debug!(why, "the agent is reached by port-forward only");
        Ok(Answered {
            pipe: Either::Left(forwarded),
            goes_directly: false,
        })
    }

    /// The faster way, once the agent is known.
    async fn direct(&self, mut attempt: Attempt) -> io::Result<Direct> {
        match (&mut attempt.0).await? {
            Ok(pipe) => self.direct.secure(pipe).await,
            // It may just not have listened yet.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                self.direct.dial().await
            }
            Err(error) => Err(error),
        }
    }

    async fn dial(&self, goes_directly: bool) -> io::Result<AgentPipe> {
        if goes_directly {
            match timeout(ATTEMPT, self.direct.dial()).await {
                Ok(Ok(pipe)) => return Ok(Either::Right(pipe)),
                Ok(Err(error)) => tracing::debug!(%error, "the agent is not reached directly"),
                Err(_) => tracing::debug!("the agent is not reached directly: it is silent"),
            }
        }
        self.forward.dial().await.map(Either::Left)
    }
}

/// A connection that is being made. Nobody else waits for it.
struct Attempt(JoinHandle<io::Result<TokioIo<Upgraded>>>);

impl Drop for Attempt {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The first connection.
pub(super) struct Answered {
    pipe: AgentPipe,
    goes_directly: bool,
}

impl AgentDialer {
    pub(super) fn new(ways: Ways, answered: Answered) -> Self {
        Self {
            first: Mutex::new(Some(answered.pipe)),
            ways,
            goes_directly: answered.goes_directly,
        }
    }
}

impl Dial for AgentDialer {
    type Pipe = AgentPipe;

    async fn dial(&self) -> io::Result<AgentPipe> {
        let first = {
            let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
            first.take()
        };
        match first {
            Some(pipe) => Ok(pipe),
            None => self.ways.dial(self.goes_directly).await,
        }
    }
}

//! The agent's side: connects, serves the hub's requests, and connects again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use link::http2::{BoxError, serve};
use link::{Link, Meter};
use rustls::ClientConfig;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tower_service::Service;

use crate::backoff::Delays;
use crate::body::Body;
use crate::dial::Dialer;
use crate::error::{EndReason, Error, of_link};
use crate::serve::{Tunnel, TunnelService};
use crate::settings::{Settings, windows};

/// What the agent proves its identity with, and whom it trusts.
pub trait Credentials: Send + Sync + 'static {
    /// Called for every connection, so that renewed certificates take effect.
    fn tls(&self) -> Arc<ClientConfig>;
}

/// The state of the agent's tunnel.
#[derive(Debug, Clone)]
pub enum Status {
    Connecting,
    Connected {
        since: Instant,
    },
    /// The connection is lost, and the streams wait for another one.
    Interrupted {
        since: Instant,
        error: String,
    },
    /// There is no tunnel. The next attempt comes after a delay.
    Disconnected {
        error: Error,
        delay: Duration,
    },
}

/// Why [`run`] has returned.
#[derive(Debug, Clone)]
pub enum Ended {
    /// It was asked to.
    Shutdown,
    /// No attempt can ever succeed.
    Failed(Error),
}

/// Keeps a tunnel to the hub, and passes its requests to the service. It connects again for ever, also after a refusal, then
/// slowly: an administrator may act in the meantime.
pub async fn run<S, B>(
    settings: Settings,
    credentials: Arc<dyn Credentials>,
    service: S,
    status: watch::Sender<Status>,
    shutdown: CancellationToken,
) -> Ended
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let dialer = match Dialer::new(&settings, credentials) {
        Ok(dialer) => dialer,
        Err(error) => return Ended::Failed(error),
    };
    let mut delays = Delays::new(settings.reconnect);
    loop {
        status.send_replace(Status::Connecting);
        let connecting = Link::connect(dialer.clone(), settings.link());
        let connected = tokio::select! {
            connected = connecting => connected,
            () = shutdown.cancelled() => return Ended::Shutdown,
        };
        let error = match connected {
            Ok(link) => {
                let since = Instant::now();
                let reason = session(link, &settings, service.clone(), &status, &shutdown).await;
                delays.session_ended(since.elapsed());
                Error::Disconnected {
                    reason,
                    is_sent: true,
                }
            }
            Err(error) => of_link(error),
        };
        if shutdown.is_cancelled() {
            return Ended::Shutdown;
        }
        let delay = delays.next_delay(Instant::now(), error.is_final(), rand::random());
        status.send_replace(Status::Disconnected { error, delay });
        tokio::select! {
            () = sleep(delay) => {}
            () = shutdown.cancelled() => return Ended::Shutdown,
        }
    }
}

/// Serves one tunnel until it ends.
async fn session<S, B>(
    link: Link,
    settings: &Settings,
    service: S,
    status: &watch::Sender<Status>,
    shutdown: &CancellationToken,
) -> EndReason
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let (meter, link_status) = (link.meter(), link.status());
    let tunnel = Tunnel::new(settings.limits.bytes_in_flight, meter.clone());
    let service = TunnelService::new(service, Arc::clone(&tunnel));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let stopped = async move { drop(stopped.await) };
    let serving = serve(link, windows(&settings.limits), service, stopped);
    let mut serving = std::pin::pin!(serving);
    let served = tokio::select! {
        served = serving.as_mut() => served,
        () = follow(link_status, status) => serving.await,
        () = shutdown.cancelled() => {
            tunnel.end();
            drop(stop);
            // Requests that take longer are cut: the streams of watches never end.
            match timeout(settings.drain_timeout, serving).await {
                Ok(served) => served,
                Err(_) => return EndReason::Closed("the agent shuts down".to_owned()),
            }
        }
    };
    end_reason(&meter, served.err())
}

fn end_reason(meter: &Meter, error: Option<link::LinkError>) -> EndReason {
    match (meter.failure(), error) {
        (Some(failure), _) => EndReason::of(&failure),
        (None, Some(error)) => EndReason::of(&error),
        (None, None) => EndReason::Left,
    }
}

/// Translates the link's status until it ends.
async fn follow(mut link: watch::Receiver<link::Status>, status: &watch::Sender<Status>) {
    loop {
        let current = link.borrow_and_update().clone();
        match current {
            link::Status::Connected => {
                let since = Instant::now();
                status.send_replace(Status::Connected { since });
            }
            link::Status::Reconnecting {
                since, last_error, ..
            } => {
                let error = last_error;
                status.send_replace(Status::Interrupted { since, error });
            }
            link::Status::Finished | link::Status::Failed(_) => return,
        }
        if link.changed().await.is_err() {
            return;
        }
    }
}

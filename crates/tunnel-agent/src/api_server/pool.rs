//! Chooses a connection for each request.
//!
//! Requests share HTTP/2 connections, each up to a limit: beyond the limit of the server a request would wait for the end
//! of another one, which may be a watch that never ends. So a further connection is opened then. While one is being
//! opened, further requests wait for it instead of opening their own.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::{Request, Response};
use hyper::client::conn::TrySendError;
use parking_lot::Mutex;
use tokio::sync::Mutex as DialMutex;
use tokio::time::Instant;

use super::connection::{Connection, Dialer, Lease, Shared};
use crate::body::{self, Body, Guarded};
use crate::error::{Error, Result};

/// How often a request is sent at most, if the server closes the connections before it has read any of it.
const MAX_ATTEMPTS: usize = 3;

pub(super) struct Pool {
    dialer: Arc<Dialer>,
    connections: Mutex<Vec<Shared>>,
    /// Held while a connection is opened. It has the last failure.
    dialing: DialMutex<Option<Failure>>,
    /// Whether the server speaks only HTTP/1.1.
    is_http1: AtomicBool,
}

struct Failure {
    time: Instant,
    error: Arc<io::Error>,
}

/// What one request is sent with.
enum Chosen {
    Shared(Lease),
    Single(hyper::client::conn::http1::SendRequest<Body>),
}

impl Pool {
    pub(super) fn new(dialer: Arc<Dialer>) -> Self {
        Self {
            dialer,
            connections: Mutex::default(),
            dialing: DialMutex::default(),
            is_http1: AtomicBool::new(false),
        }
    }

    /// Sends a request. It is sent again only if nothing of it was sent.
    pub(super) async fn send(&self, mut request: Request<Body>) -> Result<Response<Body>> {
        let mut attempt = 1;
        loop {
            let mut error = match self.choose().await? {
                Chosen::Shared(mut lease) => match lease.send(request).await {
                    Ok(response) => return Ok(guarded(response, lease)),
                    Err(error) => error,
                },
                Chosen::Single(mut sender) => match sender.try_send_request(request).await {
                    // The connection ends when its sender is dropped.
                    Ok(response) => return Ok(guarded(response, sender)),
                    Err(error) => error,
                },
            };
            match unsent(&mut error, attempt) {
                Some(again) => request = again,
                None => return Err(Error::RequestApiServer(error.into_error())),
            }
            attempt += 1;
        }
    }

    async fn choose(&self) -> Result<Chosen> {
        let started = Instant::now();
        if let Some(lease) = self.lease() {
            return Ok(Chosen::Shared(lease));
        }
        if self.is_http1.load(Ordering::Acquire) {
            return self.dial().await;
        }
        let mut last_failure = self.dialing.lock().await;
        if let Some(lease) = self.lease() {
            return Ok(Chosen::Shared(lease));
        }
        // An attempt that began after this request arrived has failed for this request, too.
        if let Some(failure) = &*last_failure
            && failure.time >= started
        {
            return Err(Error::ConnectApiServer(Arc::clone(&failure.error)));
        }
        let dialed = self.dial().await;
        if let Err(Error::ConnectApiServer(error)) = &dialed {
            *last_failure = Some(Failure {
                time: Instant::now(),
                error: Arc::clone(error),
            });
        }
        dialed
    }

    async fn dial(&self) -> Result<Chosen> {
        match self.dialer.dial().await {
            Ok(Connection::Shared(connection)) => {
                self.is_http1.store(false, Ordering::Release);
                let lease = connection.lease().ok_or_else(closed)?;
                self.connections.lock().push(connection);
                Ok(Chosen::Shared(lease))
            }
            Ok(Connection::Single(sender)) => {
                self.is_http1.store(true, Ordering::Release);
                Ok(Chosen::Single(sender))
            }
            Err(error) => Err(Error::ConnectApiServer(Arc::new(error))),
        }
    }

    /// A stream of an open connection. Connections are used in the order of their age, so that the later ones become idle
    /// and can be closed.
    fn lease(&self) -> Option<Lease> {
        let mut connections = self.connections.lock();
        let mut idle = 0;
        connections.retain(|connection| {
            idle += usize::from(connection.is_idle());
            connection.is_usable() && (idle <= 1 || !connection.is_idle())
        });
        connections.iter().find_map(Shared::lease)
    }
}

fn closed() -> Error {
    Error::ConnectApiServer(Arc::new(io::ErrorKind::ConnectionReset.into()))
}

fn guarded<G: Send + Unpin + 'static>(
    response: Response<hyper::body::Incoming>,
    guard: G,
) -> Response<Body> {
    response.map(|body| {
        body::of(Guarded {
            body,
            _guard: guard,
        })
    })
}

/// The request, if it may be sent again.
fn unsent(error: &mut TrySendError<Request<Body>>, attempt: usize) -> Option<Request<Body>> {
    match attempt < MAX_ATTEMPTS {
        true => error.take_message(),
        false => None,
    }
}

//! Incoming: the target's traffic, for those who ask for it.
//!
//! ```text
//!   redirect      what arrives at a port reaches us instead of the application
//!   ports         one splitter for each such port: each request to the session that wants it, the rest to the application
//!   datagrams     the same for UDP, where there is nothing to split
//!   queue         a session, as a place where connections go: its `incoming/accept` requests
//!   stream        a connection, as such a request: one body each way
//!   keeper        a subscription from its beginning to its end, here or, through `peers`, at another agent
//!   held          which ports sessions have, for whoever looks from outside
//! ```
//!
//! A session that is gone, or too slow, loses nothing for the clients: what it has not begun to answer goes to the
//! application.

mod certificates;
mod connections;
mod datagrams;
mod fate;
mod filter;
mod held;
mod keeper;
mod lent;
mod original;
mod peers;
mod port;
mod ports;
mod queue;
mod reachable;
pub mod redirect;
mod shown;
mod stream;
mod subscription;
mod wanted;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::Stream;
use http::{Request, Response};
use hyper::body::Incoming as RequestBody;
use protocol::incoming::Accept;
use protocol::rpc::incoming_server::Incoming;
use protocol::rpc::{ReportRequest, ReportResponse, SubscribeEvent, SubscribeRequest};
use tokio::sync::mpsc;
use tokio::time::{Duration, Instant};
use tonic::body::Body;
use tonic::{Request as Call, Response as Answer, Status};

pub(crate) use self::held::HeldPorts;
pub use self::held::{AllHeld, HeldPort, Patterns};
pub(crate) use self::ports::Ports;
pub use self::reachable::{Presence, Reachable};
pub(crate) use self::subscription::Subscriptions;
use self::wanted::Wanted;
use crate::connection::{Access, Connection};
use crate::{Error, Result};

#[tonic::async_trait]
impl Incoming for Connection {
    type SubscribeStream = Events;

    async fn subscribe(&self, request: Call<SubscribeRequest>) -> Result<Answer<Events>, Status> {
        self.admit().await?;
        let mut request = request.into_inner();
        if self.access == Access::Session {
            // A peer enforces what its own session may do, and says whose it is.
            let rules = self.agent.rules();
            rules.allow_subscription(&request)?;
            request.held_for_milliseconds = 0;
            if let Some(holder) = rules.holder() {
                request.holder = known_as(holder, &request.holder);
                request.owner = owned_by(holder, &request.owner);
            }
            let probes = rules.probe_paths(request.port);
            request.probe_paths.extend_from_slice(probes);
        }
        let wanted = Wanted::validate(request)?;
        let tls = wanted.request.tls.as_ref();
        if self.access == Access::Peer && tls.is_some_and(|tls| tls.certificate.is_empty()) {
            // The files of our own target are not a peer's to name.
            return Err(Error::Missing("certificate").into());
        }
        let events = keeper::subscribe(self, wanted).await?;
        Ok(Answer::new(Events(events)))
    }

    async fn report(&self, request: Call<ReportRequest>) -> Result<Answer<ReportResponse>, Status> {
        self.admit().await?;
        let Some(presence) = &self.presence else {
            // It is known of a session's own link.
            return Err(Status::unimplemented("only agents report"));
        };
        let away_for = request.into_inner().away_for_milliseconds;
        presence.send_replace(match away_for {
            None => Presence::Here,
            Some(time) => Presence::AwayUntil(Instant::now() + Duration::from_millis(time)),
        });
        Ok(Answer::new(ReportResponse {}))
    }
}

/// Who is there, and what he says of himself: others are told both, and the first is true.
fn known_as(holder: &str, said: &str) -> String {
    match said {
        "" => holder.to_owned(),
        said => format!("{holder} ({})", said.chars().take(80).collect::<String>()),
    }
}

/// Whose it is, where somebody else than the client has said who he is: what he says of himself only tells his machines
/// apart.
fn owned_by(holder: &str, said: &str) -> String {
    match said {
        "" => String::new(),
        said => format!("{holder}\n{said}"),
    }
}

/// A connection of a subscription: answered when there is one.
pub(crate) async fn accept(
    connection: &Arc<Connection>,
    request: Request<RequestBody>,
) -> Result<Response<Body>> {
    let Accept { subscription } = Accept::from_headers(request.headers())?;
    let found = connection.subscriptions.find(subscription);
    let found = found.ok_or(Error::NoSubscription(subscription))?;
    found.wait(request.into_body()).await
}

/// What happens to a subscription, until the caller ends the call: dropping this ends the subscription.
#[derive(Debug)]
pub(crate) struct Events(mpsc::Receiver<Result<SubscribeEvent, Status>>);

impl Stream for Events {
    type Item = Result<SubscribeEvent, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_claims_to_be_somebody_else_is_named_first() {
        assert_eq!(known_as("eve", ""), "eve");
        assert_eq!(known_as("eve", "anna@laptop"), "eve (anna@laptop)");
        assert_eq!(known_as("eve", &"a".repeat(500)).len(), 86);
    }

    #[test]
    fn whoever_claims_to_be_somebody_else_owns_nothing_of_him() {
        assert_eq!(owned_by("eve", ""), "");
        assert_ne!(owned_by("eve", "a"), owned_by("anna", "a"));
        assert_ne!(owned_by("eve", "a"), owned_by("eve", "b"));
        assert_eq!(owned_by("eve", "a"), owned_by("eve", "a"));
    }
}

//! Incoming traffic: steals or mirrors the target's traffic for the sessions that subscribe to it.
//!
//! A subscription claims traffic of one port. Stolen connections go to the session instead of the application; mirrored
//! ones are copies. If a session disconnects or is too slow, clients lose nothing: a request whose response has not begun
//! is forwarded to the application.
//!
//! | module | what it does |
//! |---|---|
//! | [`redirect`] | redirects the traffic of chosen ports to the agent instead of the application |
//! | `ports` | manages the redirected ports, one splitter for each: it routes each request to the session that claims it |
//! | `datagrams` | the same for UDP, where flows are routed as a whole |
//! | `accept_pool` | the pending `incoming/accept` requests of a session: its destination for stolen connections |
//! | `stream` | one connection as such a request: one body for each direction |
//! | `subscription_task` | runs a subscription from start to end, at this agent or, through `peers`, at another one |
//! | `claimed_ports` | the ports that sessions have claimed, for status reports |

mod accept_pool;
mod application;
mod certificates;
mod claimed_ports;
mod connections;
mod datagrams;
mod filter;
mod filter_description;
mod peers;
mod port;
mod ports;
mod reachability;
mod reclaimable;
pub mod redirect;
mod reset;
mod spec;
mod stream;
mod subscription;
mod subscription_task;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::Stream;
use http::{Request, Response};
use protocol::incoming::Accept;
use protocol::rpc::incoming_server::Incoming;
use protocol::rpc::{
    ReportRequest, ReportResponse, SubscribeEvent, SubscribeRequest, UnsubscribeRequest,
    UnsubscribeResponse,
};
use tokio::sync::mpsc;
use tokio::time::{Duration, Instant};
use tonic::body::Body;
use tonic::{Request as GrpcRequest, Response as GrpcResponse, Status};

pub(crate) use self::claimed_ports::ClaimedPorts;
pub use self::claimed_ports::{AllClaims, ClaimedPort, PatternVisibility};
pub(crate) use self::filter::convert_filter;
pub(crate) use self::ports::Ports;
pub use self::reachability::{ClientReachability, ReachabilityWatch};
use self::spec::SubscriptionSpec;
pub(crate) use self::subscription::Subscriptions;
use crate::connection::{Access, Connection, RequestBody};
use crate::{Error, Result};

#[tonic::async_trait]
impl Incoming for Connection {
    type SubscribeStream = EventStream;

    async fn subscribe(
        &self,
        request: GrpcRequest<SubscribeRequest>,
    ) -> Result<GrpcResponse<EventStream>, Status> {
        self.admit().await?;
        let mut request = request.into_inner();
        let requested_filter = request.filter.clone();
        if self.access == Access::Session {
            // A peer agent enforces the rules of its own session, and sets the holder and owner itself.
            let rules = self.agent.rules();
            request.filter = rules.effective_filter(&request)?;
            request.claim_age_milliseconds = 0;
            if let Some(holder) = rules.holder() {
                request.holder = display_holder(holder, &request.holder);
                request.owner = qualified_owner(holder, &request.owner);
            }
            let probes = rules.probe_paths(request.port);
            request.probe_paths.extend_from_slice(probes);
        }
        let spec = SubscriptionSpec::validate(request)?;
        let tls = spec.request.tls.as_ref();
        if self.access == Access::Peer && tls.is_some_and(|tls| tls.certificate.is_empty()) {
            // A peer agent may not read files of this agent's target.
            return Err(Error::Missing("certificate").into());
        }
        let events = subscription_task::subscribe(self, spec, requested_filter).await?;
        Ok(GrpcResponse::new(EventStream(events)))
    }

    async fn unsubscribe(
        &self,
        request: GrpcRequest<UnsubscribeRequest>,
    ) -> Result<GrpcResponse<UnsubscribeResponse>, Status> {
        self.admit().await?;
        let id = request.into_inner().subscription;
        if let Some(subscription) = self.subscriptions.find(id) {
            subscription.end().await;
        }
        Ok(GrpcResponse::new(UnsubscribeResponse {}))
    }

    async fn report(
        &self,
        request: GrpcRequest<ReportRequest>,
    ) -> Result<GrpcResponse<ReportResponse>, Status> {
        self.admit().await?;
        let Some(reachability) = &self.reachability else {
            // For a session, the agent takes it from the session's own link.
            return Err(Status::unimplemented("only agents report"));
        };
        let resume_window = request.into_inner().resume_window_milliseconds;
        reachability.send_replace(match resume_window {
            None => ClientReachability::Connected,
            Some(time) => {
                ClientReachability::DisconnectedUntil(Instant::now() + Duration::from_millis(time))
            }
        });
        Ok(GrpcResponse::new(ReportResponse {}))
    }
}

/// The name of a holder for other users: the authenticated name, then the name that the client claims.
fn display_holder(authenticated: &str, claimed: &str) -> String {
    match claimed {
        "" => authenticated.to_owned(),
        claimed => {
            let claimed: String = claimed.chars().take(80).collect();
            format!("{authenticated} ({claimed})")
        }
    }
}

/// The owner of a claim when the client was authenticated by another component: the owner that the client claims only
/// distinguishes the machines of the authenticated user.
fn qualified_owner(authenticated: &str, claimed: &str) -> String {
    match claimed {
        "" => String::new(),
        claimed => format!("{authenticated}\n{claimed}"),
    }
}

/// Serves `incoming/accept`: responds when the subscription has a connection.
pub(crate) async fn accept(
    connection: &Arc<Connection>,
    request: Request<RequestBody>,
) -> Result<Response<Body>> {
    let Accept { subscription } = Accept::from_headers(request.headers())?;
    let subscribed = connection.subscriptions.find(subscription);
    let subscribed = subscribed.ok_or(Error::NoSubscription(subscription))?;
    subscribed.next_connection(request.into_body()).await
}

/// The events of a subscription. Dropping the stream, as when the caller ends the call, ends the subscription.
#[derive(Debug)]
pub(crate) struct EventStream(mpsc::Receiver<Result<SubscribeEvent, Status>>);

impl Stream for EventStream {
    type Item = Result<SubscribeEvent, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_authenticated_name_comes_before_the_claimed_one() {
        assert_eq!(display_holder("eve", ""), "eve");
        assert_eq!(display_holder("eve", "anna@laptop"), "eve (anna@laptop)");
        assert_eq!(display_holder("eve", &"a".repeat(500)).len(), 86);
    }

    #[test]
    fn a_claimed_owner_never_matches_another_authenticated_user() {
        assert_eq!(qualified_owner("eve", ""), "");
        assert_ne!(qualified_owner("eve", "a"), qualified_owner("anna", "a"));
        assert_ne!(qualified_owner("eve", "a"), qualified_owner("eve", "b"));
        assert_eq!(qualified_owner("eve", "a"), qualified_owner("eve", "a"));
    }
}

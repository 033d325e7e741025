//! The server that the API server connects to: TLS, authentication, and dispatch of requests.

mod connections;
mod trust;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use admission::{Admission, Limits, accept};
use api::ConnectParameters;
use api::session::Session;
use error_chain::error_chain;
use http::Request;
use hyper::body::Incoming;
use hyper_util::server::graceful::GracefulShutdown;
use jiff::Timestamp;
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use self::connections::Authentication;
pub(crate) use self::trust::{Trust, TrustReloader};
use crate::connect::{self, ConnectRequest};
use crate::error::Error;
use crate::front_proxy::User;
use crate::metrics::RequestLabels;
use crate::response::{ApiResponse, Refusal, ResponseFormat, json, list, one, warning};
use crate::routes::{self, ApiRequest};
use crate::targets::{TargetFilter, TargetList};
use crate::{Shared, discovery, multicluster, openapi, overview, sessions, targets, users};

/// The permits of connections whose clients are not authenticated. Connections of the API server need one for their handshake
/// only.
pub(crate) const LIMITS: Limits = Limits {
    total: 512,
    per_source: 256,
};
/// How long it may take until the cluster sends no new connections to a replica that shuts down. Connections that arrive
/// in the meantime are served.
const SHUTDOWN_DELAY: Duration = Duration::from_secs(4);
/// How long running requests may take during shutdown, and sessions to move to another replica.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves until `shutdown`, and then until running requests and relays have ended.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    listener: TcpListener,
    admission: Admission,
    shutdown: CancellationToken,
) {
    let graceful = GracefulShutdown::new();
    let mut stop_accepting = pin!(async {
        shutdown.cancelled().await;
        sleep(SHUTDOWN_DELAY).await;
    });
    loop {
        let (connection, peer) = tokio::select! {
            accepted = accept(&listener) => accepted,
            () = &mut stop_accepting => break,
        };
        let (permit, watcher) = (admission.admit(peer), graceful.watcher());
        let trust = shared.trust.borrow().clone();
        let (shared, used_trust) = (Arc::clone(&shared), Arc::clone(&trust));
        let respond = move |authentication, request| {
            respond(
                Arc::clone(&shared),
                Arc::clone(&used_trust),
                authentication,
                request,
            )
        };
        tokio::spawn(async move {
            let serving = connections::serve(&trust, watcher, permit, connection, respond);
            if let Err(error) = serving.await {
                tracing::debug!(%error, %peer, "connection failed");
            }
        });
    }
    drop(listener);
    shared.draining.cancel();
    shared.relays.close();
    let done = async { tokio::join!(graceful.shutdown(), shared.relays.wait()) };
    let _ = timeout(DRAIN_TIMEOUT, done).await;
}

async fn respond(
    shared: Arc<Shared>,
    trust: Arc<Trust>,
    authentication: Authentication,
    request: Request<Incoming>,
) -> ApiResponse {
    let parsed = routes::parse(
        request.method(),
        request.uri().path(),
        request.uri().query().unwrap_or_default(),
        request.headers(),
    );
    let resource = parsed.as_ref().map_or("unknown", ApiRequest::label);
    let result = if authentication == Authentication::FrontProxy {
        match (parsed, trust.front_proxy().user(request.headers())) {
            (Ok(parsed), Ok(user)) => handle(&shared, parsed, &user, request).await,
            (Err(refusal), _) | (_, Err(refusal)) => Err(refusal),
        }
    } else {
        shared.metrics.unauthenticated_connections_rejected.inc();
        Err(Refusal::unauthorized(
            "the operator accepts requests of the API server only; send this request to the API server",
        ))
    };
    let response = result.unwrap_or_else(|refusal| refusal.response());
    let code = response.status().as_u16();
    let labels = RequestLabels { resource, code };
    shared.metrics.requests.get_or_create(&labels).inc();
    response
}

async fn handle(
    shared: &Arc<Shared>,
    parsed: ApiRequest,
    user: &User,
    request: Request<Incoming>,
) -> Result<ApiResponse, Refusal> {
    let client = &shared.client;
    let format = ResponseFormat::accepted(request.headers());
    let now = Timestamp::now();
    match parsed {
        ApiRequest::Groups => Ok(discovery::groups(request.headers())),
        ApiRequest::Group => Ok(discovery::group()),
        ApiRequest::Resources => Ok(discovery::resources()),
        ApiRequest::OpenApi2 => Ok(openapi::version_2()),
        ApiRequest::OpenApi3 => Ok(openapi::version_3()),
        ApiRequest::OpenApi3OfGroup => Ok(openapi::version_3_of_group()),
        ApiRequest::Operators | ApiRequest::Operator => {
            let sessions = list_sessions(shared, now).await?;
            let license = overview::license(client, &shared.settings).await?;
            let clusters = shared.members.as_ref();
            let clusters = clusters.map(|members| members.connected_clusters(now));
            let statistics = users::statistics(client, &shared.settings, now).await;
            let operator =
                overview::operator(&shared.settings, license, &sessions, clusters, statistics);
            Ok(match parsed {
                ApiRequest::Operators => list(&[operator], format),
                _ => one(&operator, format),
            })
        }
        ApiRequest::Targets { namespace } => {
            let query = request.uri().query().unwrap_or_default();
            let labels = label_selector(query)?;
            let filter = TargetFilter { namespace, labels };
            let found = list_targets(shared, &filter, query).await?;
            Ok(warning(list(&found.targets, format), &found.warnings))
        }
        ApiRequest::Target { namespace, target } => {
            let filter = TargetFilter {
                namespace: Some(namespace.clone()),
                labels: None,
            };
            let query = request.uri().query().unwrap_or_default();
            let mut found = list_targets(shared, &filter, query).await?;
            let warnings = std::mem::take(&mut found.warnings);
            match found.find(&target) {
                Some(found) => Ok(warning(one(&found, format), &warnings)),
                None => Err(Refusal::not_found(format!(
                    "there is no {target} in {namespace}"
                ))),
            }
        }
        ApiRequest::Connect {
            namespace,
            target,
            parameters,
        } => {
            let connect_request = ConnectRequest {
                namespace,
                target,
                parameters: *parameters,
            };
            connect::connect(shared, user, connect_request, request).await
        }
        ApiRequest::Sessions => {
            let sessions = list_sessions(shared, now).await?;
            Ok(list(&sessions, format))
        }
        ApiRequest::Session(id) => {
            let sessions = list_sessions(shared, now).await?;
            let id = id.to_string();
            match sessions.iter().find(|session| session.spec.id == id) {
                Some(session) => Ok(one(session, format)),
                None => Err(Refusal::not_found(format!("there is no session {id}"))),
            }
        }
        ApiRequest::EndSession(id) => {
            // The parent before its child in this cluster, which has the same number.
            let mut ended = shared.members.is_some() && sessions::end_parent(client, id).await?;
            if !ended {
                ended = sessions::end(client, id).await?;
            }
            tracing::info!(target: "audit", user = user.name, session = %id, ended, "session deleted by user");
            if !ended {
                return Err(Refusal::not_found(format!("there is no session {id}")));
            }
            Ok(json(&serde_json::json!({
                "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Success",
            })))
        }
    }
}

/// Sessions of this cluster, and those over several clusters where this one is their Primary.
async fn list_sessions(shared: &Shared, now: Timestamp) -> Result<Vec<Session>, Refusal> {
    let sessions = sessions::list(&shared.client).await?;
    let parents = match &shared.members {
        Some(_) => sessions::list_parents(&shared.client).await?,
        None => Vec::new(),
    };
    Ok(sessions::to_api_list(&sessions, &parents, now))
}

/// Targets of all clusters if this one is a Primary, unless the query selects only this cluster.
async fn list_targets(
    shared: &Shared,
    filter: &TargetFilter,
    query: &str,
) -> Result<TargetList, Refusal> {
    let parameters = ConnectParameters::read(query, None);
    let parameters = parameters.map_err(|invalid| Refusal::bad_request(invalid.to_string()))?;
    if let Some(members) = shared.members.as_ref().filter(|it| it.accepts(&parameters)) {
        return multicluster::targets::list(shared, members, filter).await;
    }
    let sessions = sessions::list(&shared.client).await?;
    Ok(TargetList {
        targets: targets::list(&shared.client, filter, &sessions).await?,
        warnings: Vec::new(),
    })
}

fn label_selector(query: &str) -> Result<Option<String>, Refusal> {
    for pair in query.split('&') {
        match pair.split_once('=') {
            Some(("labelSelector", value)) if !value.is_empty() => {
                let value = percent_encoding::percent_decode_str(value).decode_utf8_lossy();
                return Ok(Some(value.into_owned()));
            }
            Some(("fieldSelector", value)) if !value.is_empty() => {
                return Err(Refusal::bad_request("field selectors are not supported"));
            }
            _ => {}
        }
    }
    Ok(None)
}

/// A failure between the operator and the API server is a server error, not the caller's.
impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        tracing::warn!(error = error_chain(&error), "request failed");
        match &error {
            Error::Kubernetes { source, .. } => match source.as_ref() {
                kube::Error::Api(status) if status.code == 403 => Refusal::internal(format!(
                    "the operator lacks a permission that its chart should grant: {}",
                    status.message
                )),
                kube::Error::Api(status) if status.code == 400 => {
                    Refusal::bad_request(status.message.clone())
                }
                _ => Refusal::unavailable(error_chain(&error)),
            },
            _ => Refusal::internal(error_chain(&error)),
        }
    }
}

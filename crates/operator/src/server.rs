//! The server that the API server connects to: TLS, authentication, and dispatch of requests.

mod trust;

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use api::ConnectParameters;
use api::session::Session;
use error_chain::error_chain;
use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use jiff::Timestamp;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

pub(crate) use self::trust::{Trust, TrustReloader};
use crate::connect::{self, ConnectRequest};
use crate::error::Error;
use crate::front_proxy::User;
use crate::metrics::RequestLabels;
use crate::response::{ApiResponse, Refusal, ResponseFormat, json, list, one, warning};
use crate::routes::{self, ApiRequest};
use crate::targets::{TargetFilter, TargetList};
use crate::{Shared, discovery, multicluster, openapi, overview, sessions, targets, users};

/// The delay after a failed `accept`.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
const TLS_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may take to send the head of a request. It applies to the API server as well.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(30);
/// The limit of concurrent connections of unauthenticated clients. Connections of the API server do not count.
const MAX_UNAUTHENTICATED_CONNECTIONS: usize = 64;
/// The limit of concurrent requests over one connection. Each session has its own connection.
const MAX_CONCURRENT_STREAMS: u32 = 1000;
/// How long it may take until the cluster sends no new connections to a replica that shuts down. Connections that arrive
/// in the meantime are served.
const SHUTDOWN_DELAY: Duration = Duration::from_secs(4);
/// How long running requests may take during shutdown, and sessions to move to another replica.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves until `shutdown`, and then until running requests and relays have ended.
pub(crate) async fn serve(shared: Arc<Shared>, listener: TcpListener, shutdown: CancellationToken) {
    let graceful = GracefulShutdown::new();
    let unauthenticated = Arc::new(Semaphore::new(MAX_UNAUTHENTICATED_CONNECTIONS));
    let mut stop_accepting = pin!(async {
        shutdown.cancelled().await;
        sleep(SHUTDOWN_DELAY).await;
    });
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut stop_accepting => break,
        };
        let Ok((connection, _)) = accepted else {
            // No file descriptor is left, or the client has disconnected already. Both are temporary.
            sleep(ACCEPT_RETRY_DELAY).await;
            continue;
        };
        let (shared, watcher) = (Arc::clone(&shared), graceful.watcher());
        let unauthenticated = Arc::clone(&unauthenticated);
        tokio::spawn(async move {
            if let Err(error) = serve_connection(shared, watcher, unauthenticated, connection).await
            {
                tracing::debug!(error = %error, "connection failed");
            }
        });
    }
    drop(listener);
    shared.draining.cancel();
    shared.relays.close();
    let done = async { tokio::join!(graceful.shutdown(), shared.relays.wait()) };
    let _ = timeout(DRAIN_TIMEOUT, done).await;
}

async fn serve_connection(
    shared: Arc<Shared>,
    watcher: Watcher,
    unauthenticated: Arc<Semaphore>,
    connection: TcpStream,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    connection.set_nodelay(true)?;
    // A client is unauthenticated until the TLS handshake is done.
    let permit = unauthenticated
        .try_acquire_owned()
        .map_err(|_| "too many unauthenticated connections")?;
    let trust = shared.trust.borrow().clone();
    let stream = timeout(TLS_HANDSHAKE_TIMEOUT, trust.acceptor().accept(connection)).await??;
    let certificates = stream.get_ref().1.peer_certificates();
    let is_front_proxy = trust
        .front_proxy()
        .recognise(certificates.and_then(<[_]>::first));
    let _permit = (!is_front_proxy).then_some(permit);
    let service = service_fn(move |request: Request<Incoming>| {
        let (shared, trust) = (Arc::clone(&shared), Arc::clone(&trust));
        async move { Ok::<_, Infallible>(respond(shared, &trust, is_front_proxy, request).await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_READ_TIMEOUT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_CONCURRENT_STREAMS)
        .keep_alive_interval(HEADER_READ_TIMEOUT)
        .keep_alive_timeout(HEADER_READ_TIMEOUT);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    watcher.watch(connection.into_owned()).await
}

async fn respond(
    shared: Arc<Shared>,
    trust: &Trust,
    is_front_proxy: bool,
    request: Request<Incoming>,
) -> ApiResponse {
    let parsed = routes::parse(
        request.method(),
        request.uri().path(),
        request.uri().query().unwrap_or_default(),
        request.headers(),
    );
    let resource = parsed.as_ref().map_or("unknown", ApiRequest::label);
    let result = if is_front_proxy {
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
            let clusters =
                clusters.map(|members| (members.roles(), members.connected_clusters(now)));
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

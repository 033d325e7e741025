//! The server that the API server connects to: TLS, who is there, and one answer per request.

mod trust;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use jiff::Timestamp;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

pub(crate) use self::trust::{Trust, TrustKeeper};
use crate::address::{self, Asked};
use crate::answer::{Answer, Form, Refusal, json, list, one};
use crate::connect::{self, Asking};
use crate::error::{Error, chain};
use crate::front_proxy::User;
use crate::metrics::RequestLabels;
use crate::targets::Wanted;
use crate::{Shared, discovery, openapi, overview, sessions, targets};

/// Before the next connection is accepted, when one could not be.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a client may take to speak TLS.
const TLS_PATIENCE: Duration = Duration::from_secs(10);
/// How long requests that are under way may take when the operator ends. Sessions are told to go elsewhere at once.
const DRAIN_PATIENCE: Duration = Duration::from_secs(10);

/// Serves until it is told to end, and then until what is under way is done.
pub(crate) async fn serve(shared: Arc<Shared>, listener: TcpListener, shutdown: CancellationToken) {
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shutdown.cancelled() => break,
        };
        let Ok((connection, _)) = accepted else {
            // No descriptor is left, or the client is gone already. Both pass.
            sleep(PAUSE).await;
            continue;
        };
        let (shared, watcher) = (Arc::clone(&shared), graceful.watcher());
        tokio::spawn(async move {
            if let Err(error) = serve_connection(shared, watcher, connection).await {
                tracing::debug!(error = %error, "a connection ended");
            }
        });
    }
    drop(listener);
    let _ = timeout(DRAIN_PATIENCE, graceful.shutdown()).await;
}

async fn serve_connection(
    shared: Arc<Shared>,
    watcher: Watcher,
    connection: TcpStream,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    connection.set_nodelay(true)?;
    let trust = shared.trust.borrow().clone();
    let stream = timeout(TLS_PATIENCE, trust.acceptor().accept(connection)).await??;
    let certificates = stream.get_ref().1.peer_certificates();
    let is_front_proxy = trust
        .front_proxy()
        .recognise(certificates.and_then(<[_]>::first));
    let answering = service_fn(move |request: Request<Incoming>| {
        let (shared, trust) = (Arc::clone(&shared), Arc::clone(&trust));
        async move { Ok::<_, Infallible>(answer(shared, &trust, is_front_proxy, request).await) }
    });
    let builder = auto::Builder::new(TokioExecutor::new());
    let served = builder.serve_connection_with_upgrades(TokioIo::new(stream), answering);
    watcher.watch(served.into_owned()).await
}

async fn answer(
    shared: Arc<Shared>,
    trust: &Trust,
    is_front_proxy: bool,
    request: Request<Incoming>,
) -> Answer {
    let asked = address::read(
        request.method(),
        request.uri().path(),
        request.uri().query().unwrap_or_default(),
        request.headers(),
    );
    let resource = asked.as_ref().map_or("unknown", Asked::label);
    let answered = if is_front_proxy {
        match (asked, trust.front_proxy().user(request.headers())) {
            (Ok(asked), Ok(user)) => answer_asked(&shared, asked, &user, request).await,
            (Err(refusal), _) | (_, Err(refusal)) => Err(refusal),
        }
    } else {
        shared.metrics.refused_strangers.inc();
        Err(Refusal::unauthorized(
            "the operator answers only to the API server; ask there for what you want",
        ))
    };
    let answer = answered.unwrap_or_else(|refusal| refusal.answer());
    let code = answer.status().as_u16();
    let labels = RequestLabels { resource, code };
    shared.metrics.requests.get_or_create(&labels).inc();
    answer
}

async fn answer_asked(
    shared: &Arc<Shared>,
    asked: Asked,
    user: &User,
    request: Request<Incoming>,
) -> Result<Answer, Refusal> {
    let client = &shared.client;
    let form = Form::accepted(request.headers());
    let now = Timestamp::now();
    match asked {
        Asked::Groups => Ok(discovery::groups(request.headers())),
        Asked::Group => Ok(discovery::group()),
        Asked::Resources => Ok(discovery::resources()),
        Asked::OpenApi2 => Ok(openapi::version_2()),
        Asked::OpenApi3 => Ok(openapi::version_3()),
        Asked::OpenApi3OfGroup => Ok(openapi::version_3_of_group()),
        Asked::Operators | Asked::Operator => {
            let sessions = sessions::list(client).await?;
            let license = overview::license(client, &shared.settings).await?;
            let clusters = shared.envoy.as_ref();
            let clusters = clusters.map(|envoy| envoy.connected_clusters(now));
            let operator = overview::operator(&shared.settings, license, &sessions, clusters, now);
            Ok(match asked {
                Asked::Operators => list(&[operator], form),
                _ => one(&operator, form),
            })
        }
        Asked::Targets { namespace } => {
            let labels = label_selector(request.uri().query().unwrap_or_default())?;
            let wanted = Wanted { namespace, labels };
            let sessions = sessions::list(client).await?;
            let targets = targets::list(client, &wanted, &sessions).await?;
            Ok(list(&targets, form))
        }
        Asked::Target { namespace, target } => {
            let sessions = sessions::list(client).await?;
            let found = targets::find(client, &namespace, &target, &sessions).await?;
            let missing = || Refusal::not_found(format!("there is no {target} in {namespace}"));
            found.map(|found| one(&found, form)).ok_or_else(missing)
        }
        Asked::Connect {
            namespace,
            target,
            parameters,
        } => {
            let asking = Asking {
                namespace,
                target,
                parameters,
            };
            connect::connect(shared, user, asking, request).await
        }
        Asked::Sessions => {
            let sessions = sessions::list(client).await?;
            let served: Vec<_> = sessions
                .iter()
                .map(|session| sessions::served(session, now))
                .collect();
            Ok(list(&served, form))
        }
        Asked::Session(id) => match sessions::find(client, id).await? {
            Some(session) => Ok(one(&sessions::served(&session, now), form)),
            None => Err(Refusal::not_found(format!("there is no session {id}"))),
        },
        Asked::EndSession(id) => {
            let mut ended = sessions::end(client, id).await?;
            if !ended && shared.envoy.is_some() {
                ended = sessions::end_parent(client, id).await?;
            }
            tracing::info!(target: "audit", user = user.name, session = %id, ended, "a session is ended by a user");
            if !ended {
                return Err(Refusal::not_found(format!("there is no session {id}")));
            }
            Ok(json(&serde_json::json!({
                "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Success",
            })))
        }
    }
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

/// What goes wrong between us and the API server is not the caller's fault, and says so.
impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        tracing::warn!(error = chain(&error), "a request failed");
        match &error {
            Error::Kubernetes { source, .. } => match source.as_ref() {
                kube::Error::Api(status) if status.code == 403 => Refusal::internal(format!(
                    "the operator lacks a right, which its chart should give: {}",
                    status.message
                )),
                kube::Error::Api(status) if status.code == 400 => {
                    Refusal::bad_request(status.message.clone())
                }
                _ => Refusal::unavailable(chain(&error)),
            },
            _ => Refusal::internal(chain(&error)),
        }
    }
}

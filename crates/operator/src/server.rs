//! The server that the API server connects to: TLS, who is there, and one answer per request.

mod trust;

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use api::ConnectParameters;
use api::session::Session;
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

pub(crate) use self::trust::{Trust, TrustKeeper};
use crate::address::{self, Asked};
use crate::answer::{Answer, Form, Refusal, json, list, one, warning};
use crate::connect::{self, Asking};
use crate::error::{Error, chain};
use crate::front_proxy::User;
use crate::metrics::RequestLabels;
use crate::targets::{Found, Wanted};
use crate::{Shared, discovery, multicluster, openapi, overview, sessions, targets, users};

/// Before the next connection is accepted, when one could not be.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a client may take to speak TLS.
const TLS_PATIENCE: Duration = Duration::from_secs(10);
/// How long a client may take to say what it wants. Of the API server nothing else is expected either.
const HEAD_PATIENCE: Duration = Duration::from_secs(30);
/// Connections that strangers may have at the same time. The API server's are not counted.
const MOST_STRANGERS: usize = 64;
/// Requests at the same time over one connection. Sessions are connections of their own.
const MOST_STREAMS: u32 = 1000;
/// How long others may take to learn that this replica is about to end. Until then they send clients here, who are served.
const NOTICE: Duration = Duration::from_secs(4);
/// How long requests that are under way may take when the operator ends, and sessions to go elsewhere.
const DRAIN_PATIENCE: Duration = Duration::from_secs(10);

/// Serves until it is told to end, and then until what is under way is done.
pub(crate) async fn serve(shared: Arc<Shared>, listener: TcpListener, shutdown: CancellationToken) {
    let graceful = GracefulShutdown::new();
    let strangers = Arc::new(Semaphore::new(MOST_STRANGERS));
    let mut last_call = pin!(async {
        shutdown.cancelled().await;
        sleep(NOTICE).await;
    });
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut last_call => break,
        };
        let Ok((connection, _)) = accepted else {
            // No descriptor is left, or the client is gone already. Both pass.
            sleep(PAUSE).await;
            continue;
        };
        let (shared, watcher) = (Arc::clone(&shared), graceful.watcher());
        let strangers = Arc::clone(&strangers);
        tokio::spawn(async move {
            if let Err(error) = serve_connection(shared, watcher, strangers, connection).await {
                tracing::debug!(error = %error, "a connection ended");
            }
        });
    }
    drop(listener);
    shared.leaving.cancel();
    shared.relays.close();
    let done = async { tokio::join!(graceful.shutdown(), shared.relays.wait()) };
    let _ = timeout(DRAIN_PATIENCE, done).await;
}

async fn serve_connection(
    shared: Arc<Shared>,
    watcher: Watcher,
    strangers: Arc<Semaphore>,
    connection: TcpStream,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    connection.set_nodelay(true)?;
    // Everybody is a stranger until TLS says otherwise.
    let stranger = strangers
        .try_acquire_owned()
        .map_err(|_| "too many strangers are here")?;
    let trust = shared.trust.borrow().clone();
    let stream = timeout(TLS_PATIENCE, trust.acceptor().accept(connection)).await??;
    let certificates = stream.get_ref().1.peer_certificates();
    let is_front_proxy = trust
        .front_proxy()
        .recognise(certificates.and_then(<[_]>::first));
    let _stranger = (!is_front_proxy).then_some(stranger);
    let answering = service_fn(move |request: Request<Incoming>| {
        let (shared, trust) = (Arc::clone(&shared), Arc::clone(&trust));
        async move { Ok::<_, Infallible>(answer(shared, &trust, is_front_proxy, request).await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_PATIENCE);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MOST_STREAMS)
        .keep_alive_interval(HEAD_PATIENCE)
        .keep_alive_timeout(HEAD_PATIENCE);
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
            let sessions = served_sessions(shared, now).await?;
            let license = overview::license(client, &shared.settings).await?;
            let clusters = shared.envoy.as_ref();
            let clusters = clusters.map(|envoy| envoy.connected_clusters(now));
            let statistics = users::statistics(client, &shared.settings, now).await;
            let operator =
                overview::operator(&shared.settings, license, &sessions, clusters, statistics);
            Ok(match asked {
                Asked::Operators => list(&[operator], form),
                _ => one(&operator, form),
            })
        }
        Asked::Targets { namespace } => {
            let query = request.uri().query().unwrap_or_default();
            let labels = label_selector(query)?;
            let wanted = Wanted { namespace, labels };
            let found = served_targets(shared, &wanted, query).await?;
            Ok(warning(list(&found.targets, form), &found.warnings))
        }
        Asked::Target { namespace, target } => {
            let wanted = Wanted {
                namespace: Some(namespace.clone()),
                labels: None,
            };
            let query = request.uri().query().unwrap_or_default();
            let mut found = served_targets(shared, &wanted, query).await?;
            let warnings = std::mem::take(&mut found.warnings);
            match found.find(&target) {
                Some(found) => Ok(warning(one(&found, form), &warnings)),
                None => Err(Refusal::not_found(format!(
                    "there is no {target} in {namespace}"
                ))),
            }
        }
        Asked::Connect {
            namespace,
            target,
            parameters,
        } => {
            let asking = Asking {
                namespace,
                target,
                parameters: *parameters,
            };
            connect::connect(shared, user, asking, request).await
        }
        Asked::Sessions => {
            let served = served_sessions(shared, now).await?;
            Ok(list(&served, form))
        }
        Asked::Session(id) => {
            let served = served_sessions(shared, now).await?;
            let id = id.to_string();
            match served.iter().find(|session| session.spec.id == id) {
                Some(session) => Ok(one(session, form)),
                None => Err(Refusal::not_found(format!("there is no session {id}"))),
            }
        }
        Asked::EndSession(id) => {
            // The whole before its part here, which has the same number.
            let mut ended = shared.envoy.is_some() && sessions::end_parent(client, id).await?;
            if !ended {
                ended = sessions::end(client, id).await?;
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

/// Sessions of this cluster, and those over several where it is their Primary.
async fn served_sessions(shared: &Shared, now: Timestamp) -> Result<Vec<Session>, Refusal> {
    let sessions = sessions::list(&shared.client).await?;
    let parents = match &shared.envoy {
        Some(_) => sessions::list_parents(&shared.client).await?,
        None => Vec::new(),
    };
    Ok(sessions::all_served(&sessions, &parents, now))
}

/// Targets of this cluster, or of all those that this one coordinates, unless somebody asks for this one alone.
async fn served_targets(shared: &Shared, wanted: &Wanted, query: &str) -> Result<Found, Refusal> {
    let parameters = ConnectParameters::read(query, None);
    let parameters = parameters.map_err(|invalid| Refusal::bad_request(invalid.to_string()))?;
    if let Some(envoy) = shared.envoy.as_ref().filter(|it| it.takes(&parameters)) {
        return multicluster::targets::list(shared, envoy, wanted).await;
    }
    let sessions = sessions::list(&shared.client).await?;
    Ok(Found {
        targets: targets::list(&shared.client, wanted, &sessions).await?,
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

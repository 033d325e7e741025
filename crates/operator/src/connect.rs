//! A client connects: who it is, whether it may, its session, and then bytes in both directions.

pub(crate) mod ports;
pub(crate) mod relay;
pub(crate) mod returning;

use std::sync::Arc;
use std::time::Duration;

use api::connect::{
    CLIENT_CERTIFICATE_HEADER, CLIENT_HOSTNAME_HEADER, CLIENT_NAME_HEADER, CLIENT_VERSION_HEADER,
    ConnectParameters, SESSION_ID_HEADER,
};
use api::session::{FINALIZER, SessionId, SessionOwner, SessionPhase};
use api::{MirrordClusterSession, MirrordClusterSessionSpec, TargetPath};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE,
};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use kube::ResourceExt as _;
use link::tls::Fingerprint;
use link::upgrade::PROTOCOL;
use link::websocket::{Role, WebSocketStream, accept_key};
use tokio::time::{Instant, timeout};

use self::returning::find_or_make;
use crate::Shared;
use crate::answer::{Answer, Refusal};
use crate::authorize::authorize;
use crate::controller::workload;
use crate::front_proxy::User;
use crate::multicluster::envoy;
use crate::multicluster::sessions::assertion;
use crate::multicluster::sessions::attach::{self, Attaching};
use crate::settings::SessionSettings;

/// How long a client waits for its session's agents. They are given up a little sooner.
const PATIENCE: Duration = Duration::from_secs(75);

/// What a client asks for.
pub(crate) struct Asking {
    pub(crate) namespace: String,
    pub(crate) target: TargetPath,
    pub(crate) parameters: ConnectParameters,
}

/// Answers a request to connect. The bytes travel in a task of their own.
pub(crate) async fn connect(
    shared: &Arc<Shared>,
    user: &User,
    asking: Asking,
    mut request: Request<Incoming>,
) -> Result<Answer, Refusal> {
    let began = Instant::now();
    let key = handshake(request.headers())?;
    if shared.leaving.is_cancelled() {
        return Err(Refusal::unavailable("this replica ends; come back"));
    }
    // What comes from a Primary is for this cluster alone.
    let envoy = shared.envoy.as_ref().filter(|envoy| {
        envoy.takes(&asking.parameters) && attach::child_asked(request.headers()).is_none()
    });
    let is_over_several = envoy.is_some();
    let outcome = match envoy {
        Some(envoy) => {
            envoy::connect::admitted(shared, envoy, user, &asking, request.headers()).await
        }
        None => admitted(shared, user, &asking, request.headers())
            .await
            .map(|session| session.name_any()),
    };
    let (namespace, target) = (&asking.namespace, &asking.target);
    tracing::info!(
        target: "audit",
        user = user.name, %namespace, workload = %target,
        session = outcome.as_deref().unwrap_or_default(),
        outcome = outcome.as_ref().err().map_or("connected", |refusal| refusal.message.as_str()),
        "a client asks for a session"
    );
    let name = outcome?;
    shared
        .metrics
        .session_start_seconds
        .observe(began.elapsed().as_secs_f64());
    let upgrade = hyper::upgrade::on(&mut request);
    let shared = Arc::clone(shared);
    let relays = shared.relays.clone();
    relays.spawn(async move {
        match upgrade.await {
            Ok(upgraded) => {
                let socket = TokioIo::new(upgraded);
                let limits = Some(link::channels::limits());
                let socket = WebSocketStream::from_raw_socket(socket, Role::Server, limits).await;
                if is_over_several {
                    envoy::relay::relay(&shared, name, socket).await;
                } else {
                    relay::relay(&shared, name, socket).await;
                }
            }
            Err(error) => tracing::debug!(%error, "a client went away at once"),
        }
    });
    Ok(switching(&accept_key(&key)))
}

/// The session, when its agents are there.
async fn admitted(
    shared: &Shared,
    user: &User,
    asking: &Asking,
    headers: &HeaderMap,
) -> Result<MirrordClusterSession, Refusal> {
    authorize(&shared.client, user, &asking.namespace, &asking.target).await?;
    if let Some(child) = attach::child_asked(headers) {
        let asked = Attaching {
            namespace: &asking.namespace,
            target: &asking.target,
            parameters: &asking.parameters,
        };
        let child = attach::attach(&shared.client, user, child, &asked).await?;
        assertion::judge(shared, &child).await?;
        return ready(shared, &child).await;
    }
    let client = Caller::read(headers)?;
    let labels = asking.parameters.label_target.as_deref();
    let target = workload(&asking.namespace, &asking.target, labels)
        .map_err(|invalid| Refusal::bad_request(invalid.to_string()))?;
    if target.is_none() && !shared.settings.targetless {
        return Err(Refusal::unprocessable(
            "this operator serves no sessions without a target (`operator.agent.targetless` of its chart)",
        ));
    }
    let session = wanted(user, asking, &client, &shared.settings.session);
    let session = find_or_make(&shared.client, &session).await?;
    ready(shared, &session).await
}

/// Both ends must speak the same protocol. Others use the same address for another one.
pub(crate) fn handshake(headers: &HeaderMap) -> Result<String, Refusal> {
    let text = |name| {
        headers
            .get(name)
            .and_then(|value: &HeaderValue| value.to_str().ok())
    };
    let is_upgrade = text(UPGRADE).is_some_and(|value| value.eq_ignore_ascii_case("websocket"));
    let (Some(key), true) = (text(SEC_WEBSOCKET_KEY), is_upgrade) else {
        return Err(Refusal::bad_request(
            "connecting takes a WebSocket; `standin exec` does it for you",
        ));
    };
    let offered = headers
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim);
    if !offered.into_iter().any(|protocol| protocol == PROTOCOL) {
        return Err(Refusal::bad_request(format!(
            "this operator speaks `{PROTOCOL}`, which the client does not offer; use `standin` of the operator's version"
        )));
    }
    Ok(key.to_owned())
}

pub(crate) fn switching(accept: &str) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::new()));
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = answer.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(PROTOCOL));
    if let Ok(accept) = HeaderValue::from_str(accept) {
        headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    }
    answer
}

/// What a client says of itself. Only the certificate proves anything, and that only to agents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) id: SessionId,
    pub(crate) certificate: Fingerprint,
    pub(crate) name: String,
    pub(crate) hostname: String,
    pub(crate) version: Option<String>,
}

impl Caller {
    pub(crate) fn read(headers: &HeaderMap) -> Result<Self, Refusal> {
        let text = |name: &str| {
            let value = headers.get(name)?.to_str().ok()?;
            Some(value.chars().take(253).collect::<String>())
        };
        let id = text(SESSION_ID_HEADER).and_then(|id| id.parse().ok());
        let id = id.ok_or_else(|| missing(SESSION_ID_HEADER, "the session's number"))?;
        let certificate = headers
            .get(CLIENT_CERTIFICATE_HEADER)
            .and_then(|value| STANDARD.decode(value.as_bytes()).ok())
            .ok_or_else(|| missing(CLIENT_CERTIFICATE_HEADER, "the client's certificate"))?;
        Ok(Self {
            id: SessionId(id),
            certificate: Fingerprint::of(&certificate.into()),
            name: text(CLIENT_NAME_HEADER).unwrap_or_default(),
            hostname: text(CLIENT_HOSTNAME_HEADER).unwrap_or_default(),
            version: text(CLIENT_VERSION_HEADER),
        })
    }
}

impl Caller {
    /// Whose the session of a user is.
    pub(crate) fn owner(&self, user: &User) -> SessionOwner {
        SessionOwner {
            user_id: self.certificate.to_string(),
            username: self.name.clone(),
            hostname: self.hostname.clone(),
            k8s_username: user.name.clone(),
            k8s_groups: Vec::new(),
        }
    }
}

impl Asking {
    /// How long the client may be away.
    pub(crate) fn resume_window(&self, settings: &SessionSettings) -> Duration {
        let asked = self.parameters.resume_window.map(Duration::from_secs);
        let window = asked.unwrap_or(settings.time_to_live);
        window.min(settings.most_resume)
    }
}

fn missing(header: &str, what: &str) -> Refusal {
    Refusal::bad_request(format!("the header {header} must have {what}"))
}

fn wanted(
    user: &User,
    asking: &Asking,
    client: &Caller,
    settings: &SessionSettings,
) -> MirrordClusterSession {
    let spec = MirrordClusterSessionSpec {
        owner: client.owner(user),
        namespace: asking.namespace.clone(),
        target: asking.target.to_string(),
        label_target: asking.parameters.label_target.clone(),
        key: asking.parameters.key.clone(),
        client_cli_version: client.version.clone(),
        multi_cluster_parent_name: None,
        generation: 0,
        resume_window_secs: asking.resume_window(settings).as_secs(),
        client_certificate: client.certificate.to_string(),
        data: asking.parameters.data.clone(),
    };
    let mut session = MirrordClusterSession::new(&client.id.object_name(), spec);
    session.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    session
}

/// Waits until a client can connect, or never will.
async fn ready(
    shared: &Shared,
    session: &MirrordClusterSession,
) -> Result<MirrordClusterSession, Refusal> {
    let mut bell = shared.sessions.bell();
    let name = session.name_any();
    let waited = timeout(PATIENCE, async {
        let mut was_seen = false;
        loop {
            let known = shared
                .sessions
                .get(&name)
                .filter(|known| known.uid() == session.uid());
            was_seen |= known.is_some();
            match known.as_deref().map(judged) {
                Some(Some(Ok(()))) => return Ok(session.clone()),
                Some(Some(Err(refusal))) => return Err(refusal),
                None if was_seen => return Err(Refusal::gone("the session was ended")),
                Some(None) | None => {}
            }
            if bell.changed().await.is_err() {
                return Err(Refusal::unavailable("the operator ends; try again"));
            }
        }
    });
    waited.await.unwrap_or_else(|_| {
        Err(Refusal::unavailable(format!(
            "no agent was ready within {} s; `kubectl get mirrordclustersession {name} -o yaml` says more",
            PATIENCE.as_secs()
        )))
    })
}

fn judged(session: &MirrordClusterSession) -> Option<Result<(), Refusal>> {
    let status = session.status.as_ref()?;
    let message = status.message.clone().unwrap_or_default();
    match status.phase? {
        SessionPhase::Pending => None,
        SessionPhase::Ready => Some(Ok(())),
        SessionPhase::Failed => Some(Err(Refusal::unprocessable(format!(
            "the session cannot start: {message}"
        )))),
        SessionPhase::Terminating => Some(Err(Refusal::gone(message))),
    }
}

#[cfg(test)]
mod tests;

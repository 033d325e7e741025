//! Connections of clients: authorization, the session's object, and the relay of bytes in both directions.

pub(crate) mod client_connection;
pub(crate) mod ports;
pub(crate) mod relay;
pub(crate) mod resume;

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
use cluster::Workload;
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

use self::resume::find_or_create;
use crate::Shared;
use crate::authorize::authorize;
use crate::authorize::revocation::Authorization;
use crate::controller::workload;
use crate::front_proxy::User;
use crate::multicluster::member_clusters;
use crate::multicluster::member_clusters::connect::LocalSession;
use crate::multicluster::sessions::assertion;
use crate::multicluster::sessions::attach::{self, AttachRequest};
use crate::response::{ApiResponse, Refusal};
use crate::settings::{SessionSettings, Settings};

/// How long a client waits for its session's agents. The controller's startup timeout is a little shorter.
const READY_TIMEOUT: Duration = Duration::from_secs(75);

/// A client's request for a session.
pub(crate) struct ConnectRequest {
    pub(crate) namespace: String,
    pub(crate) target: TargetPath,
    pub(crate) parameters: ConnectParameters,
}

/// Handles a request to connect. A separate task relays the bytes.
pub(crate) async fn connect(
    shared: &Arc<Shared>,
    user: &User,
    connect_request: ConnectRequest,
    mut request: Request<Incoming>,
) -> Result<ApiResponse, Refusal> {
    let began = Instant::now();
    let key = handshake(request.headers())?;
    if shared.draining.is_cancelled() {
        return Err(Refusal::unavailable(
            "this replica is shutting down; reconnect",
        ));
    }
    // A request of a Primary is for this cluster alone.
    let members = shared.members.as_ref().filter(|members| {
        members.accepts(&connect_request.parameters)
            && attach::requested_child(request.headers()).is_none()
    });
    let is_multi_cluster = members.is_some();
    let outcome = match members {
        Some(members) => {
            let headers = request.headers();
            member_clusters::connect::admit(shared, members, user, &connect_request, headers).await
        }
        None => admit(shared, user, &connect_request, request.headers())
            .await
            .map(|session| session.name_any()),
    };
    let (namespace, target) = (&connect_request.namespace, &connect_request.target);
    tracing::info!(
        target: "audit",
        user = user.name, %namespace, workload = %target,
        session = outcome.as_deref().unwrap_or_default(),
        outcome = outcome.as_ref().err().map_or("connected", |refusal| refusal.message.as_str()),
        "session requested"
    );
    let name = outcome?;
    shared
        .metrics
        .session_start_seconds
        .observe(began.elapsed().as_secs_f64());
    let authorization = Authorization {
        user: user.clone(),
        namespace: connect_request.namespace,
        target: connect_request.target,
    };
    let upgrade = hyper::upgrade::on(&mut request);
    let shared = Arc::clone(shared);
    let relays = shared.relays.clone();
    relays.spawn(async move {
        match upgrade.await {
            Ok(upgraded) => {
                let socket = TokioIo::new(upgraded);
                let limits = Some(link::channels::websocket_config());
                let socket = WebSocketStream::from_raw_socket(socket, Role::Server, limits).await;
                if is_multi_cluster {
                    member_clusters::relay::relay(&shared, name, authorization, socket).await;
                } else {
                    relay::relay(&shared, name, authorization, socket).await;
                }
            }
            Err(error) => tracing::debug!(%error, "upgrade failed"),
        }
    });
    Ok(switching_protocols(&accept_key(&key)))
}

/// Authorizes the user, finds or creates the session, and waits until it is ready.
async fn admit(
    shared: &Shared,
    user: &User,
    connect_request: &ConnectRequest,
    headers: &HeaderMap,
) -> Result<MirrordClusterSession, Refusal> {
    authorize(
        &shared.client,
        user,
        &connect_request.namespace,
        &connect_request.target,
    )
    .await?;
    if let Some(child) = attach::requested_child(headers) {
        let attach_request = AttachRequest {
            namespace: &connect_request.namespace,
            target: &connect_request.target,
            parameters: &connect_request.parameters,
        };
        let child = attach::attach(&shared.client, user, child, &attach_request).await?;
        check_local(shared, LocalSession::Child)?;
        assertion::authorize_child(shared, &child).await?;
        return wait_until_ready(shared, &child).await;
    }
    check_local(shared, LocalSession::Single)?;
    let client = Caller::read(headers)?;
    let labels = connect_request.parameters.label_target.as_deref();
    let target = workload(&connect_request.namespace, &connect_request.target, labels)
        .map_err(|invalid| Refusal::bad_request(invalid.to_string()))?;
    check_targetless(target.as_ref(), &shared.settings)?;
    let session = new_session(user, connect_request, &client, &shared.settings.session);
    let session = find_or_create(&shared.client, &session).await?;
    wait_until_ready(shared, &session).await
}

/// Checks that this cluster may have sessions, if it is a Primary.
pub(crate) fn check_local(shared: &Shared, session: LocalSession) -> Result<(), Refusal> {
    match &shared.members {
        Some(primary) => primary.check_local(session),
        None => Ok(()),
    }
}

/// Checks that the operator allows sessions without a target, for a session without one.
pub(crate) fn check_targetless(
    target: Option<&Workload>,
    settings: &Settings,
) -> Result<(), Refusal> {
    if target.is_some() || settings.targetless {
        return Ok(());
    }
    Err(Refusal::unprocessable(
        "this operator does not allow sessions without a target (`operator.agent.targetless` of its chart)",
    ))
}

/// Checks the WebSocket upgrade and returns its key. Other clients use the same path with another protocol.
pub(crate) fn handshake(headers: &HeaderMap) -> Result<String, Refusal> {
    let text = |name| {
        headers
            .get(name)
            .and_then(|value: &HeaderValue| value.to_str().ok())
    };
    let is_upgrade = text(UPGRADE).is_some_and(|value| value.eq_ignore_ascii_case("websocket"));
    let (Some(key), true) = (text(SEC_WEBSOCKET_KEY), is_upgrade) else {
        return Err(Refusal::bad_request(
            "connecting requires a WebSocket; use `standin exec`",
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

pub(crate) fn switching_protocols(accept: &str) -> ApiResponse {
    let mut response = Response::new(Full::new(Bytes::new()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(PROTOCOL));
    if let Ok(accept) = HeaderValue::from_str(accept) {
        headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    }
    response
}

/// The client's own description in its headers. Only the certificate proves anything, and only to agents.
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
    /// The owner of the user's session.
    pub(crate) fn owner(&self, user: &User) -> SessionOwner {
        SessionOwner {
            user_id: self.certificate.to_string(),
            username: self.name.clone(),
            hostname: self.hostname.clone(),
            k8s_username: user.name.clone(),
            k8s_groups: user.groups.clone(),
            k8s_extra: user.extra.clone(),
        }
    }
}

impl ConnectRequest {
    /// How long the client may stay disconnected.
    pub(crate) fn resume_window(&self, settings: &SessionSettings) -> Duration {
        let requested = self.parameters.resume_window.map(Duration::from_secs);
        let window = requested.unwrap_or(settings.time_to_live);
        window.min(settings.max_resume)
    }
}

fn missing(header: &str, what: &str) -> Refusal {
    Refusal::bad_request(format!("the header {header} must have {what}"))
}

fn new_session(
    user: &User,
    connect_request: &ConnectRequest,
    client: &Caller,
    settings: &SessionSettings,
) -> MirrordClusterSession {
    let spec = MirrordClusterSessionSpec {
        owner: client.owner(user),
        namespace: connect_request.namespace.clone(),
        target: connect_request.target.to_string(),
        label_target: connect_request.parameters.label_target.clone(),
        key: connect_request.parameters.key.clone(),
        on_concurrent_steal: connect_request.parameters.on_concurrent_steal,
        profile: connect_request.parameters.profile.clone(),
        client_cli_version: client.version.clone(),
        multi_cluster_parent_name: None,
        generation: 0,
        resume_window_secs: connect_request.resume_window(settings).as_secs(),
        client_certificate: client.certificate.to_string(),
        data: connect_request.parameters.data.clone(),
    };
    let mut session = MirrordClusterSession::new(&client.id.object_name(), spec);
    session.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    session
}

/// Waits until the session is ready, has failed or was ended.
async fn wait_until_ready(
    shared: &Shared,
    session: &MirrordClusterSession,
) -> Result<MirrordClusterSession, Refusal> {
    let mut changes = shared.sessions.subscribe();
    let name = session.name_any();
    let ready = timeout(READY_TIMEOUT, async {
        let mut was_cached = false;
        loop {
            let cached = shared
                .sessions
                .get(&name)
                .filter(|cached| cached.uid() == session.uid());
            was_cached |= cached.is_some();
            match cached.as_deref().map(outcome) {
                Some(Some(Ok(()))) => return Ok(session.clone()),
                Some(Some(Err(refusal))) => return Err(refusal),
                None if was_cached => return Err(Refusal::gone("the session was ended")),
                Some(None) | None => {}
            }
            if changes.changed().await.is_err() {
                return Err(Refusal::unavailable(
                    "the operator is shutting down; try again",
                ));
            }
        }
    });
    ready.await.unwrap_or_else(|_| {
        Err(Refusal::unavailable(format!(
            "no agent was ready within {} s; `kubectl get mirrordclustersession {name} -o yaml` shows details",
            READY_TIMEOUT.as_secs()
        )))
    })
}

/// Whether a client can connect. `None` while that is undecided.
fn outcome(session: &MirrordClusterSession) -> Option<Result<(), Refusal>> {
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

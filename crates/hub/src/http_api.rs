//! The JSON API: clusters, tokens, the hub itself, and the audit log. Every request but a registration needs a user, and
//! each path a right, which the rules of the hub's cluster give.

mod routes;

use std::net::IpAddr;
use std::sync::Arc;

use api::hub::{ClusterList, HubDescription, NewCluster, RegistrationToken, TokenRequest};
use http::{Request, StatusCode};
use hyper::body::Incoming;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use rustls::pki_types::CertificateDer;
use tokio::sync::Notify;

pub(crate) use self::routes::Route;
use crate::Hub;
use crate::authenticate::Rejected;
use crate::authorize::{Forbidden, Right};
use crate::cluster_status::{Connection, describe};
use crate::configuration::check_cluster_name;
use crate::metrics::RequestLabels;
use crate::registration;
use crate::registry::{Added, is_from_values};
use crate::responses::{ApiResponse, Failure, json, no_content, read_json};
use crate::user::User;

/// The client of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) source: IpAddr,
    /// As presented in the handshake, not verified.
    pub(crate) certificates: Arc<[CertificateDer<'static>]>,
    /// Notified when a request of this client was authenticated.
    pub(crate) authenticated: Arc<Notify>,
}

/// Responds to a request at the ports for administrators and for Kubernetes clients.
pub(crate) async fn respond(
    hub: &Arc<Hub>,
    client: &Client,
    request: Request<Incoming>,
) -> ApiResponse {
    let route = Route::parse(request.method(), request.uri());
    let resource = route.as_ref().map_or("unknown", Route::label);
    let response = match route {
        Ok(route) => handle(hub, client, route, request).await,
        Err(failure) => Err(failure),
    };
    let response = response.unwrap_or_else(Failure::response);
    let code = response.status().as_u16();
    let labels = RequestLabels { resource, code };
    hub.metrics.requests.get_or_create(&labels).inc();
    response
}

async fn handle(
    hub: &Arc<Hub>,
    client: &Client,
    route: Route,
    request: Request<Incoming>,
) -> Result<ApiResponse, Failure> {
    if route == Route::Register {
        return Ok(registration::register(hub, client.source, request).await);
    }
    let authenticated = hub
        .authenticator
        .authenticate(request.headers(), &client.certificates);
    let authenticated = authenticated.await;
    if authenticated.is_ok() {
        client.authenticated.notify_one();
    }
    if let Route::Proxy { cluster, rest } = &route {
        // Its readers are Kubernetes clients, which need another form of errors.
        return Ok(match authenticated {
            Ok(user) => hub.proxy.respond(user, request, cluster, rest).await,
            Err(rejected) => rejected.status().response(),
        });
    }
    let user = authenticated.map_err(|rejected| Failure::from(&rejected))?;
    let access = Access { hub, user: &user };
    match route {
        Route::CreateToken => {
            let requested: TokenRequest = read_json(request).await?;
            access
                .check(Right::CreateToken, Some(&requested.cluster))
                .await?;
            create_token(hub, &user, &requested.cluster).await
        }
        Route::Hub => Ok(json(StatusCode::OK, &description(hub))),
        Route::Clusters => access.clusters().await,
        Route::AddCluster => {
            let added: NewCluster = read_json(request).await?;
            check_cluster_name(&added.name)
                .map_err(|why| Failure::bad_request(format!("`{}` {why}", added.name)))?;
            access.check(Right::Create, Some(&added.name)).await?;
            add(hub, &user, added).await
        }
        Route::Cluster(name) => {
            access.check_any(&[Right::Get, Right::Proxy], &name).await?;
            cluster(hub, &name)
        }
        Route::RemoveCluster(name) => {
            access.check(Right::Delete, Some(&name)).await?;
            remove(hub, &user, &name).await
        }
        Route::Revoke(name) => {
            access.check(Right::Update, Some(&name)).await?;
            revoke(hub, &user, &name).await
        }
        Route::Audit(query) => {
            let cluster = query.cluster.clone();
            access.check(Right::ReadAudit, cluster.as_deref()).await?;
            Ok(json(StatusCode::OK, &hub.audit.list(&query)))
        }
        Route::Register | Route::Proxy { .. } => Err(Failure::not_found("there is no such path")),
    }
}

impl From<&Rejected> for Failure {
    fn from(rejected: &Rejected) -> Self {
        let code = match rejected {
            Rejected::NoCredential | Rejected::Invalid(_) => StatusCode::UNAUTHORIZED,
            Rejected::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::new(code, rejected.to_string())
    }
}

impl From<Forbidden> for Failure {
    fn from(forbidden: Forbidden) -> Self {
        let code = match forbidden {
            Forbidden::Denied(_) => StatusCode::FORBIDDEN,
            Forbidden::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::new(code, forbidden.to_string())
    }
}

/// What a user may do.
struct Access<'a> {
    hub: &'a Hub,
    user: &'a User,
}

impl Access<'_> {
    async fn check(&self, right: Right, cluster: Option<&str>) -> Result<(), Failure> {
        let authorizer = &self.hub.authorizer;
        Ok(authorizer.authorize(self.user, &right, cluster).await?)
    }

    /// One of the rights is enough.
    async fn check_any(&self, rights: &[Right], cluster: &str) -> Result<(), Failure> {
        let mut checked = Ok(());
        for right in rights {
            checked = self.check(*right, Some(cluster)).await;
            if checked.is_ok() {
                break;
            }
        }
        checked
    }

    /// All clusters for those who may list them, and otherwise those that the user may reach.
    async fn clusters(&self) -> Result<ApiResponse, Failure> {
        let is_allowed = |checked: Result<(), Failure>| match checked {
            Ok(()) => Ok(true),
            Err(failure) if failure.code == StatusCode::FORBIDDEN => Ok(false),
            Err(failure) => Err(failure),
        };
        let sees_all = is_allowed(self.check(Right::List, None).await)?;
        let (hub, now) = (self.hub, Timestamp::now());
        let mut clusters = Vec::new();
        for (name, object) in hub.registry.clusters().iter() {
            if sees_all || is_allowed(self.check(Right::Proxy, Some(name)).await)? {
                let connection = Connection::of(hub, name);
                clusters.push(describe(object, connection.as_ref(), now));
            }
        }
        Ok(json(StatusCode::OK, &ClusterList { clusters }))
    }
}

async fn create_token(hub: &Hub, user: &User, cluster: &str) -> Result<ApiResponse, Failure> {
    if hub.registry.get(cluster).is_none() {
        return Err(not_registered(cluster));
    }
    let lifetime = hub.configuration.borrow().agent.token_lifetime();
    let created = hub
        .tokens
        .create(cluster, lifetime, Timestamp::now())
        .await?;
    let (token, expires_at) = created.map_err(|too_many| {
        hub.metrics.limit_hit("tokens");
        Failure::new(StatusCode::TOO_MANY_REQUESTS, too_many.to_string())
    })?;
    tracing::info!(target: "audit", user = user.name, cluster, %expires_at, "registration token created");
    let response = RegistrationToken {
        token,
        cluster: cluster.to_owned(),
        expires_at: Time(expires_at),
    };
    Ok(json(StatusCode::CREATED, &response))
}

async fn add(hub: &Hub, user: &User, cluster: NewCluster) -> Result<ApiResponse, Failure> {
    let name = cluster.name;
    match hub.registry.add(&name, cluster.labels).await? {
        Added::New(object) => {
            tracing::info!(target: "audit", user = user.name, cluster = name, "cluster added");
            let added = describe(&object, None, Timestamp::now());
            Ok(json(StatusCode::CREATED, &added))
        }
        Added::Existed => {
            let error = format!("the cluster {name} is registered already");
            let hint = format!("create a token for its agent: `standin cluster token {name}`");
            Err(Failure::new(StatusCode::CONFLICT, error).hint(hint))
        }
    }
}

fn cluster(hub: &Hub, name: &str) -> Result<ApiResponse, Failure> {
    let object = hub.registry.get(name).ok_or_else(|| not_registered(name))?;
    let connection = Connection::of(hub, name);
    let found = describe(&object, connection.as_ref(), Timestamp::now());
    Ok(json(StatusCode::OK, &found))
}

async fn remove(hub: &Hub, user: &User, name: &str) -> Result<ApiResponse, Failure> {
    let object = hub.registry.get(name).ok_or_else(|| not_registered(name))?;
    if is_from_values(&object) {
        let error = format!("the cluster {name} is in the values of the hub's chart");
        let hint = "remove it from `clusters`, and upgrade the chart; `standin cluster revoke` ends its connection at once";
        return Err(Failure::new(StatusCode::CONFLICT, error).hint(hint));
    }
    hub.tokens.burn(name).await?;
    if !hub.registry.remove(name).await? {
        return Err(not_registered(name));
    }
    tracing::info!(target: "audit", user = user.name, cluster = name, "cluster removed");
    hub.peers.notify_revoked(name);
    Ok(no_content())
}

async fn revoke(hub: &Hub, user: &User, name: &str) -> Result<ApiResponse, Failure> {
    let now = Timestamp::now();
    // Tokens first: one of them could yield another certificate.
    hub.tokens.burn(name).await?;
    let revoked = hub.registry.revoke(name, now).await?;
    let object = revoked.ok_or_else(|| not_registered(name))?;
    tracing::info!(target: "audit", user = user.name, cluster = name, "cluster revoked");
    hub.peers.notify_revoked(name);
    Ok(json(StatusCode::OK, &describe(&object, None, now)))
}

fn not_registered(name: &str) -> Failure {
    let hint = "`standin cluster list` shows the clusters; `standin cluster add` registers one";
    Failure::not_found(format!("there is no cluster {name}")).hint(hint)
}

fn description(hub: &Hub) -> HubDescription {
    let configuration = hub.configuration.borrow();
    let certificates = hub.certificates.borrow();
    let is_own = certificates.server_pin.is_some();
    HubDescription {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        agent_url: configuration.agent.url.clone(),
        registration_url: configuration.agent.registration_url.clone(),
        api_url: configuration.api_url.clone(),
        server_ca_hash: certificates.server_pin.map(|pin| pin.to_string()),
        ca_bundle: is_own.then(|| certificates.authorities.bundle().to_owned()),
        agent_chart: configuration.agent.chart.clone(),
    }
}

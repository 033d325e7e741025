//! The proxy to the API servers of clusters: `/clusters/NAME/…`.
//!
//! A request is authorized, its headers are replaced by those for its user, and it becomes one stream of the cluster's
//! tunnel. Nothing is buffered: bodies are streamed in both directions, and a client that disconnects cancels its stream at
//! the agent. Its audit row is written at its end.
//!
//! | module | what it does |
//! |---|---|
//! | `bodies` | bodies that notice their end, and have no trailers |
//! | `errors` | what a client gets when a request cannot be forwarded |
//! | `upgrade` | connections that become WebSocket or SPDY |
//! | `upstream` | where a request is sent: a tunnel of this replica, or another replica |

mod bodies;
mod errors;
mod redirect;
mod upgrade;
mod upstream;

use std::sync::Arc;
use std::time::Duration;

use http::uri::PathAndQuery;
use http::{Method, Request, Response, Uri};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub(crate) use self::bodies::WatchBody;
use self::bodies::{BodyFailure, RequestBody, ResponseBody};
pub(crate) use self::errors::{SendError, status as error_status};
pub(crate) use self::upstream::{Sending, Upstream, UpstreamSource};
use crate::audit::{Audit, AuditEntry};
use crate::authorize::{Authorizer, Right};
use crate::body::{Body, BoxError};
use crate::impersonate;
use crate::kubernetes_request::{KubernetesRequest, checked, is_cluster_name};
use crate::status::Status;
use crate::user::User;

/// The name and the group of a Primary's operator in a member cluster. The member's chart gives them their rights.
const PRIMARY_USER: &str = "standin-primary";
const PRIMARY_GROUP: &str = "mirrord-operator-envoy";

/// How the proxy treats users and requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProxySettings {
    /// How long an API server may take to begin its response, if the request is not one that may be silent. API servers
    /// themselves end such requests after a minute, unless they are configured otherwise.
    pub(crate) response_timeout: Duration,
    /// Whether service accounts of the hub's cluster may use clusters as themselves.
    pub(crate) allow_service_accounts: bool,
    /// The users that are operators of a Primary. Each of them is one fixed user in its members.
    pub(crate) primary_operators: Vec<String>,
}

impl Default for ProxySettings {
    fn default() -> Self {
        Self {
            response_timeout: Duration::from_secs(120),
            allow_service_accounts: true,
            primary_operators: Vec::new(),
        }
    }
}

impl ProxySettings {
    /// The user that the cluster gets to see.
    fn impersonated(&self, user: User) -> Result<User, Status> {
        if self.primary_operators.contains(&user.name) {
            return Ok(User {
                name: PRIMARY_USER.to_owned(),
                groups: vec![PRIMARY_GROUP.to_owned()],
                ..User::default()
            });
        }
        if user.is_system() {
            return Err(Status::forbidden(format!(
                "the hub does not forward requests of {:?}, which is a name of a component of a cluster; sign in as a user",
                user.name
            )));
        }
        if user.is_service_account() && !self.allow_service_accounts {
            return Err(Status::forbidden(format!(
                "the hub does not forward requests of service accounts, such as {:?}; an administrator can allow them in the \
                 values of the hub's chart",
                user.name
            )));
        }
        Ok(user)
    }
}

pub(crate) struct Proxy {
    authorizer: Arc<Authorizer>,
    upstreams: Arc<dyn UpstreamSource>,
    audit: Audit,
    settings: ProxySettings,
    /// Cancelled when clients do not connect to this replica any more. Watches end then, and begin again elsewhere.
    stop: CancellationToken,
    /// The upgraded connections.
    upgraded: TaskTracker,
}

/// A request whose path was checked.
struct Checked {
    /// Path and query below those of the cluster.
    target: PathAndQuery,
    request: KubernetesRequest,
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Proxy")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Proxy {
    pub(crate) fn new(
        authorizer: Arc<Authorizer>,
        upstreams: Arc<dyn UpstreamSource>,
        audit: Audit,
        settings: ProxySettings,
        stop: CancellationToken,
    ) -> Self {
        Self {
            authorizer,
            upstreams,
            audit,
            settings,
            stop,
            upgraded: TaskTracker::new(),
        }
    }

    /// The upgraded connections, which last longer than the connections of a server know.
    pub(crate) fn upgraded(&self) -> &TaskTracker {
        &self.upgraded
    }

    /// Responds to a request of an authenticated user. `rest` is its path below that of the cluster.
    pub(crate) async fn respond<B>(
        &self,
        user: User,
        request: Request<B>,
        cluster: &str,
        rest: &str,
    ) -> Response<Body>
    where
        B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let path = rest.split_once('?').map_or(rest, |(path, _)| path);
        let checked = check(request.method(), cluster, path, request.uri().query());
        let (checked, mut entry) = match checked {
            Ok(checked) => {
                let path = checked.target.path();
                let entry = self.audit.begin(&user, cluster, &checked.request, path);
                (Ok(checked), entry)
            }
            Err(status) => {
                let unknown = KubernetesRequest {
                    verb: request.method().as_str().to_ascii_lowercase(),
                    ..KubernetesRequest::default()
                };
                let entry = self.audit.begin(&user, cluster, &unknown, path);
                (Err(status), entry)
            }
        };
        let forwarded = match checked {
            Ok(checked) => self.forward(user, request, cluster, &checked, entry).await,
            Err(status) => {
                entry.set_status(status.code);
                entry.set_reason(&status.message);
                Err(status)
            }
        };
        forwarded.unwrap_or_else(|status| status.response())
    }

    async fn forward<B>(
        &self,
        user: User,
        request: Request<B>,
        cluster: &str,
        checked: &Checked,
        mut entry: AuditEntry,
    ) -> Result<Response<Body>, Status>
    where
        B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let sent = match self.prepare(user, request, cluster, checked).await {
            Ok(prepared) => self.send(prepared, cluster, checked).await,
            Err(status) => Err(status),
        };
        let (mut response, upgrade) = match sent {
            Ok(sent) => sent,
            Err(status) => {
                entry.set_status(status.code);
                entry.set_reason(&status.message);
                return Err(status);
            }
        };
        if let Some(upgrade) = upgrade
            && upgrade::is_upgraded(&response)
        {
            return Ok(upgrade.finish(response, entry, &self.upgraded));
        }
        impersonate::clean_response(response.headers_mut());
        entry.set_status(response.status());
        if let Err(status) = redirect::confine(&mut response, cluster) {
            entry.set_status(status.code);
            entry.set_reason(&status.message);
            return Err(status);
        }
        let is_watch = checked.request.verb == "watch";
        Ok(response.map(|body| {
            let body = match is_watch {
                true => WatchBody::boxed(body, self.stop.clone()),
                false => body,
            };
            ResponseBody::boxed(body, entry)
        }))
    }

    /// Authorizes a request, and makes the one for the agent.
    async fn prepare<B>(
        &self,
        user: User,
        mut request: Request<B>,
        cluster: &str,
        checked: &Checked,
    ) -> Result<Prepared, Status>
    where
        B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        // Dropped silently, it would be made with the rights of another user than the one that was meant.
        if impersonate::names_another_user(request.headers()) {
            return Err(Status::forbidden(
                "the hub does not forward impersonation: a request is made as its own user; repeat it without `--as` and \
                 `Impersonate-…` headers",
            ));
        }
        let authorized = self
            .authorizer
            .authorize(&user, &Right::Proxy, Some(cluster));
        authorized.await.map_err(|forbidden| forbidden.status())?;
        let impersonated = self.settings.impersonated(user)?;
        let headers = impersonate::request_headers(request.headers(), &impersonated)
            .map_err(|error| Status::forbidden(error.to_string()))?;
        let upgrade = upgrade::Upgrade::requested(&mut request);
        let (head, body) = request.into_parts();
        let failure = BodyFailure::default();
        let mut forwarded = Request::new(match &upgrade {
            // The client's bytes after the upgrade are sent in its stead.
            Some(_) => crate::body::full(bytes::Bytes::new()),
            None => RequestBody::boxed(body, failure.clone()),
        });
        *forwarded.method_mut() = head.method;
        *forwarded.uri_mut() = Uri::from(checked.target.clone());
        *forwarded.headers_mut() = headers;
        Ok(Prepared {
            request: forwarded,
            upgrade,
            failure,
        })
    }

    async fn send(
        &self,
        prepared: Prepared,
        cluster: &str,
        checked: &Checked,
    ) -> Result<(Response<Body>, Option<upgrade::Upgrade>), Status> {
        let Prepared {
            mut request,
            mut upgrade,
            failure,
        } = prepared;
        if let Some(upgrade) = &mut upgrade {
            upgrade.begin(&mut request);
        }
        let is_upgrade = upgrade.is_some();
        let sending = upstream::send(self.upstreams.as_ref(), cluster, request, is_upgrade);
        let sent = if is_upgrade || checked.request.is_long_running() {
            sending.await
        } else {
            let limit = self.settings.response_timeout;
            timeout(limit, sending)
                .await
                .map_err(|_| errors::timed_out(cluster, limit))?
        };
        match sent {
            Ok(response) => Ok((response, upgrade)),
            Err(_) if failure.has_failed() => Err(Status::bad_request(
                "the body of the request could not be read",
            )),
            Err(error) => Err(errors::status(cluster, &error)),
        }
    }
}

/// A request for an agent.
struct Prepared {
    request: Request<Body>,
    upgrade: Option<upgrade::Upgrade>,
    /// Whether the client's body has failed.
    failure: BodyFailure,
}

fn check(
    method: &Method,
    cluster: &str,
    path: &str,
    query: Option<&str>,
) -> Result<Checked, Status> {
    if !is_cluster_name(cluster) {
        return Err(Status::not_found(format!(
            "no cluster can have the name {cluster:?}"
        )));
    }
    if *method == Method::CONNECT || *method == Method::TRACE {
        return Err(Status::method_not_allowed(format!(
            "the hub does not forward requests with the method {method}"
        )));
    }
    let path = checked(path).map_err(|error| Status::bad_request(error.to_string()))?;
    let target = match query {
        Some(query) => format!("{path}?{query}"),
        None => path.clone(),
    };
    let target = PathAndQuery::try_from(target)
        .map_err(|_| Status::bad_request("the path has characters that no path may have"))?;
    Ok(Checked {
        request: KubernetesRequest::parse(method, &path, query),
        target,
    })
}

#[cfg(test)]
pub(crate) mod tests;

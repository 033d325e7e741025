//! Serves the hub's requests: checks them, and forwards them to the API server.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use error_chain::error_chain;
use http::{Request, Response, StatusCode, header};
use tower_service::Service;
use tunnel::upgrade::{UPGRADE_HEADER, UPGRADED_HEADER};

use crate::allow_list::AllowList;
use crate::api_server::ApiServer;
use crate::body::{self, Body};
use crate::control::Control;
use crate::headers;
use crate::refusal::Refusal;
use crate::route::{self, Route};

/// What the requests of every tunnel need.
pub(crate) struct Gate {
    pub(crate) cluster: String,
    pub(crate) allow_list: AllowList,
    pub(crate) api_server: Arc<ApiServer>,
}

/// Serves one tunnel.
#[derive(Clone)]
pub(crate) struct AgentService {
    gate: Arc<Gate>,
    control: Arc<Control>,
}

impl AgentService {
    pub(crate) const fn new(gate: Arc<Gate>, control: Arc<Control>) -> Self {
        Self { gate, control }
    }

    async fn respond(self, request: Request<tunnel::Body>) -> Response<Body> {
        let method = request.method().clone();
        let path = request.uri().path().to_owned();
        match self.accept(request).await {
            Ok(response) => response,
            Err(refusal) => {
                let status = refusal.status.as_u16();
                let reason = refusal.message.as_str();
                tracing::warn!(%method, path, status, reason, "request refused");
                refusal.into_response()
            }
        }
    }

    async fn accept(&self, request: Request<tunnel::Body>) -> Result<Response<Body>, Refusal> {
        let host = request.headers().get(header::HOST);
        let host = host.map(|host| host.to_str().unwrap_or("(not text)"));
        let cluster = &self.gate.cluster;
        match route::route(request.method(), request.uri(), host, cluster)? {
            Route::Control => Ok(Arc::clone(&self.control).respond(request)),
            Route::ApiServer => self.gate.forward(request).await,
        }
    }
}

impl Gate {
    async fn forward(&self, mut request: Request<tunnel::Body>) -> Result<Response<Body>, Refusal> {
        let upgrade = request.headers_mut().remove(UPGRADE_HEADER);
        let identity = headers::sanitize_request(request.headers_mut())
            .map_err(|error| Refusal::forbidden(&error))?;
        self.allow_list
            .check(&identity)
            .map_err(|error| Refusal::forbidden(&error))?;
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let response = match upgrade {
            Some(protocol) => {
                request.headers_mut().insert(UPGRADE_HEADER, protocol);
                self.upgrade(request).await?
            }
            None => {
                let request = request.map(body::of);
                let sent = self.api_server.send(request).await;
                let mut response = sent.map_err(|error| unavailable(&error))?;
                headers::sanitize_response(response.headers_mut());
                response
            }
        };
        let status = response.status().as_u16();
        tracing::debug!(%method, path, status, user = identity.user, "request forwarded");
        Ok(response)
    }

    async fn upgrade(&self, mut request: Request<tunnel::Body>) -> Result<Response<Body>, Refusal> {
        let upstream = self.api_server.connect_for_upgrade(&mut request).await;
        let upstream = upstream.map_err(|error| unavailable(&error))?;
        let served = tunnel::upgrade::serve(request, upstream).await;
        let mut response = served.map_err(|error| unavailable(&error))?;
        let headers = response.headers_mut();
        // It is set by the tunnel, and never by the API server.
        let upgraded = headers.remove(UPGRADED_HEADER);
        headers::sanitize_response(headers);
        if let Some(protocol) = upgraded {
            headers.insert(UPGRADED_HEADER, protocol);
        }
        Ok(response)
    }
}

/// The API server cannot be reached. Clients repeat such a request if they may.
fn unavailable(error: &(dyn std::error::Error + 'static)) -> Refusal {
    let reason = error_chain(error);
    Refusal::new(
        StatusCode::SERVICE_UNAVAILABLE,
        format!("the tunnel agent cannot forward the request: {reason}"),
    )
}

impl Service<Request<tunnel::Body>> for AgentService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<tunnel::Body>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move { Ok(service.respond(request).await) })
    }
}

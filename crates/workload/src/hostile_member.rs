//! The API server of a member cluster that tries to use up what its Primary has. The first segment of a request's path selects
//! how it behaves, so that one process is many members.

mod children;
mod objects;
mod plan;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use bytes::Bytes;
use clap::Args;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Collected, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use link::tls::{Identity, TlsAcceptor};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::sleep;

use self::children::Children;
use self::plan::{Behavior, Reply, operation, reply};
use crate::http1;

/// The size of the chunks of an endless response.
const CHUNK: usize = 64 * 1024;
/// How long a slow response takes for each byte.
const BYTE_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(crate) struct HostileMemberArguments {
    /// The certificate is for this address
    #[arg(long)]
    listen: SocketAddr,
}

/// Serves until the input ends. The first line has the chart values for access to it.
pub(crate) fn run(arguments: &HostileMemberArguments) -> Result<()> {
    http1::until_input_ends(async {
        println!("{}", start(arguments.listen).await?);
        std::future::pending().await
    })
}

/// Returns how a Primary gets access.
async fn start(address: SocketAddr) -> Result<Value> {
    let identity = Identity::generate_named(&address.ip().to_string())?;
    let acceptor = link::tls::acceptor(&identity)?;
    let member = Arc::<Member>::default();
    http1::listen(address, move |stream| {
        serve(stream, acceptor.clone(), Arc::clone(&member))
    })
    .await?;
    Ok(json!({
        "authType": "bearerToken",
        "caData": STANDARD.encode(pem(identity.certificate())),
        "bearerToken": token()?,
    }))
}

fn pem(certificate: &[u8]) -> String {
    let text = STANDARD.encode(certificate);
    format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
}

/// A token that has to be renewed now, so that the Primary asks for the next one.
fn token() -> Result<String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let claims = json!({"iat": now - 7200, "exp": now + 3600});
    let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
    let (head, claims) = (part(r#"{"alg":"none"}"#), part(&claims.to_string()));
    Ok(format!("{head}.{claims}.{}", part("none")))
}

async fn serve(stream: TcpStream, acceptor: TlsAcceptor, member: Arc<Member>) -> Result<()> {
    let stream = acceptor.accept(stream).await?;
    let service = service_fn(|request| {
        let member = Arc::clone(&member);
        async move { Ok::<_, Infallible>(member.respond(request).await) }
    });
    hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await
        .map_err(io::Error::other)?;
    Ok(())
}

/// What the members of all behaviors have.
#[derive(Default)]
struct Member {
    children: [Arc<Children>; Behavior::ALL.len()],
}

type ResponseBody = BoxBody<Bytes, Infallible>;

impl Member {
    async fn respond(&self, request: Request<Incoming>) -> Response<ResponseBody> {
        let (head, body) = request.into_parts();
        let query = head.uri.query().unwrap_or_default();
        let Some((behavior, path)) = Behavior::of_path(head.uri.path()) else {
            return not_found();
        };
        let children = &self.children[behavior as usize];
        match reply(behavior, operation(&head.method, path, query)) {
            Reply::Operator => whole(&objects::operator()),
            Reply::Echo => whole(&read(body).await),
            Reply::Create => match children.create(read(body).await) {
                Some(child) => whole(&child),
                None => failed(StatusCode::CONFLICT),
            },
            Reply::Delete(name) => match children.delete(name) {
                Some(child) => whole(&child),
                None => not_found(),
            },
            Reply::Children => whole(&children.list()),
            Reply::ChildPage { after } => whole(&objects::child_page(after)),
            Reply::Targets => whole(&objects::no_targets()),
            Reply::TargetPage { after } => whole(&objects::target_page(after)),
            Reply::Events { after } => {
                let children = Arc::clone(children);
                sent(StatusCode::OK, async move |to_client| {
                    children.send_events(after, &to_client).await;
                })
            }
            Reply::Flood { after } => {
                let children = Arc::clone(children);
                sent(StatusCode::OK, async move |to_client| {
                    children.send_huge_events(after, &to_client).await;
                })
            }
            Reply::Endless(status) => {
                let chunk = Bytes::from(vec![b'['; CHUNK]);
                sent(
                    status,
                    async move |to_client| {
                        while to_client.send(chunk.clone()).await.is_ok() {}
                    },
                )
            }
            Reply::Slow => sent(StatusCode::OK, async |to_client| {
                while to_client.send(Bytes::from_static(b"[")).await.is_ok() {
                    sleep(BYTE_INTERVAL).await;
                }
            }),
            Reply::NotFound => not_found(),
        }
    }
}

async fn read(body: Incoming) -> Value {
    let bytes = body.collect().await.map(Collected::to_bytes);
    serde_json::from_slice(&bytes.unwrap_or_default()).unwrap_or_default()
}

fn whole(object: &Value) -> Response<ResponseBody> {
    response(StatusCode::OK, Full::from(object.to_string()).boxed())
}

fn not_found() -> Response<ResponseBody> {
    failed(StatusCode::NOT_FOUND)
}

fn failed(status: StatusCode) -> Response<ResponseBody> {
    let object = objects::failure(status);
    response(status, Full::from(object.to_string()).boxed())
}

/// A response whose chunks a task sends, until the client disconnects.
fn sent<F>(
    status: StatusCode,
    send: impl FnOnce(mpsc::Sender<Bytes>) -> F,
) -> Response<ResponseBody>
where
    F: Future<Output = ()> + Send + 'static,
{
    let (to_client, chunks) = mpsc::channel(1);
    tokio::spawn(send(to_client));
    response(status, Chunks(chunks).boxed())
}

fn response(status: StatusCode, body: ResponseBody) -> Response<ResponseBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

/// A body that ends with its sender.
struct Chunks(mpsc::Receiver<Bytes>);

impl Body for Chunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut TaskContext<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let chunk = self.0.poll_recv(context);
        chunk.map(|chunk| chunk.map(|chunk| Ok(Frame::data(chunk))))
    }
}

#[cfg(test)]
mod tests;

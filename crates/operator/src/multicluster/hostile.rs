//! Tests with a hostile member: a server whose responses never end, over a real connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use api::MirrordClusterSession;
use error_chain::error_chain;
use futures_util::StreamExt as _;
use jiff::Timestamp;
use kube::runtime::watcher;
use kube::{Api, Client};
use secrecy::SecretString;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::auth::{self, Credential, bearer};
use super::clusters::{AuthMethod, Member};
use super::member_client::check_health;
use super::stub;
use super::targets::list_pages;
use crate::targets::TargetFilter;

/// What may be in buffers between the server and the client.
const IN_FLIGHT_BYTES: usize = 16 * 1024 * 1024;

/// Starts a server that responds to each request with this status and an endless body. Returns its address, and the number of
/// bytes that it has sent.
async fn endless_server(status: u16) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, sent) = (listener.local_addr().unwrap(), Arc::default());
    let counter = Arc::clone(&sent);
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            tokio::spawn(respond(connection, status, Arc::clone(&counter)));
        }
    });
    (address, sent)
}

/// Ends when the client closes the connection.
async fn respond(mut connection: TcpStream, status: u16, sent: Arc<AtomicUsize>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match connection.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    let start = format!(
        "HTTP/1.1 {status} Any\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    let chunk = format!("{:x}\r\n{}\r\n", 64 * 1024, "[".repeat(64 * 1024));
    let mut next = start.as_bytes();
    while connection.write_all(next).await.is_ok() {
        sent.fetch_add(next.len(), Ordering::Relaxed);
        next = chunk.as_bytes();
    }
}

fn client_of(address: SocketAddr) -> Client {
    let member = Member {
        server: format!("http://{address}").parse().unwrap(),
        ..stub::member(AuthMethod::BearerToken)
    };
    let token = Credential::Token(SecretString::from("token"));
    auth::client(&member, &token).unwrap()
}

/// The errors of each request that a Primary sends to a member.
async fn errors(client: &Client) -> Vec<(&'static str, String)> {
    let (health, _) = check_health(client).await;
    let targets = list_pages(client, &TargetFilter::default()).await;
    let children: Api<MirrordClusterSession> = Api::all(client.clone());
    let created = children.get("mc-1-east").await;
    let mut watch = std::pin::pin!(watcher(children, watcher::Config::default()));
    let mut listed = watch.next().await.unwrap();
    if listed.is_ok() {
        // A list begins.
        listed = watch.next().await.unwrap();
    }
    let configured = stub::token_secret("token");
    let now = Timestamp::UNIX_EPOCH;
    let member = stub::member(AuthMethod::BearerToken);
    let token = bearer::choose(&member, Some(&configured), None, None, now);
    let renewed = bearer::renew(client, &token.ok().unwrap(), "tools", now).await;
    vec![
        ("health check", health.err().unwrap()),
        ("targets", targets.err().unwrap()),
        ("child", error_chain(&created.err().unwrap())),
        ("children", error_chain(&listed.err().unwrap())),
        ("token", error_chain(&renewed.err().unwrap())),
    ]
}

#[tokio::test]
async fn endless_responses_are_cut_off() {
    for (status, limit) in [
        (200, cluster::MAX_RESPONSE_BYTES),
        (403, cluster::MAX_ERROR_BYTES),
        (500, cluster::MAX_ERROR_BYTES),
    ] {
        let (address, sent) = endless_server(status).await;
        let client = client_of(address);
        let errors = timeout(Duration::from_secs(60), errors(&client)).await;
        let errors = errors.expect("no request waits for the end of the response");
        let expected = format!("the response is larger than {limit} bytes, which is the limit");
        for (request, error) in &errors {
            assert!(error.contains(&expected), "{status}, {request}: {error}");
        }
        let sent = sent.load(Ordering::Relaxed);
        let read = errors.len() * (limit + IN_FLIGHT_BYTES);
        assert!(sent < read, "{status}: {sent} bytes were read");
    }
}

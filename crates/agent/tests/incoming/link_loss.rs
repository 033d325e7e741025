//! Sessions over a link whose connection is lost and reconnected.

use std::net::SocketAddr;

use agent::{Agent, ClientReachability, ReachabilityWatch};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use link::{
    Accepted, Link, LinkServer, ServerSettings, Settings, SharedToken, Status, TcpDialer, Token,
};
use protocol::incoming::ACCEPTED;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::environment::{TARGET_IPV4, environment, socket_address};
use crate::programs::{Client, with_timeout};
use crate::session::{Session, whole_port, with_header};
use crate::web::{Site, get, serve};

/// A TCP forwarder to an agent, which a test can interrupt.
pub(crate) struct Forwarder {
    is_up: watch::Sender<bool>,
    /// Whether the client is connected, as the agent sees it.
    reachability: watch::Receiver<ClientReachability>,
}

/// A session over a link that uses a forwarder.
pub(crate) async fn connect(agent: &Agent) -> (Session, Forwarder) {
    let (link_to_agent, far) = serve_links(agent).await;
    let (is_up, up) = watch::channel(true);
    let near = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = near.local_addr().unwrap();
    tokio::spawn(forward(near, far, up));
    let settings = Settings {
        token: token(),
        ..Settings::default()
    };
    let link = Link::connect(TcpDialer::new(address), settings)
        .await
        .unwrap();
    let session = Session::over(link).await;
    let forwarder = Forwarder {
        is_up,
        reachability: link_to_agent,
    };
    (session, forwarder)
}

fn token() -> Token {
    Token::new(*b"open sesame").unwrap()
}

async fn serve_links(agent: &Agent) -> (watch::Receiver<ClientReachability>, SocketAddr) {
    let server = LinkServer::new(ServerSettings::default(), SharedToken(token()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (reachability, seen) = watch::channel(ClientReachability::Connected);
    let (agent, reachable) = (agent.clone(), seen.clone());
    tokio::spawn(async move {
        while let Ok((pipe, _)) = listener.accept().await {
            let Ok(Accepted::New(link)) = server.accept(pipe).await else {
                continue;
            };
            let mut status = link.status();
            let (agent, reachable) = (agent.clone(), reachable.clone());
            let (reachability, window) = (reachability.clone(), link.resume_window());
            tokio::spawn(async move {
                while status.changed().await.is_ok() {
                    reachability.send_replace(match *status.borrow_and_update() {
                        Status::Connected => ClientReachability::Connected,
                        _ => ClientReachability::DisconnectedUntil(Instant::now() + window),
                    });
                }
            });
            tokio::spawn(async move {
                let reachable = ReachabilityWatch::new(reachable);
                agent.serve_resumable_connection(link, reachable).await
            });
        }
    });
    (seen, address)
}

/// Forwards connections while the forwarder is up, and closes them when it is not.
async fn forward(near: TcpListener, far: SocketAddr, up: watch::Receiver<bool>) {
    while let Ok((mut client, _)) = near.accept().await {
        let mut up = up.clone();
        tokio::spawn(async move {
            if !*up.borrow() {
                return;
            }
            let Ok(mut server) = TcpStream::connect(far).await else {
                return;
            };
            tokio::select! {
                _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                _ = up.wait_for(|is_up| !is_up) => {}
            }
        });
    }
}

impl Forwarder {
    /// Closes all connections, and waits until the agent sees it.
    pub(crate) async fn interrupt(&mut self) {
        self.is_up.send_replace(false);
        with_timeout(
            self.reachability
                .wait_for(|reachability| *reachability != ClientReachability::Connected),
        )
        .await
        .unwrap();
    }

    /// Allows connections again, and waits until the client has reconnected.
    pub(crate) async fn restore(&mut self) {
        self.is_up.send_replace(true);
        with_timeout(
            self.reachability
                .wait_for(|reachability| *reachability == ClientReachability::Connected),
        )
        .await
        .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root"]
async fn a_connection_survives_interruptions_of_the_link() {
    const CHUNKS: u8 = 64;
    const CHUNK_LEN: usize = 64 * 1024;
    let environment = environment();
    let (session, mut forwarder) = connect(&environment.agent()).await;
    let subscription = session.subscribe(whole_port(80, "Ada")).await.unwrap();
    let connecting = Client::connect(&environment.client, socket_address(TARGET_IPV4, 80));
    let (client, stolen) = tokio::join!(connecting, subscription.accept());
    let mut stolen = stolen.unwrap();
    stolen
        .to_client
        .send(Bytes::from_static(&[ACCEPTED]))
        .await
        .unwrap();
    let (mut reading, mut writing) = client.stream.into_split();
    // Both directions at the same time.
    let client_writes = tokio::spawn(async move {
        for number in 0..CHUNKS {
            writing.write_all(&[number; CHUNK_LEN]).await.unwrap();
        }
        writing.shutdown().await.unwrap();
    });
    let to_client = stolen.to_client;
    let session_writes = tokio::spawn(async move {
        for number in 0..CHUNKS {
            to_client
                .send(vec![number; CHUNK_LEN].into())
                .await
                .unwrap();
        }
    });
    let client_reads = tokio::spawn(async move {
        let mut all = Vec::new();
        reading.read_to_end(&mut all).await.unwrap();
        all
    });
    let session_reads = async {
        let mut all = Vec::new();
        let mut interruptions = 0;
        while let Some(frame) = with_timeout(stolen.from_client.frame()).await {
            all.extend_from_slice(&frame.unwrap().into_data().unwrap());
            if interruptions < 3 && all.len() > interruptions * CHUNK_LEN * usize::from(CHUNKS) / 4
            {
                interruptions += 1;
                forwarder.interrupt().await;
                forwarder.restore().await;
            }
        }
        assert_eq!(interruptions, 3);
        all
    };
    let expected: Vec<u8> = (0..CHUNKS)
        .flat_map(|number| vec![number; CHUNK_LEN])
        .collect();
    assert!(session_reads.await == expected);
    assert!(with_timeout(client_reads).await.unwrap() == expected);
    client_writes.await.unwrap();
    session_writes.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root"]
async fn requests_go_to_the_application_while_the_session_is_disconnected() {
    let environment = environment();
    let _site = Site::start(&environment.target, 80, "original");
    let to = socket_address(TARGET_IPV4, 80);
    // At the session's own agent, and then through another agent that redirects the port.
    let own = Session::of(&environment.agent()).await;
    let mut redirecting = None;
    for name in ["ada", "grace"] {
        let (session, mut forwarder) = connect(&environment.agent()).await;
        let request = with_header(80, name, &format!("x-user: {name}"));
        let subscription = session.subscribe(request).await.unwrap();
        let _serving = subscription.serve(move |_, stream| serve(stream, name));
        let header = format!("x-user: {name}\r\n");
        let get_response = async || get(&environment.client, to, "/", &header).await;
        let expected = format!("{name} / 0");
        assert_eq!(get_response().await, expected);
        forwarder.interrupt().await;
        assert_eq!(get_response().await, "original / 0");
        forwarder.restore().await;
        // The session is suspended for a moment after a failure.
        with_timeout(async { while get_response().await != expected {} }).await;
        if redirecting.is_none() {
            drop(subscription);
            environment.wait_until_clean().await;
            let first = own.subscribe(with_header(80, "Edsger", "x-user: edsger"));
            redirecting = Some(first.await.unwrap());
        }
    }
}

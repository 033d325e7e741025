//! Sessions over a link whose connection is lost and made again.

use std::net::SocketAddr;

use agent::{Agent, Presence, Reachable};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use link::{
    Accepted, Link, LinkServer, ServerSettings, Settings, SharedToken, Status, TcpDialer, Token,
};
use protocol::incoming::TAKEN;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::programs::{Client, soon};
use crate::session::{Session, whole_port, with_header};
use crate::web::{Site, ask, serve};
use crate::world::{TARGET_IPV4, socket_address, world};

/// A line to an agent, which a test can cut.
pub(crate) struct Line {
    is_up: watch::Sender<bool>,
    /// Whether the agent sees a connection.
    presence: watch::Receiver<Presence>,
}

/// A session over a link over a line.
pub(crate) async fn connect(agent: &Agent) -> (Session, Line) {
    let (link_to_agent, far) = serve_links(agent).await;
    let (is_up, up) = watch::channel(true);
    let near = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = near.local_addr().unwrap();
    tokio::spawn(carry(near, far, up));
    let settings = Settings {
        token: token(),
        ..Settings::default()
    };
    let link = Link::connect(TcpDialer::new(address), settings)
        .await
        .unwrap();
    let session = Session::over(link).await;
    let line = Line {
        is_up,
        presence: link_to_agent,
    };
    (session, line)
}

fn token() -> Token {
    Token::new(*b"open sesame").unwrap()
}

async fn serve_links(agent: &Agent) -> (watch::Receiver<Presence>, SocketAddr) {
    let server = LinkServer::new(ServerSettings::default(), SharedToken(token()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (presence, seen) = watch::channel(Presence::Here);
    let (agent, reachable) = (agent.clone(), seen.clone());
    tokio::spawn(async move {
        while let Ok((pipe, _)) = listener.accept().await {
            let Ok(Accepted::New(link)) = server.accept(pipe).await else {
                continue;
            };
            let mut status = link.status();
            let (agent, reachable) = (agent.clone(), reachable.clone());
            let (presence, window) = (presence.clone(), link.resume_window());
            tokio::spawn(async move {
                while status.changed().await.is_ok() {
                    presence.send_replace(match *status.borrow_and_update() {
                        Status::Connected => Presence::Here,
                        _ => Presence::AwayUntil(Instant::now() + window),
                    });
                }
            });
            tokio::spawn(async move {
                let reachable = Reachable::new(reachable);
                agent.serve_connection_while(link, reachable).await
            });
        }
    });
    (seen, address)
}

/// Carries connections while the line is up, and cuts them when it is not.
async fn carry(near: TcpListener, far: SocketAddr, up: watch::Receiver<bool>) {
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

impl Line {
    /// Cuts it, and waits until the agent knows.
    pub(crate) async fn cut(&mut self) {
        self.is_up.send_replace(false);
        soon(
            self.presence
                .wait_for(|presence| *presence != Presence::Here),
        )
        .await
        .unwrap();
    }

    pub(crate) async fn mend(&mut self) {
        self.is_up.send_replace(true);
        soon(
            self.presence
                .wait_for(|presence| *presence == Presence::Here),
        )
        .await
        .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root"]
async fn a_connection_survives_a_line_that_is_cut_in_the_middle_of_it() {
    const PIECES: u8 = 64;
    const PIECE: usize = 64 * 1024;
    let Some(world) = world() else { return };
    let (session, mut line) = connect(&world.agent()).await;
    let subscription = session.subscribe(whole_port(80, "Ada")).await.unwrap();
    let connecting = Client::connect(&world.client, socket_address(TARGET_IPV4, 80));
    let (client, taken) = tokio::join!(connecting, subscription.accept());
    let mut taken = taken.unwrap();
    taken
        .to_client
        .send(Bytes::from_static(&[TAKEN]))
        .await
        .unwrap();
    let (mut reading, mut writing) = client.stream.into_split();
    // Both ways at the same time.
    let client_writes = tokio::spawn(async move {
        for number in 0..PIECES {
            writing.write_all(&[number; PIECE]).await.unwrap();
        }
        writing.shutdown().await.unwrap();
    });
    let to_client = taken.to_client;
    let session_writes = tokio::spawn(async move {
        for number in 0..PIECES {
            to_client.send(vec![number; PIECE].into()).await.unwrap();
        }
    });
    let client_reads = tokio::spawn(async move {
        let mut all = Vec::new();
        reading.read_to_end(&mut all).await.unwrap();
        all
    });
    let session_reads = async {
        let mut all = Vec::new();
        let mut cuts = 0;
        while let Some(frame) = soon(taken.from_client.frame()).await {
            all.extend_from_slice(&frame.unwrap().into_data().unwrap());
            if cuts < 3 && all.len() > cuts * PIECE * usize::from(PIECES) / 4 {
                cuts += 1;
                line.cut().await;
                line.mend().await;
            }
        }
        assert_eq!(cuts, 3);
        all
    };
    let expected: Vec<u8> = (0..PIECES).flat_map(|number| vec![number; PIECE]).collect();
    assert!(session_reads.await == expected);
    assert!(soon(client_reads).await.unwrap() == expected);
    client_writes.await.unwrap();
    session_writes.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root"]
async fn while_the_session_is_out_of_reach_requests_are_the_applications() {
    let Some(world) = world() else { return };
    let _site = Site::start(&world.target, 80, "original");
    let to = socket_address(TARGET_IPV4, 80);
    // Here, and through another agent, which redirects the port.
    let own = Session::of(&world.agent()).await;
    let mut redirecting = None;
    for name in ["ada", "grace"] {
        let (session, mut line) = connect(&world.agent()).await;
        let wanted = with_header(80, name, &format!("x-user: {name}"));
        let subscription = session.subscribe(wanted).await.unwrap();
        let _serving = subscription.serve(move |_, stream| serve(stream, name));
        let header = format!("x-user: {name}\r\n");
        let answers = async || ask(&world.client, to, "/", &header).await;
        let expected = format!("{name} / 0");
        assert_eq!(answers().await, expected);
        line.cut().await;
        assert_eq!(answers().await, "original / 0");
        line.mend().await;
        // It is left alone for a moment after a failure.
        soon(async { while answers().await != expected {} }).await;
        if redirecting.is_none() {
            drop(subscription);
            world.nothing_is_left().await;
            let first = own.subscribe(with_header(80, "Edsger", "x-user: edsger"));
            redirecting = Some(first.await.unwrap());
        }
    }
}

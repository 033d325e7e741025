use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use super::network::{Network, NetworkState, SMALL, settings, stream};
use crate::{Link, LinkError, Redial, ServerSettings, Settings, Status, Token};

/// The link error inside an I/O error.
fn link_error(error: &io::Error) -> &LinkError {
    error.get_ref().unwrap().downcast_ref().unwrap()
}

async fn read_error(link: &mut Link) -> LinkError {
    let mut buffer = [0; 100];
    loop {
        match link.read(&mut buffer).await {
            Ok(0) => panic!("the stream ended without an error"),
            Ok(_) => {}
            Err(error) => return link_error(&error).clone(),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_peer_is_found_within_15_s_by_both() {
    let (network, client, server) = Network::connected(SMALL, 1000).await;
    network.set(NetworkState::Silent);
    let start = Instant::now();
    for link in [&client, &server] {
        let mut status = link.status();
        let lost = status.wait_for(|status| matches!(status, Status::Reconnecting { .. }));
        drop(lost.await.unwrap());
        let elapsed = start.elapsed();
        assert!(
            elapsed > Duration::from_secs(14) && elapsed <= Duration::from_millis(15_010),
            "{elapsed:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_link_stays_connected_for_hours() {
    let (network, mut client, mut server) = Network::connected(SMALL, 1000).await;
    tokio::time::sleep(Duration::from_secs(3 * 3600)).await;
    client.write_all(b"still here").await.unwrap();
    let mut received = [0; 10];
    server.read_exact(&mut received).await.unwrap();
    assert_eq!(network.dial_count(), 1);
    assert!(client.statistics().round_trip.is_some());
}

#[tokio::test(start_paused = true)]
async fn when_the_resume_window_expires_both_ends_fail() {
    let (network, mut client, mut server) = Network::connected(SMALL, 1000).await;
    let start = Instant::now();
    network.set(NetworkState::Down);
    let (at_client, at_server) = tokio::join!(read_error(&mut client), read_error(&mut server));
    for error in [at_client, at_server] {
        assert!(matches!(error, LinkError::WindowExpired { .. }), "{error}");
        assert!(error.may_retry_with_new_link());
    }
    let elapsed = start.elapsed().as_secs();
    assert!((600..602).contains(&elapsed), "{elapsed} s");
    assert!(matches!(
        *client.status().borrow(),
        Status::Failed(LinkError::WindowExpired { .. })
    ));
    // An error is final, and writes fail as well.
    assert!(client.write_all(b"x").await.is_err());
    assert_eq!(network.server().links(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_server_limits_the_resume_window_and_records_its_expiry() {
    let server_settings = ServerSettings {
        max_resume_window: Duration::from_secs(20),
        ..ServerSettings::default()
    };
    let (network, mut links) = Network::new(server_settings, 1000);
    let client = Link::connect(network.clone(), settings(SMALL))
        .await
        .unwrap();
    let mut server = links.next().await;
    let mut client_status = client.status();
    // The server's connection is cut. The client does not notice, and reconnects after the window has expired.
    network.set(NetworkState::Down);
    let error = read_error(&mut server).await;
    assert_eq!(
        error.to_string(),
        "the connection could not be restored within 20 s"
    );
    let failed = client_status.wait_for(|status| matches!(status, Status::Failed(_)));
    let Status::Failed(error) = failed.await.unwrap().clone() else {
        unreachable!()
    };
    assert!(matches!(error, LinkError::WindowExpired { window } if window.as_secs() == 20));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reconnects_too_late_gets_the_reason() {
    let server_settings = ServerSettings {
        max_resume_window: Duration::from_secs(20),
        ..ServerSettings::default()
    };
    let (network, mut links) = Network::new(server_settings, 1000);
    let mut client = Link::connect(network.clone(), settings(SMALL))
        .await
        .unwrap();
    let server = links.next().await;
    // The client's machine sleeps: here, its attempts never complete.
    network.set(NetworkState::Silent);
    drop(
        server
            .status()
            .wait_for(|status| matches!(status, Status::Failed(_)))
            .await
            .unwrap(),
    );
    network.set(NetworkState::Good);
    network.cut().await;
    assert!(matches!(
        read_error(&mut client).await,
        LinkError::WindowExpired { .. }
    ));
}

#[tokio::test(start_paused = true)]
async fn a_restarted_server_has_lost_the_state() {
    let (network, mut client, _server) = Network::connected(SMALL, 1000).await;
    client.write_all(b"something").await.unwrap();
    network.restart_server();
    network.cut().await;
    let error = read_error(&mut client).await;
    assert!(matches!(error, LinkError::StateLost), "{error}");
    assert!(error.may_retry_with_new_link());
}

#[tokio::test(start_paused = true)]
async fn a_wrong_token_is_rejected() {
    let (network, _links) = Network::new(ServerSettings::default(), 1000);
    let wrong = Settings {
        token: Token::new(*b"open sesami").unwrap(),
        redial: Redial {
            first_connection_timeout: Duration::from_secs(60),
            ..Redial::default()
        },
        ..Settings::default()
    };
    let error = Link::connect(network.clone(), wrong).await.unwrap_err();
    assert!(matches!(error, LinkError::WrongToken { .. }), "{error}");
    assert!(!error.may_retry_with_new_link());
    assert_eq!((network.dial_count(), network.server().links()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn too_many_links_are_refused() {
    let server_settings = ServerSettings {
        max_links: 1,
        ..ServerSettings::default()
    };
    let (network, _links) = Network::new(server_settings, 1000);
    let _first = Link::connect(network.clone(), settings(SMALL))
        .await
        .unwrap();
    let error = Link::connect(network, settings(SMALL)).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the other end refuses the link: it has 1 links already"
    );
}

#[tokio::test(start_paused = true)]
async fn the_first_connection_is_tried_once_or_until_its_timeout() {
    let (network, _links) = Network::new(ServerSettings::default(), 1000);
    network.set(NetworkState::Down);
    let mut settings = settings(SMALL);
    let error = Link::connect(network.clone(), settings.clone())
        .await
        .unwrap_err();
    assert!(matches!(error, LinkError::Unreachable(_)), "{error}");
    assert_eq!(network.dial_count(), 1);
    settings.redial.first_connection_timeout = Duration::from_secs(30);
    let connecting = Link::connect(network.clone(), settings);
    let repaired = async {
        tokio::time::sleep(Duration::from_secs(20)).await;
        network.set(NetworkState::Good);
    };
    let (connected, ()) = tokio::join!(connecting, repaired);
    connected.unwrap();
}

/// Sends bytes to a server, and returns its response.
async fn response_of_server(handshake: &[u8]) -> (Result<(), LinkError>, Vec<u8>) {
    let (network, _links) = Network::new(ServerSettings::default(), 1000);
    let (mut client, server) = tokio::io::duplex(10_000);
    client.write_all(handshake).await.unwrap();
    let accepted = network.server().accept(server).await;
    let mut response = Vec::new();
    client.read_to_end(&mut response).await.unwrap();
    (accepted.map(drop), response)
}

#[tokio::test(start_paused = true)]
async fn a_client_of_another_version_gets_the_server_version() {
    let (accepted, response) = response_of_server(b"SLNK\x00\x07\x01\x00\x00\x04what").await;
    let (ours, theirs) = match accepted {
        Err(LinkError::VersionMismatch { ours, theirs }) => (ours, theirs),
        other => panic!("{other:?}"),
    };
    assert_eq!((ours, theirs), (crate::VERSION, 7));
    assert_eq!(
        response,
        b"SLNK\x00\x01\x03\x00\x00\x05\x01\x00\x00\x00\x00"
    );
}

#[tokio::test(start_paused = true)]
async fn other_protocols_get_no_response() {
    for handshake in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"SLNK\x00\x01\x02\x00\x00\x00",
        b"SLNK\x00\x01\x01\x00\xff\xff",
        b"SLNK\x00\x01\x01\x00\x00\x03abc",
        // Incomplete: the connection is closed after the handshake timeout.
        b"SLNK",
    ] {
        let (accepted, response) = response_of_server(handshake).await;
        assert!(matches!(
            accepted,
            Err(LinkError::Protocol(_) | LinkError::NoHandshake(_))
        ));
        assert!(response.is_empty());
    }
}

/// A server that responds to each pipe with these bytes.
#[derive(Clone)]
struct Answering(&'static [u8]);

impl crate::Dial for Answering {
    type Pipe = tokio::io::DuplexStream;

    async fn dial(&self) -> io::Result<Self::Pipe> {
        let (client, mut server) = tokio::io::duplex(1000);
        let response = self.0;
        tokio::spawn(async move {
            let mut hello = [0; 10];
            server.read_exact(&mut hello).await?;
            server.write_all(response).await?;
            tokio::time::sleep(Duration::from_secs(60)).await;
            io::Result::Ok(())
        });
        Ok(client)
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_handles_servers_of_other_versions_and_malformed_responses() {
    let error = async |response| {
        Link::connect(Answering(response), settings(SMALL))
            .await
            .unwrap_err()
    };
    let refused = error(b"SLNK\x00\x09\x03\x00\x00\x05\x01\x00\x00\x00\x00").await;
    assert!(
        matches!(refused, LinkError::VersionMismatch { theirs: 9, .. }),
        "{refused}"
    );
    let other_welcome = error(b"SLNK\x00\x09\x02\x00\x00\x01x").await;
    assert!(matches!(
        other_welcome,
        LinkError::VersionMismatch { theirs: 9, .. }
    ));
    assert!(matches!(
        error(b"HTTP/1.1 404 Not Found").await,
        LinkError::Protocol(_)
    ));
    assert!(matches!(error(b"SLNK").await, LinkError::NoHandshake(_)));
    // The server claims to have received bytes that were never sent.
    let lie = b"SLNK\x00\x01\x02\x00\x00\x18\x00\x00\x00\x00\x00\x00\x00\x09\x00\x00\x00\x00\x00\x00\x00\x09\x00\x00\x10\x00\x00\x00\x10\x00";
    assert!(matches!(error(lie).await, LinkError::StateLost));
}

#[tokio::test(start_paused = true)]
async fn a_link_is_resumed_only_by_its_owner_and_not_by_an_old_connection() {
    use crate::handshake::{
        HandshakeResponse, Hello, LinkId, PREAMBLE, Position, Preamble, Refusal,
    };
    struct Names;
    impl crate::Admit for Names {
        async fn admit(&self, token: &Token) -> Result<String, String> {
            String::from_utf8(token.as_bytes().to_vec()).map_err(|error| error.to_string())
        }
    }
    let server = crate::LinkServer::new(ServerSettings::default(), Names);
    let say = async |attempt: u32, name: &str| {
        let (mut client, pipe) = tokio::io::duplex(1000);
        let position = Position {
            received: 0,
            limit: 1,
            replay_capacity: 1,
        };
        let hello = Hello {
            id: LinkId([1; 16]),
            attempt,
            fresh: true,
            position,
            window: Duration::from_secs(1),
            token: Token::new(name).unwrap(),
        };
        client.write_all(&hello.encode()).await.unwrap();
        let accepted = server.accept(pipe).await;
        let mut preamble = [0; PREAMBLE];
        client.read_exact(&mut preamble).await.unwrap();
        let preamble = Preamble::decode(&preamble).unwrap();
        let mut body = vec![0; preamble.length];
        client.read_exact(&mut body).await.unwrap();
        let refusal = match HandshakeResponse::decode(preamble, &body).unwrap() {
            HandshakeResponse::Welcome(_) => None,
            HandshakeResponse::Refuse { refusal, .. } => Some(refusal),
        };
        (accepted, refusal, client)
    };
    let (first, refusal, _pipe) = say(2, "ada").await;
    let Ok(crate::Accepted::New(link)) = first else {
        panic!("{first:?}")
    };
    assert_eq!((link.peer(), refusal), ("ada", None));
    let (_, refusal, _) = say(2, "ada").await;
    assert_eq!(refusal, Some(Refusal::Superseded));
    let (_, refusal, _) = say(3, "bob").await;
    assert_eq!(
        refusal,
        Some(Refusal::Token(
            "the link belongs to another peer".to_owned()
        ))
    );
    let (accepted, _, _pipe) = say(3, "ada").await;
    assert!(matches!(accepted, Ok(crate::Accepted::Resumed(_))));
}

#[tokio::test(start_paused = true)]
async fn received_data_can_be_read_before_the_error() {
    let (network, mut client, mut server) = Network::connected(SMALL, 10_000).await;
    server.write_all(&stream(3, 2000)).await.unwrap();
    while client.statistics().bytes_to_read < 2000 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    network.restart_server();
    network.cut().await;
    drop(
        client
            .status()
            .wait_for(|status| matches!(status, Status::Failed(_)))
            .await
            .unwrap(),
    );
    let mut received = vec![0; 2000];
    client.read_exact(&mut received).await.unwrap();
    assert_eq!(received, stream(3, 2000));
    assert!(matches!(
        read_error(&mut client).await,
        LinkError::StateLost
    ));
}

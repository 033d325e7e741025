//! The client's listener while other peers keep their connections open.

use std::net::Ipv4Addr;

use link::tls::rustls::pki_types::ServerName;
use link::tls::{TlsDialer, Trust};
use link::{Link, Settings, TcpDialer};
use tokio::time::timeout;

use super::*;

/// A test that hangs fails. It is shorter than the time after which an idle connection is closed.
const HANG: Duration = Duration::from_secs(4);

/// Serves the links of clients, as an agent does it.
async fn serve(listener: AgentListener) {
    let mut links = Vec::new();
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    loop {
        tokio::select! {
            connection = listener.accept() => {
                let sender = sender.clone();
                tokio::spawn(async move {
                    if let Ok(ConnectionPurpose::Session(link)) = connection.authenticate().await {
                        let _ = sender.send(link);
                    }
                });
            }
            Some(link) = receiver.recv() => links.push(link),
        }
    }
}

#[tokio::test]
async fn the_client_is_served_while_idle_connections_hold_every_permit() {
    let client = Identity::generate().unwrap();
    let limits = Limits {
        total: 32,
        per_source: 32,
    };
    let listen = (Ipv4Addr::LOCALHOST, 0).into();
    for auth in [
        ClientAuth::Certificate(client.fingerprint()),
        ClientAuth::Token {
            token: "secret".to_owned(),
            tls: true,
        },
    ] {
        let (settings, admission) = (ServerSettings::default(), Admission::new(limits));
        let listener = AgentListener::bind(listen, &auth, settings, admission.clone());
        let listener = listener.await.unwrap();
        let (address, certificate) = (listener.address, listener.certificate.unwrap());
        let serving = tokio::spawn(serve(listener));
        let mut idle = Vec::new();
        for _ in 0..limits.total * 4 {
            idle.push(TcpStream::connect(address).await.unwrap());
        }
        let name = ServerName::try_from("agent").unwrap();
        let (dialer, trust) = (TcpDialer::new(address), Trust::Pinned(certificate));
        let dialer = TlsDialer::with_identity(dialer, name, trust, &client).unwrap();
        let settings = Settings {
            token: Token::new(auth.token().as_bytes()).unwrap(),
            ..Settings::default()
        };
        let link = timeout(HANG, Link::connect(dialer, settings)).await;
        link.unwrap().unwrap();
        assert!(admission.unauthenticated() <= limits.total);
        serving.abort();
    }
}

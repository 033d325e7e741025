//! The operator's listener while other peers keep their connections open.

use std::net::Ipv4Addr;

use link::tls::rustls::pki_types::ServerName;
use link::tls::{Identity, TlsDialer, Trust, acceptor_for_clients};
use link::{Dial as _, TcpDialer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::*;

/// A test that hangs fails. It is shorter than the time after which an idle connection is closed.
const HANG: Duration = Duration::from_secs(4);

async fn echo(mut connection: OperatorConnection) -> Result<()> {
    let byte = connection.read_u8().await?;
    connection.write_u8(byte).await?;
    Ok(connection.shutdown().await?)
}

#[tokio::test]
async fn the_operator_is_served_while_idle_connections_hold_every_permit() {
    let (agent, operator) = (Identity::generate().unwrap(), Identity::generate().unwrap());
    let acceptor = acceptor_for_clients(&agent, &[operator.fingerprint()]).unwrap();
    let listen = (Ipv4Addr::LOCALHOST, 0).into();
    let listener = OperatorListener::bind(listen, acceptor).await.unwrap();
    let address = listener.address().unwrap();
    let dial = async |identity: &Identity| {
        let name = ServerName::try_from("agent").unwrap();
        let trust = Trust::Pinned(agent.fingerprint());
        let dialer = TlsDialer::with_identity(TcpDialer::new(address), name, trust, identity);
        timeout(HANG, dialer.unwrap().dial()).await.unwrap()
    };
    tokio::spawn(async move { listener.serve(echo).await });

    let mut idle = Vec::new();
    for _ in 0..LIMITS.total * 2 {
        idle.push(TcpStream::connect(address).await.unwrap());
    }
    let mut pipe = dial(&operator).await.unwrap();
    pipe.write_u8(7).await.unwrap();
    pipe.flush().await.unwrap();
    assert_eq!(timeout(HANG, pipe.read_u8()).await.unwrap().unwrap(), 7);

    let other = Identity::generate().unwrap();
    let refused = async {
        let mut pipe = dial(&other).await?;
        pipe.write_u8(7).await?;
        pipe.flush().await?;
        pipe.read_u8().await
    };
    assert!(refused.await.is_err(), "another certificate is accepted");
}

//! Reports the claimed ports of sessions to the operator, which shows them to users. The operator must not rely on
//! reports of clients.

use std::time::Duration;

use ::agent::{AllClaims, ClaimedPort, PatternVisibility};
use anyhow::Result;
use api::node::{NodeResponse, encode_message};
use api::session::SessionPort;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::watch;
use tokio::time::sleep;

/// An unchanged report is repeated at this interval, so that a dead connection is detected.
const REPEAT_INTERVAL: Duration = Duration::from_secs(30);
/// The maximum number of reported ports, which bounds the message.
const MAX_PORTS: usize = 200;

/// Sends reports until the operator closes the connection or the agent ends.
pub(super) async fn report_ports(
    mut pipe: impl AsyncRead + AsyncWrite + Unpin,
    mut claims: watch::Receiver<AllClaims>,
    patterns: PatternVisibility,
) -> Result<()> {
    loop {
        let ports = session_ports(&claims.borrow_and_update(), patterns);
        let response = NodeResponse {
            ports,
            ..NodeResponse::default()
        };
        pipe.write_all(&encode_message(&response)?).await?;
        pipe.flush().await?;
        tokio::select! {
            changed = claims.changed() => if changed.is_err() {
                break;
            },
            () = sleep(REPEAT_INTERVAL) => {}
            // The operator sends nothing more, so this is the end of the connection.
            _ = pipe.read_u8() => break,
        }
    }
    pipe.shutdown().await?;
    Ok(())
}

/// The sorted ports, without duplicates.
fn session_ports(claims: &AllClaims, patterns: PatternVisibility) -> Vec<SessionPort> {
    let mut ports: Vec<_> = claims
        .values()
        .map(|port| session_port(port, patterns))
        .collect();
    ports.sort_unstable();
    ports.dedup();
    ports.truncate(MAX_PORTS);
    ports
}

fn session_port(claimed: &ClaimedPort, patterns: PatternVisibility) -> SessionPort {
    let protocol = match claimed.is_udp {
        true => SessionPort::UDP,
        false => SessionPort::TCP,
    };
    let mode = match claimed.is_mirrored {
        true => SessionPort::MIRROR,
        false => SessionPort::STEAL,
    };
    SessionPort {
        port: claimed.port,
        protocol: protocol.to_owned(),
        mode: mode.to_owned(),
        filter: claimed.describe_filter(patterns),
    }
}

/// Whether the operator requests the patterns of filters.
pub(super) fn filter_patterns(requested: bool) -> PatternVisibility {
    match requested {
        true => PatternVisibility::Shown,
        false => PatternVisibility::Hidden,
    }
}

#[cfg(test)]
mod tests {
    use protocol::rpc::{HttpFilter, http_filter};
    use tokio::io::{DuplexStream, duplex};

    use super::*;

    fn claimed(port: u16, pattern: Option<&str>) -> ClaimedPort {
        let filter = pattern.map(|pattern| HttpFilter {
            filter: Some(http_filter::Filter::Header(pattern.to_owned())),
        });
        ClaimedPort {
            port,
            is_udp: false,
            is_mirrored: false,
            filter,
        }
    }

    async fn next_report(pipe: &mut DuplexStream) -> Vec<String> {
        let length = pipe.read_u32().await.unwrap();
        let mut response = vec![0; usize::try_from(length).unwrap()];
        pipe.read_exact(&mut response).await.unwrap();
        let response: NodeResponse = serde_json::from_slice(&response).unwrap();
        response.ports.iter().map(ToString::to_string).collect()
    }

    #[tokio::test]
    async fn ports_are_reported_initially_and_after_each_change() {
        let first = AllClaims::from([
            (2, claimed(80, Some("x-user: anna"))),
            (1, claimed(80, None)),
        ]);
        let all = watch::Sender::new(first);
        let (mut operator, agent) = duplex(4096);
        let reporting = tokio::spawn(report_ports(
            agent,
            all.subscribe(),
            PatternVisibility::Shown,
        ));
        let reported = next_report(&mut operator).await;
        assert_eq!(reported, ["80 (steal)", "80 (steal, header x-user: anna)"]);
        // Equal ports are reported once.
        all.send_replace(AllClaims::from([
            (3, claimed(90, None)),
            (4, claimed(90, None)),
        ]));
        assert_eq!(next_report(&mut operator).await, ["90 (steal)"]);
        all.send_replace(AllClaims::new());
        assert_eq!(next_report(&mut operator).await, [""; 0]);
        // The agent ends.
        drop(all);
        reporting.await.unwrap().unwrap();
        assert!(operator.read_u8().await.is_err());
    }

    #[tokio::test]
    async fn reporting_ends_with_the_connection() {
        let all = watch::Sender::new(AllClaims::new());
        let (mut operator, agent) = duplex(4096);
        let reporting = tokio::spawn(report_ports(
            agent,
            all.subscribe(),
            PatternVisibility::Hidden,
        ));
        assert_eq!(next_report(&mut operator).await, [""; 0]);
        drop(operator);
        // It may end with an error or without one.
        drop(reporting.await.unwrap());
        assert_eq!(all.receiver_count(), 0);
    }

    #[test]
    fn a_message_is_bounded() {
        let pattern = "\u{10ffff}".repeat(1000);
        let many = (0..1000).map(|number| {
            let port = u16::try_from(number).unwrap();
            (number, claimed(port, Some(&pattern)))
        });
        let ports = session_ports(&many.collect(), PatternVisibility::Shown);
        let response = NodeResponse {
            ports,
            ..NodeResponse::default()
        };
        let length = encode_message(&response).unwrap().len();
        assert!(length < usize::try_from(api::node::MAX_RESPONSE_BYTES).unwrap());
    }
}

//! Which ports sessions have, told to the operator: it says so to people, and must not have to believe clients.

use std::time::Duration;

use ::agent::{AllHeld, HeldPort, Patterns};
use anyhow::Result;
use api::node::{NodeAnswer, message};
use api::session::SessionPort;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::watch;
use tokio::time::sleep;

/// The same is told again after so long, so that a connection whose other end has vanished is found.
const REPEATED: Duration = Duration::from_secs(30);
/// The most that are told: nobody reads more, and a message is bounded.
const MOST_PORTS: usize = 200;

/// Tells until nobody listens any more, or the agent is gone.
pub(super) async fn tell_ports(
    mut pipe: impl AsyncRead + AsyncWrite + Unpin,
    mut held: watch::Receiver<AllHeld>,
    patterns: Patterns,
) -> Result<()> {
    loop {
        let ports = told(&held.borrow_and_update(), patterns);
        let answer = NodeAnswer {
            ports,
            ..NodeAnswer::default()
        };
        pipe.write_all(&message(&answer)?).await?;
        pipe.flush().await?;
        tokio::select! {
            changed = held.changed() => if changed.is_err() {
                break;
            },
            () = sleep(REPEATED) => {}
            // It has nothing more to say, so this is its end.
            _ = pipe.read_u8() => break,
        }
    }
    pipe.shutdown().await?;
    Ok(())
}

/// Each once, in order.
fn told(held: &AllHeld, patterns: Patterns) -> Vec<SessionPort> {
    let mut ports: Vec<_> = held.values().map(|port| in_words(port, patterns)).collect();
    ports.sort_unstable();
    ports.dedup();
    ports.truncate(MOST_PORTS);
    ports
}

fn in_words(held: &HeldPort, patterns: Patterns) -> SessionPort {
    let protocol = match held.is_udp {
        true => SessionPort::UDP,
        false => SessionPort::TCP,
    };
    let mode = match held.is_mirrored {
        true => SessionPort::MIRROR,
        false => SessionPort::STEAL,
    };
    SessionPort {
        port: held.port,
        protocol: protocol.to_owned(),
        mode: mode.to_owned(),
        filter: held.filter_in_words(patterns),
    }
}

/// Whether the operator asks for patterns.
pub(super) fn patterns(wanted: bool) -> Patterns {
    match wanted {
        true => Patterns::Shown,
        false => Patterns::Hidden,
    }
}

#[cfg(test)]
mod tests {
    use protocol::rpc::{HttpFilter, http_filter};
    use tokio::io::{DuplexStream, duplex};

    use super::*;

    fn held(port: u16, pattern: Option<&str>) -> HeldPort {
        let filter = pattern.map(|pattern| HttpFilter {
            filter: Some(http_filter::Filter::Header(pattern.to_owned())),
        });
        HeldPort {
            port,
            is_udp: false,
            is_mirrored: false,
            filter,
        }
    }

    async fn heard(pipe: &mut DuplexStream) -> Vec<String> {
        let length = pipe.read_u32().await.unwrap();
        let mut answer = vec![0; usize::try_from(length).unwrap()];
        pipe.read_exact(&mut answer).await.unwrap();
        let answer: NodeAnswer = serde_json::from_slice(&answer).unwrap();
        answer.ports.iter().map(ToString::to_string).collect()
    }

    #[tokio::test]
    async fn ports_are_told_at_once_and_whenever_they_change() {
        let first = AllHeld::from([(2, held(80, Some("x-user: anna"))), (1, held(80, None))]);
        let all = watch::Sender::new(first);
        let (mut operator, agent) = duplex(4096);
        let telling = tokio::spawn(tell_ports(agent, all.subscribe(), Patterns::Shown));
        let told = heard(&mut operator).await;
        assert_eq!(told, ["80 (steal)", "80 (steal, header x-user: anna)"]);
        // Two that are the same are one for people.
        all.send_replace(AllHeld::from([(3, held(90, None)), (4, held(90, None))]));
        assert_eq!(heard(&mut operator).await, ["90 (steal)"]);
        all.send_replace(AllHeld::new());
        assert_eq!(heard(&mut operator).await, [""; 0]);
        // The agent is gone.
        drop(all);
        telling.await.unwrap().unwrap();
        assert!(operator.read_u8().await.is_err());
    }

    #[tokio::test]
    async fn who_does_not_listen_any_more_is_not_told() {
        let all = watch::Sender::new(AllHeld::new());
        let (mut operator, agent) = duplex(4096);
        let telling = tokio::spawn(tell_ports(agent, all.subscribe(), Patterns::Hidden));
        assert_eq!(heard(&mut operator).await, [""; 0]);
        drop(operator);
        // It has ended, however that is seen.
        drop(telling.await.unwrap());
        assert_eq!(all.receiver_count(), 0);
    }

    #[test]
    fn a_message_is_bounded() {
        let pattern = "\u{10ffff}".repeat(1000);
        let many = (0..1000).map(|number| {
            let port = u16::try_from(number).unwrap();
            (number, held(port, Some(&pattern)))
        });
        let ports = told(&many.collect(), Patterns::Shown);
        let answer = NodeAnswer {
            ports,
            ..NodeAnswer::default()
        };
        let length = message(&answer).unwrap().len();
        assert!(length < usize::try_from(api::node::MOST_ANSWER_BYTES).unwrap());
    }
}

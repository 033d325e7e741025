//! What a session does to its monitor, without a session: for those who measure what that costs.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use interceptor::{Destination, Transport};
use monitor::Side;
use protocol::dns::message::{code, kind};

use super::{Answered, Monitor};

const REQUEST: &[u8] =
    b"GET /cart/17?currency=EUR HTTP/1.1\r\nHost: shop\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n";
const ANSWER: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello";

impl Monitor {
    /// The events of one round of [`rehearse`](Self::rehearse).
    pub const EVENTS_OF_A_ROUND: u32 = 6;

    /// A name is asked for, a connection through the target is made and used, and a request of the target's traffic is
    /// answered.
    pub fn rehearse(&self, round: u32) {
        let [.., high, low] = round.to_be_bytes();
        let address = IpAddr::V4(Ipv4Addr::new(10, 0, high, low));
        self.answered(Answered {
            host: "inventory.shop.svc.cluster.local".to_owned(),
            kind: kind::A,
            side: Side::Remote,
            code: code::NO_ERROR,
            addresses: &mut std::iter::once(address),
            cached: false,
            latency: Duration::from_micros(700),
        });
        let peer = SocketAddr::new(address, 8080);
        let names = || vec!["inventory.shop.svc.cluster.local".to_owned()];
        let attempt = self.attempt(Transport::Tcp, &Destination::Internet(peer), names);
        let outgoing = attempt.connected();
        if let Some(traffic) = &outgoing {
            traffic.application_sent(REQUEST);
            traffic.application_gets(ANSWER);
        }
        drop(outgoing);
        let incoming = self.arriving(80, false, true, peer, None).accepted();
        if let Some(traffic) = &incoming {
            traffic.application_gets(REQUEST);
            traffic.application_sent(ANSWER);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_has_as_many_events_as_it_says() {
        let monitor = Monitor::on();
        monitor.rehearse(7);
        let events = monitor.counters().events;
        assert_eq!(events, u64::from(Monitor::EVENTS_OF_A_ROUND));
        Monitor::off().rehearse(7);
    }
}

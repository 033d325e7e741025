//! Simulates the traffic of a session, for benchmarks of the monitor.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use interceptor::{Destination, Transport};
use monitor::Side;
use protocol::dns::message::{code, kind};

use super::{DnsOutcome, Monitor};

const REQUEST: &[u8] =
    b"GET /cart/17?currency=EUR HTTP/1.1\r\nHost: shop\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n";
const RESPONSE: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello";

impl Monitor {
    /// The number of events of one call of [`simulate_traffic`](Self::simulate_traffic).
    pub const EVENTS_PER_ROUND: u32 = 6;

    /// Simulates a DNS query, an outgoing connection with a request, and an incoming request with its response.
    pub fn simulate_traffic(&self, round: u32) {
        let [.., high, low] = round.to_be_bytes();
        let address = IpAddr::V4(Ipv4Addr::new(10, 0, high, low));
        self.dns_query(DnsOutcome {
            host: "inventory.shop.svc.cluster.local".to_owned(),
            kind: kind::A,
            side: Side::Remote,
            code: code::NO_ERROR,
            addresses: &mut std::iter::once(address),
            cached: false,
            latency: Duration::from_micros(700),
        });
        let peer = SocketAddr::new(address, 8080);
        let dns_names = || vec!["inventory.shop.svc.cluster.local".to_owned()];
        let attempt = self.attempt(Transport::Tcp, &Destination::Internet(peer), dns_names);
        let outgoing = attempt.connected();
        if let Some(traffic) = &outgoing {
            traffic.application_sent(REQUEST);
            traffic.application_received(RESPONSE);
        }
        drop(outgoing);
        let incoming = self.incoming(80, false, true, peer, None).accepted();
        if let Some(traffic) = &incoming {
            traffic.application_received(REQUEST);
            traffic.application_sent(RESPONSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_emits_the_documented_number_of_events() {
        let monitor = Monitor::on();
        monitor.simulate_traffic(7);
        let events = monitor.counters().events;
        assert_eq!(events, u64::from(Monitor::EVENTS_PER_ROUND));
        Monitor::off().simulate_traffic(7);
    }
}

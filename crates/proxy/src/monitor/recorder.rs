//! The recorded state of a session: counters, rows and the last events. The current time is an argument.

mod file_table;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use interceptor::Errno;
use monitor::{
    Counters, DnsRow, Entry, Event, Handling, Health, Keyword, Omitted, PeerRow, PortRow, Side,
    State,
};
use protocol::dns::message::{code, kind};

pub(super) use self::file_table::FileOperation;
use self::file_table::FileTable;
#[cfg(test)]
pub(super) use self::file_table::MAX_ROWS as MAX_FILES;
use super::{DnsOutcome, Peer, microseconds};

/// The number of events that are retained for new and slow subscribers.
pub(super) const RETAINED_EVENTS: usize = 1024;
/// The maximum number of rows of each kind. Problems of a session with more are visible in the first ones, too.
const MAX_DNS_NAMES: usize = 1024;
const MAX_PEERS: usize = 1024;

/// Counters, rows and events of a session.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    pub(super) counters: Counters,
    pub(super) health: Health,
    pub(super) env: Vec<(String, String)>,
    events: VecDeque<Arc<Entry>>,
    files: FileTable,
    /// The running processes that were reported.
    processes: BTreeSet<u32>,
    dns: HashMap<String, DnsRow>,
    peers: HashMap<Peer, PeerStats>,
    /// By whether the port is a UDP port, and its number.
    ports: BTreeMap<(bool, u16), PortRow>,
    omitted: Omitted,
}

#[derive(Debug, Default)]
struct PeerStats {
    dns_names: Vec<String>,
    connections: u64,
    open: u64,
    failed: u64,
    last_errno: Option<Errno>,
    sent: u64,
    received: u64,
    latency_us: u64,
}

impl Recorder {
    pub(super) fn emit(&mut self, now: u64, event: Event) {
        self.counters.events += 1;
        if self.events.len() == RETAINED_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(Arc::new(Entry {
            seq: self.counters.events,
            time: now,
            event,
        }));
    }

    /// Returns up to `max` events after the one with this number, and the number of events between that were overwritten.
    pub(super) fn after(&self, seq: u64, max: usize) -> (u64, Vec<Arc<Entry>>) {
        let next = seq + 1;
        let oldest = self.events.front().map_or(next, |entry| entry.seq);
        let missed = oldest.saturating_sub(next);
        let skip = usize::try_from(next.saturating_sub(oldest)).unwrap_or(usize::MAX);
        let entries = self.events.iter().skip(skip).take(max);
        (missed, entries.cloned().collect())
    }

    pub(super) fn file(&mut self, now: u64, performed: &FileOperation<'_>) {
        let totals = &mut self.counters.files;
        match performed.side {
            Side::Local => totals.local += 1,
            Side::Remote => totals.remote += 1,
            Side::Refused => totals.refused += 1,
        }
        if performed.side == Side::Remote && performed.errno.is_some() {
            totals.failed += 1;
        }
        if let Some(event) = self.files.record(performed) {
            self.emit(now, event);
        }
    }

    pub(super) fn file_prefetched(&mut self, path: &Path, bytes: usize) {
        self.files.prefetched(path, bytes);
    }

    /// A process runs. Emits an event unless the process was reported before.
    pub(super) fn process_started(&mut self, now: u64, pid: u32, name: impl FnOnce() -> String) {
        if self.processes.insert(pid) {
            let process_name = name();
            self.emit(now, Event::LayerConnected { pid, process_name });
        }
    }

    /// A process ends. Emits an event if its start was reported.
    pub(super) fn process_ended(&mut self, now: u64, pid: u32) {
        if self.processes.remove(&pid) {
            self.emit(now, Event::LayerDisconnected { pid });
        }
    }

    pub(super) fn processes(&self) -> Vec<u32> {
        self.processes.iter().copied().collect()
    }

    pub(super) fn dns_query(&mut self, now: u64, outcome: DnsOutcome<'_>) {
        let totals = &mut self.counters.dns;
        totals.queries += 1;
        totals.cached += u64::from(outcome.cached);
        let failed = outcome.code != code::NO_ERROR;
        totals.failed += u64::from(failed);
        let code = response_code_name(outcome.code);
        let addresses: Vec<String> = outcome.addresses.map(|ip| ip.to_string()).collect();
        let host = outcome.host;
        if let Some(row) = self.dns_row(&host, outcome.side) {
            row.queries += 1;
            row.cached += u64::from(outcome.cached);
            row.failed += u64::from(failed);
            row.last_code.clone_from(&code);
            if !addresses.is_empty() {
                row.addresses.clone_from(&addresses);
            }
        }
        if outcome.cached {
            return;
        }
        let event = Event::DnsQuery {
            host,
            kind: record_type_name(outcome.kind),
            side: outcome.side,
            code,
            addresses,
            latency_us: microseconds(outcome.latency),
        };
        self.emit(now, event);
    }

    fn dns_row(&mut self, host: &str, side: Side) -> Option<&mut DnsRow> {
        if !self.dns.contains_key(host) {
            if self.dns.len() >= MAX_DNS_NAMES {
                self.omitted.dns += 1;
                return None;
            }
            let row = DnsRow {
                host: host.to_owned(),
                side,
                queries: 0,
                cached: 0,
                failed: 0,
                last_code: Keyword::default(),
                addresses: Vec::new(),
            };
            self.dns.insert(host.to_owned(), row);
        }
        self.dns.get_mut(host)
    }

    pub(super) fn outgoing_connection(
        &mut self,
        now: u64,
        connection: u64,
        peer: &Peer,
        dns_names: Vec<String>,
        outcome: Result<(), Errno>,
        latency: Duration,
    ) {
        let latency_us = microseconds(latency);
        let totals = &mut self.counters.outgoing;
        totals.connections += 1;
        match outcome {
            Ok(()) => totals.open += 1,
            Err(_) => totals.failed += 1,
        }
        if !self.peers.contains_key(peer) && self.peers.len() >= MAX_PEERS {
            self.omitted.peers += 1;
        } else {
            let row = self.peers.entry(peer.clone()).or_default();
            row.connections += 1;
            row.latency_us += latency_us;
            row.dns_names.clone_from(&dns_names);
            match outcome {
                Ok(()) => row.open += 1,
                Err(errno) => {
                    row.failed += 1;
                    row.last_errno = Some(errno);
                }
            }
        }
        let event = Event::OutgoingConnection {
            connection,
            address: peer.address(),
            port: peer.port(),
            transport: peer.transport(),
            dns_names,
            errno: outcome.err().map(errno_name),
            latency_us,
        };
        self.emit(now, event);
    }

    pub(super) fn outgoing_closed(
        &mut self,
        now: u64,
        connection: u64,
        peer: &Peer,
        sent: u64,
        received: u64,
        duration: Duration,
    ) {
        let totals = &mut self.counters.outgoing;
        totals.open = totals.open.saturating_sub(1);
        if let Some(row) = self.peers.get_mut(peer) {
            row.open = row.open.saturating_sub(1);
            row.sent += sent;
            row.received += received;
        }
        let event = Event::OutgoingClosed {
            connection,
            address: peer.address(),
            port: peer.port(),
            sent,
            received,
            duration_us: microseconds(duration),
        };
        self.emit(now, event);
    }

    pub(super) fn port(&mut self, is_udp: bool, port: u16) -> Option<&mut PortRow> {
        self.ports.get_mut(&(is_udp, port))
    }

    /// Records a subscription. A renewed one keeps its counts. One in an additional cluster does not replace the row of all
    /// clusters.
    pub(super) fn subscribed(&mut self, is_udp: bool, row: PortRow) {
        let before = self.ports.remove(&(is_udp, row.port));
        let row = match before {
            None => row,
            Some(before) if row.cluster.is_some() => PortRow {
                problem: None,
                ..before
            },
            Some(before) => PortRow {
                connections: before.connections,
                requests: before.requests,
                passed_on: before.passed_on,
                last_traffic: before.last_traffic,
                ..row
            },
        };
        self.ports.insert((is_udp, row.port), row);
    }

    pub(super) fn ports(&self) -> Vec<PortRow> {
        self.ports.values().cloned().collect()
    }

    /// Records an incoming connection, accepted by the program or not.
    pub(super) fn incoming_connection(
        &mut self,
        now: u64,
        is_udp: bool,
        port: u16,
        accepted: bool,
    ) {
        let totals = &mut self.counters.incoming;
        totals.connections += 1;
        totals.open += u64::from(accepted);
        if let Some(row) = self.port(is_udp, port) {
            row.connections += 1;
            row.last_traffic = Some(now);
            row.problem = None;
        }
    }

    pub(super) fn incoming_closed(&mut self) {
        let totals = &mut self.counters.incoming;
        totals.open = totals.open.saturating_sub(1);
    }

    pub(super) fn request(
        &mut self,
        now: u64,
        port: u16,
        handling: Handling,
        status: Option<u16>,
        latency: Duration,
    ) {
        let totals = &mut self.counters.incoming;
        totals.requests += 1;
        totals.failed += u64::from(status.is_none_or(|status| status >= 500));
        match handling {
            Handling::Stolen => totals.stolen += 1,
            Handling::Mirrored => totals.mirrored += 1,
            // These are counted with the combined `Missed` event.
            Handling::PassedOn | Handling::Lost => {}
        }
        if status.is_some() {
            totals.latencies.add(microseconds(latency));
        }
        if let Some(row) = self.port(false, port) {
            row.requests += 1;
            row.last_traffic = Some(now);
        }
    }

    pub(super) fn passed_on(&mut self, port: u16, count: u64) {
        self.counters.incoming.passed_on += count;
        if let Some(row) = self.port(false, port) {
            row.passed_on += count;
        }
    }

    pub(super) fn state(&self) -> State {
        let peers = self.peers.iter().map(|(peer, row)| PeerRow {
            address: peer.address(),
            port: peer.port(),
            transport: peer.transport(),
            dns_names: row.dns_names.clone(),
            connections: row.connections,
            open: row.open,
            failed: row.failed,
            last_errno: row.last_errno.map(errno_name),
            sent: row.sent,
            received: row.received,
            latency_us: row.latency_us,
        });
        let mut omitted = self.omitted;
        self.files.count_omitted(&mut omitted);
        let mut state = State {
            counters: self.counters.clone(),
            files: self.files.list(),
            dns: self.dns.values().cloned().collect(),
            peers: peers.collect(),
            ports: self.ports(),
            env: self.env.clone(),
            omitted,
        };
        state.dns.sort_by(|one, other| one.host.cmp(&other.host));
        state.peers.sort_by(|one, other| {
            (&one.address, one.port, one.connections).cmp(&(
                &other.address,
                other.port,
                other.connections,
            ))
        });
        state
    }
}

/// The symbolic name: `ENOENT`.
fn errno_name(errno: Errno) -> String {
    format!("{errno:?}")
}

fn response_code_name(code: u8) -> Keyword {
    match code {
        0 => "NOERROR".into(),
        1 => "FORMERR".into(),
        2 => "SERVFAIL".into(),
        3 => "NXDOMAIN".into(),
        4 => "NOTIMP".into(),
        5 => "REFUSED".into(),
        other => format!("RCODE{other}").into(),
    }
}

fn record_type_name(number: u16) -> Keyword {
    match number {
        kind::A => "A".into(),
        kind::AAAA => "AAAA".into(),
        5 => "CNAME".into(),
        12 => "PTR".into(),
        15 => "MX".into(),
        16 => "TXT".into(),
        33 => "SRV".into(),
        65 => "HTTPS".into(),
        other => format!("TYPE{other}").into(),
    }
}

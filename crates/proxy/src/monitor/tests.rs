use std::net::{IpAddr, Ipv4Addr};

use interceptor::PathChoice;
use monitor::{Entry, Handling, Mode};
use protocol::dns::message::{code, kind};

use super::recorder::{MAX_FILES, RETAINED_EVENTS};
use super::*;
use crate::event::{
    IncomingEvent, IncomingEventKind, MissedReason, RedirectCheck, SubscriptionInfo,
};

fn events(monitor: &Monitor) -> Vec<Event> {
    let mut subscription = monitor.subscribe(Some(0)).unwrap();
    let batches = std::iter::from_fn(|| subscription.take());
    let entries = batches.flat_map(|batch| batch.entries);
    entries.map(|entry| entry.event.clone()).collect()
}

fn notice(monitor: &Monitor, text: &str) {
    monitor.notice(Level::Info, text);
}

#[test]
fn a_monitor_that_is_off_records_nothing() {
    let monitor = Monitor::off();
    notice(&monitor, "not recorded");
    monitor.path_decided(Path::new("/x"), Intent::Read, &PathChoice::Local);
    assert!(monitor.subscribe(None).is_none());
    assert_eq!(monitor.state(), State::default());
}

#[test]
fn files_are_counted_and_only_the_first_operation_of_a_kind_is_emitted() {
    let monitor = Monitor::on();
    let path = Path::new("/etc/shop");
    let read = files::Operation::Read;
    monitor.file_prefetched(path, 12);
    for errno in [None, None, Some(Errno::ENOENT), Some(Errno::EACCES)] {
        monitor.file(path, read, errno, Instant::now());
    }
    for intent in [Intent::Stat, Intent::Read, Intent::Read] {
        monitor.path_decided(Path::new("/usr/lib/x"), intent, &PathChoice::Local);
    }
    let refused = PathChoice::Refused(Errno::EROFS);
    monitor.path_decided(Path::new("/ro"), Intent::Write, &refused);
    let emitted: Vec<String> = events(&monitor)
        .into_iter()
        .map(|event| match event {
            Event::FileOp {
                path,
                operation,
                side,
                errno,
                bytes,
                ..
            } => format!("{operation} {path} {side:?} {errno:?} {bytes:?}"),
            other => panic!("{other:?}"),
        })
        .collect();
    let expected = [
        "read /etc/shop Remote None Some(12)",
        r#"read /etc/shop Remote Some("ENOENT") Some(12)"#,
        r#"write /ro Refused Some("EROFS") None"#,
    ];
    assert_eq!(emitted, expected);
    let state = monitor.state();
    let totals = &state.counters.files;
    assert_eq!(
        (totals.remote, totals.local, totals.refused, totals.failed),
        (4, 3, 1, 2)
    );
    assert_eq!(totals.read_bytes, 12);
    let row = &state.files[0];
    assert_eq!(
        (row.path.as_str(), row.operations, row.failed),
        ("/etc/shop", 4, 2)
    );
    assert_eq!(row.last_errno.as_deref(), Some("EACCES"));
}

#[test]
fn thousands_of_local_files_hide_no_file_of_the_target() {
    let monitor = Monitor::on();
    let path = |side: &str, number: usize| PathBuf::from(format!("/{side}/{number}"));
    let refused = PathChoice::Refused(Errno::ENOENT);
    for number in 0..MAX_FILES + 3 {
        monitor.path_decided(&path("local", number), Intent::Stat, &PathChoice::Local);
        monitor.path_decided(&path("refused", number), Intent::Stat, &refused);
    }
    let read = files::Operation::Read;
    let last = path("remote", MAX_FILES);
    for number in 0..=MAX_FILES {
        monitor.file(&path("remote", number), read, None, Instant::now());
    }
    // The one without a row has its events nevertheless, and each only once.
    for errno in [None, Some(Errno::EIO), Some(Errno::EIO)] {
        monitor.file(&last, read, errno, Instant::now());
    }
    let text = last.display().to_string();
    let of_last = |event: &Event| matches!(event, Event::FileOp { path, .. } if *path == text);
    let emitted = events(&monitor).into_iter().filter(of_last);
    assert_eq!(emitted.count(), 2);
    let state = monitor.state();
    let rows = |side| state.files.iter().filter(|row| row.side == side).count();
    for side in [Side::Remote, Side::Local, Side::Refused] {
        assert_eq!(rows(side), MAX_FILES, "{side:?}");
    }
    let expected = monitor::Omitted {
        remote_files: 4,
        local_files: 3,
        refused_files: 3,
        dns: 0,
        peers: 0,
    };
    assert_eq!(state.omitted, expected);
}

#[test]
fn a_process_is_reported_once_and_its_end_only_after_its_start() {
    let monitor = Monitor::on();
    let started = |pid| monitor.process_started(pid, || "sh".to_owned());
    started(7);
    started(7);
    monitor.process_ended(8);
    assert_eq!(monitor.processes(), [7]);
    monitor.process_ended(7);
    monitor.process_ended(7);
    started(7);
    let connected = Event::LayerConnected {
        pid: 7,
        process_name: "sh".to_owned(),
    };
    let ended = Event::LayerDisconnected { pid: 7 };
    assert_eq!(events(&monitor), [connected.clone(), ended, connected]);
}

#[test]
fn cached_dns_queries_are_only_counted() {
    let monitor = Monitor::on();
    let query = |cached, code| {
        monitor.dns_query(DnsOutcome {
            host: "db.shop".to_owned(),
            kind: kind::A,
            side: Side::Remote,
            code,
            addresses: &mut [IpAddr::V4(Ipv4Addr::LOCALHOST)].into_iter(),
            cached,
            latency: Duration::from_micros(5),
        });
    };
    query(false, code::NO_ERROR);
    query(true, code::NO_ERROR);
    query(false, code::NO_NAME);
    let codes: Vec<monitor::Keyword> = events(&monitor)
        .into_iter()
        .filter_map(|event| match event {
            Event::DnsQuery { code, .. } => Some(code),
            _ => None,
        })
        .collect();
    assert_eq!(codes, ["NOERROR", "NXDOMAIN"]);
    let row = &monitor.state().dns[0];
    assert_eq!((row.queries, row.cached, row.failed), (3, 1, 1));
}

#[test]
fn a_connection_is_recorded_until_its_end() {
    let monitor = Monitor::on();
    let destination = Destination::Internet(SocketAddr::from(([10, 0, 0, 1], 5432)));
    let attempt = || monitor.attempt(Transport::Tcp, &destination, || vec!["db".to_owned()]);
    attempt().failed(Errno::ECONNREFUSED);
    let traffic = attempt().connected().unwrap();
    traffic.application_sent(b"abc");
    traffic.application_received(b"result");
    let row = monitor.state().peers.remove(0);
    assert_eq!((row.connections, row.open, row.failed), (2, 1, 1));
    assert_eq!(monitor.counters().outgoing.sent_bytes, 3);
    drop(traffic);
    let row = monitor.state().peers.remove(0);
    assert_eq!((row.open, row.sent, row.received), (0, 3, 6));
    let emitted = events(&monitor);
    assert!(
        matches!(&emitted[0], Event::OutgoingConnection { errno: Some(errno), dns_names, .. } if errno == "ECONNREFUSED" && dns_names == &["db"])
    );
    assert!(matches!(
        emitted[2],
        Event::OutgoingClosed {
            sent: 3,
            received: 6,
            ..
        }
    ));
}

#[test]
fn requests_are_recorded_with_their_port() {
    let monitor = Monitor::on();
    let record = |kind| {
        monitor.record_event(&crate::Event::Incoming(IncomingEvent {
            port: 80,
            is_udp: false,
            agent: None,
            is_expected: true,
            kind,
        }));
    };
    record(IncomingEventKind::Subscribed(SubscriptionInfo {
        local_port: 8080,
        steals: true,
        filter: Some("are GET".to_owned()),
        check: RedirectCheck::Loopback,
        mesh: None,
        flushed: 0,
        is_renewed: false,
        agents: 1,
        clusters: Vec::new(),
        earlier: Vec::new(),
        is_served: true,
    }));
    record(IncomingEventKind::Silent {
        seconds: 60,
        check: RedirectCheck::Loopback,
    });
    assert!(monitor.ports()[0].problem.is_some());
    let client = SocketAddr::from(([10, 0, 0, 9], 4000));
    let traffic = monitor
        .incoming(80, false, true, client, None)
        .accepted()
        .unwrap();
    traffic.application_received(b"GET /cart HTTP/1.1\r\n\r\n");
    traffic.application_sent(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n");
    drop(traffic);
    monitor.incoming(80, false, true, client, None).refused();
    let missed = protocol::rpc::MissedTraffic {
        reason: protocol::rpc::MissedReason::TooSlow.into(),
        method: "POST".to_owned(),
        path: "/slow".to_owned(),
        lost: false,
    };
    monitor.passed_on(80, &missed, Some(&"eu".to_owned()));
    record(IncomingEventKind::Missed {
        reason: MissedReason::TooSlow,
        count: 2,
        lost: 1,
    });
    let port = monitor.ports().remove(0);
    assert_eq!((port.mode, port.local_port), (Mode::Steal, 8080));
    assert_eq!((port.connections, port.requests, port.passed_on), (2, 1, 2));
    let totals = monitor.counters().incoming;
    assert_eq!((totals.stolen, totals.failed, totals.open), (1, 1, 0));
    let requests = events(&monitor)
        .into_iter()
        .filter_map(|event| match event {
            Event::IncomingRequest {
                path,
                status,
                handling,
                cluster,
                ..
            } => Some((path, status, handling, cluster)),
            _ => None,
        });
    let expected = [
        ("/cart".to_owned(), Some(503), Handling::Stolen, None),
        (
            "/slow".to_owned(),
            None,
            Handling::PassedOn,
            Some("eu".to_owned()),
        ),
    ];
    assert_eq!(requests.collect::<Vec<_>>(), expected);
}

#[test]
fn a_cluster_that_rejoins_does_not_replace_the_row_of_all_clusters() {
    let monitor = Monitor::on();
    let record = |cluster: Option<&str>, clusters: &[&str], check| {
        let agent = cluster.map(|cluster| crate::AgentId {
            cluster: Some(cluster.to_owned()),
            ..crate::AgentId::default()
        });
        monitor.record_event(&crate::Event::Incoming(IncomingEvent {
            port: 80,
            is_udp: false,
            agent,
            is_expected: true,
            kind: IncomingEventKind::Subscribed(SubscriptionInfo {
                local_port: 8080,
                steals: true,
                filter: None,
                check,
                mesh: None,
                flushed: 0,
                is_renewed: cluster.is_some(),
                agents: clusters.len(),
                clusters: clusters.iter().map(|name| (*name).to_owned()).collect(),
                earlier: Vec::new(),
                is_served: true,
            }),
        }));
    };
    record(None, &["east", "west"], RedirectCheck::External);
    record(Some("west"), &["west"], RedirectCheck::Loopback);
    let port = monitor.ports().remove(0);
    assert_eq!(
        (port.cluster, port.redirect_check.as_str()),
        (None, "external")
    );
    let clusters = events(&monitor).into_iter().map(|event| match event {
        Event::PortSubscription { cluster, .. } => cluster,
        other => panic!("{other:?}"),
    });
    let expected = [Some("east, west".to_owned()), Some("west".to_owned())];
    assert_eq!(clusters.collect::<Vec<_>>(), expected);
}

#[test]
fn health_follows_the_events() {
    let monitor = Monitor::on();
    let status = || monitor.health().status;
    monitor.record_event(&crate::Event::AgentLost {
        agent: crate::AgentId::default(),
        reason: "killed".to_owned(),
    });
    assert_eq!(status(), monitor::Status::Reconnecting);
    monitor.record_event(&crate::Event::SessionRestored(crate::AgentId::default()));
    assert_eq!(status(), monitor::Status::Healthy);
    monitor.record_event(&crate::Event::TargetExited);
    assert_eq!(status(), monitor::Status::Lost);
}

#[test]
fn subscribers_resume_and_learn_how_many_events_they_missed() {
    let monitor = Monitor::on();
    for number in 1..=5 {
        notice(&monitor, &number.to_string());
    }
    let numbers =
        |entries: &[Arc<Entry>]| entries.iter().map(|entry| entry.seq).collect::<Vec<_>>();
    let mut late = monitor.subscribe(Some(3)).unwrap();
    let batch = late.take().unwrap();
    assert_eq!((batch.missed, numbers(&batch.entries)), (0, vec![4, 5]));
    assert_eq!(late.take(), None);
    for _ in 0..RETAINED_EVENTS + 7 {
        notice(&monitor, "more");
    }
    let batch = late.take().unwrap();
    assert_eq!((batch.missed, batch.entries[0].seq), (7, 13));
    // A new subscriber has not missed earlier events.
    let mut new = monitor.subscribe(None).unwrap();
    assert_eq!(new.take().unwrap().missed, 0);
    // A subscriber with a number of another session begins with the next event.
    let mut other = monitor.subscribe(Some(1_000_000)).unwrap();
    assert_eq!(other.take(), None);
}

#[tokio::test]
async fn a_waiting_subscriber_is_woken() {
    let monitor = Monitor::on();
    let mut subscription = monitor.subscribe(None).unwrap();
    let next = tokio::spawn(async move { subscription.next().await });
    tokio::task::yield_now().await;
    notice(&monitor, "now");
    let batch = next.await.unwrap();
    assert_eq!(batch.entries[0].seq, 1);
}

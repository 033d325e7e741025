use std::net::{IpAddr, Ipv4Addr};

use interceptor::PathChoice;
use monitor::{Entry, Handling, Mode};
use protocol::dns::message::{code, kind};

use super::recorder::KEPT;
use super::*;
use crate::event::{Checked, IncomingEvent, MissedReason, News, Subscribed};

fn events(monitor: &Monitor) -> Vec<Event> {
    let mut subscription = monitor.subscribe(Some(0)).unwrap();
    let entries = subscription
        .take()
        .map_or_else(Vec::new, |batch| batch.entries);
    entries.iter().map(|entry| entry.event.clone()).collect()
}

fn notice(monitor: &Monitor, text: &str) {
    monitor.notice(Level::Info, text);
}

#[test]
fn a_monitor_that_is_off_knows_nothing() {
    let monitor = Monitor::off();
    notice(&monitor, "nobody hears this");
    monitor.judged(Path::new("/x"), Intent::Read, &PathChoice::Local);
    assert!(monitor.subscribe(None).is_none());
    assert_eq!(monitor.state(), State::default());
}

#[test]
fn files_are_counted_and_only_the_first_of_a_kind_is_told() {
    let monitor = Monitor::on();
    let path = Path::new("/etc/shop");
    let read = files::Operation::Read;
    monitor.file_came(path, 12);
    for errno in [None, None, Some(Errno::ENOENT), Some(Errno::EACCES)] {
        monitor.file(path, read, errno, Instant::now());
    }
    for intent in [Intent::Look, Intent::Read, Intent::Read] {
        monitor.judged(Path::new("/usr/lib/x"), intent, &PathChoice::Local);
    }
    let refused = PathChoice::Refused(Errno::EROFS);
    monitor.judged(Path::new("/ro"), Intent::Write, &refused);
    let told: Vec<String> = events(&monitor)
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
    assert_eq!(told, expected);
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
fn names_from_memory_are_counted_only() {
    let monitor = Monitor::on();
    let ask = |cached, code| {
        monitor.answered(Answered {
            host: "db.shop".to_owned(),
            kind: kind::A,
            side: Side::Remote,
            code,
            addresses: &mut [IpAddr::V4(Ipv4Addr::LOCALHOST)].into_iter(),
            cached,
            latency: Duration::from_micros(5),
        });
    };
    ask(false, code::NO_ERROR);
    ask(true, code::NO_ERROR);
    ask(false, code::NO_NAME);
    let codes: Vec<monitor::Word> = events(&monitor)
        .into_iter()
        .filter_map(|event| match event {
            Event::DnsQuery { code, .. } => Some(code),
            _ => None,
        })
        .collect();
    assert_eq!(codes, ["NOERROR", "NXDOMAIN"]);
    let row = &monitor.state().names[0];
    assert_eq!((row.queries, row.cached, row.failed), (3, 1, 1));
}

#[test]
fn a_connection_is_followed_to_its_end() {
    let monitor = Monitor::on();
    let destination = Destination::Internet(SocketAddr::from(([10, 0, 0, 1], 5432)));
    let attempt = || monitor.attempt(Transport::Tcp, &destination, || vec!["db".to_owned()]);
    attempt().failed(Errno::ECONNREFUSED);
    let traffic = attempt().connected().unwrap();
    traffic.application_sent(b"abc");
    traffic.application_gets(b"answer");
    let row = monitor.state().peers.remove(0);
    assert_eq!((row.connections, row.open, row.failed), (2, 1, 1));
    assert_eq!(monitor.counters().outgoing.sent_bytes, 3);
    drop(traffic);
    let row = monitor.state().peers.remove(0);
    assert_eq!((row.open, row.sent, row.received), (0, 3, 6));
    let told = events(&monitor);
    assert!(
        matches!(&told[0], Event::OutgoingConnection { errno: Some(errno), names, .. } if errno == "ECONNREFUSED" && names == &["db"])
    );
    assert!(matches!(
        told[2],
        Event::OutgoingClosed {
            sent: 3,
            received: 6,
            ..
        }
    ));
}

#[test]
fn requests_are_told_with_their_port() {
    let monitor = Monitor::on();
    let told = |news| {
        monitor.told(&crate::Event::Incoming(IncomingEvent {
            port: 80,
            is_udp: false,
            agent: None,
            news,
        }));
    };
    told(News::Subscribed(Subscribed {
        local: 8080,
        steals: true,
        filter: Some("are GET".to_owned()),
        checked: Checked::Loopback,
        mesh: None,
        flushed: 0,
        again: false,
        agents: 1,
        clusters: Vec::new(),
        earlier: Vec::new(),
    }));
    told(News::Silent {
        seconds: 60,
        checked: Checked::Loopback,
    });
    assert!(monitor.ports()[0].problem.is_some());
    let client = SocketAddr::from(([10, 0, 0, 9], 4000));
    let traffic = monitor
        .arriving(80, false, true, client, None)
        .accepted()
        .unwrap();
    traffic.application_gets(b"GET /cart HTTP/1.1\r\n\r\n");
    traffic.application_sent(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n");
    drop(traffic);
    monitor.arriving(80, false, true, client, None).refused();
    let missed = protocol::rpc::Missed {
        reason: protocol::rpc::MissedReason::TooSlow.into(),
        method: "POST".to_owned(),
        path: "/slow".to_owned(),
        lost: false,
    };
    monitor.passed_on(80, &missed, Some(&"eu".to_owned()));
    told(News::Missed {
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
fn a_cluster_that_comes_back_does_not_take_a_port_for_itself() {
    let monitor = Monitor::on();
    let told = |cluster: Option<&str>, clusters: &[&str], checked| {
        let agent = cluster.map(|cluster| crate::AgentId {
            cluster: Some(cluster.to_owned()),
            ..crate::AgentId::default()
        });
        monitor.told(&crate::Event::Incoming(IncomingEvent {
            port: 80,
            is_udp: false,
            agent,
            news: News::Subscribed(Subscribed {
                local: 8080,
                steals: true,
                filter: None,
                checked,
                mesh: None,
                flushed: 0,
                again: cluster.is_some(),
                agents: clusters.len(),
                clusters: clusters.iter().map(|name| (*name).to_owned()).collect(),
                earlier: Vec::new(),
            }),
        }));
    };
    told(None, &["east", "west"], Checked::Outside);
    told(Some("west"), &["west"], Checked::Loopback);
    let port = monitor.ports().remove(0);
    assert_eq!((port.cluster, port.checked.as_str()), (None, "outside"));
    let clusters = events(&monitor).into_iter().map(|event| match event {
        Event::PortSubscription { cluster, .. } => cluster,
        other => panic!("{other:?}"),
    });
    let expected = [Some("east, west".to_owned()), Some("west".to_owned())];
    assert_eq!(clusters.collect::<Vec<_>>(), expected);
}

#[test]
fn health_follows_what_the_user_is_told() {
    let monitor = Monitor::on();
    let status = || monitor.health().status;
    monitor.told(&crate::Event::AgentLost {
        agent: crate::AgentId::default(),
        reason: "killed".to_owned(),
    });
    assert_eq!(status(), monitor::Status::Reconnecting);
    monitor.told(&crate::Event::SessionRestored(crate::AgentId::default()));
    assert_eq!(status(), monitor::Status::Healthy);
    monitor.told(&crate::Event::TargetGone);
    assert_eq!(status(), monitor::Status::Lost);
}

#[test]
fn who_comes_back_gets_the_rest_and_who_is_too_slow_is_told_how_much_is_gone() {
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
    for _ in 0..KEPT + 7 {
        notice(&monitor, "more");
    }
    let batch = late.take().unwrap();
    assert_eq!((batch.missed, batch.entries[0].seq), (7, 13));
    // One who is new does not miss what was before it.
    let mut new = monitor.subscribe(None).unwrap();
    assert_eq!(new.take().unwrap().missed, 0);
    // One who knows a session of another time begins with the next event.
    let mut other = monitor.subscribe(Some(1_000_000)).unwrap();
    assert_eq!(other.take(), None);
}

#[tokio::test]
async fn who_waits_is_woken() {
    let monitor = Monitor::on();
    let mut subscription = monitor.subscribe(None).unwrap();
    let waiting = tokio::spawn(async move { subscription.next().await });
    tokio::task::yield_now().await;
    notice(&monitor, "now");
    let batch = waiting.await.unwrap();
    assert_eq!(batch.entries[0].seq, 1);
}

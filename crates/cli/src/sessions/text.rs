//! Sessions and events in words.

use jiff::Timestamp;
use monitor::{Entry, Event, Handling, Level, Mode, SessionInfo, Side};

use super::table::{age, status};

pub(super) fn info(info: &SessionInfo) -> String {
    let processes: Vec<String> = info
        .processes
        .iter()
        .map(|process| format!("{} ({})", process.process_name, process.pid))
        .collect();
    let counters = &info.counters;
    let health = match &info.health.reason {
        Some(reason) => format!("{}: {reason}", status(info.health.status)),
        None => status(info.health.status).to_owned(),
    };
    let mut lines = vec![
        ("session", info.session_id.clone()),
        ("target", info.target.clone()),
        ("command", info.command.join(" ")),
        ("processes", processes.join(", ")),
        (
            "started",
            format!(
                "{} ({} ago)",
                info.started_at,
                age(&info.started_at, Timestamp::now())
            ),
        ),
        ("health", health),
        (
            "configuration",
            info.config_path
                .clone()
                .unwrap_or_else(|| "no file".to_owned()),
        ),
        (
            "files",
            format!(
                "{} at the target ({} failed), {} here",
                counters.files.remote, counters.files.failed, counters.files.local
            ),
        ),
        (
            "names",
            format!(
                "{} asked, {} failed",
                counters.names.queries, counters.names.failed
            ),
        ),
        (
            "outgoing",
            format!(
                "{} connections, {} open, {} failed",
                counters.outgoing.connections, counters.outgoing.open, counters.outgoing.failed
            ),
        ),
        (
            "incoming",
            format!(
                "{} requests, {} failed, {} passed on",
                counters.incoming.requests, counters.incoming.failed, counters.incoming.passed_on
            ),
        ),
    ];
    if !info.clusters.is_empty() {
        let way = if info.is_operator {
            ", through the operator"
        } else {
            ""
        };
        lines.insert(2, ("clusters", info.clusters.join(", ") + way));
    }
    for port in &info.ports {
        let filter = port.filter.as_deref().unwrap_or("are anything");
        let what = format!("{}: {} requests that {filter}", port.port, mode(port.mode));
        lines.push(("port", what));
    }
    let text = lines
        .iter()
        .map(|(name, value)| format!("{name:14} {value}\n"));
    text.collect()
}

/// A line for an event.
pub(super) fn event(entry: &Entry) -> String {
    let time = i64::try_from(entry.time).unwrap_or_default();
    let time = Timestamp::from_millisecond(time).map(|time| format!("{time:.3}"));
    format!(
        "{} {:>6} {}",
        time.unwrap_or_default(),
        entry.seq,
        words(&entry.event)
    )
}

fn words(event: &Event) -> String {
    match event {
        Event::FileOp {
            path,
            operation,
            side,
            errno,
            ..
        } => format!(
            "file     {operation} {path} ({}){}",
            side_name(*side),
            failed(errno.as_deref())
        ),
        Event::DnsQuery {
            host,
            kind,
            code,
            addresses,
            ..
        } => format!("name     {host} {kind} {code} {}", addresses.join(" ")),
        Event::OutgoingConnection {
            address,
            port,
            names,
            errno,
            ..
        } => {
            let names = if names.is_empty() {
                String::new()
            } else {
                format!(" ({})", names.join(", "))
            };
            format!(
                "outgoing {address}:{port}{names}{}",
                failed(errno.as_deref())
            )
        }
        Event::OutgoingClosed {
            address,
            port,
            sent,
            received,
            ..
        } => format!("outgoing {address}:{port} closed, {sent} bytes sent, {received} received"),
        Event::PortSubscription {
            port,
            local_port,
            mode: way,
            filter,
            cluster,
            ..
        } => {
            let place = in_cluster(cluster.as_deref());
            let filter = filter.as_deref().map(|filter| format!(" that {filter}"));
            let (way, filter) = (mode(*way), filter.unwrap_or_default());
            format!("incoming port {port}{place} (program {local_port}): {way} requests{filter}")
        }
        Event::IncomingConnection {
            port,
            client,
            accepted,
            cluster,
            ..
        } => {
            let place = in_cluster(cluster.as_deref());
            let taken = if *accepted {
                ""
            } else {
                ": the program did not take it"
            };
            format!("incoming port {port}{place} connection from {client}{taken}")
        }
        Event::IncomingClosed {
            port,
            received,
            sent,
            ..
        } => format!("incoming port {port} closed, {received} bytes received, {sent} sent"),
        Event::IncomingRequest {
            port,
            method,
            path,
            handling,
            reason: Some(reason),
            cluster,
            ..
        } => {
            let (how, place) = (handling_name(*handling), in_cluster(cluster.as_deref()));
            format!("request  port {port}{place} {method} {path} {how}: {reason}")
        }
        Event::IncomingRequest {
            port,
            method,
            path,
            status,
            handling,
            latency_us,
            cluster,
            ..
        } => {
            let status = status.map_or_else(|| "no answer".to_owned(), |status| status.to_string());
            let milliseconds = *latency_us / 1000;
            let (how, place) = (handling_name(*handling), in_cluster(cluster.as_deref()));
            format!(
                "request  port {port}{place} {method} {path} {status} {milliseconds} ms ({how})"
            )
        }
        Event::RequestsPassedOn {
            port,
            count,
            reason,
            cluster,
            ..
        } => {
            let place = in_cluster(cluster.as_deref());
            format!("request  port {port}{place}: {count} passed on: {reason}")
        }
        Event::EnvVar { vars } => format!("env      {} variables of the target", vars.len()),
        Event::LayerConnected { pid, process_name } => {
            format!("process  {process_name} ({pid}) started")
        }
        Event::LayerDisconnected { pid } => format!("process  {pid} ended"),
        Event::Notice { level, text } => match level {
            Level::Info => format!("note     {text}"),
            Level::Warning => format!("warning  {text}"),
        },
        other => format!("{other:?}"),
    }
}

/// With several clusters, the one in which it was.
fn in_cluster(cluster: Option<&str>) -> String {
    cluster.map_or_else(String::new, |cluster| format!(" in {cluster}"))
}

fn failed(errno: Option<&str>) -> String {
    errno.map_or_else(String::new, |errno| format!(": {errno}"))
}

fn side_name(side: Side) -> &'static str {
    match side {
        Side::Local => "here",
        Side::Remote => "target",
        Side::Refused => "refused",
    }
}

fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Steal => "stealing",
        Mode::Mirror => "copying",
    }
}

fn handling_name(handling: Handling) -> &'static str {
    match handling {
        Handling::Stolen => "stolen",
        Handling::Mirrored => "mirrored",
        Handling::PassedOn => "passed on",
        Handling::Lost => "lost",
    }
}

//! Sessions and events as text.

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
            "dns",
            format!(
                "{} queries, {} failed",
                counters.dns.queries, counters.dns.failed
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
        let access_path = if info.is_operator {
            ", through the operator"
        } else {
            ""
        };
        lines.insert(2, ("clusters", info.clusters.join(", ") + access_path));
    }
    for port in &info.ports {
        let filter = port
            .filter
            .as_deref()
            .map(|filter| format!(" that {filter}"));
        let (mode, filter) = (mode(port.mode), filter.unwrap_or_default());
        lines.push(("port", format!("{}: {mode} requests{filter}", port.port)));
    }
    let text = lines
        .iter()
        .map(|(name, value)| format!("{name:14} {value}\n"));
    text.collect()
}

/// One line for an event.
pub(super) fn event(entry: &Entry) -> String {
    let time = i64::try_from(entry.time).unwrap_or_default();
    let time = Timestamp::from_millisecond(time).map(|time| format!("{time:.3}"));
    format!(
        "{} {:>6} {}",
        time.unwrap_or_default(),
        entry.seq,
        describe(&entry.event)
    )
}

fn describe(event: &Event) -> String {
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
        } => format!("dns      {host} {kind} {code} {}", addresses.join(" ")),
        Event::OutgoingConnection {
            address,
            port,
            dns_names,
            errno,
            ..
        } => {
            let names = if dns_names.is_empty() {
                String::new()
            } else {
                format!(" ({})", dns_names.join(", "))
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
            mode: port_mode,
            filter,
            cluster,
            ..
        } => {
            let location = in_cluster(cluster.as_deref());
            let filter = filter.as_deref().map(|filter| format!(" that {filter}"));
            let (mode, filter) = (mode(*port_mode), filter.unwrap_or_default());
            format!(
                "incoming port {port}{location} (program {local_port}): {mode} requests{filter}"
            )
        }
        Event::IncomingConnection {
            port,
            client,
            accepted,
            cluster,
            ..
        } => {
            let location = in_cluster(cluster.as_deref());
            let outcome = if *accepted {
                ""
            } else {
                ": the program did not accept it"
            };
            format!("incoming port {port}{location} connection from {client}{outcome}")
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
            let (how, location) = (handling_name(*handling), in_cluster(cluster.as_deref()));
            format!("request  port {port}{location} {method} {path} {how}: {reason}")
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
            let status =
                status.map_or_else(|| "no response".to_owned(), |status| status.to_string());
            let milliseconds = *latency_us / 1000;
            let (how, location) = (handling_name(*handling), in_cluster(cluster.as_deref()));
            format!(
                "request  port {port}{location} {method} {path} {status} {milliseconds} ms ({how})"
            )
        }
        Event::RequestsPassedOn {
            port,
            count,
            reason,
            cluster,
            ..
        } => {
            let location = in_cluster(cluster.as_deref());
            format!("request  port {port}{location}: {count} passed on: {reason}")
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

/// The cluster of an event, if there are several.
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
        Mode::Mirror => "mirroring",
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

//! Sessions and settings as text tables.

use jiff::Timestamp;
use monitor::{ConfigValue, SessionInfo, Status};

pub(super) fn sessions(sessions: &[SessionInfo], now: Timestamp) -> String {
    let rows = sessions.iter().map(|info| {
        let ports: Vec<String> = info
            .ports
            .iter()
            .map(|port| port.port.to_string())
            .collect();
        vec![
            info.session_id.clone(),
            info.target.clone(),
            info.command.first().cloned().unwrap_or_default(),
            age(&info.started_at, now),
            if ports.is_empty() {
                "-".to_owned()
            } else {
                ports.join(",")
            },
            info.counters.incoming.requests.to_string(),
            status(info.health.status).to_owned(),
        ]
    });
    let head = [
        "ID", "TARGET", "PROGRAM", "AGE", "PORTS", "REQUESTS", "HEALTH",
    ];
    columns(&head, rows.collect())
}

pub(super) fn config(config: &[ConfigValue]) -> String {
    let rows = config
        .iter()
        .map(|value| vec![value.key.clone(), value.value.clone(), value.reason.clone()]);
    columns(&["KEY", "VALUE", "REASON"], rows.collect())
}

pub(super) fn status(status: Status) -> &'static str {
    match status {
        Status::Healthy => "healthy",
        Status::Reconnecting => "reconnecting",
        Status::Lost => "lost",
        Status::Ended => "ended",
        Status::Unresponsive => "unresponsive",
        Status::OtherVersion => "other version",
        Status::Unknown => "unknown",
    }
}

/// The format of `kubectl`: the largest two units.
pub(super) fn age(started_at: &str, now: Timestamp) -> String {
    let Ok(start) = started_at.parse::<Timestamp>() else {
        return "-".to_owned();
    };
    let seconds = now.duration_since(start).as_secs().max(0);
    let (days, hours, minutes) = (seconds / 86400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{}s", seconds % 60),
        (0, _, _) => format!("{hours}h{minutes}m"),
        _ => format!("{days}d{hours}h"),
    }
}

/// Aligns columns up to a maximal width.
fn columns(head: &[&str], rows: Vec<Vec<String>>) -> String {
    const MAX_WIDTH: usize = 60;
    let head = head.iter().map(|name| (*name).to_owned()).collect();
    let all: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
    let width = |column: usize| {
        let cells = all.iter().filter_map(|row| row.get(column));
        let widths = cells.map(|cell| cell.chars().count());
        widths.max().unwrap_or(0).min(MAX_WIDTH)
    };
    let mut text = String::new();
    for row in &all {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = width(column);
            line.push_str(&format!("{cell:width$}  "));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_two_units() {
        let now: Timestamp = "2030-01-03T00:00:00Z".parse().unwrap();
        for (start, expected) in [
            ("2030-01-02T23:59:18Z", "42s"),
            ("2030-01-02T23:50:18Z", "9m42s"),
            ("2030-01-02T20:50:00Z", "3h10m"),
            ("2030-01-01T20:50:00Z", "1d3h"),
            ("2030-01-04T00:00:00Z", "0s"),
            ("nonsense", "-"),
        ] {
            assert_eq!(age(start, now), expected);
        }
    }

    #[test]
    fn columns_line_up() {
        let value = |key: &str, value: &str| ConfigValue {
            key: key.to_owned(),
            value: value.to_owned(),
            reason: "default".to_owned(),
            is_default: true,
        };
        assert_eq!(
            config(&[value("api", "true"), value("feature.hostname", "1")]),
            "KEY               VALUE  REASON\n\
             api               true   default\n\
             feature.hostname  1      default\n"
        );
    }
}

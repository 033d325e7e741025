//! Recordings: a session in a file, with one JSON object in each line, in chronological order.

use serde::{Deserialize, Serialize};

use crate::counters::Counters;
use crate::event::Entry;
use crate::info::{ConfigValue, SessionInfo};
use crate::state::State;

/// A line of a recording. The first one is a `Begin`. A recording that was interrupted has no `End`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "snake_case")]
pub enum RecordingLine {
    Begin {
        protocol_version: u32,
        info: Box<SessionInfo>,
        config: Vec<ConfigValue>,
    },
    Event(Entry),
    Counters {
        /// Milliseconds since 1970.
        time: u64,
        counters: Box<Counters>,
    },
    Missed {
        count: u64,
    },
    End {
        time: u64,
        state: Box<State>,
    },
}

/// A whole recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recording {
    pub info: SessionInfo,
    pub config: Vec<ConfigValue>,
    pub entries: Vec<Entry>,
    pub missed: u64,
    pub state: State,
    pub ended: Option<u64>,
}

/// Why a recording cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordingError {
    /// The text does not begin like a recording.
    NotARecording,
    /// The recording has a later version.
    UnsupportedVersion(u32),
}

impl std::fmt::Display for RecordingError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotARecording => formatter.write_str(
                "it does not begin like a recording; `standin exec --record FILE` makes one",
            ),
            Self::UnsupportedVersion(version) => write!(
                formatter,
                "it has version {version}, and this program supports {}; use a newer release",
                crate::PROTOCOL_VERSION
            ),
        }
    }
}

impl std::error::Error for RecordingError {}

impl Recording {
    /// Reads all complete lines. An incomplete line ends the recording.
    pub fn parse(text: &str) -> Result<Self, RecordingError> {
        let mut lines = text.lines();
        let first = lines.next().unwrap_or_default();
        let Ok(RecordingLine::Begin {
            protocol_version,
            info,
            config,
        }) = serde_json::from_str(first)
        else {
            return Err(RecordingError::NotARecording);
        };
        if protocol_version > crate::PROTOCOL_VERSION {
            return Err(RecordingError::UnsupportedVersion(protocol_version));
        }
        let mut recording = Recording {
            info: *info,
            config,
            entries: Vec::new(),
            missed: 0,
            state: State::default(),
            ended: None,
        };
        for line in lines {
            match serde_json::from_str(line) {
                Ok(RecordingLine::Event(entry)) => recording.entries.push(entry),
                Ok(RecordingLine::Counters { counters, .. }) => {
                    recording.state.counters = *counters;
                }
                Ok(RecordingLine::Missed { count }) => recording.missed += count,
                Ok(RecordingLine::End { time, state }) => {
                    recording.state = *state;
                    recording.ended = Some(time);
                }
                Ok(RecordingLine::Begin { .. }) => {}
                Err(_) => break,
            }
        }
        Ok(recording)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Event, Level};
    use crate::info::Health;

    fn begin() -> RecordingLine {
        RecordingLine::Begin {
            protocol_version: crate::PROTOCOL_VERSION,
            info: Box::new(SessionInfo {
                session_id: "a1".to_owned(),
                protocol_version: crate::PROTOCOL_VERSION,
                target: "process/1".to_owned(),
                started_at: "2030-01-01T00:00:00Z".to_owned(),
                standin_version: "1.2.3".to_owned(),
                is_operator: false,
                clusters: Vec::new(),
                processes: Vec::new(),
                command: vec!["app".to_owned()],
                supervisor: 2,
                config_path: None,
                health: Health::default(),
                ports: Vec::new(),
                counters: Counters::default(),
            }),
            config: Vec::new(),
        }
    }

    #[test]
    fn a_recording_is_read_to_its_last_complete_line() {
        let event = RecordingLine::Event(Entry {
            seq: 1,
            time: 2,
            event: Event::Notice {
                level: Level::Info,
                text: "hello".to_owned(),
            },
        });
        let end = RecordingLine::End {
            time: 9,
            state: Box::default(),
        };
        let lines = [begin(), event, RecordingLine::Missed { count: 3 }, end];
        let lines = lines.map(|line| serde_json::to_string(&line).unwrap());
        assert!(
            lines[1].starts_with(r#"{"line":"event","seq":1,"#),
            "{}",
            lines[1]
        );
        let text = lines.join("\n");
        let whole = Recording::parse(&text).unwrap();
        assert_eq!(
            (whole.entries.len(), whole.missed, whole.ended),
            (1, 3, Some(9))
        );
        let cut = Recording::parse(&text[..text.len() - 5]).unwrap();
        assert_eq!((cut.entries.len(), cut.ended), (1, None));
    }

    #[test]
    fn invalid_recordings_are_rejected() {
        assert_eq!(Recording::parse("{}"), Err(RecordingError::NotARecording));
        assert_eq!(Recording::parse(""), Err(RecordingError::NotARecording));
        let newer = serde_json::to_string(&begin())
            .unwrap()
            .replace(r#""protocol_version":1"#, r#""protocol_version":99"#);
        assert_eq!(
            Recording::parse(&newer),
            Err(RecordingError::UnsupportedVersion(99))
        );
    }
}

//! All current sessions with their last events, and the subscriptions of browsers to them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use monitor::{ConfigValue, Counters, Entry, Recording, SessionInfo, State, Status};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::broadcast;

use crate::api::client::{Client, NoResponse};

/// How many events of a session are kept for browsers that connect later.
const MAX_EVENTS: usize = 2000;
/// How many messages are buffered for a browser before it has to resynchronize.
const MAX_BUFFERED_MESSAGES: usize = 1024;

#[derive(Debug)]
pub(super) struct Hub {
    sessions: Mutex<BTreeMap<String, TrackedSession>>,
    messages: broadcast::Sender<Arc<UiMessage>>,
    pub(super) shows_values: bool,
}

#[derive(Debug)]
struct TrackedSession {
    info: SessionInfo,
    events: VecDeque<Arc<Entry>>,
    source: Source,
}

/// Where further details of a session are read.
#[derive(Debug, Clone)]
pub(super) enum Source {
    Session(Client),
    Recording(Arc<(State, Vec<ConfigValue>)>),
}

/// A message to a browser, in its JSON format.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum UiMessage {
    Sessions {
        data: Vec<SessionInfo>,
    },
    SessionAdded {
        data: SessionInfo,
    },
    SessionChanged {
        data: SessionInfo,
    },
    SessionRemoved {
        session_id: String,
    },
    Event {
        session_id: String,
        #[serde(serialize_with = "inner")]
        data: Arc<Entry>,
    },
    Missed {
        session_id: String,
        count: u64,
    },
    Counters {
        session_id: String,
        data: Counters,
    },
}

fn inner<S: serde::Serializer>(entry: &Entry, serializer: S) -> Result<S::Ok, S::Error> {
    entry.serialize(serializer)
}

impl UiMessage {
    pub(super) fn session(&self) -> Option<&str> {
        match self {
            UiMessage::Sessions { .. } => None,
            UiMessage::SessionAdded { data } | UiMessage::SessionChanged { data } => {
                Some(&data.session_id)
            }
            UiMessage::SessionRemoved { session_id }
            | UiMessage::Event { session_id, .. }
            | UiMessage::Missed { session_id, .. }
            | UiMessage::Counters { session_id, .. } => Some(session_id),
        }
    }
}

/// The number of the last event of each session that a browser has received.
pub(super) type Cursors = HashMap<String, u64>;

impl Hub {
    pub(super) fn new(shows_values: bool) -> Self {
        Self {
            sessions: Mutex::default(),
            messages: broadcast::channel(MAX_BUFFERED_MESSAGES).0,
            shows_values,
        }
    }

    /// Adds a session, or updates its info.
    pub(super) fn put(&self, info: SessionInfo, client: &Client) {
        if self.find(&info.session_id).is_some() {
            self.change(info);
        } else {
            self.insert(info, VecDeque::new(), Source::Session(client.clone()));
        }
    }

    /// A session does not respond. What was read before is kept.
    pub(super) fn unresponsive(&self, client: &Client, reason: &NoResponse) {
        let unresponsive = client.unresponsive(reason);
        let info = match self.find(&unresponsive.session_id) {
            Some((before, _)) => SessionInfo {
                health: unresponsive.health,
                ..before
            },
            None => unresponsive,
        };
        self.put(info, client);
    }

    pub(super) fn add_recording(&self, recording: Recording) {
        let mut info = recording.info;
        info.session_id = format!("{}-recording", info.session_id);
        info.health.status = Status::Ended;
        info.health.reason = Some(match recording.ended {
            Some(_) => "a recording".to_owned(),
            None => "a recording that was cut off".to_owned(),
        });
        info.processes.clear();
        info.ports.clone_from(&recording.state.ports);
        info.counters = recording.state.counters.clone();
        let events = recording.entries.into_iter().map(Arc::new).collect();
        let source = Source::Recording(Arc::new((recording.state, recording.config)));
        self.insert(info, events, source);
    }

    fn insert(&self, info: SessionInfo, events: VecDeque<Arc<Entry>>, source: Source) {
        let mut sessions = self.sessions.lock();
        let session = TrackedSession {
            info: info.clone(),
            events,
            source,
        };
        sessions.insert(info.session_id.clone(), session);
        self.publish(UiMessage::SessionAdded { data: info });
    }

    pub(super) fn remove(&self, id: &str) {
        if self.sessions.lock().remove(id).is_some() {
            self.publish(UiMessage::SessionRemoved {
                session_id: id.to_owned(),
            });
        }
    }

    /// Updates the info of a session, and publishes it if it has changed.
    fn change(&self, info: SessionInfo) {
        let mut sessions = self.sessions.lock();
        if let Some(session) = sessions.get_mut(&info.session_id)
            && session.info != info
        {
            session.info = info.clone();
            self.publish(UiMessage::SessionChanged { data: info });
        }
    }

    pub(super) fn count(&self, id: &str, counters: Counters) {
        let mut sessions = self.sessions.lock();
        if let Some(session) = sessions.get_mut(id) {
            session.info.counters = counters.clone();
            self.publish(UiMessage::Counters {
                session_id: id.to_owned(),
                data: counters,
            });
        }
    }

    pub(super) fn missed(&self, id: &str, count: u64) {
        let _sessions = self.sessions.lock();
        self.publish(UiMessage::Missed {
            session_id: id.to_owned(),
            count,
        });
    }

    pub(super) fn event(&self, id: &str, mut entry: Entry) {
        if !self.shows_values {
            entry.event.hide_values();
        }
        let mut sessions = self.sessions.lock();
        if let Some(session) = sessions.get_mut(id) {
            let entry = Arc::new(entry);
            if session.events.len() == MAX_EVENTS {
                session.events.pop_front();
            }
            session.events.push_back(Arc::clone(&entry));
            self.publish(UiMessage::Event {
                session_id: id.to_owned(),
                data: entry,
            });
        }
    }

    pub(super) fn infos(&self) -> Vec<SessionInfo> {
        let sessions = self.sessions.lock();
        let infos = sessions.values().map(|session| session.info.clone());
        infos.collect()
    }

    pub(super) fn find(&self, id: &str) -> Option<(SessionInfo, Source)> {
        let sessions = self.sessions.lock();
        let session = sessions.get(id)?;
        Some((session.info.clone(), session.source.clone()))
    }

    /// The messages that a browser with these cursors has missed, and a subscription to all later ones.
    pub(super) fn subscribe(
        &self,
        cursors: &mut Cursors,
        only: Option<&str>,
    ) -> (Vec<UiMessage>, broadcast::Receiver<Arc<UiMessage>>) {
        let sessions = self.sessions.lock();
        let later = self.messages.subscribe();
        let is_subscribed = |id: &str| only.is_none_or(|only| only == id);
        let infos = sessions.values().map(|session| &session.info);
        let infos = infos.filter(|info| is_subscribed(&info.session_id));
        let mut messages = vec![UiMessage::Sessions {
            data: infos.cloned().collect(),
        }];
        for (id, session) in sessions.iter().filter(|(id, _)| is_subscribed(id)) {
            let last = cursors.get(id).copied();
            let oldest = session.events.front().map_or(0, |entry| entry.seq);
            if let Some(last) = last
                && last + 1 < oldest
            {
                messages.push(UiMessage::Missed {
                    session_id: id.clone(),
                    count: oldest - last - 1,
                });
            }
            let last = last.unwrap_or(0);
            let rest = session.events.iter().filter(|entry| entry.seq > last);
            messages.extend(rest.map(|entry| UiMessage::Event {
                session_id: id.clone(),
                data: Arc::clone(entry),
            }));
            if let Some(entry) = session.events.back() {
                cursors.insert(id.clone(), entry.seq.max(last));
            }
        }
        (messages, later)
    }

    /// The caller must hold the lock, so that messages and stored events have the same order. There may be no subscriber.
    fn publish(&self, message: UiMessage) {
        let _ = self.messages.send(Arc::new(message));
    }
}

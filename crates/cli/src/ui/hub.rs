//! All sessions that are known, with their last events, and whoever wants to hear of them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use monitor::{ConfigValue, Counters, Entry, Recording, SessionInfo, State, Status};
use serde::Serialize;
use tokio::sync::broadcast;

use crate::api::client::Client;

/// Events of a session that are kept for browsers that come later.
const KEPT: usize = 2000;
/// News that may wait for a browser before it has to begin anew.
const WAITING: usize = 1024;

#[derive(Debug)]
pub(super) struct Hub {
    sessions: Mutex<BTreeMap<String, Known>>,
    news: broadcast::Sender<Arc<News>>,
    pub(super) shows_values: bool,
}

#[derive(Debug)]
struct Known {
    info: SessionInfo,
    events: VecDeque<Arc<Entry>>,
    source: Source,
}

/// Where the rest is asked for.
#[derive(Debug, Clone)]
pub(super) enum Source {
    Session(Client),
    Recording(Arc<(State, Vec<ConfigValue>)>),
}

/// What a browser is told, as it is told.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum News {
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

impl News {
    pub(super) fn session(&self) -> Option<&str> {
        match self {
            News::Sessions { .. } => None,
            News::SessionAdded { data } | News::SessionChanged { data } => Some(&data.session_id),
            News::SessionRemoved { session_id }
            | News::Event { session_id, .. }
            | News::Missed { session_id, .. }
            | News::Counters { session_id, .. } => Some(session_id),
        }
    }
}

/// What a browser has of each session: the number of its last event.
pub(super) type Cursors = HashMap<String, u64>;

impl Hub {
    pub(super) fn new(shows_values: bool) -> Self {
        Self {
            sessions: Mutex::default(),
            news: broadcast::channel(WAITING).0,
            shows_values,
        }
    }

    pub(super) fn add(&self, info: SessionInfo, client: Client) {
        self.insert(info, VecDeque::new(), Source::Session(client));
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
        let mut sessions = self.lock();
        let known = Known {
            info: info.clone(),
            events,
            source,
        };
        sessions.insert(info.session_id.clone(), known);
        self.tell(News::SessionAdded { data: info });
    }

    pub(super) fn remove(&self, id: &str) {
        if self.lock().remove(id).is_some() {
            self.tell(News::SessionRemoved {
                session_id: id.to_owned(),
            });
        }
    }

    /// What a session says of itself now.
    pub(super) fn change(&self, info: SessionInfo) {
        let mut sessions = self.lock();
        if let Some(known) = sessions.get_mut(&info.session_id)
            && known.info != info
        {
            known.info = info.clone();
            self.tell(News::SessionChanged { data: info });
        }
    }

    pub(super) fn count(&self, id: &str, counters: Counters) {
        let mut sessions = self.lock();
        if let Some(known) = sessions.get_mut(id) {
            known.info.counters = counters.clone();
            self.tell(News::Counters {
                session_id: id.to_owned(),
                data: counters,
            });
        }
    }

    pub(super) fn missed(&self, id: &str, count: u64) {
        let _sessions = self.lock();
        self.tell(News::Missed {
            session_id: id.to_owned(),
            count,
        });
    }

    pub(super) fn event(&self, id: &str, mut entry: Entry) {
        if !self.shows_values {
            entry.event.hide_values();
        }
        let mut sessions = self.lock();
        if let Some(known) = sessions.get_mut(id) {
            let entry = Arc::new(entry);
            if known.events.len() == KEPT {
                known.events.pop_front();
            }
            known.events.push_back(Arc::clone(&entry));
            self.tell(News::Event {
                session_id: id.to_owned(),
                data: entry,
            });
        }
    }

    pub(super) fn infos(&self) -> Vec<SessionInfo> {
        let sessions = self.lock();
        sessions.values().map(|known| known.info.clone()).collect()
    }

    pub(super) fn find(&self, id: &str) -> Option<(SessionInfo, Source)> {
        let sessions = self.lock();
        let known = sessions.get(id)?;
        Some((known.info.clone(), known.source.clone()))
    }

    /// Everything up to now that somebody does not have, and everything from now on.
    pub(super) fn subscribe(
        &self,
        cursors: &mut Cursors,
        only: Option<&str>,
    ) -> (Vec<News>, broadcast::Receiver<Arc<News>>) {
        let sessions = self.lock();
        let later = self.news.subscribe();
        let wanted = |id: &str| only.is_none_or(|only| only == id);
        let infos = sessions.values().map(|known| &known.info);
        let infos = infos.filter(|info| wanted(&info.session_id));
        let mut news = vec![News::Sessions {
            data: infos.cloned().collect(),
        }];
        for (id, known) in sessions.iter().filter(|(id, _)| wanted(id)) {
            let last = cursors.get(id).copied();
            let oldest = known.events.front().map_or(0, |entry| entry.seq);
            if let Some(last) = last
                && last + 1 < oldest
            {
                news.push(News::Missed {
                    session_id: id.clone(),
                    count: oldest - last - 1,
                });
            }
            let last = last.unwrap_or(0);
            let rest = known.events.iter().filter(|entry| entry.seq > last);
            news.extend(rest.map(|entry| News::Event {
                session_id: id.clone(),
                data: Arc::clone(entry),
            }));
            if let Some(entry) = known.events.back() {
                cursors.insert(id.clone(), entry.seq.max(last));
            }
        }
        (news, later)
    }

    /// With the lock, so that what is told and what is kept have the same order. Nobody may listen.
    fn tell(&self, news: News) {
        let _ = self.news.send(Arc::new(news));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

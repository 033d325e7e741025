//! Answers the application's questions: from memory, or by one question to the target or to this machine's own
//! nameservers, however many ask the same at the same time.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use config::{DnsRules, Side};
use protocol::dns::Query;
use protocol::dns::message::{code, kind};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::answer::{Answer, Carrier, malformed};
use super::cache::{Bounds, Cache};
use super::names::NameMap;
use crate::monitor::{Answered, Monitor};

/// The other side bounds its own waiting. This is for when it is gone: whoever asked has given up long before.
const PATIENCE: Duration = Duration::from_secs(40);

/// What an exchange is once it is over: an answer, or nobody answered.
pub(crate) type Exchange<'upstream> =
    Pin<Box<dyn Future<Output = Option<Bytes>> + Send + 'upstream>>;

/// Somebody who carries a question to nameservers.
pub(crate) trait Upstream: std::fmt::Debug + Send + Sync + 'static {
    fn exchange(&self, query: Bytes) -> Exchange<'_>;
}

#[derive(Debug)]
pub(crate) struct Resolver {
    rules: DnsRules,
    target: Arc<dyn Upstream>,
    this_machine: Arc<dyn Upstream>,
    state: Mutex<State>,
    names: Arc<Mutex<NameMap>>,
    monitor: Monitor,
}

#[derive(Debug)]
struct State {
    cache: Cache,
    /// Questions that are being asked, with the place where their answers will be.
    asking: HashMap<Bytes, watch::Receiver<Option<Arc<Answer>>>>,
}

/// An answer, how old it is, and whether nobody had to be asked.
struct Found {
    answer: Arc<Answer>,
    age: Duration,
    cached: bool,
}

impl Resolver {
    pub(crate) fn new(
        rules: DnsRules,
        target: Arc<dyn Upstream>,
        this_machine: Arc<dyn Upstream>,
        names: Arc<Mutex<NameMap>>,
        monitor: Monitor,
    ) -> Self {
        Self {
            rules,
            target,
            this_machine,
            state: Mutex::new(State {
                cache: Cache::new(Bounds::default()),
                asking: HashMap::new(),
            }),
            names,
            monitor,
        }
    }

    /// Answers a message. Nothing, if it is not one that is answered.
    pub(crate) async fn answer(
        self: &Arc<Self>,
        message: &[u8],
        carrier: Carrier,
    ) -> Option<Vec<u8>> {
        let Some(query) = Query::new(message, 0) else {
            return malformed(message);
        };
        if matches!(query.kind(), kind::AXFR | kind::IXFR) {
            // Their answers are many messages, and for nameservers.
            let answer = Answer::of_code(&query, code::NOT_IMPLEMENTED);
            return Some(answer.for_asker(&query, Duration::ZERO, carrier));
        }
        let since = Instant::now();
        let Found {
            answer,
            age,
            cached,
        } = self.find(&query).await;
        if self.monitor.is_on() {
            self.note(&query, &answer, cached, since);
        }
        let mut names = lock(&self.names);
        for resolved in answer.addresses() {
            names.learn(resolved);
        }
        drop(names);
        Some(answer.for_asker(&query, age, carrier))
    }

    /// For whoever looks.
    fn note(&self, query: &Query, answer: &Answer, cached: bool, since: Instant) {
        let host = query.name();
        let side = match self.rules.choose(&host, None) {
            Side::Local => monitor::Side::Local,
            Side::Remote => monitor::Side::Remote,
        };
        self.monitor.answered(Answered {
            host,
            kind: query.kind(),
            side,
            code: answer.code(),
            addresses: &mut answer.addresses().iter().map(|resolved| resolved.address),
            cached,
            latency: since.elapsed(),
        });
    }

    /// Answers from memory or by asking.
    async fn find(self: &Arc<Self>, query: &Query) -> Found {
        let key = key(query);
        let mut answered = {
            let mut state = self.state();
            if let Some((answer, age)) = state.cache.get(&key, Instant::now()) {
                return Found {
                    answer,
                    age,
                    cached: true,
                };
            }
            match state.asking.get(&key) {
                Some(answered) => answered.clone(),
                None => {
                    let (answer_to_askers, answered) = watch::channel(None);
                    state.asking.insert(key.clone(), answered.clone());
                    // Its own task: the first asker may go while others wait.
                    let (this, query) = (Arc::clone(self), query.clone());
                    tokio::spawn(async move {
                        let answer = this.ask(key, &query).await;
                        answer_to_askers.send_replace(Some(answer));
                    });
                    answered
                }
            }
        };
        let answer = match answered.wait_for(Option::is_some).await {
            Ok(answer) => answer.clone(),
            Err(_) => None,
        };
        let failed = || Arc::new(Answer::of_code(query, code::SERVER_FAILED));
        Found {
            answer: answer.unwrap_or_else(failed),
            age: Duration::ZERO,
            cached: false,
        }
    }

    async fn ask(&self, key: Bytes, query: &Query) -> Arc<Answer> {
        let upstream = match self.rules.choose(&query.name(), None) {
            Side::Local => &self.this_machine,
            Side::Remote => &self.target,
        };
        // The key has lost the letters of the name; the nameserver shall see them.
        let message = Bytes::copy_from_slice(query.message());
        let bytes = timeout(PATIENCE, upstream.exchange(message)).await;
        let bytes = bytes.ok().flatten();
        let answer = Arc::new(match bytes.filter(|bytes| query.is_answered_by(bytes)) {
            Some(bytes) => Answer::new(query, bytes),
            None => Answer::of_code(query, code::SERVER_FAILED),
        });
        let mut state = self.state();
        state.asking.remove(&key);
        state.cache.insert(key, &answer, Instant::now());
        answer
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while one of these is locked.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What must be the same for an answer to be given again: all of the message but its id and the case of its letters.
/// Flags and options change what a nameserver says.
fn key(query: &Query) -> Bytes {
    let mut key = query.message().to_vec();
    if let Some(name) = key.get_mut(query.name_range()) {
        name.make_ascii_lowercase();
    }
    key.into()
}

#[cfg(test)]
mod tests;

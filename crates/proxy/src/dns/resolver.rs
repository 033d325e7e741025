//! Answers the application's DNS queries: from the cache, or with one query to the target's or this machine's nameservers,
//! which concurrent clients with the same query share.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use config::{DnsRules, Side};
use parking_lot::Mutex;
use protocol::dns::Query;
use protocol::dns::message::{code, kind};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::cache::{CacheLimits, ResponseCache};
use super::name_map::NameMap;
use super::response::{DnsResponse, DnsTransport, malformed};
use crate::monitor::{DnsOutcome, Monitor};

/// Upstreams have timeouts of their own. This one is for an upstream that is lost; the client has given up long before.
const UPSTREAM_TIMEOUT: Duration = Duration::from_secs(40);

/// The result of an exchange: a response, or `None` if no nameserver responded.
pub(crate) type Exchange<'upstream> =
    Pin<Box<dyn Future<Output = Option<Bytes>> + Send + 'upstream>>;

/// Sends queries to nameservers.
pub(crate) trait Upstream: std::fmt::Debug + Send + Sync + 'static {
    fn exchange(&self, query: Bytes) -> Exchange<'_>;
}

#[derive(Debug)]
pub(crate) struct Resolver {
    rules: DnsRules,
    target: Arc<dyn Upstream>,
    local: Arc<dyn Upstream>,
    state: Mutex<State>,
    names: Arc<Mutex<NameMap>>,
    monitor: Monitor,
}

#[derive(Debug)]
struct State {
    cache: ResponseCache,
    /// Queries that are sent to an upstream, with the receivers of their responses.
    in_flight: HashMap<Bytes, watch::Receiver<Option<Arc<DnsResponse>>>>,
}

/// A response, its age, and whether it was cached.
struct LookupResult {
    response: Arc<DnsResponse>,
    age: Duration,
    cached: bool,
}

impl Resolver {
    pub(crate) fn new(
        rules: DnsRules,
        target: Arc<dyn Upstream>,
        local: Arc<dyn Upstream>,
        names: Arc<Mutex<NameMap>>,
        monitor: Monitor,
    ) -> Self {
        Self {
            rules,
            target,
            local,
            state: Mutex::new(State {
                cache: ResponseCache::new(CacheLimits::default()),
                in_flight: HashMap::new(),
            }),
            names,
            monitor,
        }
    }

    /// The response to a message. `None` if the message must not be answered.
    pub(crate) async fn resolve(
        self: &Arc<Self>,
        message: &[u8],
        transport: DnsTransport,
    ) -> Option<Vec<u8>> {
        let Some(query) = Query::new(message, 0) else {
            return malformed(message);
        };
        if matches!(query.kind(), kind::AXFR | kind::IXFR) {
            // Zone transfers are for nameservers, and their responses consist of many messages.
            let response = DnsResponse::with_code(&query, code::NOT_IMPLEMENTED);
            return Some(response.for_query(&query, Duration::ZERO, transport));
        }
        let since = Instant::now();
        let LookupResult {
            response,
            age,
            cached,
        } = self.lookup(&query).await;
        if self.monitor.is_on() {
            self.record(&query, &response, cached, since);
        }
        let mut names = self.names.lock();
        for resolved in response.addresses() {
            names.insert(resolved);
        }
        drop(names);
        Some(response.for_query(&query, age, transport))
    }

    /// Records the query for the monitor.
    fn record(&self, query: &Query, response: &DnsResponse, cached: bool, since: Instant) {
        let host = query.name();
        let side = match self.rules.choose(&host, None) {
            Side::Local => monitor::Side::Local,
            Side::Remote => monitor::Side::Remote,
        };
        self.monitor.dns_query(DnsOutcome {
            host,
            kind: query.kind(),
            side,
            code: response.code(),
            addresses: &mut response.addresses().iter().map(|resolved| resolved.address),
            cached,
            latency: since.elapsed(),
        });
    }

    /// The response from the cache or an upstream.
    async fn lookup(self: &Arc<Self>, query: &Query) -> LookupResult {
        let key = key(query);
        let mut pending = {
            let mut state = self.state.lock();
            if let Some((response, age)) = state.cache.get(&key, Instant::now()) {
                return LookupResult {
                    response,
                    age,
                    cached: true,
                };
            }
            match state.in_flight.get(&key) {
                Some(pending) => pending.clone(),
                None => {
                    let (response_sender, pending) = watch::channel(None);
                    state.in_flight.insert(key.clone(), pending.clone());
                    // A separate task, because the first client may give up while others wait.
                    let (this, query) = (Arc::clone(self), query.clone());
                    tokio::spawn(async move {
                        let response = this.query_upstream(key, &query).await;
                        response_sender.send_replace(Some(response));
                    });
                    pending
                }
            }
        };
        let response = match pending.wait_for(Option::is_some).await {
            Ok(response) => response.clone(),
            Err(_) => None,
        };
        let failed = || Arc::new(DnsResponse::with_code(query, code::SERVER_FAILED));
        LookupResult {
            response: response.unwrap_or_else(failed),
            age: Duration::ZERO,
            cached: false,
        }
    }

    async fn query_upstream(&self, key: Bytes, query: &Query) -> Arc<DnsResponse> {
        let upstream = match self.rules.choose(&query.name(), None) {
            Side::Local => &self.local,
            Side::Remote => &self.target,
        };
        // The key is in lower case; the nameserver gets the name as the client wrote it.
        let message = Bytes::copy_from_slice(query.message());
        let bytes = timeout(UPSTREAM_TIMEOUT, upstream.exchange(message)).await;
        let bytes = bytes.ok().flatten();
        let response = Arc::new(match bytes.filter(|bytes| query.is_answered_by(bytes)) {
            Some(bytes) => DnsResponse::new(query, bytes),
            None => DnsResponse::with_code(query, code::SERVER_FAILED),
        });
        let mut state = self.state.lock();
        state.in_flight.remove(&key);
        state.cache.insert(key, &response, Instant::now());
        response
    }
}

/// The cache key: the whole message except for its ID and the case of the name. Flags and options are part of it, because
/// they affect the response.
fn key(query: &Query) -> Bytes {
    let mut key = query.message().to_vec();
    if let Some(name) = key.get_mut(query.name_range()) {
        name.make_ascii_lowercase();
    }
    key.into()
}

#[cfg(test)]
mod tests;

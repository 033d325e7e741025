use std::sync::atomic::{AtomicUsize, Ordering};

use config::{Format, Layers};
use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::RecordType;
use tokio::sync::Notify;
use tokio::time::advance;

use super::*;
use crate::dns::response::tests::{ResponseContent, a, encode_response, query_message};

/// An upstream that resolves every name to one address, counts the queries, and can wait for a gate.
#[derive(Debug, Default)]
struct FakeUpstream {
    address: &'static str,
    query_count: AtomicUsize,
    gate: Option<Arc<Notify>>,
    is_failing: bool,
}

impl FakeUpstream {
    fn with_address(address: &'static str) -> Self {
        Self {
            address,
            ..Self::default()
        }
    }

    fn query_count(&self) -> usize {
        self.query_count.load(Ordering::SeqCst)
    }
}

impl Upstream for FakeUpstream {
    fn exchange(&self, query: Bytes) -> Exchange<'_> {
        self.query_count.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            if let Some(gate) = &self.gate {
                gate.notified().await;
            }
            if self.is_failing {
                return None;
            }
            let name = Message::from_vec(&query).unwrap().queries[0]
                .name()
                .to_string();
            let content = ResponseContent {
                answers: vec![a(&name, 60, self.address)],
                ..ResponseContent::default()
            };
            Some(encode_response(&query, content))
        })
    }
}

struct Setup {
    resolver: Arc<Resolver>,
    target: Arc<FakeUpstream>,
    local: Arc<FakeUpstream>,
    names: Arc<Mutex<NameMap>>,
}

/// `dns` is the section of the configuration.
fn setup(dns: &str, target: FakeUpstream) -> Setup {
    let text = format!("feature: {{network: {{dns: {dns}}}}}");
    let settings = Layers::new().file("test", &text, Format::Yaml).resolve();
    let rules = DnsRules::new(&settings.unwrap().settings.feature.network.dns);
    let (target, local) = (
        Arc::new(target),
        Arc::new(FakeUpstream::with_address("192.0.2.1")),
    );
    let names = Arc::new(Mutex::default());
    let resolver = Resolver::new(
        rules,
        Arc::clone(&target) as _,
        Arc::clone(&local) as _,
        Arc::clone(&names),
        Monitor::off(),
    );
    Setup {
        resolver: Arc::new(resolver),
        target,
        local,
        names,
    }
}

async fn query(resolver: &Arc<Resolver>, name: &str, id: u16) -> Message {
    let mut query_message = query_message(name, RecordType::A, None);
    query_message[..2].copy_from_slice(&id.to_be_bytes());
    let response = resolver.resolve(&query_message, DnsTransport::Udp).await;
    let message = Message::from_vec(&response.unwrap()).unwrap();
    assert_eq!(message.metadata.id, id);
    message
}

#[tokio::test(start_paused = true)]
async fn responses_are_cached_and_their_ttl_counts_down() {
    let setup = setup("true", FakeUpstream::with_address("10.0.0.1"));
    let seconds = |message: Message| message.answers[0].ttl;
    assert_eq!(seconds(query(&setup.resolver, "db.", 1).await), 60);
    advance(Duration::from_secs(20)).await;
    assert_eq!(seconds(query(&setup.resolver, "DB.", 2).await), 40);
    assert_eq!(setup.target.query_count(), 1);
    advance(Duration::from_secs(40)).await;
    assert_eq!(seconds(query(&setup.resolver, "db.", 3).await), 60);
    assert_eq!(setup.target.query_count(), 2);
    assert_eq!(
        setup.names.lock().names_of("10.0.0.1".parse().unwrap()),
        ["db"]
    );
}

#[tokio::test(start_paused = true)]
async fn concurrent_clients_share_one_query() {
    let gate = Arc::new(Notify::new());
    let setup = setup(
        "true",
        FakeUpstream {
            gate: Some(Arc::clone(&gate)),
            ..FakeUpstream::with_address("10.0.0.1")
        },
    );
    let mut clients = tokio::task::JoinSet::new();
    for id in 0..100 {
        let resolver = Arc::clone(&setup.resolver);
        clients.spawn(async move { query(&resolver, "db.", id).await.answers.len() });
    }
    // One client gives up.
    let first_client = timeout(Duration::from_secs(1), query(&setup.resolver, "db.", 4711)).await;
    assert!(first_client.is_err());
    gate.notify_one();
    while let Some(answers) = clients.join_next().await {
        assert_eq!(answers.unwrap(), 1);
    }
    assert_eq!(setup.target.query_count(), 1);
}

#[tokio::test(start_paused = true)]
async fn failures_are_cached_for_a_moment() {
    let setup = setup(
        "true",
        FakeUpstream {
            is_failing: true,
            ..FakeUpstream::default()
        },
    );
    for id in 0..3 {
        let message = query(&setup.resolver, "db.", id).await;
        assert_eq!(message.metadata.response_code, ResponseCode::ServFail);
    }
    assert_eq!(setup.target.query_count(), 1);
    advance(Duration::from_secs(1)).await;
    query(&setup.resolver, "db.", 9).await;
    assert_eq!(setup.target.query_count(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_upstream_without_a_response_times_out() {
    let setup = setup(
        "true",
        FakeUpstream {
            gate: Some(Arc::default()),
            ..FakeUpstream::default()
        },
    );
    let message = query(&setup.resolver, "db.", 1).await;
    assert_eq!(message.metadata.response_code, ResponseCode::ServFail);
}

#[tokio::test(start_paused = true)]
async fn filters_choose_the_upstream() {
    let setup = setup(
        "{filter: {local: ['*.example.com']}}",
        FakeUpstream::with_address("10.0.0.1"),
    );
    query(&setup.resolver, "db.shop.", 1).await;
    assert_eq!(
        (setup.target.query_count(), setup.local.query_count()),
        (1, 0)
    );
    query(&setup.resolver, "api.Example.com.", 1).await;
    assert_eq!(
        (setup.target.query_count(), setup.local.query_count()),
        (1, 1)
    );
    assert_eq!(
        setup.names.lock().names_of("192.0.2.1".parse().unwrap()),
        ["api.example.com"]
    );
}

#[tokio::test(start_paused = true)]
async fn unsupported_queries_are_refused() {
    let setup = setup("true", FakeUpstream::with_address("10.0.0.1"));
    let transfer = query_message("shop.", RecordType::AXFR, None);
    let response = setup.resolver.resolve(&transfer, DnsTransport::Tcp).await;
    let message = Message::from_vec(&response.unwrap()).unwrap();
    assert_eq!(message.metadata.response_code, ResponseCode::NotImp);
    let nonsense = setup.resolver.resolve(&[7; 20], DnsTransport::Tcp).await;
    let message = Message::from_vec(&nonsense.unwrap()).unwrap();
    assert_eq!(message.metadata.response_code, ResponseCode::FormErr);
    assert_eq!(setup.resolver.resolve(b"", DnsTransport::Tcp).await, None);
    assert_eq!(setup.target.query_count(), 0);
}

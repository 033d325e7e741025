use std::sync::atomic::{AtomicUsize, Ordering};

use config::{Format, Layers};
use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::RecordType;
use tokio::sync::Notify;
use tokio::time::advance;

use super::*;
use crate::dns::answer::tests::{Said, a, question, said};

/// A nameserver that knows one address, counts questions, and answers when it is let.
#[derive(Debug, Default)]
struct Fake {
    address: &'static str,
    asked: AtomicUsize,
    gate: Option<Arc<Notify>>,
    is_down: bool,
}

impl Fake {
    fn knows(address: &'static str) -> Self {
        Self {
            address,
            ..Self::default()
        }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

impl Upstream for Fake {
    fn exchange(&self, query: Bytes) -> Exchange<'_> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            if let Some(gate) = &self.gate {
                gate.notified().await;
            }
            if self.is_down {
                return None;
            }
            let name = Message::from_vec(&query).unwrap().queries[0]
                .name()
                .to_string();
            let content = Said {
                answers: vec![a(&name, 60, self.address)],
                ..Said::default()
            };
            Some(said(&query, content))
        })
    }
}

struct World {
    resolver: Arc<Resolver>,
    target: Arc<Fake>,
    here: Arc<Fake>,
    names: Arc<Mutex<NameMap>>,
}

fn world(dns: &str, target: Fake) -> World {
    let text = format!("feature: {{network: {{dns: {dns}}}}}");
    let settings = Layers::new().file("test", &text, Format::Yaml).resolve();
    let rules = DnsRules::new(&settings.unwrap().settings.feature.network.dns);
    let (target, here) = (Arc::new(target), Arc::new(Fake::knows("192.0.2.1")));
    let names = Arc::new(Mutex::default());
    let resolver = Resolver::new(
        rules,
        Arc::clone(&target) as _,
        Arc::clone(&here) as _,
        Arc::clone(&names),
        Monitor::off(),
    );
    World {
        resolver: Arc::new(resolver),
        target,
        here,
        names,
    }
}

async fn ask(resolver: &Arc<Resolver>, name: &str, id: u16) -> Message {
    let mut question = question(name, RecordType::A, None);
    question[..2].copy_from_slice(&id.to_be_bytes());
    let answer = resolver.answer(&question, Carrier::Datagram).await;
    let message = Message::from_vec(&answer.unwrap()).unwrap();
    assert_eq!(message.metadata.id, id);
    message
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_asked_for_once_and_counts_down() {
    let world = world("true", Fake::knows("10.0.0.1"));
    let seconds = |message: Message| message.answers[0].ttl;
    assert_eq!(seconds(ask(&world.resolver, "db.", 1).await), 60);
    advance(Duration::from_secs(20)).await;
    assert_eq!(seconds(ask(&world.resolver, "DB.", 2).await), 40);
    assert_eq!(world.target.asked(), 1);
    advance(Duration::from_secs(40)).await;
    assert_eq!(seconds(ask(&world.resolver, "db.", 3).await), 60);
    assert_eq!(world.target.asked(), 2);
    assert_eq!(lock(&world.names).of("10.0.0.1".parse().unwrap()), ["db"]);
}

#[tokio::test(start_paused = true)]
async fn many_who_ask_the_same_share_one_question() {
    let gate = Arc::new(Notify::new());
    let world = world(
        "true",
        Fake {
            gate: Some(Arc::clone(&gate)),
            ..Fake::knows("10.0.0.1")
        },
    );
    let mut askers = tokio::task::JoinSet::new();
    for id in 0..100 {
        let resolver = Arc::clone(&world.resolver);
        askers.spawn(async move { ask(&resolver, "db.", id).await.answers.len() });
    }
    // The first gives up.
    let gives_up = timeout(Duration::from_secs(1), ask(&world.resolver, "db.", 4711)).await;
    assert!(gives_up.is_err());
    gate.notify_one();
    while let Some(answers) = askers.join_next().await {
        assert_eq!(answers.unwrap(), 1);
    }
    assert_eq!(world.target.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_told_and_not_asked_for_again_at_once() {
    let world = world(
        "true",
        Fake {
            is_down: true,
            ..Fake::default()
        },
    );
    for id in 0..3 {
        let message = ask(&world.resolver, "db.", id).await;
        assert_eq!(message.metadata.response_code, ResponseCode::ServFail);
    }
    assert_eq!(world.target.asked(), 1);
    advance(Duration::from_secs(1)).await;
    ask(&world.resolver, "db.", 9).await;
    assert_eq!(world.target.asked(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_target_that_says_nothing_is_a_failure_in_the_end() {
    let world = world(
        "true",
        Fake {
            gate: Some(Arc::default()),
            ..Fake::default()
        },
    );
    let message = ask(&world.resolver, "db.", 1).await;
    assert_eq!(message.metadata.response_code, ResponseCode::ServFail);
}

#[tokio::test(start_paused = true)]
async fn filters_decide_who_is_asked() {
    let world = world(
        "{filter: {local: ['*.example.com']}}",
        Fake::knows("10.0.0.1"),
    );
    ask(&world.resolver, "db.shop.", 1).await;
    assert_eq!((world.target.asked(), world.here.asked()), (1, 0));
    ask(&world.resolver, "api.Example.com.", 1).await;
    assert_eq!((world.target.asked(), world.here.asked()), (1, 1));
    assert_eq!(
        lock(&world.names).of("192.0.2.1".parse().unwrap()),
        ["api.example.com"]
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_no_plain_question() {
    let world = world("true", Fake::knows("10.0.0.1"));
    let transfer = question("shop.", RecordType::AXFR, None);
    let answer = world.resolver.answer(&transfer, Carrier::Stream).await;
    let message = Message::from_vec(&answer.unwrap()).unwrap();
    assert_eq!(message.metadata.response_code, ResponseCode::NotImp);
    let nonsense = world.resolver.answer(&[7; 20], Carrier::Stream).await;
    let message = Message::from_vec(&nonsense.unwrap()).unwrap();
    assert_eq!(message.metadata.response_code, ResponseCode::FormErr);
    assert_eq!(world.resolver.answer(b"", Carrier::Stream).await, None);
    assert_eq!(world.target.asked(), 0);
}

//! A nameserver inside the target's network, with a fixed set of records. It counts the queries.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr as _;
use std::sync::{Arc, Mutex};

use hickory_proto::op::{Edns, Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, CNAME, SOA, SRV, TXT};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::environment::Environment;

#[derive(Clone, Default)]
pub(crate) struct Nameserver {
    query_counts: Arc<Mutex<HashMap<String, usize>>>,
}

impl Nameserver {
    /// Serves UDP and TCP until the test ends.
    pub(crate) fn start(env: &Environment, address: &str) -> Self {
        let this = Self::default();
        let udp = env.udp(&format!("{address}:53"));
        let tcp = env.listen(&format!("{address}:53"));
        let for_datagrams = this.clone();
        env.runtime.spawn(async move {
            let mut query = vec![0; 4096];
            while let Ok((length, from)) = udp.recv_from(&mut query).await {
                let (response, max_payload) = for_datagrams.respond(&query[..length]);
                let mut bytes = response.to_vec().unwrap();
                if bytes.len() > max_payload {
                    bytes = response.truncate().to_vec().unwrap();
                }
                let _ = udp.send_to(&bytes, from).await;
            }
        });
        let for_streams = this.clone();
        env.runtime.spawn(async move {
            while let Ok((mut stream, _)) = tcp.accept().await {
                let length = stream.read_u16().await.unwrap();
                let mut query = vec![0; length.into()];
                stream.read_exact(&mut query).await.unwrap();
                let bytes = for_streams.respond(&query).0.to_vec().unwrap();
                let length = bytes.len().try_into().unwrap();
                stream.write_u16(length).await.unwrap();
                stream.write_all(&bytes).await.unwrap();
            }
        });
        this
    }

    /// How often a name was queried, over UDP and TCP, for all record types.
    pub(crate) fn query_count(&self, name: &str) -> usize {
        self.query_counts
            .lock()
            .unwrap()
            .get(name)
            .copied()
            .unwrap_or(0)
    }

    /// The response, and the maximum UDP payload of the client.
    fn respond(&self, query: &[u8]) -> (Message, usize) {
        let query = Message::from_vec(query).unwrap();
        let mut response = Message::new(query.metadata.id, MessageType::Response, OpCode::Query);
        let question = query.queries[0].clone();
        let name = question.name().clone();
        let text = name.to_ascii().to_lowercase();
        *self
            .query_counts
            .lock()
            .unwrap()
            .entry(text.clone())
            .or_default() += 1;
        response.metadata.recursion_desired = true;
        response.metadata.recursion_available = true;
        match records(&text, question.query_type()) {
            Ok(records) => {
                for (owner, data) in records {
                    let owner = owner.map_or(name.clone(), |owner| Name::from_str(owner).unwrap());
                    response.add_answer(Record::from_rdata(owner, 60, data));
                }
            }
            Err(code) => response.metadata.response_code = code,
        }
        if response.answers.is_empty() {
            let name = || Name::from_str("internal.").unwrap();
            let zone = RData::SOA(SOA::new(name(), name(), 1, 2, 3, 4, 30));
            response.add_authority(Record::from_rdata(name(), 60, zone));
        }
        let max_payload = query.edns.as_ref().map_or(512, Edns::max_payload);
        if let Some(options) = query.edns {
            response.set_edns(options);
        }
        response.add_query(question);
        (response, max_payload.into())
    }
}

type Records = Vec<(Option<&'static str>, RData)>;

fn records(name: &str, kind: RecordType) -> Result<Records, ResponseCode> {
    let ipv4 = |a, b, c, d| RData::A(A(Ipv4Addr::new(a, b, c, d)));
    let here = || ipv4(10, 9, 0, 1);
    let here6 = || RData::AAAA(AAAA(Ipv6Addr::from_str("fd00:9::1").unwrap()));
    let own = |data| vec![(None, data)];
    Ok(match (name, kind) {
        ("api.shop.internal.", RecordType::A)
        | ("four.shop.internal.", RecordType::A)
        | ("second.other.internal.", RecordType::A)
        | ("db.example.com.", RecordType::A) => own(here()),
        ("api.shop.internal." | "six.shop.internal.", RecordType::AAAA) => own(here6()),
        ("alias.shop.internal.", RecordType::A) => {
            let real = CNAME(Name::from_str("real.other.internal.").unwrap());
            vec![
                (None, RData::CNAME(real)),
                (Some("real.other.internal."), here()),
            ]
        }
        ("large.shop.internal.", RecordType::A) => {
            (0..=255).map(|last| (None, ipv4(10, 0, 0, last))).collect()
        }
        ("text.shop.internal.", RecordType::TXT) => own(RData::TXT(TXT::new(vec![
            "hello".to_owned(),
            "there".to_owned(),
        ]))),
        ("_db._tcp.shop.internal.", RecordType::SRV) => {
            let target = Name::from_str("api.shop.internal.").unwrap();
            own(RData::SRV(SRV::new(1, 2, 5432, target)))
        }
        ("failing.shop.internal.", _) => return Err(ResponseCode::ServFail),
        (
            "api.shop.internal."
            | "four.shop.internal."
            | "six.shop.internal."
            | "alias.shop.internal."
            | "large.shop.internal."
            | "text.shop.internal."
            | "second.other.internal."
            | "db.example.com.",
            _,
        ) => Vec::new(),
        _ => return Err(ResponseCode::NXDomain),
    })
}

//! Pricing, in each of the protocols it speaks: prices over HTTP, taxes over TCP, exchange rates over UDP.

use std::io;
use std::time::Duration;

use anyhow::{anyhow, bail};
use axum::http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::error::Error;
use crate::identity::Answer;
use crate::proto::Identity;
use crate::settings::Settings;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// A datagram may be lost: it is sent again after a timeout, a few times.
const DATAGRAM_TIMEOUT: Duration = Duration::from_millis(500);
const DATAGRAM_ATTEMPTS: u32 = 4;
const MAX_DATAGRAM_BYTES: usize = 2048;

pub(crate) struct Pricing {
    http: reqwest::Client,
    url: String,
    tcp: String,
    udp: String,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Price {
    pub(crate) total_cents: i64,
    pub(crate) discount_percent: u32,
    pub(crate) currency: String,
    identity: Identity,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Tax {
    pub(crate) tax_cents: i64,
    identity: Identity,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Rate {
    pub(crate) rate: f64,
    identity: Identity,
}

#[derive(Debug, Deserialize)]
struct Refusal {
    error: String,
}

impl Price {
    pub(crate) fn answer(self) -> Answer {
        answer(self.identity, "http/1.1")
    }
}

impl Tax {
    pub(crate) fn answer(self) -> Answer {
        answer(self.identity, "tcp")
    }
}

impl Rate {
    pub(crate) fn answer(self) -> Answer {
        answer(self.identity, "udp")
    }
}

impl Pricing {
    pub(crate) fn new(settings: &Settings) -> anyhow::Result<Self> {
        Ok(Self {
            http: reqwest::Client::builder()
                .timeout(REQUEST_TIMEOUT)
                .build()?,
            url: settings.pricing_url.clone(),
            tcp: settings.pricing_tcp.clone(),
            udp: settings.pricing_udp.clone(),
        })
    }

    pub(crate) async fn price(
        &self,
        item: &str,
        quantity: u32,
        trace: &HeaderMap,
    ) -> Result<Price, Error> {
        let asked = async {
            let response = self
                .http
                .get(format!("{}/price", self.url))
                .query(&[("item", item), ("quantity", &quantity.to_string())])
                .headers(trace.clone())
                .send()
                .await?;
            let status = response.status();
            let body = response.bytes().await?;
            anyhow::Ok((status, body))
        };
        let (status, body) = asked
            .await
            .map_err(|source| Error::failed("pricing", &self.url, source))?;
        let refusal = status.is_client_error().then_some(status);
        understand(&self.url, &body, refusal)
    }

    pub(crate) async fn tax(&self, cents: i64) -> Result<Tax, Error> {
        let line = timeout(
            REQUEST_TIMEOUT,
            request_line(&self.tcp, &format!("TAX {cents}\n")),
        )
        .await
        .map_err(|_elapsed| anyhow!("timed out after {REQUEST_TIMEOUT:?}"))
        .and_then(|response| Ok(response?))
        .map_err(|source| Error::failed("pricing", &self.tcp, source))?;
        understand(&self.tcp, &line, Some(StatusCode::BAD_REQUEST))
    }

    pub(crate) async fn rate(&self, from: &str, to: &str) -> Result<Rate, Error> {
        let datagram = request_datagram(&self.udp, &format!("RATE {from} {to}"))
            .await
            .map_err(|source| Error::failed("pricing", &self.udp, source))?;
        understand(&self.udp, &datagram, Some(StatusCode::BAD_REQUEST))
    }
}

async fn request_line(address: &str, request: &str) -> io::Result<Vec<u8>> {
    let mut connection = BufReader::new(TcpStream::connect(address).await?);
    connection.write_all(request.as_bytes()).await?;
    let mut line = Vec::new();
    connection.read_until(b'\n', &mut line).await?;
    Ok(line)
}

async fn request_datagram(address: &str, request: &str) -> anyhow::Result<Vec<u8>> {
    let socket = UdpSocket::bind("0.0.0.0:0").await?;
    socket.connect(address).await?;
    let mut answer = vec![0; MAX_DATAGRAM_BYTES];
    for _ in 0..DATAGRAM_ATTEMPTS {
        socket.send(request.as_bytes()).await?;
        if let Ok(received) = timeout(DATAGRAM_TIMEOUT, socket.recv(&mut answer)).await {
            answer.truncate(received?);
            return Ok(answer);
        }
    }
    bail!("no response to {DATAGRAM_ATTEMPTS} datagrams")
}

/// Parses a response from `address`. With a `refusal` status, a body with a reason is a refusal with that status;
/// anything else that is unexpected is a failure of pricing.
fn understand<T: DeserializeOwned>(
    address: &str,
    answer: &[u8],
    refusal: Option<StatusCode>,
) -> Result<T, Error> {
    serde_json::from_slice(answer).map_err(|unexpected| {
        match (refusal, serde_json::from_slice::<Refusal>(answer)) {
            (Some(status), Ok(Refusal { error })) => Error::Refused {
                neighbour: "pricing",
                status,
                reason: error,
            },
            _ => {
                let answer = String::from_utf8_lossy(answer);
                let source = anyhow::Error::from(unexpected)
                    .context(format!("cannot understand {answer:?}"));
                Error::failed("pricing", address, source)
            }
        }
    })
}

fn answer(identity: Identity, over: &'static str) -> Answer {
    Answer { identity, over }
}

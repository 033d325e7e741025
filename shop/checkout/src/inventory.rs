//! Inventory, over gRPC.

use std::error::Error as _;
use std::iter;
use std::time::Duration;

use anyhow::anyhow;
use axum::http::{HeaderMap, StatusCode};
use futures_util::{TryStreamExt, stream};
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Extensions, Request, Status};

use crate::error::Error;
use crate::identity::Answer;
use crate::proto::inventory_client::InventoryClient;
use crate::proto::{Identity, ReserveRequest, RestockRequest, ScanRequest, StockLevel};

pub(crate) struct Inventory {
    address: String,
    client: InventoryClient<Channel>,
}

impl Inventory {
    /// Connects on the first call, and reconnects when the connection is lost.
    pub(crate) fn new(address: &str) -> anyhow::Result<Self> {
        let channel = Endpoint::from_shared(format!("http://{address}"))?
            .connect_timeout(Duration::from_secs(2))
            .timeout(Duration::from_secs(5))
            .connect_lazy();
        Ok(Self {
            address: address.to_owned(),
            client: InventoryClient::new(channel),
        })
    }

    pub(crate) async fn reserve(
        &self,
        item: &str,
        quantity: u32,
        trace: &HeaderMap,
    ) -> Result<Answer, Error> {
        let request = ReserveRequest {
            item: item.to_owned(),
            quantity,
        };
        let response = self
            .client
            .clone()
            .reserve(with_trace(request, trace))
            .await
            .map_err(|status| self.error(&status))?
            .into_inner();
        Ok(answer(response.identity))
    }

    /// Releases the reservation of an order that failed later.
    pub(crate) async fn give_back(
        &self,
        item: &str,
        quantity: u32,
        trace: &HeaderMap,
    ) -> Result<(), Error> {
        let boxes = stream::iter([RestockRequest {
            item: item.to_owned(),
            quantity,
        }]);
        self.client
            .clone()
            .restock(with_trace(boxes, trace))
            .await
            .map_err(|status| self.error(&status))?;
        Ok(())
    }

    pub(crate) async fn stock(
        &self,
        items: Vec<String>,
        trace: &HeaderMap,
    ) -> Result<Vec<StockLevel>, Error> {
        let questions = stream::iter(items.into_iter().map(|item| ScanRequest { item }));
        self.client
            .clone()
            .scan(with_trace(questions, trace))
            .await
            .map_err(|status| self.error(&status))?
            .into_inner()
            .try_collect()
            .await
            .map_err(|status| self.error(&status))
    }

    fn error(&self, status: &Status) -> Error {
        let refused = |code| Error::Refused {
            neighbour: "inventory",
            status: code,
            reason: status.message().to_owned(),
        };
        match status.code() {
            Code::NotFound => refused(StatusCode::NOT_FOUND),
            Code::FailedPrecondition => refused(StatusCode::CONFLICT),
            _ => Error::failed("inventory", &self.address, failure(status)),
        }
    }
}

/// The text of a status repeats its sources, so its own message and the deepest source are enough.
fn failure(status: &Status) -> anyhow::Error {
    let deepest = iter::successors(status.source(), |&cause| cause.source()).last();
    match deepest {
        Some(cause) => anyhow!("{}: {cause}", status.message()),
        None => anyhow!("{}: {}", status.code(), status.message()),
    }
}

pub(crate) fn answer(identity: Option<Identity>) -> Answer {
    Answer {
        identity: identity.unwrap_or_default(),
        over: "grpc",
    }
}

fn with_trace<T>(message: T, trace: &HeaderMap) -> Request<T> {
    let metadata = MetadataMap::from_headers(trace.clone());
    Request::from_parts(metadata, Extensions::new(), message)
}

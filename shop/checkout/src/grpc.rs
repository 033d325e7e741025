//! Checkout over gRPC.

use std::sync::Arc;

use axum::http::{HeaderMap, StatusCode};
use tokio::net::TcpListener;
use tonic::metadata::MetadataMap;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Code, Request, Response, Status};

use crate::Checkout;
use crate::error::Error;
use crate::identity::{IDENTITY_HEADER, header, trace_headers};
use crate::order::OrderRequest;
use crate::proto::checkout_server::{self, CheckoutServer};
use crate::proto::{PlaceOrderRequest, PlaceOrderResponse};

pub(crate) async fn serve(checkout: Arc<Checkout>, listener: TcpListener) -> anyhow::Result<()> {
    let ending = checkout.ending.clone();
    Server::builder()
        .add_service(CheckoutServer::from_arc(checkout))
        .serve_with_incoming_shutdown(TcpIncoming::from(listener), ending.cancelled_owned())
        .await?;
    Ok(())
}

#[tonic::async_trait]
impl checkout_server::Checkout for Checkout {
    async fn place_order(
        &self,
        request: Request<PlaceOrderRequest>,
    ) -> Result<Response<PlaceOrderResponse>, Status> {
        let trace = trace_headers(request.metadata().as_ref());
        let PlaceOrderRequest {
            item,
            quantity,
            currency,
        } = request.into_inner();
        let request = OrderRequest {
            item,
            quantity,
            currency: Some(currency).filter(|currency| !currency.is_empty()),
        };
        let order = self
            .place_order(request, "grpc", &trace)
            .await
            .map_err(|error| self.status(&error))?;
        let mut response = Response::new(PlaceOrderResponse {
            id: order.id,
            total_cents: order.total_cents,
            currency: order.currency.clone(),
            answered_by: order.answered_by.iter().cloned().map(Into::into).collect(),
        });
        *response.metadata_mut() = self.metadata();
        Ok(response)
    }
}

impl Checkout {
    fn metadata(&self) -> MetadataMap {
        MetadataMap::from_headers(HeaderMap::from_iter([(IDENTITY_HEADER, header(&self.me))]))
    }

    fn status(&self, error: &Error) -> Status {
        let code = match error.status() {
            StatusCode::BAD_REQUEST => Code::InvalidArgument,
            StatusCode::NOT_FOUND => Code::NotFound,
            StatusCode::CONFLICT => Code::FailedPrecondition,
            _ => Code::Unavailable,
        };
        Status::with_metadata(code, error.describe(), self.metadata())
    }
}

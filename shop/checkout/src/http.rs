//! Checkout over HTTP/1.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Query, State, WebSocketUpgrade};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::map_response_with_state;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{any, get, post};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::Checkout;
use crate::error::Error;
use crate::identity::{IDENTITY_HEADER, header, trace_headers};
use crate::order::OrderRequest;
use crate::proto::{Identity, StockLevel};
use crate::{inventory, websocket};

const OVER: &str = "http/1.1";

pub(crate) async fn serve(checkout: Arc<Checkout>, listener: TcpListener) -> anyhow::Result<()> {
    let ending = checkout.ending.clone();
    axum::serve(listener, routes(checkout))
        .with_graceful_shutdown(ending.cancelled_owned())
        .await?;
    Ok(())
}

fn routes(checkout: Arc<Checkout>) -> Router {
    Router::new()
        .route("/health", get(health))
        .route("/whoami", get(whoami))
        .route("/config", get(config))
        .route("/order", post(order))
        .route("/orders", get(orders))
        .route("/stock", get(stock))
        .route("/ws", any(upgrade))
        .fallback(nothing)
        .layer(map_response_with_state(checkout.clone(), identify))
        .with_state(checkout)
}

/// A response body with the identity of this pod.
#[derive(Serialize)]
struct Signed<T> {
    #[serde(flatten)]
    body: T,
    identity: Identity,
}

impl Checkout {
    fn respond(&self, status: StatusCode, body: impl Serialize) -> Response {
        let identity = self.me.clone();
        (status, Json(Signed { body, identity })).into_response()
    }

    fn respond_to(&self, result: Result<impl Serialize, &Error>) -> Response {
        match result {
            Ok(body) => self.respond(StatusCode::OK, body),
            Err(error) => {
                let body = json!({
                    "error": error.describe(),
                    "neighbour": error.neighbour(),
                    "answered_by": [self.answer(OVER)],
                });
                self.respond(error.status(), body)
            }
        }
    }
}

async fn identify(State(checkout): State<Arc<Checkout>>, mut response: Response) -> Response {
    response
        .headers_mut()
        .insert(IDENTITY_HEADER, header(&checkout.me));
    response
}

async fn health(State(checkout): State<Arc<Checkout>>) -> Response {
    checkout.respond(StatusCode::OK, json!({ "healthy": true }))
}

async fn whoami(State(checkout): State<Arc<Checkout>>) -> Response {
    checkout.respond(StatusCode::OK, json!({}))
}

async fn config(State(checkout): State<Arc<Checkout>>) -> Response {
    let mut body = json!(checkout.settings.shop_config().await);
    body["stage"] = json!(checkout.settings.stage);
    body["api_key"] = json!(checkout.settings.api_key().await);
    checkout.respond(StatusCode::OK, body)
}

async fn order(State(checkout): State<Arc<Checkout>>, headers: HeaderMap, body: Bytes) -> Response {
    let trace = trace_headers(&headers);
    let placed = async {
        let request: OrderRequest = serde_json::from_slice(&body)
            .map_err(|error| Error::BadOrder(format!("not an order: {error}")))?;
        checkout.place_order(request, OVER, &trace).await
    };
    checkout.respond_to(placed.await.as_deref())
}

async fn orders(State(checkout): State<Arc<Checkout>>) -> Response {
    let latest = checkout.database.latest().await;
    checkout.respond_to(
        latest
            .as_ref()
            .map(|orders| json!({ "orders": orders, "answered_by": [checkout.answer(OVER)] })),
    )
}

#[derive(Deserialize)]
struct StockQuery {
    #[serde(default = "every_item")]
    items: String,
}

fn every_item() -> String {
    "book,lamp,mug,pen".to_owned()
}

async fn stock(
    State(checkout): State<Arc<Checkout>>,
    Query(query): Query<StockQuery>,
    headers: HeaderMap,
) -> Response {
    let items = query.items.split(',').map(str::to_owned).collect();
    let levels = checkout
        .inventory
        .stock(items, &trace_headers(&headers))
        .await;
    checkout.respond_to(levels.as_ref().map(|levels| {
        let stock: Vec<Value> = levels.iter().map(stock_level).collect();
        let mut answered_by = vec![checkout.answer(OVER)];
        answered_by.extend(
            levels
                .first()
                .map(|level| inventory::answer(level.identity.clone())),
        );
        json!({ "stock": stock, "answered_by": answered_by })
    }))
}

fn stock_level(level: &StockLevel) -> Value {
    json!({ "item": level.item, "quantity": level.quantity, "low": level.low })
}

#[derive(Deserialize)]
struct WebSocketQuery {
    #[serde(default)]
    orders: bool,
}

async fn upgrade(
    State(checkout): State<Arc<Checkout>>,
    Query(query): Query<WebSocketQuery>,
    upgrade: WebSocketUpgrade,
) -> Response {
    let placed_orders = query.orders.then(|| checkout.placed_orders.subscribe());
    upgrade.on_upgrade(move |socket| websocket::talk(checkout, socket, placed_orders))
}

async fn nothing(State(checkout): State<Arc<Checkout>>) -> Response {
    checkout.respond(StatusCode::NOT_FOUND, json!({ "error": "nothing here" }))
}

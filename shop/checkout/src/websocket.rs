//! Checkout over WebSocket: an echo, and orders as they are placed.

use std::sync::Arc;

use axum::extract::ws::{Message, WebSocket};
use serde_json::{Value, json};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::Checkout;
use crate::order::Order;

/// Echoes each message until either side closes. With `placed_orders`, also sends each order placed at this replica.
pub(crate) async fn talk(
    checkout: Arc<Checkout>,
    mut socket: WebSocket,
    mut placed_orders: Option<Receiver<Arc<Order>>>,
) {
    loop {
        let event = tokio::select! {
            () = checkout.ending.cancelled() => break,
            message = socket.recv() => match message {
                Some(Ok(Message::Text(text))) => json!({ "type": "echo", "message": text.as_str() }),
                Some(Ok(Message::Binary(bytes))) => json!({ "type": "echo", "bytes": bytes.len() }),
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => continue,
                Some(Ok(Message::Close(_)) | Err(_)) | None => return,
            },
            event = next_order(&mut placed_orders) => event,
        };
        if socket.send(signed(&checkout, event)).await.is_err() {
            return;
        }
    }
    // The peer may have closed already.
    let _ = socket.send(Message::Close(None)).await;
}

/// Never completes when the client did not subscribe to orders.
async fn next_order(placed_orders: &mut Option<Receiver<Arc<Order>>>) -> Value {
    let Some(placed_orders) = placed_orders else {
        return std::future::pending().await;
    };
    match placed_orders.recv().await {
        Ok(order) => json!({ "type": "order", "order": *order }),
        Err(RecvError::Lagged(count)) => json!({ "type": "missed", "count": count }),
        // The sender lives as long as the service.
        Err(RecvError::Closed) => std::future::pending().await,
    }
}

fn signed(checkout: &Checkout, mut event: Value) -> Message {
    event["identity"] = json!(checkout.me);
    Message::Text(event.to_string().into())
}

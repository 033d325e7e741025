//! Checkout takes an order through the whole shop: it reserves at inventory, asks pricing what the order costs and
//! stores it in the database.
//!
//! The program is a thin shell around [`serve`], so that tests own the listeners and the end.

mod database;
mod error;
mod grpc;
mod http;
mod identity;
mod inventory;
mod order;
mod pricing;
mod settings;
mod websocket;

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use crate::database::Database;
use crate::inventory::Inventory;
use crate::order::Order;
use crate::pricing::Pricing;
use crate::proto::Identity;
pub use crate::settings::Settings;

/// What `proto/shop.proto` describes.
#[allow(
    missing_debug_implementations,
    unreachable_pub,
    clippy::all,
    clippy::allow_attributes_without_reason,
    reason = "generated code"
)]
pub mod proto {
    tonic::include_proto!("shop.v1");
}

/// How long open calls may take to end. A WebSocket that nobody closes never ends by itself.
const DRAIN_TIME: Duration = Duration::from_secs(1);

/// Orders that a slow listener may fall behind before it misses some.
const EVENTS_KEPT: usize = 64;

/// What every request needs.
struct Checkout {
    me: Identity,
    settings: Settings,
    inventory: Inventory,
    pricing: Pricing,
    database: Database,
    placed_orders: broadcast::Sender<Arc<Order>>,
    ending: CancellationToken,
}

/// Serves HTTP and gRPC until `ending` is cancelled. Neighbours that are not there yet are no reason to wait: each
/// request tries to reach them.
pub async fn serve(
    settings: Settings,
    http_listener: TcpListener,
    grpc_listener: TcpListener,
    ending: CancellationToken,
) -> anyhow::Result<()> {
    let checkout = Arc::new(Checkout {
        me: identity::from_environment("checkout"),
        inventory: Inventory::new(&settings.inventory)?,
        pricing: Pricing::new(&settings)?,
        database: Database::new(&settings.database_url)?,
        placed_orders: broadcast::Sender::new(EVENTS_KEPT),
        ending: ending.clone(),
        settings,
    });
    let both = async {
        tokio::try_join!(
            http::serve(checkout.clone(), http_listener),
            grpc::serve(checkout.clone(), grpc_listener)
        )
    };
    let drained = async {
        ending.cancelled().await;
        tokio::time::sleep(DRAIN_TIME).await;
    };
    tokio::select! {
        ended = both => ended.map(|((), ())| ()),
        () = drained => Ok(()),
    }
}

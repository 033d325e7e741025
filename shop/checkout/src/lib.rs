//! Checkout takes an order through the whole shop: it reserves items at inventory, requests the price from pricing and
//! stores the order in the database.
//!
//! The program is a thin shell around [`serve`], so that tests own the listeners and the shutdown.

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

/// The grace period for open calls. A WebSocket that no client closes never ends by itself.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Orders that are buffered for a slow subscriber before it misses some.
const EVENT_BUFFER: usize = 64;

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

/// Serves HTTP and gRPC until `ending` is cancelled. It does not wait for its upstreams: each request connects to them.
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
        placed_orders: broadcast::Sender::new(EVENT_BUFFER),
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
        tokio::time::sleep(DRAIN_TIMEOUT).await;
    };
    tokio::select! {
        ended = both => ended.map(|((), ())| ()),
        () = drained => Ok(()),
    }
}

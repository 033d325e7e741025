//! The path of an order.

use std::sync::Arc;

use axum::http::HeaderMap;
use serde::{Deserialize, Serialize};

use crate::Checkout;
use crate::database::{NewOrder, Stored};
use crate::error::Error;
use crate::identity::Answer;

const MAX_QUANTITY: u32 = 1000;

#[derive(Debug, Deserialize)]
pub(crate) struct OrderRequest {
    pub(crate) item: String,
    pub(crate) quantity: u32,
    /// Without one, the currency of the shop's configuration.
    pub(crate) currency: Option<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Order {
    pub(crate) id: i64,
    item: String,
    quantity: u32,
    discount_percent: u32,
    tax_cents: i64,
    pub(crate) total_cents: i64,
    pub(crate) currency: String,
    stored_in: Stored,
    /// Every service the order passed through, in order.
    pub(crate) answered_by: Vec<Answer>,
}

impl Checkout {
    /// Places an order that was received `over` a protocol, and notifies all subscribers.
    pub(crate) async fn place_order(
        &self,
        request: OrderRequest,
        over: &'static str,
        trace: &HeaderMap,
    ) -> Result<Arc<Order>, Error> {
        let OrderRequest { item, quantity, .. } = &request;
        if !(1..=MAX_QUANTITY).contains(quantity) {
            return Err(Error::BadOrder(format!(
                "a quantity is between 1 and {MAX_QUANTITY}, not {quantity}"
            )));
        }
        let reserved = self.inventory.reserve(item, *quantity, trace).await?;
        let answered_by = vec![self.answer(over), reserved];
        let order = match self.price_and_store(&request, answered_by, trace).await {
            Ok(order) => Arc::new(order),
            Err(error) => {
                if let Err(error) = self.inventory.give_back(item, *quantity, trace).await {
                    tracing::warn!(error = error.describe(), "a reservation was not given back");
                }
                return Err(error);
            }
        };
        // An error only means that there are no subscribers.
        let _ = self.placed_orders.send(order.clone());
        Ok(order)
    }

    async fn price_and_store(
        &self,
        request: &OrderRequest,
        mut answered_by: Vec<Answer>,
        trace: &HeaderMap,
    ) -> Result<Order, Error> {
        let OrderRequest { item, quantity, .. } = request;
        let currency = match &request.currency {
            Some(currency) => currency.clone(),
            None => self.settings.shop_config().await.currency,
        };
        let price = self.pricing.price(item, *quantity, trace).await?;
        let tax = self.pricing.tax(price.total_cents).await?;
        let rate = self.pricing.rate(&price.currency, &currency).await?;
        let total_cents = exchange(price.total_cents + tax.tax_cents, rate.rate);
        let stored = self
            .database
            .insert(NewOrder {
                item,
                quantity: *quantity,
                total_cents,
                currency: &currency,
                placed_by: &self.me,
            })
            .await?;
        let (discount_percent, tax_cents) =
            (price.discount_percent, exchange(tax.tax_cents, rate.rate));
        answered_by.extend([price.answer(), tax.answer(), rate.answer()]);
        Ok(Order {
            id: stored.id,
            item: item.clone(),
            quantity: *quantity,
            discount_percent,
            tax_cents,
            total_cents,
            currency,
            stored_in: stored,
            answered_by,
        })
    }

    /// This service, as one that an order passed through.
    pub(crate) fn answer(&self, over: &'static str) -> Answer {
        Answer {
            identity: self.me.clone(),
            over,
        }
    }
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "a price in cents is far below 2^52"
)]
fn exchange(cents: i64, rate: f64) -> i64 {
    (cents as f64 * rate).round() as i64
}

//! `shop get-order`: only reads.

use clap::Args;
use onceward_clap::{Fault, Safe};
use serde::Serialize;

use crate::shop::{Order, Shop};

/// Show an order
#[derive(Args, Serialize)]
pub(crate) struct GetOrder {
    /// Its number
    id: i64,
    /// With the key that it was made with
    #[arg(long)]
    with_request: bool,
}

impl Safe for GetOrder {
    const NAME: &'static str = "get-order";
    const EXAMPLE: &'static [&'static str] = &["1"];
    type World = Shop;
    type Data = Order;

    fn read(&self, shop: &Shop) -> Result<Order, Fault> {
        let order =
            shop.order(self.id)?.ok_or_else(|| Fault::not_found(format!("there is no order {}", self.id)))?;
        Ok(if self.with_request { order } else { Order { request: None, ..order } })
    }
}

//! `shop create-order`: the shop remembers the key of each order, so a doubt settles itself.
use clap::Args;
use onceward_clap::{Applied, Doubt, Fault, Mutating, Op, Plan, Probe, Probed, Undo};
use serde::{Deserialize, Serialize};

use crate::shop::{Order, Shop};
use crate::undo::CANCEL_ORDER;

/// Create an order
#[derive(Args, Serialize, Deserialize)]
pub(crate) struct CreateOrder {
    /// The customer
    #[arg(long)]
    customer: String,
    /// How much, in cents
    #[arg(long, value_parser = clap::value_parser!(i64).range(1..))]
    amount: i64,
}

impl Mutating for CreateOrder {
    const NAME: &'static str = "create-order";
    const EXAMPLE: &'static [&'static str] = &["--customer", "ada", "--amount", "100"];
    const PROBE: Option<Probe<Self, Shop, Order>> = Some(was_created);
    const UNDO: Option<Undo<Shop>> = Some(CANCEL_ORDER);
    type World = Shop;
    type Data = Order;

    fn plan(&self, _shop: &Shop) -> Result<Plan, Fault> {
        Ok(Plan::create(format_args!("an order of {} for {}", self.amount, self.customer)))
    }

    fn apply(&self, op: Op<'_, Shop>) -> Result<Applied<Order>, Fault> {
        let request = op.downstream_key();
        let (shop, dispatched) = op.dispatch()?;
        Ok(dispatched.created(shop.create_order(&self.customer, self.amount, &request)?))
    }
}

fn was_created(_: &CreateOrder, shop: &Shop, doubt: &Doubt<'_>) -> Result<Probed<Order>, Fault> {
    Ok(shop.order_by_request(&doubt.downstream_key())?.map_or(Probed::No, Probed::Created))
}

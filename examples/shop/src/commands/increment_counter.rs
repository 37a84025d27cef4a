//! `shop increment-counter`: each time it is done counts, so it must not be done twice.

use clap::Args;
use onceward_clap::{Applied, Fault, Mutating, Op, Plan, Undo};
use serde::Serialize;

use crate::shop::{Counter, Shop};
use crate::undo::DECREMENT;

/// Add one to a counter
#[derive(Args, Serialize)]
pub(crate) struct IncrementCounter {
    /// Which counter
    #[arg(long)]
    key: String,
}

impl Mutating for IncrementCounter {
    const NAME: &'static str = "increment-counter";
    const EXAMPLE: &'static [&'static str] = &["--key", "views"];
    const UNDO: Option<Undo<Shop>> = Some(DECREMENT);
    type World = Shop;
    type Data = Counter;

    fn plan(&self, shop: &Shop) -> Result<Plan, Fault> {
        let value = shop.counter(&self.key)?;
        Ok(Plan::update(format_args!("the counter {} from {value} to {}", self.key, value + 1)))
    }

    fn apply(&self, op: Op<'_, Shop>) -> Result<Applied<Counter>, Fault> {
        let (shop, dispatched) = op.dispatch()?;
        Ok(dispatched.updated(shop.increment(&self.key)?))
    }
}

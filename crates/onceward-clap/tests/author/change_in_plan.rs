//! A plan that changes the world.
#![allow(dead_code)]

use clap::Args;
use onceward_clap::{Applied, Fault, Mutating, NoOptions, Op, Plan, World};
use serde::Serialize;

include!("common/world.rs");

#[derive(Args, Serialize)]
struct Sell {}

impl Mutating for Sell {
    const NAME: &'static str = "sell";
    const EXAMPLE: &'static [&'static str] = &[];
    type World = Shop;
    type Data = u32;

    fn plan(&self, shop: &Shop) -> Result<Plan, Fault> {
        Ok(Plan::create(shop.sell()))
    }

    fn apply(&self, op: Op<'_, Shop>) -> Result<Applied<u32>, Fault> {
        let (shop, dispatched) = op.dispatch()?;
        Ok(dispatched.created(shop.sell()))
    }
}

fn main() {}

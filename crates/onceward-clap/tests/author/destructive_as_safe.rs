//! A destructive command that is registered as a safe one.
#![allow(dead_code)]

use clap::Args;
use onceward_clap::{Applied, Destructive, Fault, Mutating, NoOptions, Op, Plan, Tool, World};
use serde::Serialize;

include!("common/world.rs");

#[derive(Args, Serialize)]
struct Sell {}

impl Mutating<Destructive> for Sell {
    const NAME: &'static str = "sell";
    const EXAMPLE: &'static [&'static str] = &[];
    type World = Shop;
    type Data = u32;

    fn plan(&self, _: &Shop) -> Result<Plan, Fault> {
        Ok(Plan::create("a sale"))
    }

    fn apply(&self, op: Op<'_, Shop>) -> Result<Applied<u32>, Fault> {
        let (shop, dispatched) = op.dispatch()?;
        Ok(dispatched.created(shop.sell()))
    }
}

fn tool() -> Tool<Shop> {
    Tool::new("shop", "1.0.0", "A shop").safe::<Sell>()
}

fn main() {}

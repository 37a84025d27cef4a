//! One attempt that dispatches twice.
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

    fn plan(&self, _: &Shop) -> Result<Plan, Fault> {
        Ok(Plan::create("a sale"))
    }

    fn apply(&self, op: Op<'_, Shop>) -> Result<Applied<u32>, Fault> {
        let (shop, first) = op.dispatch()?;
        drop(first.created(shop.sell()));
        let (shop, second) = op.dispatch()?;
        Ok(second.created(shop.sell()))
    }
}

fn main() {}

//! A mutating command without a plan.
#![allow(dead_code)]

use clap::Args;
use onceward_clap::{Applied, Fault, Mutating, NoOptions, Op, World};
use serde::Serialize;

include!("common/world.rs");

#[derive(Args, Serialize)]
struct Sell {}

impl Mutating for Sell {
    const NAME: &'static str = "sell";
    const EXAMPLE: &'static [&'static str] = &[];
    type World = Shop;
    type Data = u32;

    fn apply(&self, op: Op<'_, Shop>) -> Result<Applied<u32>, Fault> {
        let (shop, dispatched) = op.dispatch()?;
        Ok(dispatched.created(shop.sell()))
    }
}

fn main() {}

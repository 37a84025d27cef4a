//! A mutating command without a plan.
#![allow(dead_code)]

use clap::Args;
use onceward_clap::{Applied, Fault, Mutating, NoOptions, Op, World};
use serde::Serialize;

struct Shop;

impl World for Shop {
    type Options = NoOptions;

    fn place(_: &NoOptions) -> String {
        "shop".to_owned()
    }

    fn open(_: &NoOptions) -> Result<Self, Fault> {
        Ok(Shop)
    }

    fn open_read_only(_: &NoOptions) -> Result<Self, Fault> {
        Ok(Shop)
    }
}

impl Shop {
    fn sell(&mut self) -> u32 {
        1
    }
}

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

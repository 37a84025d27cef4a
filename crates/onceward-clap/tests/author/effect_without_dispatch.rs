//! An effect without a dispatch.
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

    fn apply(&self, _: Op<'_, Shop>) -> Result<Applied<u32>, Fault> {
        Ok(Applied::created(1))
    }
}

fn main() {}

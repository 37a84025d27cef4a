//! A mutating command without an apply.
#![allow(dead_code)]

use clap::Args;
use onceward_clap::{Fault, Mutating, NoOptions, Plan, World};
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
}

fn main() {}

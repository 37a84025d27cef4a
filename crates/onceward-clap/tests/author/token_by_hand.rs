//! A token that no dispatch gave.
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
        let dispatched = onceward_clap::Dispatched { token: forged() };
        drop(op);
        Ok(dispatched.created(1))
    }
}

fn forged<T>() -> T {
    panic!("there is no such thing")
}

fn main() {}

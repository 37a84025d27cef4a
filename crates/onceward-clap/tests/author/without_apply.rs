//! A mutating command without an apply.
#![allow(dead_code)]

use clap::Args;
use onceward_clap::{Fault, Mutating, NoOptions, Plan, World};
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

    fn plan(&self, _: &Shop) -> Result<Plan, Fault> {
        Ok(Plan::create("a sale"))
    }
}

fn main() {}

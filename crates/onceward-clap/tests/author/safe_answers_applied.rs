//! A safe command that answers with what was applied.
#![allow(dead_code)]

use clap::Args;
use onceward_clap::{Applied, Fault, NoOptions, Safe, World};
use serde::Serialize;

include!("common/world.rs");

#[derive(Args, Serialize)]
struct Price {}

impl Safe for Price {
    const NAME: &'static str = "price";
    const EXAMPLE: &'static [&'static str] = &[];
    type World = Shop;
    type Data = u32;

    fn read(&self, _: &Shop) -> Result<u32, Fault> {
        Ok(Applied::noop("it is so", 1))
    }
}

fn main() {}

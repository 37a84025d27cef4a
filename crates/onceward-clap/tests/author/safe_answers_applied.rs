//! A safe command that answers with what was applied.
#![allow(dead_code)]

use clap::Args;
use onceward_clap::{Applied, Fault, NoOptions, Safe, World};
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

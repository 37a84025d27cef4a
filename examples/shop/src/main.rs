//! A small shop on a SQLite database of its own: what a tool on `onceward-clap` looks like.
//!
//! # Layout
//! - `shop`: the world: orders, emails, counters, services, users.
//! - `commands`: one file per command.
//! - `undo`: how commands are taken back.
//! - `trouble`: a switch that makes things go wrong, to see how the ledger reacts.

mod commands;
mod shop;
mod trouble;
mod undo;

use std::process::ExitCode;

use onceward_clap::Tool;

use commands::{CreateOrder, DeleteUser, Deploy, GetOrder, ImportOrders, IncrementCounter, SendEmail};
use shop::Shop;

fn main() -> ExitCode {
    Tool::<Shop>::new("shop", env!("CARGO_PKG_VERSION"), "A small shop whose every command is safe to retry")
        .safe::<GetOrder>()
        .mutating::<CreateOrder>()
        .mutating::<SendEmail>()
        .mutating::<IncrementCounter>()
        .mutating::<Deploy>()
        .destructive::<DeleteUser>()
        .batch::<ImportOrders>()
        .run(onceward_store::ledger)
}

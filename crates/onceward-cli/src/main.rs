//! `once`: runs any command once, and knows what happened.
//!
//! # Layout
//! - `cli`: the command line.
//! - `context`: the ledger, the policy and the way to answer, from flags, environment and files.
//! - `commands`: one file per command. `commands/run`: the one that all others are about.
//! - `answer`: what is printed. `table`: rows that fit the terminal. `exit`: how it ends.
//! - `trust`: policy files that the user has allowed.

mod answer;
mod cli;
mod commands;
mod context;
mod exit;
mod table;
mod trust;

use std::process::ExitCode;

/// Records are made on one thread and dropped on another, for which the system's allocator takes locks.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = match cli::parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    commands::run(cli)
}

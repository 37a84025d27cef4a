//! `once`: runs any command once, and records what happened.
//!
//! # Layout
//! - `cli`: the command line.
//! - `context`: the ledger, the policy and the output format, from flags, environment and files.
//! - `commands`: one file per command; `commands/run` is the central one.
//! - `answer`: output. `style`: colours. `table`: tables that fit the terminal. `exit`: errors and exit codes.
//! - `trust`: policy files that the user has allowed. `private`: files that only the user can read. `environment`:
//!   secrets removed from the environment of commands. `sealing`: encryption keys. `observe`: logs and traces.

mod answer;
mod cli;
mod commands;
mod context;
mod environment;
mod exit;
mod observe;
mod private;
mod sealing;
mod style;
mod table;
mod trust;

use std::process::ExitCode;

/// Records are allocated on one thread and freed on another, for which the system's allocator takes locks.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    if let Some(code) = commands::keeper() {
        return code;
    }
    let cli = match cli::parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    commands::run(cli)
}

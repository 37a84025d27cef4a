//! `torture`: real processes, killed, stopped, starved and cut off, judged by a downstream that counts real effects.
//!
//! # Layout
//! - `args`: what can be typed. `bench`: the programs, folders and cleaning up. `call`: one `once run`.
//! - `downstream`: the command whose effects are counted. `judge`: what the ledger says against what happened.
//! - `report`: the figures. `trace`: kills at system calls. `process`: stopping and finding processes.
//! - `scenarios`: one file each. `writer`: a process that writes without pause, for the power cuts.
//! - `fleet`: callers of a ledger on a server, and what they heard. `member`: one process of many on the same keys.

mod args;
mod bench;
mod call;
mod downstream;
mod fleet;
mod judge;
mod member;
mod mount;
mod process;
mod report;
mod scenarios;
mod trace;
mod writer;

use std::process::ExitCode;

/// Whatever keeps a scenario from being run to its end. It counts as a failure of the scenario.
type Trouble = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    match words.next().as_deref() {
        Some(downstream::ROLE) => downstream::act(),
        Some(downstream::CLOCKS) => downstream::tell_clocks(),
        Some(writer::ROLE) => writer::write(words),
        Some(member::ROLE) => member::call_all(words),
        Some(_) | None => scenarios::run_all(&args::Args::read()),
    }
}

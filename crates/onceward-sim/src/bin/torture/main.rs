//! `torture`: kills, suspends, starves and cuts off real processes. A downstream that counts real effects is the
//! judge.
//!
//! # Layout
//! - `args`: the command line. `bench`: programs, folders and clean-up. `call`: one `once run`.
//! - `downstream`: the command whose effects are counted. `judge`: compares the ledger with what happened.
//! - `report`: the figures. `trace`: kills at system calls. `process`: stopping and finding processes.
//! - `scenarios`: one file each. `writer`: a process that writes without pause, for the power cuts.
//! - `fleet`: callers of a ledger on a server, and their answers. `member`: one of many processes on the same keys.
//! - `crew`: processes that make calls while a scenario changes the ledger; `worker` is one of them. `engine`: a
//!   ledger on one of the back ends, and its older states.

mod args;
mod bench;
mod call;
mod crew;
mod downstream;
mod engine;
mod fleet;
mod judge;
mod member;
mod mount;
mod process;
mod report;
mod scenarios;
mod trace;
mod worker;
mod writer;

use std::process::ExitCode;

/// An error that keeps a scenario from finishing. It counts as a failure of the scenario.
type Trouble = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    match words.next().as_deref() {
        Some(downstream::ROLE) => downstream::act(),
        Some(downstream::CLOCKS) => downstream::tell_clocks(),
        Some(writer::ROLE) => writer::write(words),
        Some(member::ROLE) => member::call_all(words),
        Some(scenarios::stop::ROLE) => scenarios::stop::call_until_stopped(words),
        Some(worker::ROLE) => worker::work(words),
        Some(_) | None => scenarios::run_all(&args::Args::read()),
    }
}

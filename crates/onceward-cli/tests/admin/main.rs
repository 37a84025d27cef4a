//! The commands around `once run`: looking, settling, cleaning up, and asking for help.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may give up")]

mod settle;
mod settlements;
mod undo;
#[path = "../common/mod.rs"]
mod common;
mod dry_runs;
mod fleet;
mod help;
mod hostile;
mod show;
mod stop;
mod export;
mod one_ledger;
mod sealing;
mod secrets;

//! A framework for command-line tools whose every mutating command is safe to retry.
//!
//! # Layout
//! - `command`: what an author writes: [`Safe`], [`Mutating`], [`Batch`], and the [`World`] they work on.
//! - `plan`, `op`, `probe`, `undo`, `fault`: what plans, applies, probes and compensations give and take.
//! - `tool`: the commands put together. `check`: what is wrong with a definition or a command line.
//! - `facts`, `entry`: a registered command. `call`: one call of it. `batch`: many. `supervisor`: when work is over.
//! - `session`: ledger, policy and options. `flags`: what the framework adds to a command line.
//! - `envelope`, `output`, `text`: the one answer, and how it is printed.
//! - `manifest`: what programs can know beforehand. `builtin`: `show`, `settle`, `undo`, `mcp` and the like.
//! - [`score`]: runs every command of a tool twice, for the author's own tests.
//!
//! The crate has no features.
//!
//! `docs/clap.md` shows how to write a retry-safe tool in five minutes, and is tested with this crate.
#![cfg_attr(doctest, doc = include_str!("../../../docs/clap.md"))]

mod command;
mod data;
mod plan;
mod op;
mod probe;
mod undo;
mod fault;
mod tool;
mod check;
mod facts;
mod entry;
mod call;
mod batch;
mod supervisor;
mod session;
mod flags;
mod envelope;
mod stdout;
mod output;
mod text;
mod manifest;
mod builtin;
pub mod score;

pub use command::{
    Batch, DEFAULT_TIMEOUT_MS, Danger, DangerLevel, Destructive, Mutating, NoOptions, Ordinary, Safe, World,
    file_identity,
};
pub use data::{AnswerData, DataJson};
pub use fault::{Fault, FaultKind};
pub use onceward::{Class, IfMissing};
pub use op::{Applied, Dispatched, Ensured, Op, ensure};
pub use plan::Plan;
pub use probe::{Doubt, Probe, Probed};
pub use tool::Tool;
pub use undo::{Original, Undo, UndoFn};

/// The README's example.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

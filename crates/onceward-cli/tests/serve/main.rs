//! What `once serve` does as a process: its start, its end, its sockets, and the samples of its guide.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may give up")]

#[path = "../common/mod.rs"]
mod common;
mod guide;
mod inbox;
mod isolation;
mod models;
mod process;
mod recorder;
mod rig;
mod secrets;

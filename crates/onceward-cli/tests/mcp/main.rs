//! What `once mcp` does, with a real server behind it: a tool is called once, and everything else passes by.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may give up")]

mod calls;
#[path = "../common/mod.rs"]
mod common;
mod crashes;
mod doors;
mod elicitation;
mod fleet;
mod hostile;
mod http;
mod http_failures;
mod judge;
mod kills;
mod policies;
mod progress;
mod session;
mod web;

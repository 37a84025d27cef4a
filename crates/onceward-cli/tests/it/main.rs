//! The program as users and hostile parties meet it, and the rules of the workspace.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may give up")]

mod admin;
mod architecture;
mod bad_input;
mod common;
mod mcp;
mod operate;
mod run;
mod serve;

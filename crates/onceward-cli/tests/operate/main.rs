//! What operators look at: `once top`, `once watch`, and the health, metrics and logs of `once serve`.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may give up")]

#[path = "../common/mod.rs"]
mod common;
mod serve;
mod top;
mod watch;

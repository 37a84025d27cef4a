//! What `once run` does: a command happens once, and every caller is told what became of it.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may give up")]

#[path = "../common/mod.rs"]
mod common;
mod dry_run;
mod identity;
mod outcomes;
mod places;
mod processes;
mod replay;
mod times;

//! What `once run` does: a command happens once, and every caller gets its outcome.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may give up")]

mod answers;
#[path = "../common/mod.rs"]
mod common;
mod dry_run;
mod evidence;
mod guide;
mod hold;
mod identity;
mod nested;
mod outcomes;
mod locations;
mod probes;
mod processes;
mod property;
mod repeats;
mod replay;
mod stdin;
mod stopping;
mod times;

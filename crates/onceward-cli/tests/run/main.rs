//! What `once run` does: a command happens once, and every caller is told what became of it.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may give up")]

mod answers;
#[path = "../common/mod.rs"]
mod common;
mod dry_run;
mod evidence;
mod guide;
mod identity;
mod nested;
mod outcomes;
mod places;
mod probes;
mod processes;
mod property;
mod repeats;
mod replay;
mod stdin;
mod stopping;
mod times;

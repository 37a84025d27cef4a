//! The rules of the ledger, on stores in memory.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "a test may give up"
)]

mod admin;
mod answers;
mod attempts;
mod cancelled;
mod common;
mod conformance;
mod decisions;
mod delivery;
mod doubt;
mod endings;
mod events;
mod failures;
mod faults;
mod hold;
mod identities;
mod identity;
mod import;
mod late;
mod ledger;
mod next_steps;
mod pairs;
mod plans;
mod probes;
mod properties;
mod repeat;
mod restored;
mod sessions;
mod stop;
mod transitions;
mod undo;
mod vectors;
mod wanted;
mod wire;

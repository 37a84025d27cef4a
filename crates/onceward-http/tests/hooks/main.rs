//! The webhook inbox: each event once, nothing lost, nothing forged.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may give up")]

mod accepting;
mod delivering;
mod pulling;
mod rig;
mod slow;
mod stopped;
mod tenants;

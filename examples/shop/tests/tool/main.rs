//! The shop as an agent meets it: as a program, with its own database and ledger.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may give up")]

mod batch;
mod cases;
mod conformance;
mod crashes;
mod fixture;
mod mcp;
mod score;
mod sealing;
mod terminal;
mod undo;

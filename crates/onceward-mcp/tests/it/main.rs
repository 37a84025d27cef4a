//! The proxy without processes: messages, guesses, schedules.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may give up")]

mod guess;
mod listener;
mod messages;
mod schedules;

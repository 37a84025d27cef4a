//! How the ledger is put to the test: a seeded simulation here, and the `torture` of the real thing beside it.
//!
//! # Layout
//! - [`random`]: chance that can be repeated.
//! - [`sim`]: workers, a clock and a store that fail on purpose, all in one thread and from one seed.
//! - `bin/torture`: real processes, real kills, full disks and power cuts, judged by a downstream that counts.

pub mod random;
pub mod sim;

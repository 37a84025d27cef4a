//! Tests of the ledger under faults: a seeded simulation here, and `torture`, which tests the real programs.
//!
//! # Layout
//! - [`random`]: reproducible random numbers.
//! - [`sim`]: workers, a clock and a store that fail on purpose, all in one thread and from one seed.
//! - `bin/torture`: real processes, real kills, full disks and power cuts. A downstream counts the real effects.

pub mod random;
pub mod sim;

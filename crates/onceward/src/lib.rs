//! The ledger between intent and effect: it writes the intent down before anything happens, lets it happen once,
//! replays the result to every retry, and says *yes*, *no* or *in doubt* when asked.
//!
//! ```
//! use std::sync::Arc;
//! use onceward::{Attempt, Ledger, ManualClock, MemoryStore, Operation};
//!
//! let ledger = Ledger::new(Arc::new(MemoryStore::new(ManualClock::at(0)))).blocking();
//! let charge = Operation::new("charge_payment").input(serde_json::json!({"customer": "c1", "amount": 100}));
//! let pay = |attempt: Attempt| Ok(attempt.dispatch()?.created(&serde_json::json!({"id": 42})));
//!
//! let first = ledger.run(charge.clone(), pay)?;
//! let retry = ledger.run(charge, pay)?;
//! assert_eq!((first.effect().as_str(), retry.effect().as_str()), ("created", "noop"));
//! assert_eq!(first.data(), retry.data());
//! # Ok::<(), onceward::Error>(())
//! ```
//!
//! # Layout
//! - [`record`]: what is remembered; the states. [`decide`]: what a call gets. [`transition`]: how a record changes.
//! - [`json`], [`key`]: identity from intent. [`operation`]: what a caller asks for. [`policy`]: `onceward.toml`.
//! - [`store`]: the seam to back ends. [`memory`]: its specification. [`watchers`]: a building block for others.
//!   `conformance` (a feature): the suite that every back end runs.
//! - [`ledger`]: begin, execute, finish, and all that people do to records. [`blocking`]: the same without a runtime.
//! - [`atomic`]: record and effect in one transaction. [`answer`], [`next_step`], [`error`]: what callers are told.
//!
//! This crate does no I/O and reads no clock, environment or randomness: the store brings time and tokens.

pub mod record;
pub mod decide;
pub mod transition;
pub mod json;
pub mod key;
pub mod operation;
pub mod policy;
pub mod store;
pub mod memory;
pub mod watchers;
pub mod ledger;
pub mod atomic;
pub mod attempt;
pub mod blocking;
pub mod answer;
pub mod next_step;
pub mod error;
#[cfg(feature = "conformance")]
pub mod conformance;

pub use answer::{Answer, Preview};
pub use attempt::{Attempt, Dispatched, Done, Failure};
pub use blocking::Blocking;
pub use decide::{Decision, Liveness, Refusal};
pub use error::{Code, Error, Happened, InvalidInput, Ran};
pub use json::{Json, Pointer};
pub use key::{Fingerprint, Key, KeyOrigin, Occurrence, OperationId};
pub use ledger::{
    Adopted, Begun, Call, Cancelled, Claim, Lease, Ledger, Plan, ProbeAnswer, Receipt, RepeatRule, Swept,
    Wanted,
};
pub use memory::{ManualClock, MemoryStore};
pub use next_step::{Choice, Guidance, NextStep, Surface};
pub use operation::{Intent, Operation, ScopeOrigin};
pub use policy::{KeyPolicy, OnExpired, OnFailure, Policy, Settings, Terms, ToolRule, ToolSettings};
pub use record::{
    Class, Detail, DoubleEffect, Downstream, Effect, Outcome, Owner, Past, Record, State, Verification,
};
pub use store::{
    Applied, Change, Clock, Counts, Cursor, Dispatch, Door, Filter, Hold, Inherit, Listed, Missing, Store,
    StoreError, Swap, Watch,
};
pub use transition::{Ending, Verdict};

//! The ledger between intent and effect. It records an intent before anything happens, lets it happen once,
//! replays the result to every retry, and answers *yes*, *no* or *in doubt* when asked whether it happened.
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
//! Every public item has one path: types are at the root of the crate, and functions that belong together are in a
//! module. The source files:
//! - `record`: what is stored, and the states. `facts`: what the others share. `decide`: what a call gets.
//!   [`repeat`]: which operation an equal call refers to. `transition`: how a record changes.
//!   [`event`]: what becomes of an event of an inbox.
//! - `identity`, `secret`: the identity of a ledger. `json`, `key`: how an operation is identified. `operation`: what a
//!   caller requests. `policy`: `onceward.toml`. `redact`: what is removed before a result is stored.
//! - `action`: everything that was asked for: its identity, its stored form, its check and what a person sees of it.
//! - `store`: the interface to back ends. `memory`: its reference implementation. `watchers`: wakes waiting callers,
//!   for use by other stores. [`sealed`]: values whose key is missing. `conformance` (a feature): the test suite for
//!   back ends. `wire` (a feature): the messages of a store over HTTP.
//! - `barrier`: stopped scopes. `settlement`: what became of each intent.
//! - `ledger`: begin, execute, finish, and the administration of records. `ledger/blocking`: the same without a
//!   runtime.
//! - [`atomic`]: record and effect in one transaction. `answer`, `advice`, `error`, `invalid`, `time`: what callers
//!   receive.
//! - [`text`]: makes stored text safe to print. `witness`: which program an envelope speaks for.
//!
//! This crate does no I/O and reads no clock, environment or randomness: the store supplies time and tokens.
//!
//! # Features
//! - `conformance`: the test suite for back ends (`onceward::conformance`). Off by default.

mod action;
mod witness;
mod evidence;
mod word;
mod record;
mod facts;
// Pure functions, public for the tests of other crates of this workspace; they may change in any release.
#[doc(hidden)]
pub mod decide;
pub mod event;
pub mod repeat;
#[doc(hidden)]
pub mod transition;
mod identity;
mod secret;
mod json;
mod key;
mod kind;
mod operation;
mod policy;
mod redact;
mod barrier;
mod store;
mod settlement;
pub mod sealed;
mod memory;
mod watchers;
mod ledger;
mod undo;
pub mod atomic;
mod attempt;
mod advice;
mod answer;
mod api_problem;
mod error;
mod invalid;
mod template;
mod time;
mod told;
pub mod text;
#[cfg(feature = "conformance")]
pub mod conformance;
#[cfg(feature = "wire")]
pub mod wire;

/// The sample of `docs/backend.md`.
#[cfg(all(doctest, feature = "conformance"))]
#[doc = include_str!("../../../docs/backend.md")]
struct BackendGuide;

pub use action::{
    Action, ByteString, Changed, CommandAction, Content, Counted, FileState, FunctionAction,
    FunctionArguments, Relevance, RequestAction, ShownAction, ToolAction, Unreadable,
};
pub use advice::{Advice, Audience, Choice, NextStep, Surface};
pub use answer::{Answer, ErrorView, HeldView, OperationView, Preview, Problem, UndoneView};
pub use api_problem::{ApiProblem, idempotency_key};
pub use attempt::{Attempt, Dispatched, Done, Failure, STOP_GRACE_MS};
pub use barrier::{Barrier, PRINCIPAL, is_in_scope, stopping_scopes};
pub use decide::{Decision, Refusal};
pub use error::{Code, Error};
pub use evidence::{Doubt, Evidence, Settled};
pub use facts::{Ending, Happened, Liveness, Ran, RefusalOf, RepeatRule, Verdict};
pub use identity::{Fence, Identity, MAX_EPOCH, RANDOM_BYTES};
pub use invalid::InvalidInput;
pub use json::{Json, MAX_DEPTH, Pointer};
pub use key::{
    Fingerprint, Key, KeyOrigin, MAX_FIELDS, MAX_NAME, Occurrence, OperationId, field_digests,
    fields_that_differ, mask_prefix, name_like, select,
};
pub use kind::Kind;
pub use ledger::{
    Admin, Attempts, Begun, Blocking, BlockingAdmin, BlockingAttempts, BlockingRepeats, BlockingScopes,
    BlockingUndo, Call, Cancelled, Claim, Events, Imported, Lease, Ledger, Left, Names, Occurrences, Plan,
    ProbeAnswer, Receipt, Repeats, Resumed, Scopes, Stopped, SweepReport, ToUndo, Undo, UndoStart, Undoing,
    Wanted, delivered_by, delivers,
};
pub use memory::{ManualClock, MemoryStore};
pub use operation::{DEFAULT_SCOPE, Intent, Operation, ScopeOrigin};
pub use policy::{
    DEFAULT_POLICY, ExitRule, Hold, KeyPolicy, OnExpired, OnFailure, OnToolError, Origin, Policy, Release,
    RequestUndo, Setting, Settings, Terms, ToolQuestion, ToolRule, ToolSettings, ToolUndo, span_ms,
    suggestion,
};
pub use record::{
    Class, Compensation, CompensationKind, Delivered, Detail, DoubleEffect, Downstream, Effect, Held, HeldBy,
    MAX_HISTORY, MAX_REQUEST, MAX_RESULT, Outcome, Owner, Past, ProgramUndo, Record, State, UndoEvidence,
    Undone, Usage, Verification, check_compensation,
};
pub use redact::{Edit, REPLACEMENT as REDACTED, Redaction};
pub use secret::Secret;
pub use settlement::{Fate, Part, Settlement, SettlementLine, Sums, Tokens};
pub use store::{
    Applied, Begin, Change, Clock, Counts, Cursor, Dispatch, Filter, IfMissing, Inherit, Listed,
    LivenessSource, MOST_OPEN, OwnerLock, Store, StoreError, Swap, WriteMode, Writing, after_prefix,
    open_or_newest,
};
pub use template::{FieldValue, Piece, Template, field, fill_json};
pub use time::{rfc3339, span_in_words};
pub use told::Told;
pub use undo::{EffectNow, Reversal, UndoLine, UndoOutcome, UndoReport, UndoResult, UndoStep, sort_for_undo};
pub use watchers::Watchers;
pub use witness::{WITNESS, WITNESS_META, Witness, Witnessed, witness_token, witness_variable};
pub use word::{Speaker, Word, WordView};

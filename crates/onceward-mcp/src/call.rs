//! One guarded call, from its intent to its outcome.
//!
//! - `guard`: the path of a call. `scope`: which callers share keys. `retry_or_repeat`: whether it is a retry or an
//!   intended repeat. `orphans`: calls of lost sessions.
//! - `attempt`: one try. `named_lock`: calls that must not overlap. `question`: probes and checks by other tools.
//! - `ending`: what the server's answer proves about the effect. `rejections`: the SDK texts that prove it.
//! - `held`: calls that are held back. `undo`: calls that take others back.
//! - `elicit`: questions to the human. `seal`: proof that a question was ours.
//! - `waiters`: which requests wait, and which clients gave up. `progress`: progress for all who wait.

pub(crate) mod guard;
pub(crate) mod held;
pub(crate) mod undo;
pub(crate) mod attempt;
pub(crate) mod ending;
pub(crate) mod rejections;
pub(crate) mod retry_or_repeat;
pub(crate) mod waiters;
pub(crate) mod orphans;
pub(crate) mod progress;
pub(crate) mod question;
pub(crate) mod elicit;
pub(crate) mod seal;
pub(crate) mod named_lock;
pub(crate) mod scope;

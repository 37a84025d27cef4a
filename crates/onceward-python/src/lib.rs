//! The native module of the Python package `onceward`: the ledger in the caller's own process. The rules are in
//! `onceward` and the convenience is in Python; this crate has what must be fast or needs both.
//!
//! # Layout
//! - `values`: Python values as canonical JSON. `inputs`: the arguments of a call as JSON. `spec`: the options of a
//!   decorated function.
//! - `handle`: a ledger, opened when it is first used. `admin`: administration of its records. `calls`: calls on it.
//! - `run`: one call of a function. `async_call`: one call of a coroutine. `wire`: the tuples that Python answers with.
//! - `drive`: waiting with the interpreter released. `loop_waker`: waking an event loop. `lease_keeper`: renewing
//!   leases during the work. `fork`: what a forked child must not touch.
//! - `attempt`, `claim`, `record`, `receipt`, `plan`, `error`: what Python sees.
//! - `atomic`: record and effect in one transaction of the caller's. `api_problem`: what the middleware answers.
//!
//! Nothing here waits for a lock or a disk while it holds the interpreter, and only the caller's threads enter it.

mod values;
mod inputs;
mod spec;
mod handle;
mod admin;
mod calls;
mod run;
mod async_call;
mod drive;
mod fork;
mod loop_waker;
mod lease_keeper;
mod attempt;
mod stop_watch;
mod claim;
mod atomic;
mod record;
mod receipt;
mod plan;
mod error;
mod api_problem;
mod wire;

use pyo3::prelude::*;

/// The native module of `onceward`. Use the package instead.
#[pymodule(gil_used = true)]
fn _onceward(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<handle::Handle>()?;
    module.add_class::<spec::Spec>()?;
    module.add_class::<admin::Undoing>()?;
    module.add_class::<async_call::AsyncCall>()?;
    module.add_class::<loop_waker::LoopWaker>()?;
    module.add_class::<attempt::Attempt>()?;
    module.add_class::<stop_watch::StopWatch>()?;
    module.add_class::<claim::Claim>()?;
    module.add_class::<record::Record>()?;
    module.add_class::<receipt::Receipt>()?;
    module.add_class::<plan::Plan>()?;
    module.add_class::<atomic::Written>()?;
    module.add_function(wrap_pyfunction!(atomic::atomic_begin, module)?)?;
    module.add_function(wrap_pyfunction!(values::canonical, module)?)?;
    module.add_function(wrap_pyfunction!(spec::span_ms, module)?)?;
    module.add_function(wrap_pyfunction!(handle::masked, module)?)?;
    module.add_function(wrap_pyfunction!(api_problem::idempotency_key, module)?)?;
    module.add_function(wrap_pyfunction!(api_problem::key_missing, module)?)?;
    module.add_function(wrap_pyfunction!(api_problem::body_too_large, module)?)?;
    module.add_function(wrap_pyfunction!(api_problem::api_problem, module)?)?;
    module.add("CODES", error::codes())?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    Ok(())
}

//! The native half of the Python package `onceward`: the ledger in the caller's own process. Rules stay in `onceward`,
//! comfort is written in Python; here is what must be fast or must know both.
//!
//! # Layout
//! - `values`: Python values as canonical JSON. `inputs`: the arguments of a call as one. `spec`: what was said of a
//!   function when it was decorated.
//! - `handle`: a ledger, opened when it is first used. `tend`: what people do to its records.
//! - `run`: a call of a function. `converse`: the same for a coroutine. `told`: what Python says of either.
//! - `drive`: waiting with the interpreter let go. `bell`: waking an event loop. `keep`: leases beside the work.
//!   `fork`: what a forked child must not touch.
//! - `attempt`, `claim`, `record`, `receipt`, `plan`, `error`: what Python sees.
//! - `atomic`: record and effect in a transaction of the caller's own.
//!
//! Nothing here waits for a lock or a disk while it holds the interpreter, and no thread but the caller's enters it.

mod values;
mod inputs;
mod spec;
mod handle;
mod tend;
mod run;
mod converse;
mod drive;
mod fork;
mod bell;
mod keep;
mod attempt;
mod claim;
mod atomic;
mod record;
mod receipt;
mod plan;
mod error;
mod told;

use pyo3::prelude::*;

/// The native half of `onceward`. Use the package, not this module.
#[pymodule(gil_used = true)]
fn _onceward(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<handle::Handle>()?;
    module.add_class::<spec::Spec>()?;
    module.add_class::<converse::Conversation>()?;
    module.add_class::<bell::Bell>()?;
    module.add_class::<attempt::Attempt>()?;
    module.add_class::<claim::Claim>()?;
    module.add_class::<record::Record>()?;
    module.add_class::<receipt::Receipt>()?;
    module.add_class::<plan::Plan>()?;
    module.add_class::<atomic::Written>()?;
    module.add_function(wrap_pyfunction!(atomic::atomic_begin, module)?)?;
    module.add_function(wrap_pyfunction!(values::canonical, module)?)?;
    module.add_function(wrap_pyfunction!(spec::span_ms, module)?)?;
    module.add("CODES", error::codes())?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    Ok(())
}

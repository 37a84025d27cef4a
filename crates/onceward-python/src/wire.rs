//! How Python reports on an attempt, a probe or a check: small tuples, whose first word says what they are.

use std::sync::Arc;

use onceward::{Attempt, Dispatched, Done, Effect, Evidence, Failure, Outcome, ProbeAnswer, Verification};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use serde_json::value::RawValue;

use crate::attempt::{Token, dispatched};

/// How an attempt ended, as reported by the code around the function.
pub(crate) struct Report {
    pub(crate) result: Result<Done, Failure>,
    /// What the function returned.
    pub(crate) own: Option<Py<PyAny>>,
    /// What it raised.
    pub(crate) cause: Option<Py<PyAny>>,
}

/// `("done", effect, json | None, value, reason | None)`, or
/// `("in_doubt" | "timed_out" | evidence, reason, exception | None, whether the call may try again)`. The words for
/// evidence that nothing happened are those of [`evidence`].
pub(crate) fn attempt(said: &Bound<'_, PyAny>, attempt: &Attempt, token: &Token) -> PyResult<Report> {
    let word: String = said.get_item(0)?.extract()?;
    if word == "done" {
        type Tuple<'py> = (String, String, Option<String>, Bound<'py, PyAny>, Option<String>);
        let (_, effect, json, own, reason): Tuple<'_> = said.extract()?;
        let result = match (dispatched(attempt, token), reason) {
            (_, Some(reason)) => Ok(noop(reason, json)?),
            (Some(token), None) => Ok(done(token, &effect, json)?),
            (None, None) => Err(Failure::in_doubt("it succeeded, but the dispatch could not be recorded")),
        };
        return Ok(Report { result, own: Some(own.unbind()), cause: None });
    }
    let (_, reason, cause, again): (String, String, Option<Bound<'_, PyAny>>, bool) = said.extract()?;
    let failure = match word.as_str() {
        "in_doubt" => Failure::in_doubt(reason),
        "timed_out" => Failure::timed_out(reason),
        word => Failure::no_effect(evidence(word)?, reason),
    };
    // Ctrl-C, an exit, a cancelled task or a scheduler's own exception ends the call, however many tries are left.
    let failure = if again { failure } else { failure.stopped() };
    Ok(Report { result: Err(failure), own: None, cause: cause.map(Bound::unbind) })
}

/// Why it is certain that nothing happened: `not_started`, `not_sent`, `refused` or `declared`.
pub(crate) fn evidence(word: &str) -> PyResult<Evidence> {
    match word {
        "not_started" => Ok(Evidence::NotStarted),
        "not_sent" => Ok(Evidence::NotSent),
        "refused" => Ok(Evidence::refused("as the client's exception shows")),
        "declared" => Ok(Evidence::declared("the author of the function")),
        _ => Err(not_understood(word)),
    }
}

/// `("yes", json | None)`, `("no", None)` or `("cannot_tell", reason)`.
pub(crate) fn probe(said: &Bound<'_, PyAny>) -> PyResult<ProbeAnswer> {
    let (word, more): (String, Option<String>) = said.extract()?;
    Ok(match word.as_str() {
        "yes" => {
            let data = more.map(raw).transpose()?;
            ProbeAnswer::Yes(Outcome { unavailable: data.is_none(), data, ..Outcome::because(None) })
        }
        "no" => ProbeAnswer::No,
        "cannot_tell" => ProbeAnswer::CannotTell(more.unwrap_or_default()),
        _ => return Err(not_understood(&word)),
    })
}

/// `("confirmed" | "refuted" | "pending", reason)`.
pub(crate) fn check(said: &Bound<'_, PyAny>) -> PyResult<(Verification, String)> {
    let (word, reason): (String, String) = said.extract()?;
    Ok((word.parse().map_err(|_| not_understood(&word))?, reason))
}

/// A success, for a claim.
pub(crate) fn outcome(effect: &str, json: Option<String>) -> PyResult<Outcome> {
    let data = json.map(raw).transpose()?;
    Ok(Outcome { unavailable: data.is_none(), data, ..Outcome::with_effect(self::effect(effect)?) })
}

fn effect(word: &str) -> PyResult<Effect> {
    word.parse().map_err(|problem: onceward::InvalidInput| PyValueError::new_err(problem.to_string()))
}

/// An attempt that succeeded. Without JSON, its result could not be serialized.
pub(crate) fn done(token: Dispatched, effect: &str, json: Option<String>) -> PyResult<Done> {
    let effect = self::effect(effect)?;
    Ok(match json {
        Some(json) => token.done_with_json(effect, raw(json)?),
        None => token.done_without_result(effect),
    })
}

/// There was nothing to do.
fn noop(reason: String, json: Option<String>) -> PyResult<Done> {
    Ok(match json {
        Some(json) => Done::noop(reason, &raw(json)?),
        None => Done::noop(reason, &Unwritable),
    })
}

/// A value as JSON text.
pub(crate) fn json(value: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|error| PyValueError::new_err(error.to_string()))
}

pub(crate) fn raw(json: String) -> PyResult<Arc<RawValue>> {
    RawValue::from_string(json)
        .map(Arc::from)
        .map_err(|error| PyValueError::new_err(format!("not JSON: {error}")))
}

fn not_understood(word: &str) -> PyErr {
    PyValueError::new_err(format!("{word:?} is not understood"))
}

/// A result that has no JSON form.
struct Unwritable;

impl serde::Serialize for Unwritable {
    fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("it cannot be written as JSON"))
    }
}

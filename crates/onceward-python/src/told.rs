//! What Python says of an attempt, a probe or a check: small tuples, whose first word says what they are.

use onceward::{Done, Effect, Failure, Outcome, ProbeAnswer, Verification};
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;
use serde_json::value::RawValue;

/// How an attempt went, by the word of the code around the function.
pub(crate) struct Told {
    pub(crate) result: Result<Done, Failure>,
    /// What the function returned.
    pub(crate) own: Option<Py<PyAny>>,
    /// What it raised.
    pub(crate) cause: Option<Py<PyAny>>,
}

/// `("done", effect, json | None, value, reason | None)`, or
/// `("failed" | "in_doubt" | "timed_out" | "unsaid", reason, exception | None)`.
pub(crate) fn attempt(said: &Bound<'_, PyAny>) -> PyResult<Told> {
    let word: String = said.get_item(0)?.extract()?;
    if word == "done" {
        type Said<'py> = (String, String, Option<String>, Bound<'py, PyAny>, Option<String>);
        let (_, effect, json, own, reason): Said<'_> = said.extract()?;
        return Ok(Told { result: Ok(done(&effect, json, reason)?), own: Some(own.unbind()), cause: None });
    }
    let (_, reason, cause): (String, String, Option<Bound<'_, PyAny>>) = said.extract()?;
    let failure = match word.as_str() {
        "failed" => Failure::no_effect(reason),
        "in_doubt" => Failure::in_doubt(reason),
        "timed_out" => Failure::timed_out(reason),
        "unsaid" => Failure::from(Unsaid(reason)),
        _ => return Err(not_understood(&word)),
    };
    // Ctrl-C, an exit or a cancelled task ends the call, whatever it may still try.
    let goes_on = cause.as_ref().is_none_or(|cause| cause.is_instance_of::<PyException>());
    let failure = if goes_on { failure } else { failure.stopped() };
    Ok(Told { result: Err(failure), own: None, cause: cause.map(Bound::unbind) })
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

/// A finished attempt. Without JSON, its result could not be written as such.
pub(crate) fn done(effect: &str, json: Option<String>, reason: Option<String>) -> PyResult<Done> {
    let effect = self::effect(effect)?;
    Ok(match (json, reason) {
        (Some(json), None) => Done::with_json(effect, raw(json)?),
        (Some(json), Some(reason)) => Done::noop(reason, &raw(json)?),
        (None, _) => Done::new(effect, &Unwritable),
    })
}

pub(crate) fn raw(json: String) -> PyResult<Box<RawValue>> {
    RawValue::from_string(json).map_err(|error| PyValueError::new_err(format!("not JSON: {error}")))
}

fn not_understood(word: &str) -> PyErr {
    PyValueError::new_err(format!("{word:?} is not understood"))
}

/// An error without a class: certain only if the attempt had said that nothing was dispatched yet.
#[derive(Debug)]
struct Unsaid(String);

impl std::fmt::Display for Unsaid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unsaid {}

/// A result that has no JSON.
struct Unwritable;

impl serde::Serialize for Unwritable {
    fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("it cannot be written as JSON"))
    }
}

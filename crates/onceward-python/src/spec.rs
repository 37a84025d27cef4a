//! The options of a decorated function.

use onceward::{
    Action, Compensation, CompensationKind, Effect, FunctionAction, HeldBy, Hold, Intent, Json, Operation,
    OperationId, Policy, Settings, Terms,
};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyString, PyTuple};

use crate::error;
use crate::inputs::{Inputs, Row};
use crate::values::{Text, json_of};

/// A value for all calls, or a function that computes it for each.
enum PerCall {
    Nothing,
    Text(String),
    /// Called with the arguments of the call.
    Computed(Py<PyAny>),
}

/// A decorated function: its identity, what its calls share, and how they are distinguished.
#[pyclass(frozen, module = "onceward._onceward")]
pub(crate) struct Spec {
    name: String,
    scope: PerCall,
    key: PerCall,
    key_fields: Vec<String>,
    volatile: Vec<String>,
    occurrence: PerCall,
    inputs: Option<Inputs>,
    text: Text,
    settings: Settings,
    decode: Option<Py<PyAny>>,
    /// Called with the arguments of a call that is held: gives them as JSON text, or nothing if they are not JSON.
    request: Option<Py<PyAny>>,
    held_by: HeldBy,
    /// The operation that its calls take back.
    undoes: Option<OperationId>,
}

/// A duration (`500ms`, `15s`, `24h`, `30d`) in milliseconds.
#[pyfunction]
pub(crate) fn span_ms(py: Python<'_>, text: &str) -> PyResult<u64> {
    onceward::span_ms(text).map_err(|invalid| error::of(py, &invalid.into()))
}

#[pymethods]
impl Spec {
    /// `params` is the table of the function's parameters; without it, the first argument of a call is its inputs.
    /// `terms` overrides the policy, which is TOML.
    #[new]
    #[pyo3(signature = (name, *, scope=None, key=None, key_fields=Vec::new(), volatile=Vec::new(), occurrence=None,
                        params=None, bind=None, nfc=false, terms=None, policy=None, decode=None, request=None,
                        undo=None, undoes=None))]
    #[expect(clippy::too_many_arguments, reason = "it is called from one place, by names")]
    fn new(
        py: Python<'_>,
        name: String,
        scope: Option<Bound<'_, PyAny>>,
        key: Option<Bound<'_, PyAny>>,
        key_fields: Vec<String>,
        volatile: Vec<String>,
        occurrence: Option<Bound<'_, PyAny>>,
        params: Option<Vec<Row<'_>>>,
        bind: Option<Bound<'_, PyAny>>,
        nfc: bool,
        terms: Option<Bound<'_, PyDict>>,
        policy: Option<&str>,
        decode: Option<Py<PyAny>>,
        request: Option<Py<PyAny>>,
        undo: Option<String>,
        undoes: Option<&str>,
    ) -> PyResult<Self> {
        let text = if nfc { Text::Nfc } else { Text::AsItIs };
        let invalid = |invalid: onceward::InvalidInput| error::of(py, &invalid.into());
        let policy = policy.map_or_else(|| Ok(Policy::default()), Policy::parse).map_err(invalid)?;
        let mut settings = policy.settings(&name).map_err(invalid)?;
        let mut held_by = HeldBy::Policy;
        if let Some(said) = terms {
            if said.contains("hold")? {
                held_by = HeldBy::Caller;
            }
            overrule(&mut settings, &said)?;
        }
        if let Some(text) = undo {
            settings.undo = Some(Compensation { runs: CompensationKind::Code, text });
        }
        let undoes = undoes.map(OperationId::parse).transpose().map_err(invalid)?;
        settings.terms.check().map_err(invalid)?;
        let inputs = match (params, bind) {
            (Some(rows), Some(bind)) => Some(Inputs::new(rows, bind, text)?),
            (None, _) | (_, None) => None,
        };
        let key_fields = if key_fields.is_empty() { settings.key_fields.clone() } else { key_fields };
        let volatile = if volatile.is_empty() { settings.volatile.clone() } else { volatile };
        let (scope, key, occurrence) = (per_call(scope)?, per_call(key)?, per_call(occurrence)?);
        Ok(Self {
            name,
            scope,
            key,
            key_fields,
            volatile,
            occurrence,
            inputs,
            text,
            settings,
            decode,
            request,
            held_by,
            undoes,
        })
    }

    /// The operation's name.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// What a success changes.
    #[getter]
    fn effect(&self) -> &'static str {
        self.settings.effect.as_str()
    }

    /// The identity of a call, independent of the ledger: key, fingerprint and id.
    #[pyo3(signature = (args, kwargs=None))]
    fn identity(
        &self,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<(String, String, String)> {
        Ok(identity(&self.intent(args, kwargs)?))
    }
}

/// The key, the fingerprint and the id of a call.
pub(crate) fn identity(intent: &Intent) -> (String, String, String) {
    (intent.key.text.clone(), intent.fingerprint.as_str().to_owned(), intent.id.to_string())
}

impl Spec {
    /// The intent of a call with these arguments.
    pub(crate) fn intent(
        &self,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Intent> {
        let input = match &self.inputs {
            Some(inputs) => inputs.of(args, kwargs)?,
            None if args.is_empty() => Json::empty(),
            None => json_of(&args.get_item(0)?, self.text, "the input")?,
        };
        let mut operation = Operation::new(self.name.as_str())
            .input(input)
            .key_fields(&self.key_fields)
            .volatile(&self.volatile)
            .terms(self.settings.terms.clone())
            .undo(self.settings.undo.clone());
        if let Some(id) = &self.undoes {
            operation = operation.undoes(id);
        }
        if let Some(scope) = self.scope.of("scope", args, kwargs)? {
            operation = operation.scope(scope);
        }
        if let Some(key) = self.key.of("key", args, kwargs)? {
            operation = operation.key(key);
        }
        if let Some(occurrence) = self.occurrence.of("occurrence", args, kwargs)? {
            operation = operation.occurrence(occurrence);
        }
        if self.settings.terms.hold != Hold::No {
            operation = operation.held("python", self.held_by, self.request(args, kwargs)?);
        }
        operation.intent().map_err(|problem| error::of(args.py(), &problem))
    }

    /// What another process needs to make the call, if its arguments are JSON.
    fn request(
        &self,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Option<String>> {
        let Some(request) = &self.request else { return Ok(None) };
        let text: Option<String> = request.bind(args.py()).call(args, kwargs)?.extract()?;
        let arguments = text.and_then(|text| serde_json::from_str(&text).ok());
        let action = |arguments| FunctionAction { function: self.name.clone(), arguments };
        Ok(arguments.map(|arguments| Action::Function(action(arguments)).stored(&())))
    }

    /// The times, limits and rules of its calls.
    pub(crate) fn terms(&self) -> &Terms {
        &self.settings.terms
    }

    /// What a success changes.
    pub(crate) fn success(&self) -> Effect {
        self.settings.effect
    }

    pub(crate) fn decode(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.decode.as_ref().map(|decode| decode.clone_ref(py))
    }
}

impl PerCall {
    fn of(
        &self,
        what: &str,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Option<String>> {
        match self {
            Self::Nothing => Ok(None),
            Self::Text(text) => Ok(Some(text.clone())),
            Self::Computed(asked) => {
                let answer = asked.bind(args.py()).call(args, kwargs)?;
                label(&answer)?.map(Some).ok_or_else(|| {
                    let kind =
                        answer.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string());
                    error::invalid(args.py(), &format!("the {what} of this call is a {kind}; give text"))
                })
            }
        }
    }
}

fn per_call(value: Option<Bound<'_, PyAny>>) -> PyResult<PerCall> {
    let Some(value) = value else { return Ok(PerCall::Nothing) };
    if let Some(text) = label(&value)? {
        return Ok(PerCall::Text(text));
    }
    if value.is_callable() {
        return Ok(PerCall::Computed(value.unbind()));
    }
    Err(PyTypeError::new_err(format!("{} is neither text nor a function that returns text", value.repr()?)))
}

/// Text, or an integer as text.
fn label(value: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(Some(text.to_str()?.to_owned()));
    }
    if value.is_exact_instance_of::<PyInt>() {
        return Ok(Some(value.str()?.to_str()?.to_owned()));
    }
    Ok(None)
}

/// The caller's options override the policy.
fn overrule(settings: &mut Settings, said: &Bound<'_, PyDict>) -> PyResult<()> {
    let terms = &mut settings.terms;
    for (name, value) in said.iter() {
        let name: String = name.extract()?;
        match name.as_str() {
            "class" => {
                terms.class = word(&value, &onceward::Class::ALL.map(|class| (class.as_str(), class)))?
            }
            "effect" => {
                settings.effect = word(&value, &Effect::REAL.map(|effect| (effect.as_str(), effect)))?
            }
            "on_failure" => {
                use onceward::OnFailure::{Replay, Retry};
                terms.on_failure = word(&value, &[("retry", Retry), ("replay", Replay)])?;
            }
            "on_expired" => {
                use onceward::OnExpired::{Auto, Refuse, Rerun};
                terms.on_expired = word(&value, &[("auto", Auto), ("refuse", Refuse), ("rerun", Rerun)])?;
            }
            "hold" => {
                let said: String = value.extract()?;
                terms.hold = said
                    .parse()
                    .map_err(|invalid: onceward::InvalidInput| error::of(value.py(), &invalid.into()))?;
            }
            "attempts" => terms.max_attempts = value.extract()?,
            "retries" => terms.retries = value.extract()?,
            "lease_ms" => terms.lease_ms = value.extract()?,
            "wait_ms" => terms.wait_ms = value.extract()?,
            "retention_ms" => terms.keep_results_for(value.extract()?),
            "backoff_ms" => terms.backoff_ms = value.extract()?,
            "quarantine_ms" => terms.quarantine_ms = value.extract()?,
            "downstream_window_ms" => terms.downstream_window_ms = value.extract()?,
            "verify_deadline_ms" => terms.verify_deadline_ms = value.extract()?,
            "verify_interval_ms" => terms.verify_interval_ms = value.extract()?,
            _ => return Err(PyTypeError::new_err(format!("there is no term {name:?}"))),
        }
    }
    Ok(())
}

fn word<T: Copy>(value: &Bound<'_, PyAny>, words: &[(&str, T)]) -> PyResult<T> {
    let said: String = value.extract()?;
    let found = words.iter().find(|(word, _)| *word == said).map(|(_, meaning)| *meaning);
    found.ok_or_else(|| {
        let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        error::invalid(value.py(), &format!("{said:?} is not one of {}", words.join(", ")))
    })
}

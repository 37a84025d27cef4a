//! Python values as canonical JSON, directly from the objects.

use onceward::{Json, MAX_DEPTH};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

use crate::error;

/// How text is normalized before it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Text {
    /// Not at all: two spellings are two texts.
    AsItIs,
    /// To Unicode's normal form C.
    Nfc,
}

/// The canonical JSON text of a value, from which keys and fingerprints are computed.
#[pyfunction]
#[pyo3(signature = (value, *, nfc = false))]
pub(crate) fn canonical(value: &Bound<'_, PyAny>, nfc: bool) -> PyResult<String> {
    let text = if nfc { Text::Nfc } else { Text::AsItIs };
    Ok(json_of(value, text, "the input")?.canonical())
}

/// A value as JSON. An ambiguous value is refused, with its position within `whole`.
pub(crate) fn json_of(value: &Bound<'_, PyAny>, text: Text, whole: &str) -> PyResult<Json> {
    walk(value, text, MAX_DEPTH).map_err(|refused| refused.raise(value.py(), whole))
}

/// The text of a string, normalized.
pub(crate) fn text_of(string: &Bound<'_, PyString>, text: Text) -> PyResult<String> {
    let plain = string.to_str()?;
    if text == Text::AsItIs || plain.is_ascii() {
        return Ok(plain.to_owned());
    }
    static NORMALIZE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let normalize = NORMALIZE.import(string.py(), "unicodedata", "normalize")?;
    normalize.call1((intern!(string.py(), "NFC"), string))?.extract()
}

/// Why a value is refused.
enum Refused {
    /// It is ambiguous: where, and why.
    Value { path: String, why: String },
    /// A method of the value failed.
    Python(PyErr),
}

impl From<PyErr> for Refused {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}

impl Refused {
    fn because(why: impl Into<String>) -> Self {
        Self::Value { path: String::new(), why: why.into() }
    }

    /// The same, seen from one level above.
    fn below(self, step: &str) -> Self {
        match self {
            Self::Value { path, why } => Self::Value { path: format!("/{step}{path}"), why },
            Self::Python(error) => Self::Python(error),
        }
    }

    fn raise(self, py: Python<'_>, whole: &str) -> PyErr {
        match self {
            Self::Python(error) => error,
            Self::Value { path, why } => error::invalid(py, &format!("{whole}{path} {why}")),
        }
    }
}

fn walk(value: &Bound<'_, PyAny>, text: Text, depth: usize) -> Result<Json, Refused> {
    if value.is_none() {
        return Ok(Json::Null);
    }
    // Exact types only: a subclass may mean something else, as an enum does.
    if let Ok(string) = value.cast_exact::<PyString>() {
        return Ok(Json::String(unicode(string, text)?));
    }
    if let Ok(flag) = value.cast_exact::<PyBool>() {
        return Ok(Json::Bool(flag.is_true()));
    }
    if value.is_exact_instance_of::<PyInt>() {
        return integer(value);
    }
    if let Ok(float) = value.cast_exact::<PyFloat>() {
        return fraction(float.value());
    }
    let Some(depth) = depth.checked_sub(1) else {
        return Err(Refused::because(format!("nests deeper than {MAX_DEPTH} levels, or contains itself")));
    };
    if let Ok(members) = value.cast_exact::<PyDict>() {
        return object(members, text, depth);
    }
    if let Ok(items) = value.cast_exact::<PyList>() {
        return array(items.iter(), text, depth);
    }
    if let Ok(items) = value.cast_exact::<PyTuple>() {
        return array(items.iter(), text, depth);
    }
    walk(&plain(value)?, text, depth)
}

/// The plain value for a value of another type, by `onceward._values.plain`.
fn plain<'py>(value: &Bound<'py, PyAny>) -> Result<Bound<'py, PyAny>, Refused> {
    static PLAIN: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let plain = PLAIN.import(value.py(), "onceward._values", "plain")?;
    plain.call1((value,)).map_err(|error| {
        let py = value.py();
        if error.is_instance_of::<pyo3::exceptions::PyTypeError>(py) {
            Refused::because(error.value(py).to_string())
        } else if error.is_instance_of::<pyo3::exceptions::PyException>(py) {
            Refused::because(format!("cannot be read: {error}"))
        } else {
            Refused::Python(error)
        }
    })
}

/// Text without lone surrogates: no other language could compute the same key from them.
fn unicode(string: &Bound<'_, PyString>, text: Text) -> Result<String, Refused> {
    text_of(string, text).map_err(|_| Refused::because("is text with a lone surrogate, which is not Unicode"))
}

fn integer(value: &Bound<'_, PyAny>) -> Result<Json, Refused> {
    if let Ok(number) = value.extract::<i64>() {
        return Ok(Json::Number(number.to_string()));
    }
    let digits = value.str()?;
    Json::number(digits.to_str()?).map_err(|invalid| Refused::because(invalid.to_string()))
}

fn fraction(number: f64) -> Result<Json, Refused> {
    /// Up to here a double represents every integer.
    const WHOLE: f64 = 9_007_199_254_740_992.0;
    /// From here on numbers are written with an exponent.
    const PLAIN: f64 = 1e21;
    if !number.is_finite() {
        return Err(Refused::because("is not a finite number"));
    }
    if number.fract() == 0.0 && number.abs() < PLAIN {
        if number.abs() >= WHOLE {
            // With every digit, like an integer of the same value.
            return Json::number(&format!("{number:.0}"))
                .map_err(|invalid| Refused::because(invalid.to_string()));
        }
        #[expect(clippy::cast_possible_truncation, reason = "it is an integer, and small enough")]
        return Ok(Json::Number((number as i64).to_string()));
    }
    Json::number(&format!("{number:?}")).map_err(|invalid| Refused::because(invalid.to_string()))
}

fn object(members: &Bound<'_, PyDict>, text: Text, depth: usize) -> Result<Json, Refused> {
    let mut seen = Vec::with_capacity(members.len());
    for (name, value) in members.iter() {
        let name = member_name(&name, text)?;
        let value = walk(&value, text, depth).map_err(|refused| refused.below(&name))?;
        seen.push((name, value));
    }
    let count = seen.len();
    let object = Json::object(seen);
    match &object {
        Json::Object(members) if members.len() == count => Ok(object),
        Json::Object(_) | Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) | Json::Array(_) => {
            Err(Refused::because("contains one name twice"))
        }
    }
}

/// Names are text: otherwise `{1: …}` and `{"1": …}` would be the same.
fn member_name(name: &Bound<'_, PyAny>, text: Text) -> Result<String, Refused> {
    if let Ok(name) = name.cast_exact::<PyString>() {
        return unicode(name, text);
    }
    let stands_for = plain(name)?;
    match stands_for.cast_exact::<PyString>() {
        Ok(name) => unicode(name, text),
        // A member of an enum is not text but has one.
        Err(_) if stands_for.is_exact_instance_of::<PyDict>() => {
            Ok(walk(&stands_for, text, MAX_DEPTH)?.canonical())
        }
        Err(_) => Err(Refused::because(format!("has the key {}; keys are text", name.repr()?))),
    }
}

fn array<'py>(
    items: impl Iterator<Item = Bound<'py, PyAny>>,
    text: Text,
    depth: usize,
) -> Result<Json, Refused> {
    let walked = items
        .enumerate()
        .map(|(index, item)| walk(&item, text, depth).map_err(|refused| refused.below(&index.to_string())));
    Ok(Json::Array(walked.collect::<Result<_, _>>()?))
}

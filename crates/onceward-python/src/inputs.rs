//! The arguments of a call as one JSON object, by the names of the function's parameters.

use onceward::Json;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

use crate::values::{Text, json_of};

/// How a parameter takes its argument, in the order of `inspect.Parameter.kind`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ParameterKind {
    PositionalOnly,
    Either,
    VarPositional,
    KeywordOnly,
    VarKeyword,
}

/// Whether an argument is part of the inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counts {
    Yes,
    /// It is volatile, or the object of a method. It need not have a JSON form.
    No,
}

struct Param {
    name: Py<PyString>,
    text: String,
    /// How an error message refers to it.
    whole: String,
    kind: ParameterKind,
    default: Option<Py<PyAny>>,
    counts: Counts,
}

/// The parameters of a function.
pub(crate) struct Inputs {
    params: Vec<Param>,
    /// `inspect.Signature.bind`, whose messages explain best what is wrong with a call.
    bind: Py<PyAny>,
    text: Text,
}

/// A row of the table that Python derives from a signature: name, kind, whether it counts, and its default in a tuple.
pub(crate) type Row<'py> = (Bound<'py, PyString>, u8, bool, Option<Bound<'py, PyTuple>>);

impl Inputs {
    pub(crate) fn new(rows: Vec<Row<'_>>, bind: Bound<'_, PyAny>, text: Text) -> PyResult<Self> {
        let params = rows.into_iter().map(param).collect::<PyResult<_>>()?;
        Ok(Self { params, bind: bind.unbind(), text })
    }

    /// The inputs of one call, including defaults: leaving an argument out is the same as passing its default.
    pub(crate) fn of(&self, args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<Json> {
        let py = args.py();
        let mut members = Vec::with_capacity(self.params.len());
        let mut given = args.iter();
        let mut named = 0;
        for param in &self.params {
            let value = match param.kind {
                ParameterKind::VarPositional => Some(PyTuple::new(py, given.by_ref())?.into_any()),
                ParameterKind::VarKeyword => {
                    let rest = self.rest(kwargs, py)?;
                    named += rest.len();
                    Some(rest.into_any())
                }
                ParameterKind::PositionalOnly => given.next(),
                ParameterKind::Either => match given.next() {
                    Some(value) => Some(value),
                    None => by_name(kwargs, param, &mut named)?,
                },
                ParameterKind::KeywordOnly => by_name(kwargs, param, &mut named)?,
            };
            let value = match (value, &param.default) {
                (Some(value), _) => value,
                (None, Some(default)) => default.bind(py).clone(),
                (None, None) => return Err(self.misfit(args, kwargs)),
            };
            if param.counts == Counts::Yes {
                let value = json_of(&value, self.text, &param.whole)?;
                members.push((param.text.clone(), value));
            }
        }
        if given.next().is_some() || named != kwargs.map_or(0, PyDictMethods::len) {
            return Err(self.misfit(args, kwargs));
        }
        Ok(Json::object(members))
    }

    /// What `**kwargs` takes: all names that are not parameters.
    fn rest<'py>(
        &self,
        kwargs: Option<&Bound<'py, PyDict>>,
        py: Python<'py>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let rest = match kwargs {
            Some(kwargs) => kwargs.copy()?,
            None => PyDict::new(py),
        };
        for param in &self.params {
            if matches!(param.kind, ParameterKind::Either | ParameterKind::KeywordOnly)
                && rest.contains(&param.name)?
            {
                rest.del_item(&param.name)?;
            }
        }
        Ok(rest)
    }

    /// The error that Python itself would raise.
    fn misfit(&self, args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyErr {
        let error = self.bind.bind(args.py()).call(args, kwargs).err();
        error.unwrap_or_else(|| PyTypeError::new_err("the arguments do not fit the function"))
    }
}

fn param(row: Row<'_>) -> PyResult<Param> {
    let (name, kind, counts, default) = row;
    let kind = match kind {
        0 => ParameterKind::PositionalOnly,
        1 => ParameterKind::Either,
        2 => ParameterKind::VarPositional,
        3 => ParameterKind::KeywordOnly,
        4 => ParameterKind::VarKeyword,
        other => return Err(PyTypeError::new_err(format!("{other} is not a kind of parameter"))),
    };
    let default = default.map(|default| default.get_item(0).map(Bound::unbind)).transpose()?;
    let counts = if counts { Counts::Yes } else { Counts::No };
    let text = name.to_str()?.to_owned();
    Ok(Param { whole: format!("the argument {text}"), text, name: name.unbind(), kind, default, counts })
}

fn by_name<'py>(
    kwargs: Option<&Bound<'py, PyDict>>,
    param: &Param,
    named: &mut usize,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some(kwargs) = kwargs else { return Ok(None) };
    let value = kwargs.get_item(&param.name)?;
    *named += usize::from(value.is_some());
    Ok(value)
}

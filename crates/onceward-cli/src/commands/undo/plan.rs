//! The plan of an undo: for each operation, what would be done and what may run. Nothing is run here.

use std::sync::Arc;

use onceward::{
    Blocking, CompensationKind, Error, InvalidInput, OperationId, Record, Reversal, State, Template,
    UndoStep, field,
};
use serde_json::Value;

use crate::cli::{OperationArg, UndoArgs};
use crate::commands::ask::Question;
use crate::commands::output;
use crate::commands::stored::{self, Which};
use crate::context::{Context, IfMissing};
use crate::exit::CommandError;

/// Characters of a field besides letters and digits. None of them has a meaning to a shell, however often the command
/// passes the value through one.
const PLAIN: &str = "_-.:/@+=,%";

/// One operation of the plan.
pub(super) struct Planned {
    pub(super) record: Arc<Record>,
    pub(super) state: State,
    pub(super) reversal: Reversal,
    pub(super) action: Action,
}

/// What would be done about an operation.
pub(super) enum Action {
    /// Run this command.
    Run(String),
    /// Its compensation is done already: only record it.
    Finish,
    /// Ask this probe first.
    Ask(Question),
    /// Nothing, for this reason.
    Leave(String),
}

/// What an undo may run, on whose authority.
pub(super) struct Planner<'a> {
    pub(super) context: &'a Context,
    pub(super) ledger: &'a Blocking,
    pub(super) args: &'a UndoArgs,
}

impl Planner<'_> {
    /// The operations in the order in which they are taken back.
    pub(super) fn plan(&self) -> Result<Vec<Planned>, CommandError> {
        let Some(word) = &self.args.operation else { return self.plan_scope() };
        let (record, state) = self.ledger.find(&self.find(word)?)?;
        let mut reversal = Reversal::of(&record, state);
        // The caller brought a command.
        if reversal == Reversal::Irreversible && self.may_compensate(&record)? {
            reversal = Reversal::Compensate;
        }
        Ok(vec![self.planned(record, state, reversal)?])
    }

    fn plan_scope(&self) -> Result<Vec<Planned>, CommandError> {
        let scope = self.args.scope.as_deref().unwrap_or_default();
        let since = self.args.since.as_deref().map(|word| self.find(word)).transpose()?;
        let steps = self.ledger.undo_plan(scope, since.as_ref())?;
        let is_operation = |step: &UndoStep| step.reversal != Reversal::Compensation;
        let plan = steps.into_iter().filter(is_operation).map(|step| {
            // A listing leaves out the results, which the commands need.
            let (record, state) = self.ledger.find(&step.record.id)?;
            let reversal = Reversal::of(&record, state);
            self.planned(record, state, reversal)
        });
        plan.collect()
    }

    fn find(&self, word: &str) -> Result<OperationId, CommandError> {
        let UndoArgs { scope, name, .. } = self.args;
        let arg = OperationArg { operation: word.to_owned(), scope: scope.clone(), name: name.clone() };
        self.context.operation(self.ledger, &arg)
    }

    pub(super) fn planned(
        &self,
        record: Arc<Record>,
        state: State,
        reversal: Reversal,
    ) -> Result<Planned, CommandError> {
        let action = match reversal {
            Reversal::Compensate if self.is_compensated(&record)? => Action::Finish,
            Reversal::Compensate => self.command(&record).map_or_else(Action::Leave, Action::Run),
            Reversal::InDoubt => match self.probe(&record) {
                Ok(Some(question)) => Action::Ask(question),
                Ok(None) => Action::Leave(
                    "it may have happened, and there is no probe to ask: settle it first".to_owned(),
                ),
                Err(why) => Action::Leave(format!("it may have happened: {why}")),
            },
            Reversal::Irreversible => Action::Leave("nothing is registered that takes it back".to_owned()),
            Reversal::Running => Action::Leave("it is still running".to_owned()),
            Reversal::AlreadyUndone => Action::Leave("it has been taken back".to_owned()),
            Reversal::NothingHappened => Action::Leave("it had no effect".to_owned()),
            Reversal::Expired => Action::Leave("it was done, and its result has expired".to_owned()),
            Reversal::Compensation => Action::Leave("it takes another operation back itself".to_owned()),
        };
        Ok(Planned { record, state, reversal, action })
    }

    /// Whether an earlier undo ran the compensation but did not record it.
    fn is_compensated(&self, record: &Record) -> Result<bool, CommandError> {
        let Some(mark) = &record.detail.undone else { return Ok(false) };
        match self.ledger.find(&mark.by) {
            Ok((_, state)) => Ok(state == State::Done),
            Err(Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the caller or the policy has a compensation for an operation that stores none.
    fn may_compensate(&self, record: &Record) -> Result<bool, CommandError> {
        Ok(self.args.undo.is_some() || self.context.policy.settings(&record.name)?.undo.is_some())
    }

    /// The command that takes the operation back, with the fields of its result; or why there is none to run.
    fn command(&self, record: &Arc<Record>) -> Result<String, String> {
        let own = self.args.undo.clone().map(|command| Question { command, no: Vec::new() });
        if let (None, Some(undo)) = (&own, &record.detail.undo) {
            elsewhere(record, undo.runs)?;
        }
        let question = if self.args.stored && own.is_none() {
            stored::acknowledged(record, Which::Undo).transpose()
        } else {
            None
        };
        let question = question.unwrap_or_else(|| stored::question(self.context, record, Which::Undo, own));
        let text = question.map_err(|refused| refused.to_string())?.command;
        Error::of_result(record).map_or(Ok(()), |error| Err(error.to_string()))?;
        Template::parse(&text)
            .fill(|path| value(record, path))
            .map_err(|missing| format!("`{}` cannot be run: {missing}", onceward::text::one_line(&text)))
    }

    /// The probe of the operation, if it has one; or why it may not run.
    pub(super) fn probe(&self, record: &Record) -> Result<Option<Question>, String> {
        if let Some(command) = self.args.probe.clone() {
            return Ok(Some(Question { command, no: self.args.probe_no.clone() }));
        }
        let settings = self.context.policy.settings(&record.name).map_err(|invalid| invalid.to_string())?;
        if record.detail.probe.is_none() && settings.probe.is_none() {
            return Ok(None);
        }
        if self.args.stored && record.detail.probe.is_some() {
            return stored::acknowledged(record, Which::Probe).map_err(|refused| refused.to_string());
        }
        let question = stored::question(self.context, record, Which::Probe, None);
        question.map(Some).map_err(|refused| refused.to_string())
    }
}

/// Opens the ledger that the undo is about.
pub(super) fn ledger(context: &Context) -> Result<Blocking, CommandError> {
    context.ledger(IfMissing::Fail)
}

/// Why a compensation that is not a command cannot run here.
fn elsewhere(record: &Record, runs: CompensationKind) -> Result<(), String> {
    match runs {
        CompensationKind::Command => Ok(()),
        CompensationKind::Code => Err(format!(
            "the program that ran it takes it back, in Python with ledger.compensate(\"{}\")",
            record.id
        )),
        CompensationKind::Tool => Err("a tool of its MCP server takes it back; call that tool".to_owned()),
    }
}

/// The value of a field in a command.
fn value(record: &Record, path: &str) -> Result<String, InvalidInput> {
    let value = match path {
        "once.operation" => record.id.to_string(),
        "once.key" => record.key.text.clone(),
        "once.scope" => record.scope.clone(),
        "stdout" => {
            String::from_utf8_lossy(&output::printed(record)).trim_end_matches(['\n', '\r']).to_owned()
        }
        path => match path.strip_prefix("result.") {
            Some(path) => in_result(&output::result_of(record), path)?,
            None => field(&output::result_of(record), path)?,
        },
    };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || PLAIN.contains(c);
    if value.is_empty() {
        return Err(InvalidInput::new(format!("the result has nothing for `{path}`")));
    }
    // A result is not code, and must not look like an option either.
    if value.starts_with('-') || !value.chars().all(is_plain) {
        return Err(InvalidInput::new(format!(
            "the value of `{path}` begins with - or has characters other than letters, digits and {PLAIN}; let the \
             command read it from the variable ONCE_RESULT instead"
        )));
    }
    Ok(value)
}

/// A field of the result of an MCP tool: of its structured content, of its text if that is JSON, or of the result.
fn in_result(result: &Value, path: &str) -> Result<String, InvalidInput> {
    let text = result["content"][0]["text"].as_str();
    let text: Value = text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    field(&result["structuredContent"], path).or_else(|_| field(&text, path)).or_else(|_| field(result, path))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_tools_result_is_found_where_servers_put_it() {
        for result in [
            json!({"structuredContent": {"id": "o1"}, "content": []}),
            json!({"content": [{"type": "text", "text": "{\"id\": \"o1\"}"}]}),
            json!({"id": "o1"}),
        ] {
            assert_eq!(in_result(&result, "id").unwrap(), "o1");
        }
        assert!(in_result(&json!({"content": [{"type": "text", "text": "order o1"}]}), "id").is_err());
    }

    #[test]
    fn no_character_of_a_field_means_anything_to_a_shell() {
        for c in PLAIN.chars() {
            assert!(!"|&;<>()$`\\\"' \t\n*?[]#~!{}^".contains(c), "{c}");
        }
    }
}

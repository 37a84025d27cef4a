//! The plan of an undo: for each operation, what would be done and what may run. Nothing is run here.

use std::fmt::Display;
use std::sync::Arc;

use onceward::{
    Blocking, Compensation, CompensationKind, Error, FieldValue, InvalidInput, Operation, Record, Reversal,
    Template, ToUndo, ToolUndo, UndoLine, UndoResult, check_compensation, field, fill_json,
};
use onceward_mcp::UndoCall;

use crate::cli::{OperationArg, UndoArgs};
use crate::commands::ask::Question;
use crate::commands::mcp::ToolServer;
use crate::commands::output;
use crate::commands::run::compensate::RESULT;
use crate::commands::stored::{self, Which};
use crate::context::{Context, IfMissing};
use crate::exit::CommandError;

/// Characters of a field besides letters and digits. None of them has a meaning to a shell, however often the command
/// passes the value through one.
const PLAIN: &str = "_-.:/@+=,%";

/// One operation of the plan.
pub(super) struct Planned {
    pub(super) found: ToUndo,
    pub(super) action: Action,
}

impl Planned {
    /// The line of this operation.
    pub(super) fn line(&self, result: UndoResult, reason: Option<String>) -> UndoLine {
        let command = match &self.action {
            Action::Run(command) => Some(command.clone()),
            Action::Call(call) => Some(in_words(call)),
            Action::Ask(question) => Some(question.command.clone()),
            Action::Finish | Action::Leave(_) => None,
        };
        UndoLine::new(&self.found.record, self.found.reversal, result, reason).with_command(command)
    }

    /// The line if it is left alone.
    pub(super) fn left(&self, why: &str) -> UndoLine {
        self.line(UndoResult::of_untouched(self.found.reversal), Some(why.to_owned()))
    }

    /// The line of a dry run.
    pub(super) fn preview(&self) -> UndoLine {
        match &self.action {
            Action::Run(_) | Action::Call(_) | Action::Finish => self.line(UndoResult::WouldUndo, None),
            Action::Ask(_) => self.line(UndoResult::WouldAsk, None),
            Action::Leave(why) => self.left(why),
        }
    }
}

/// What would be done about an operation.
pub(super) enum Action {
    /// Run this command.
    Run(String),
    /// Call this tool of the MCP server.
    Call(UndoCall),
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
    /// The MCP server whose calls are taken back.
    pub(super) server: Option<&'a ToolServer<'a>>,
}

impl Planner<'_> {
    /// The operations in the order in which they are taken back.
    pub(super) fn plan(&self) -> Result<Vec<Planned>, CommandError> {
        let Some(word) = &self.args.operation else { return self.plan_scope() };
        let mut found = self.ledger.undo().of(&self.context.operation(self.ledger, &self.named(word))?)?;
        // The caller brought a command.
        if found.reversal == Reversal::Irreversible && self.may_compensate(&found.record)? {
            found.reversal = Reversal::Compensate;
        }
        Ok(vec![self.planned(found)?])
    }

    fn plan_scope(&self) -> Result<Vec<Planned>, CommandError> {
        let scope = self.args.scope.as_deref().unwrap_or_default();
        let since = self.args.since.as_deref();
        let since = since.map(|word| self.context.operation(self.ledger, &self.named(word)));
        let since = since.transpose()?;
        let found = self.ledger.undo().of_scope(scope, since.as_ref())?;
        found.into_iter().map(|found| self.planned(found)).collect()
    }

    fn named(&self, word: &str) -> OperationArg {
        let UndoArgs { scope, name, .. } = self.args;
        OperationArg { operation: word.to_owned(), scope: scope.clone(), name: name.clone() }
    }

    pub(super) fn planned(&self, found: ToUndo) -> Result<Planned, CommandError> {
        let record = &found.record;
        let leave = || Action::Leave(found.reversal.why_left().unwrap_or_default().to_owned());
        let action = match found.reversal {
            Reversal::Compensate if found.compensated => Action::Finish,
            Reversal::Compensate => self.compensation(record).unwrap_or_else(Action::Leave),
            Reversal::InDoubt => match self.probe(record) {
                Ok(Some(question)) => Action::Ask(question),
                Ok(None) => leave(),
                Err(why) => Action::Leave(format!("it may have happened: {why}")),
            },
            Reversal::Held => Action::Leave(self.context.surface().held_in_undo(&record.id)),
            Reversal::Irreversible
            | Reversal::Unconfirmed
            | Reversal::Doubled
            | Reversal::Running
            | Reversal::AlreadyUndone
            | Reversal::NothingHappened
            | Reversal::Expired
            | Reversal::Compensation => leave(),
        };
        Ok(Planned { found, action })
    }

    /// Whether the caller or the policy has a compensation for an operation that stores none.
    fn may_compensate(&self, record: &Record) -> Result<bool, CommandError> {
        let policy = self.context.policy.settings(&record.name)?.undo;
        Ok(self.args.undo.is_some() || policy.is_some_and(|undo| undo.runs == CompensationKind::Command))
    }

    /// What takes the operation back, or why nothing may be run.
    fn compensation(&self, record: &Arc<Record>) -> Result<Action, String> {
        match (&self.args.undo, &record.detail.undo) {
            (None, Some(undo)) if undo.runs == CompensationKind::Tool => {
                self.tool_call(record, undo).map(Action::Call)
            }
            (Some(_) | None, Some(_) | None) => self.command(record).map(Action::Run),
        }
    }

    /// The call of the tool that takes the operation back, with the fields of its result; or why there is none to make.
    fn tool_call(&self, record: &Arc<Record>, undo: &Compensation) -> Result<UndoCall, String> {
        let Some(server) = self.server else { return Err(undo.taken_back_by(&record.id)) };
        Error::of_result(record).map_or(Ok(()), |error| Err(error.to_string()))?;
        let stored = ToolUndo::of(undo).ok_or("the stored compensation cannot be read")?;
        let tool = server.tool_of(&record.name);
        let (Some(tool), true) = (tool, stored.server.as_deref() == Some(server.identity())) else {
            return Err(
                "it was called through another server: give the command with which `once mcp` started it, \
                        and its --server NAME, if it had one"
                    .to_owned(),
            );
        };
        if self.args.stored {
            stored::acknowledged(record, Which::Undo).map_err(|refused| refused.to_string())?;
        } else {
            let rule =
                self.context.policy.tool(&[tool, &record.name]).map_err(|invalid| invalid.to_string())?;
            let trusted = rule.settings.undo.as_ref().and_then(ToolUndo::of);
            if !trusted.is_some_and(|trusted| trusted.is_like(&stored)) {
                return Err(format!(
                    "the tool stored with this operation was not called, because your policy does not have it and \
                     what a ledger stores is not trusted: {} {}; read it, and if you want to call it, add --stored",
                    stored.tool, stored.args
                ));
            }
        }
        let args = if stored.args.is_null() { serde_json::json!({}) } else { stored.args };
        let arguments = fill_json(&args, &|path| value_of(record, path))
            .map_err(|missing| format!("{} cannot be called: {missing}", stored.tool))?;
        Ok(UndoCall { tool: stored.tool, arguments })
    }

    /// The command that takes the operation back, with the fields of its result; or why there is none to run.
    fn command(&self, record: &Arc<Record>) -> Result<String, String> {
        let own = self.args.undo.clone().map(|command| Question { command, no: Vec::new() });
        if let (None, Some(undo)) = (&own, &record.detail.undo) {
            elsewhere(record, undo)?;
        }
        let question = if self.args.stored && own.is_none() {
            stored::acknowledged(record, Which::Undo).transpose()
        } else {
            None
        };
        let question = question.unwrap_or_else(|| stored::question(self.context, record, Which::Undo, own));
        let text = question.map_err(|refused| refused.to_string())?.command;
        let undo = Operation::undo_of(record);
        self.context
            .policy
            .settings(undo.name())
            .and_then(|settings| check_compensation(undo.name(), settings.terms.class))
            .map_err(|invalid| format!("`{}` cannot be run: {invalid}", onceward::text::one_line(&text)))?;
        Error::of_result(record).map_or(Ok(()), |error| Err(error.to_string()))?;
        let cannot =
            |why: &dyn Display| format!("`{}` cannot be run: {why}", onceward::text::one_line(&text));
        let template = Template::parse(&text).map_err(|invalid| cannot(&invalid))?;
        if let (true, Err(why)) = (text.contains(RESULT), output::in_variable(record)) {
            return Err(cannot(&format!("it reads {RESULT}, but {why}")));
        }
        template.fill(|path| value(record, path)).map_err(|missing| cannot(&missing))
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
fn elsewhere(record: &Record, undo: &Compensation) -> Result<(), String> {
    match undo.runs {
        CompensationKind::Command => Ok(()),
        CompensationKind::Code
        | CompensationKind::Program
        | CompensationKind::Tool
        | CompensationKind::Request => Err(undo.taken_back_by(&record.id)),
    }
}

/// A call, as a person reads it.
pub(super) fn in_words(call: &UndoCall) -> String {
    format!("{} {}", call.tool, call.arguments)
}

/// The value of a field.
fn value_of(record: &Record, path: &str) -> Result<FieldValue, InvalidInput> {
    Ok(match path {
        "once.operation" => FieldValue::from(record.id.as_str()),
        "once.key" => FieldValue::from(record.key.text.as_str()),
        "once.scope" => FieldValue::from(record.scope.as_str()),
        "stdout" => {
            let printed = output::printed(record);
            FieldValue::from(String::from_utf8_lossy(&printed).trim_end_matches(['\n', '\r']))
        }
        path => match path.strip_prefix("result.") {
            Some(path) => in_result(&output::result_of(record), path)?,
            None => field(&output::result_of(record), path)?,
        },
    })
}

/// The value of a field in a command.
fn value(record: &Record, path: &str) -> Result<String, InvalidInput> {
    let value = value_of(record, path)?.text();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || PLAIN.contains(c);
    if value.is_empty() {
        return Err(InvalidInput::new(format!("the result has nothing for `{path}`")));
    }
    // A result is not code, and must not look like an option either.
    if value.starts_with('-') || !value.chars().all(is_plain) {
        return Err(InvalidInput::new(format!(
            "the value of `{path}` begins with - or has characters other than letters, digits and {PLAIN}; let the \
             command read it from the variable {RESULT} instead"
        )));
    }
    Ok(value)
}

/// A field of the result of an MCP tool: of its structured content, of its text if that is JSON, or of the result.
fn in_result(result: &str, path: &str) -> Result<FieldValue, InvalidInput> {
    let text = field(result, "content.0.text").map(FieldValue::text).unwrap_or_default();
    let structured = field(result, &format!("structuredContent.{path}"));
    structured.or_else(|_| field(&text, path)).or_else(|_| field(result, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tools_result_is_found_where_servers_put_it() {
        for result in [
            r#"{"structuredContent": {"id": "o1"}, "content": []}"#,
            r#"{"content": [{"type": "text", "text": "{\"id\": \"o1\"}"}]}"#,
            r#"{"id": "o1"}"#,
        ] {
            assert_eq!(in_result(result, "id").unwrap().text(), "o1");
        }
        assert!(in_result(r#"{"content": [{"type": "text", "text": "order o1"}]}"#, "id").is_err());
    }

    #[test]
    fn no_character_of_a_field_means_anything_to_a_shell() {
        for c in PLAIN.chars() {
            assert!(!"|&;<>()$`\\\"' \t\n*?[]#~!{}^".contains(c), "{c}");
        }
    }
}

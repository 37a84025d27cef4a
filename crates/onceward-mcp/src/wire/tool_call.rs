//! Parsing and editing of `tools/call` requests.

use std::sync::Arc;

use onceward::{Compensation, Json, Operation, ToolAction, ToolUndo};
use serde_json::value::RawValue;

use crate::call::scope;
use crate::wire::condense::condensed;
use crate::wire::message::Head;
use crate::wire::raw::{self, Object};

/// The prefix of our `_meta` members.
pub(crate) const PREFIX: &str = "dev.onceward/";
/// The arguments that `--expose-key` adds for the model. They are removed before the call is forwarded.
pub(crate) const KEY_ARGUMENT: &str = "idempotency_key";
pub(crate) const DRY_ARGUMENT: &str = "dry_run";
/// Before `dry_run` in a name, these reverse its meaning.
const NEGATIONS: [&str; 5] = ["no", "skip", "disable", "without", "bypass"];

/// A tool call, kept as its original text.
pub(crate) struct ToolCall {
    /// The message text.
    pub(crate) line: Arc<String>,
    /// The range of the id in `line`.
    pub(crate) id_place: std::ops::Range<usize>,
    /// The range of the arguments, if there are any.
    arguments_place: Option<std::ops::Range<usize>>,
    /// The range of the parameters.
    params_place: std::ops::Range<usize>,
    /// The name of the tool.
    pub(crate) tool: String,
    /// The key that the caller gave.
    pub(crate) key: Option<String>,
    /// A key that was given outside the message. It counts if the message has none.
    pub(crate) key_beside: Option<String>,
    /// Whether the caller marked the call as a retry.
    pub(crate) says_retry: bool,
    /// Whether the caller asked for a dry run.
    pub(crate) says_dry_run: bool,
    /// Options of the caller that cannot be understood. If there are any, nothing is run.
    pub(crate) problems: Vec<String>,
    /// The host's own id for the call.
    pub(crate) call_id: Option<String>,
    /// The token under which progress is reported.
    pub(crate) progress_token: Option<String>,
    /// The W3C `traceparent` of `_meta` or, if that has none, of the HTTP request.
    pub(crate) trace_parent: Option<String>,
}

impl ToolCall {
    /// Parses a call. `None` if no server could execute it.
    pub(crate) fn parse(head: &Head<'_>) -> Option<Self> {
        Self::parse_in(head, &Arc::new(String::new()))
    }

    /// Parses a call without copying it if it is the whole `line`.
    pub(crate) fn parse_in(head: &Head<'_>, line: &Arc<String>) -> Option<Self> {
        let whole = std::ptr::eq(head.text, line.as_str());
        let (params_text, id_place) = (head.params?, head.id_place()?);
        let params = Object::parse(params_text)?;
        let meta = params.object("_meta");
        let meta = meta.as_ref();
        let mut problems = Vec::new();
        let mut flag = |name: &str| {
            let value = meta.and_then(|meta| meta.get(&format!("{PREFIX}{name}")));
            flag(&format!("{PREFIX}{name}"), value, &mut problems)
        };
        let (says_retry, says_dry_run) = (flag("retry"), flag("dry_run"));
        let own = format!("{PREFIX}key");
        let places = [
            (own.as_str(), meta.and_then(|meta| meta.get(&own))),
            ("idempotencyKey", params.get("idempotencyKey")),
        ];
        let mut keys = places.into_iter().map(|(name, value)| text(name, value, &mut problems));
        // Both are read: a key that cannot be understood is not replaced by the other.
        let key = keys.by_ref().fold(None, Option::or);
        Some(Self {
            line: if whole { Arc::clone(line) } else { Arc::new(head.text.to_owned()) },
            id_place,
            arguments_place: params.get("arguments").map(|arguments| raw::range(head.text, arguments)),
            params_place: raw::range(head.text, params_text),
            tool: params.string("name")?,
            key,
            key_beside: None,
            says_retry,
            says_dry_run,
            problems,
            call_id: scope::call_id(meta),
            progress_token: meta.and_then(|meta| meta.get("progressToken")).map(str::to_owned),
            trace_parent: meta.and_then(|meta| meta.string("traceparent")),
        })
    }

    /// The id, as JSON text.
    pub(crate) fn id(&self) -> &str {
        &self.line[self.id_place.clone()]
    }

    fn params(&self) -> Option<Object<'_>> {
        Object::parse(&self.line[self.params_place.clone()])
    }

    /// Its `_meta`.
    pub(crate) fn meta(&self) -> Option<Object<'_>> {
        self.params()?.object("_meta")
    }

    /// The arguments, as JSON text.
    pub(crate) fn arguments(&self) -> &str {
        self.arguments_place.clone().map_or("{}", |place| &self.line[place])
    }

    /// Removes the exposed arguments, which the server does not know. Arguments in `own` belong to the tool itself
    /// and stay, even if they have the same name.
    pub(crate) fn take_exposed(&mut self, own: &[String]) {
        let Some(place) = self.arguments_place.clone() else { return };
        let Some(arguments) = Object::parse(&self.line[place.clone()]) else { return };
        let is_own = |name: &str| own.iter().any(|own| own == name);
        let is_key = |name: &str| name == KEY_ARGUMENT && !is_own(name);
        // Another spelling than the tool's own: the server would ignore it and execute the call.
        let is_dry = |name: &str| is_dry_run(name) && !is_own(name);
        let mut problems = Vec::new();
        let (mut key, mut dry_run, mut exposed) = (None, false, false);
        for (name, value) in arguments.members() {
            exposed |= is_key(name) || is_dry(name);
            if is_key(name) {
                key = text(name, Some(value), &mut problems).filter(|text| !text.is_empty()).or(key);
            } else if is_dry(name) {
                dry_run |= flag(name, Some(value), &mut problems);
            }
        }
        if !exposed {
            return;
        }
        let rest = raw::without(&arguments, |name| is_key(name) || is_dry(name));
        self.key = self.key.take().or(key);
        self.says_dry_run |= dry_run;
        self.problems.append(&mut problems);
        self.replace_arguments(place, &rest);
    }

    /// Notes whether an argument asks for a dry run, and leaves the arguments unchanged.
    pub(crate) fn note_dry_run(&mut self) {
        let arguments = Object::parse(self.arguments());
        let mut problems = Vec::new();
        let members = arguments.iter().flat_map(Object::members).filter(|(name, _)| is_dry_run(name));
        let asked =
            members.fold(false, |asked, (name, value)| asked | flag(name, Some(value), &mut problems));
        self.says_dry_run |= asked;
        self.problems.append(&mut problems);
    }

    /// Inserts or replaces an argument.
    pub(crate) fn put_argument(&mut self, name: &str, value: &str) {
        let Some(arguments) = Object::parse(self.arguments()) else { return };
        let rest = raw::without(&arguments, |other| other == name);
        let with = raw::with_members(&rest, &format!("{}:{}", raw::quoted(name), raw::quoted(value)));
        match self.arguments_place.clone() {
            Some(place) => self.replace_arguments(place, &with),
            None => {
                let params = raw::with_members(
                    &self.line[self.params_place.clone()],
                    &format!("\"arguments\":{with}"),
                );
                self.line = Arc::new(raw::spliced(&self.line, self.params_place.clone(), &params));
                self.settle();
            }
        }
    }

    /// Inserts a member into `_meta`.
    pub(crate) fn put_meta(&mut self, name: &str, value: &str) {
        let member = format!("{}:{}", raw::quoted(name), raw::quoted(value));
        let params = self.params();
        let meta =
            params.as_ref().and_then(|params| params.get("_meta")).filter(|meta| meta.starts_with('{'));
        let (place, with) = match meta {
            Some(meta) => (raw::range(&self.line, meta), raw::with_members(meta, &member)),
            None => {
                let place = self.params_place.clone();
                let with = raw::with_members(&self.line[place.clone()], &format!("\"_meta\":{{{member}}}"));
                (place, with)
            }
        };
        self.line = Arc::new(raw::spliced(&self.line, place, &with));
        self.settle();
    }

    /// The JSON texts of `requestState` and `inputResponses`, if the call has either: it continues an exchange.
    pub(crate) fn exchange(&self) -> Option<(Option<String>, Option<String>)> {
        let params = self.params()?;
        let text = |name: &str| params.get(name).map(str::to_owned);
        let (state, answers) = (text("requestState"), text("inputResponses"));
        (state.is_some() || answers.is_some()).then_some((state, answers))
    }

    /// Restores the call's own `inputResponses` and `requestState`, or removes those that are there.
    pub(crate) fn restore(&mut self, answers: Option<&RawValue>, state: Option<&RawValue>) {
        let Some(params) = self.params() else { return };
        let rest = raw::without(&params, |name| name == "inputResponses" || name == "requestState");
        let own = [("inputResponses", answers), ("requestState", state)];
        let own = own.into_iter().filter_map(|(name, value)| Some(format!("\"{name}\":{}", value?.get())));
        let with = raw::with_members(&rest, &own.collect::<Vec<_>>().join(","));
        self.line = Arc::new(raw::spliced(&self.line, self.params_place.clone(), &with));
        self.settle();
    }

    fn replace_arguments(&mut self, place: std::ops::Range<usize>, by: &str) {
        self.line = Arc::new(raw::spliced(&self.line, place, by));
        self.settle();
    }

    /// Updates the ranges after an edit.
    fn settle(&mut self) {
        let Some(head) = Head::parse(&self.line) else { return };
        let (Some(id_place), Some(params)) = (head.id_place(), head.params) else { return };
        let arguments = Object::parse(params).and_then(|params| params.get("arguments"));
        let arguments_place = arguments.map(|arguments| raw::range(&self.line, arguments));
        let params_place = raw::range(&self.line, params);
        (self.id_place, self.params_place, self.arguments_place) = (id_place, params_place, arguments_place);
    }

    /// The inputs that identify the call: its arguments, and the members that make a continued exchange another
    /// request.
    pub(crate) fn input(&self, server: &str) -> Json {
        let members = self.leg().into_iter().map(|(name, value)| (name, json(&value)));
        ToolAction::identity(server, &self.tool, json(self.arguments()), members)
    }

    /// The call as it is stored, to be sent later. `None` if its arguments are not JSON.
    pub(crate) fn action(&self, server: &str) -> Option<ToolAction> {
        let raw = |text: String| RawValue::from_string(text).ok();
        let members = self.leg().into_iter().map(|(name, value)| Some((name.to_owned(), raw(value)?)));
        Some(ToolAction {
            server: server.to_owned(),
            tool: self.tool.clone(),
            arguments: raw(self.arguments().to_owned())?,
            members: members.collect::<Option<_>>()?,
        })
    }

    /// The members that make a continued exchange another request.
    fn leg(&self) -> Vec<(&'static str, String)> {
        let Some(params) = self.params() else { return Vec::new() };
        let names = ["inputResponses", "requestState", "task"].into_iter();
        names.filter_map(|name| Some((name, params.get(name)?.to_owned()))).collect()
    }

    /// The ledger operation for this call, with the fields that the policy selects.
    pub(crate) fn operation(&self, name: String, server: &str, settings: &onceward::Settings) -> Operation {
        let fields = |fields: &[String]| fields.iter().map(|field| in_arguments(field)).collect::<Vec<_>>();
        let operation = Operation::new(name)
            .input(self.input(server))
            .key_fields(fields(&settings.key_fields))
            .volatile(fields(&settings.volatile))
            .trace_parent(self.trace_parent.as_deref())
            .undo(settings.undo.clone().map(|undo| of_server(undo, server)))
            .terms(settings.terms.clone());
        match &self.key {
            Some(key) => operation.key(key),
            None => operation,
        }
    }
}

/// A compensation by a tool, with the server that has the tool.
fn of_server(undo: Compensation, server: &str) -> Compensation {
    match ToolUndo::of(&undo) {
        Some(tool) => ToolUndo { server: Some(server.to_owned()), ..tool }.compensation(),
        None => undo,
    }
}

/// Whether this is a spelling of `dry_run`: `dryRun`, `is-dry-run`, `dry_run_only`; but not `no_dry_run`.
pub(crate) fn is_dry_run(name: &str) -> bool {
    let letters = name.chars().filter(|c| c.is_alphanumeric());
    let letters: String = letters.flat_map(char::to_lowercase).collect();
    let negated =
        letters.split_once("dryrun").map(|(before, _)| NEGATIONS.iter().any(|no| before.contains(no)));
    negated == Some(false)
}

/// Parses a flag in any of the ways that models write one. Other values are recorded as problems.
fn flag(name: &str, value: Option<&str>, problems: &mut Vec<String>) -> bool {
    let Some(value) = value else { return false };
    let text = raw::string(value).unwrap_or_else(|| value.to_owned());
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "1" | "1.0" | "yes" | "y" | "on" => true,
        "false" | "0" | "0.0" | "no" | "n" | "off" | "null" | "none" | "" => false,
        _ => {
            problems.push(format!("{name} is {value}, and must be true or false"));
            false
        }
    }
}

/// Parses a text that the caller gave. Other values are recorded as problems: without the key that the caller meant,
/// the call would be another operation.
fn text(name: &str, value: Option<&str>, problems: &mut Vec<String>) -> Option<String> {
    let value = value.filter(|value| *value != "null")?;
    let text = raw::string(value);
    if text.is_none() {
        problems.push(format!("{name} is {value}, and must be a string"));
    }
    text
}

/// Whether the message is a tool call.
pub(crate) fn is_call(item: &str) -> bool {
    Head::parse(item).is_some_and(|head| head.method.as_deref() == Some("tools/call") && head.id.is_some())
}

/// The id of a tool call that is not valid JSON, as far as it can be found; `null` if it cannot. `None` if the bytes
/// are not a tool call.
pub(crate) fn unreadable_call(line: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(line);
    if !text.contains("tools/call") && !text.contains("tools\\/call") {
        return None;
    }
    let after =
        text.split_once("\"id\"").map(|(_, rest)| rest.trim_start().trim_start_matches(':').trim_start());
    let number: String = after.unwrap_or_default().chars().take_while(char::is_ascii_digit).collect();
    let quoted =
        after.and_then(|rest| rest.strip_prefix('"')?.split_once('"')).map(|(id, _)| raw::quoted(id));
    Some(quoted.unwrap_or(if number.is_empty() { "null".to_owned() } else { number }))
}

/// The answer to a tool call that is not valid JSON.
pub(crate) fn unreadable(id: &str) -> String {
    let problem = "once: this is not JSON in UTF-8, so the call cannot be guarded; nothing was run";
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{{\"code\":-32700,\"message\":\"{problem}\"}}}}")
}

/// A policy names fields relative to the arguments.
fn in_arguments(field: &str) -> String {
    if field.starts_with('/') { format!("/arguments{field}") } else { format!("arguments.{field}") }
}

/// A value that the ledger can compare. A value that it would refuse (a duplicate name) is compared as its text.
fn json(text: &str) -> Json {
    let text = condensed(text);
    Json::parse(&text).unwrap_or_else(|_| Json::from(text.as_ref()))
}

/// Parses the line as a call, using every code path of the proxy.
#[must_use]
pub fn look(line: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(line) else { return false };
    let Some(mut call) = Head::parse(text).as_ref().and_then(ToolCall::parse) else { return false };
    call.take_exposed(&[]);
    call.put_argument("k", "v");
    call.put_meta("k", "v");
    let settings = onceward::Settings::default();
    drop(call.operation("x".to_owned(), "server", &settings).intent());
    !call.id().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(text: &str) -> ToolCall {
        ToolCall::parse(&Head::parse(text).unwrap()).unwrap()
    }

    #[test]
    fn exposed_arguments_are_removed_and_the_rest_is_unchanged() {
        let (head, tail) =
            (r#"{"id":7,"method":"tools/call","params":{"name":"t","arguments":{"#, r#"},"x":1}}"#);
        let big = r#""big":12345678901234567890123"#;
        let mut call = call(&format!(r#"{head}{big},"dry_run":true,"idempotency_key":"k 1"{tail}"#));
        call.take_exposed(&[]);
        assert_eq!(*call.line, format!("{head}{big}{tail}"));
        assert_eq!((call.key.as_deref(), call.says_dry_run, call.id()), (Some("k 1"), true, "7"));
        call.put_argument("key", "\"q\"");
        assert_eq!(call.arguments(), r#"{"key":"\"q\"","big":12345678901234567890123}"#);
    }

    #[test]
    fn a_tools_own_arguments_are_left_alone_and_a_dry_run_is_understood_in_any_spelling() {
        let of = |arguments: &str, own: &[&str]| {
            let mut call = call(&format!(r#"{{"id":1,"params":{{"name":"t","arguments":{arguments}}}}}"#));
            call.take_exposed(&own.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
            (call.says_dry_run, call.key.clone(), call.problems.len(), call.arguments().to_owned())
        };
        let own = r#"{"dry_run":false,"idempotency_key":"k"}"#;
        assert_eq!(of(own, &["dry_run", "idempotency_key"]), (false, None, 0, own.to_owned()));
        assert_eq!(of(r#"{"dryRun":true}"#, &["dryRun"]), (false, None, 0, r#"{"dryRun":true}"#.to_owned()));
        let both = r#"{"dry_run":false,"dryRun":true}"#;
        assert_eq!(of(both, &["dry_run"]), (true, None, 0, r#"{"dry_run":false}"#.to_owned()));
        assert_eq!(of(both, &["dry_run", "dryRun"]), (false, None, 0, both.to_owned()));
        for yes in ["true", "\"true\"", "1", "\"1\"", "\"YES\"", "\"on\"", "1.0"] {
            for name in ["dry_run", "dryRun", "dry-run", "DRY_RUN", "isDryRun", "dry_run_only", "dry.run"] {
                assert_eq!(
                    of(&format!(r#"{{"{name}":{yes}}}"#), &[]),
                    (true, None, 0, "{}".to_owned()),
                    "{name} {yes}"
                );
            }
        }
        for name in ["no_dry_run", "skipDryRun", "dry", "run_dry", "preview"] {
            let other = format!(r#"{{"{name}":true}}"#);
            assert_eq!(of(&other, &[]), (false, None, 0, other), "{name}");
        }
        for no in ["false", "\"false\"", "0", "null", "\"\""] {
            assert_eq!(of(&format!(r#"{{"dry_run":{no}}}"#), &[]), (false, None, 0, "{}".to_owned()), "{no}");
        }
        for unclear in ["\"maybe\"", "{}", "2", "[true]"] {
            assert_eq!(of(&format!(r#"{{"dry_run":{unclear}}}"#), &[]).2, 1, "{unclear}");
        }
        assert_eq!(of(r#"{"idempotency_key":7}"#, &[]).2, 1);
        assert_eq!(of(r#"{"idempotency_key":""}"#, &[]), (false, None, 0, "{}".to_owned()));
    }

    #[test]
    fn a_key_for_the_server_goes_into_meta_and_nowhere_else() {
        let mut call = call(r#"{"id":1,"params":{"name":"t","arguments":{},"_meta":{}}}"#);
        call.put_meta("k", "v");
        assert_eq!(*call.line, r#"{"id":1,"params":{"name":"t","arguments":{},"_meta":{"k":"v"}}}"#);
    }

    #[test]
    fn legs_of_an_exchange_are_different_inputs() {
        let first = call(r#"{"id":1,"params":{"name":"t","arguments":{"a":1}}}"#);
        let second = call(r#"{"id":2,"params":{"name":"t","arguments":{"a":1},"requestState":"s"}}"#);
        let other_order =
            call(r#"{"id":3,"params":{"arguments":{"a":1.0},"name":"t","_meta":{"progressToken":4}}}"#);
        assert_ne!(first.input("s"), second.input("s"));
        assert_eq!(first.input("s"), other_order.input("s"));
        assert_ne!(first.input("s"), first.input("another"));
        assert_eq!(other_order.progress_token.as_deref(), Some("4"));
    }

    #[test]
    fn our_exchange_is_removed_and_the_servers_own_is_restored() {
        let text = concat!(
            r#"{"id":1,"params":{"name":"t","inputResponses":{"o":1},"#,
            r#""arguments":{"a":1.0},"requestState":"s"}}"#
        );
        let plain = r#"{"id":1,"params":{"name":"t","arguments":{"a":1.0}}}"#;
        let mut leg = call(text);
        assert_eq!(leg.exchange(), Some((Some("\"s\"".to_owned()), Some(r#"{"o":1}"#.to_owned()))));
        leg.restore(None, None);
        assert_eq!((leg.line.as_str(), leg.exchange()), (plain, None));
        let own = RawValue::from_string("\"own\"".to_owned()).unwrap();
        leg.restore(None, Some(&own));
        assert_eq!(leg.exchange(), Some((Some("\"own\"".to_owned()), None)));
        assert_eq!(leg.arguments(), r#"{"a":1.0}"#);
    }

    #[test]
    fn a_key_is_found_in_each_of_its_places() {
        let meta =
            call(r#"{"id":1,"params":{"name":"t","_meta":{"dev.onceward/key":"m"},"idempotencyKey":"p"}}"#);
        let param = call(r#"{"id":1,"params":{"name":"t","idempotencyKey":"p"}}"#);
        assert_eq!((meta.key.as_deref(), param.key.as_deref()), (Some("m"), Some("p")));
        assert_eq!(param.arguments(), "{}");
    }

    #[test]
    fn a_key_that_is_not_a_string_is_a_problem() {
        for value in ["42", "true", "[\"k\"]", "{\"k\":1}"] {
            for call in [
                call(&format!(
                    r#"{{"id":1,"params":{{"name":"t","_meta":{{"dev.onceward/key":{value}}}}}}}"#
                )),
                call(&format!(r#"{{"id":1,"params":{{"name":"t","idempotencyKey":{value}}}}}"#)),
            ] {
                assert!(call.problems.len() == 1 && call.key.is_none(), "{value}: {:?}", call.problems);
            }
            let both = format!(
                r#"{{"id":1,"params":{{"name":"t","_meta":{{"dev.onceward/key":"m"}},"idempotencyKey":{value}}}}}"#
            );
            assert_eq!(call(&both).problems.len(), 1, "{value}");
        }
        let none =
            call(r#"{"id":1,"params":{"name":"t","_meta":{"dev.onceward/key":null},"idempotencyKey":null}}"#);
        assert!(none.problems.is_empty() && none.key.is_none());
    }
}

//! The settings of a rule: which type of value each takes, in terms that a policy's author understands.

use toml::de::{DeTable, DeValue};

use super::{Hold, RequestUndo, span_ms};
use crate::redact::Redaction;

/// The type of a setting's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueType {
    /// One of these words.
    Word(&'static [&'static str]),
    /// A duration.
    Span,
    /// How long it is held, or until what.
    Hold,
    /// A whole number up to this limit.
    Number(i64),
    /// A list of exit codes other than 0.
    Exits,
    /// A list of strings.
    Texts,
    /// A string.
    Text,
    /// True or false.
    Flag,
    /// A command, or a tool to call.
    Question,
    /// A command, or a tool to call.
    Undo,
    /// Redaction rules.
    Redaction,
}

const REDACTION: &str = "a list of rules, such as [\"re:sk_[a-z0-9]+\", \"json:/token\"]";
const UNDO: &str = "a command in quotes, a tool such as {tool = \"cancel_order\", args = {id = \"{result.id}\"}}, or a \
                    request such as {post = \"/refunds\", json = {charge = \"{id}\"}}";
const COUNT: ValueType = ValueType::Number(u32::MAX as i64);

/// Every setting of a rule, in the order of the default policy.
pub(super) const RULE: [(&str, ValueType); 37] = [
    ("class", ValueType::Word(&["read", "idempotent", "keyed", "probed", "once"])),
    ("keys", ValueType::Word(&["auto", "strict", "keyed"])),
    ("key", ValueType::Texts),
    ("volatile", ValueType::Texts),
    ("lease", ValueType::Span),
    ("wait", ValueType::Span),
    ("retention", ValueType::Span),
    ("session_retention", ValueType::Span),
    ("tombstones", ValueType::Span),
    ("attempts", COUNT),
    ("retries", COUNT),
    ("backoff", ValueType::Span),
    ("on_failure", ValueType::Word(&["retry", "replay"])),
    ("on_expired", ValueType::Word(&["auto", "refuse", "rerun"])),
    ("hold", ValueType::Hold),
    ("release", ValueType::Word(&["manual", "auto"])),
    ("quarantine", ValueType::Span),
    ("downstream_window", ValueType::Span),
    ("repeat_window", ValueType::Span),
    ("timeout", ValueType::Span),
    ("effect", ValueType::Word(&["created", "updated", "deleted", "noop"])),
    ("probe", ValueType::Question),
    ("verify", ValueType::Question),
    ("undo", ValueType::Undo),
    ("probe_no", ValueType::Exits),
    ("verify_deadline", ValueType::Span),
    ("verify_interval", ValueType::Span),
    ("no_effect_exits", ValueType::Exits),
    ("doubt_exit", ValueType::Exits),
    ("store_command", ValueType::Flag),
    ("max_output", ValueType::Number(i64::MAX)),
    ("redact", ValueType::Redaction),
    ("key_argument", ValueType::Text),
    ("on_tool_error", ValueType::Word(&["in_doubt", "no_effect", "failed"])),
    ("agents_settle", ValueType::Flag),
    ("lock", ValueType::Text),
    ("concurrency", COUNT),
];

/// The settings of a program's exit code table.
pub(super) const EXITS: [(&str, ValueType); 4] = [
    ("no_effect", ValueType::Exits),
    ("unless", ValueType::Texts),
    ("values", ValueType::Texts),
    ("single", ValueType::Flag),
];

/// The settings of the `[ledger]` section.
pub(super) const LEDGER: [(&str, ValueType); 2] =
    [("url", ValueType::Text), ("encryption_key_file", ValueType::Text)];

/// The problem with a setting's value, if there is one.
pub(super) fn problem(name: &str, kind: ValueType, value: &DeValue<'_>) -> Option<String> {
    let must_be = |what: &str| Some(format!("{name} is {}; it must be {what}", describe(value)));
    match (kind, value) {
        (ValueType::Word(words), DeValue::String(word)) if words.contains(&&**word) => None,
        (ValueType::Word(words), DeValue::String(word)) => {
            let meant = suggestion(word, words.iter().copied());
            must_be(&format!("one of {}{meant}", words.join(", ")))
        }
        (ValueType::Word(words), _) => must_be(&format!("one of {}, in quotes", words.join(", "))),
        (ValueType::Span, DeValue::String(text)) => {
            span_ms(text).err().map(|invalid| format!("{name}: {invalid}"))
        }
        (ValueType::Span, DeValue::Integer(number)) => {
            must_be(&format!("a time with its unit, in quotes, such as \"{number}s\""))
        }
        (ValueType::Span, _) => must_be("a time in quotes, such as \"30s\" or \"24h\""),
        (ValueType::Hold, DeValue::String(text)) => {
            text.parse::<Hold>().err().map(|invalid| format!("{name}: {invalid}"))
        }
        (ValueType::Hold, _) => must_be("a time in quotes, such as \"10m\", or \"approve\" or \"no\""),
        (ValueType::Number(most), DeValue::Integer(_)) => match number(value) {
            Some(number) if (0..=most).contains(&number) => None,
            Some(_) | None => must_be(&format!("from 0 to {most}")),
        },
        (ValueType::Number(_), _) => must_be("a whole number, such as 20"),
        (ValueType::Flag, DeValue::Boolean(_))
        | (ValueType::Text | ValueType::Question, DeValue::String(_)) => None,
        (ValueType::Flag, _) => must_be("true or false"),
        (ValueType::Text, _) => must_be("a text in quotes"),
        (ValueType::Question, DeValue::Table(table)) => tool_problem(name, table),
        (ValueType::Question, _) => {
            must_be("a command in quotes, or a table such as {tool = \"get_order\", expect = \"paid\"}")
        }
        (ValueType::Undo, DeValue::String(command)) => {
            command.trim().is_empty().then(|| format!("{name} is empty; write a command, or leave it out"))
        }
        (ValueType::Undo, DeValue::Table(table)) => undo_problem(name, table),
        (ValueType::Undo, _) => must_be(UNDO),
        (ValueType::Texts, DeValue::Array(texts)) if texts.iter().all(|text| text.get_ref().is_str()) => None,
        (ValueType::Texts, _) => must_be("a list of texts, such as [\"customer\", \"amount\"]"),
        (ValueType::Redaction, DeValue::Array(rules)) => {
            let rules: Option<Vec<&str>> = rules.iter().map(|rule| rule.get_ref().as_str()).collect();
            match rules.map(|rules| Redaction::parse(&rules)) {
                Some(Ok(_)) => None,
                Some(Err(invalid)) => Some(format!("{name}: {invalid}")),
                None => must_be(REDACTION),
            }
        }
        (ValueType::Redaction, _) => must_be(REDACTION),
        (ValueType::Exits, DeValue::Array(codes)) => {
            exits_problem(name, codes.iter().map(|code| code.get_ref()))
        }
        (ValueType::Exits, _) => must_be("a list of exit codes, such as [1, 75]"),
    }
}

/// `; did you mean …?` if a known word is close to the written one.
#[must_use]
pub fn suggestion<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> String {
    let near = known.map(|known| (strsim::jaro_winkler(word, known), known));
    let best = near.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|(likeness, _)| *likeness > 0.8);
    best.map(|(_, known)| format!("; did you mean `{known}`?")).unwrap_or_default()
}

fn exits_problem<'a, 'i: 'a>(name: &str, codes: impl Iterator<Item = &'a DeValue<'i>>) -> Option<String> {
    let wrong = codes.into_iter().find(|code| !number(code).is_some_and(|code| (1..=255).contains(&code)))?;
    let why = if number(wrong) == Some(0) { "; 0 is success" } else { "" };
    Some(format!("{name} contains {}; an exit code here is a number from 1 to 255{why}", describe(wrong)))
}

fn tool_problem(name: &str, table: &DeTable<'_>) -> Option<String> {
    const KNOWN: [&str; 4] = ["tool", "args", "expect", "missing"];
    for (key, value) in table {
        let key = key.get_ref();
        if !KNOWN.contains(&&**key) {
            return Some(format!(
                "{name}: `{key}` is not part of a question{}",
                suggestion(key, KNOWN.into_iter())
            ));
        }
        if key != "args" && !value.get_ref().is_str() {
            return Some(format!(
                "{name}: {key} is {}; it must be a text in quotes",
                describe(value.get_ref())
            ));
        }
    }
    let missing = ["tool", "expect"].into_iter().find(|key| !table.contains_key(*key))?;
    Some(format!(
        "{name}: `{missing}` is missing; write {name} = {{tool = \"get_order\", expect = \"paid\"}}"
    ))
}

fn undo_problem(name: &str, table: &DeTable<'_>) -> Option<String> {
    const OF_TOOL: [&str; 2] = ["tool", "args"];
    const OF_REQUEST: [&str; 6] = ["post", "put", "patch", "delete", "json", "form"];
    let known = if table.contains_key("tool") { &OF_TOOL[..] } else { &OF_REQUEST[..] };
    if !known.iter().take(4).any(|key| table.contains_key(*key)) {
        return Some(format!("{name} must be {UNDO}"));
    }
    for (key, value) in table {
        let key = key.get_ref();
        if !known.contains(&&**key) {
            let close = suggestion(key, known.iter().copied());
            return Some(format!("{name}: `{key}` is not part of it{close}"));
        }
        if !matches!(&**key, "args" | "json" | "form") && !value.get_ref().is_str() {
            let what = describe(value.get_ref());
            return Some(format!("{name}: {key} is {what}; it must be a text in quotes"));
        }
    }
    let path_of = |key: &str| table.get(key).and_then(|path| path.get_ref().as_str()).map(str::to_owned);
    let [post, put, patch, delete] = ["post", "put", "patch", "delete"].map(path_of);
    let has = |key: &str| table.contains_key(key);
    let request = RequestUndo {
        json: has("json").then_some(serde_json::Value::Null),
        form: has("form").then(Default::default),
        ..RequestUndo { post, put, patch, delete, ..RequestUndo::default() }
    };
    if has("tool") { None } else { request.target().err().map(|invalid| format!("{name}: {invalid}")) }
}

fn number(value: &DeValue<'_>) -> Option<i64> {
    let integer = value.as_integer()?;
    i64::from_str_radix(integer.as_str(), integer.radix()).ok()
}

/// A value in terms that a policy's author understands.
fn describe(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("the text {:?}", crate::text::masked(text)),
        DeValue::Integer(number) => format!("the number {number}"),
        DeValue::Float(number) => format!("the number {number}"),
        DeValue::Boolean(flag) => flag.to_string(),
        DeValue::Datetime(_) => "a date".to_owned(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

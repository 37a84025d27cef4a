//! The settings of a rule: what each one takes, in words that the author of a policy understands.

use toml::de::{DeTable, DeValue};

use super::span_ms;

/// What a setting takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// One of these words.
    Word(&'static [&'static str]),
    /// A span of time.
    Span,
    /// A whole number up to this one.
    Number(i64),
    /// A list of exit codes of a command that did not succeed.
    Exits,
    /// A list of texts.
    Texts,
    /// A text.
    Text,
    /// True or false.
    Flag,
    /// A command, or a tool to ask.
    Question,
}

const COUNT: Kind = Kind::Number(u32::MAX as i64);

/// Every setting of a rule, in the order of the default policy.
pub(super) const RULE: [(&str, Kind); 32] = [
    ("class", Kind::Word(&["read", "idempotent", "keyed", "probed", "once"])),
    ("keys", Kind::Word(&["auto", "strict", "keyed"])),
    ("key", Kind::Texts),
    ("volatile", Kind::Texts),
    ("lease", Kind::Span),
    ("wait", Kind::Span),
    ("retention", Kind::Span),
    ("session_retention", Kind::Span),
    ("tombstones", Kind::Span),
    ("attempts", COUNT),
    ("retries", COUNT),
    ("backoff", Kind::Span),
    ("on_failure", Kind::Word(&["retry", "replay"])),
    ("on_expired", Kind::Word(&["auto", "refuse", "rerun"])),
    ("quarantine", Kind::Span),
    ("downstream_window", Kind::Span),
    ("timeout", Kind::Span),
    ("effect", Kind::Word(&["created", "updated", "deleted", "noop"])),
    ("probe", Kind::Question),
    ("verify", Kind::Question),
    ("probe_no", Kind::Exits),
    ("verify_deadline", Kind::Span),
    ("verify_interval", Kind::Span),
    ("no_effect_exits", Kind::Exits),
    ("doubt_exit", Kind::Exits),
    ("store_command", Kind::Flag),
    ("max_output", Kind::Number(i64::MAX)),
    ("key_argument", Kind::Text),
    ("on_tool_error", Kind::Word(&["in_doubt", "no_effect", "failed"])),
    ("agents_settle", Kind::Flag),
    ("lock", Kind::Text),
    ("concurrency", COUNT),
];

/// What the table of a program's exit codes takes.
pub(super) const EXITS: [(&str, Kind); 4] =
    [("no_effect", Kind::Exits), ("unless", Kind::Texts), ("values", Kind::Texts), ("single", Kind::Flag)];

/// What the section of the ledger takes.
pub(super) const LEDGER: [(&str, Kind); 1] = [("url", Kind::Text)];

/// What is wrong with a setting, if anything is.
pub(super) fn problem(name: &str, kind: Kind, value: &DeValue<'_>) -> Option<String> {
    let must_be = |what: &str| Some(format!("{name} is {}; it must be {what}", shown(value)));
    match (kind, value) {
        (Kind::Word(words), DeValue::String(word)) if words.contains(&&**word) => None,
        (Kind::Word(words), DeValue::String(word)) => {
            let meant = meant(word, words.iter().copied());
            must_be(&format!("one of {}{meant}", words.join(", ")))
        }
        (Kind::Word(words), _) => must_be(&format!("one of {}, in quotes", words.join(", "))),
        (Kind::Span, DeValue::String(text)) => {
            span_ms(text).err().map(|invalid| format!("{name}: {invalid}"))
        }
        (Kind::Span, DeValue::Integer(number)) => {
            must_be(&format!("a time with its unit, in quotes, such as \"{number}s\""))
        }
        (Kind::Span, _) => must_be("a time in quotes, such as \"30s\" or \"24h\""),
        (Kind::Number(most), DeValue::Integer(_)) => match number(value) {
            Some(number) if (0..=most).contains(&number) => None,
            Some(_) | None => must_be(&format!("from 0 to {most}")),
        },
        (Kind::Number(_), _) => must_be("a whole number, such as 20"),
        (Kind::Flag, DeValue::Boolean(_)) | (Kind::Text | Kind::Question, DeValue::String(_)) => None,
        (Kind::Flag, _) => must_be("true or false"),
        (Kind::Text, _) => must_be("a text in quotes"),
        (Kind::Question, DeValue::Table(table)) => tool_problem(name, table),
        (Kind::Question, _) => {
            must_be("a command in quotes, or a table such as {tool = \"get_order\", expect = \"paid\"}")
        }
        (Kind::Texts, DeValue::Array(texts)) if texts.iter().all(|text| text.get_ref().is_str()) => None,
        (Kind::Texts, _) => must_be("a list of texts, such as [\"customer\", \"amount\"]"),
        (Kind::Exits, DeValue::Array(codes)) => exits_problem(name, codes.iter().map(|code| code.get_ref())),
        (Kind::Exits, _) => must_be("a list of exit codes, such as [1, 75]"),
    }
}

/// `; did you mean …?` where one of the known words is close to what was written.
pub(super) fn meant<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> String {
    let near = known.map(|known| (strsim::jaro_winkler(word, known), known));
    let best = near.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|(likeness, _)| *likeness > 0.8);
    best.map(|(_, known)| format!("; did you mean `{known}`?")).unwrap_or_default()
}

fn exits_problem<'a, 'i: 'a>(name: &str, codes: impl Iterator<Item = &'a DeValue<'i>>) -> Option<String> {
    let wrong = codes.into_iter().find(|code| !number(code).is_some_and(|code| (1..=255).contains(&code)))?;
    let why = if number(wrong) == Some(0) { "; 0 is success" } else { "" };
    Some(format!("{name} holds {}; an exit code here is a number from 1 to 255{why}", shown(wrong)))
}

fn tool_problem(name: &str, table: &DeTable<'_>) -> Option<String> {
    const KNOWN: [&str; 4] = ["tool", "args", "expect", "missing"];
    for (key, value) in table {
        let key = key.get_ref();
        if !KNOWN.contains(&&**key) {
            return Some(format!(
                "{name}: `{key}` is not part of a question{}",
                meant(key, KNOWN.into_iter())
            ));
        }
        if key != "args" && !value.get_ref().is_str() {
            return Some(format!("{name}: {key} is {}; it must be a text in quotes", shown(value.get_ref())));
        }
    }
    let missing = ["tool", "expect"].into_iter().find(|key| !table.contains_key(*key))?;
    Some(format!(
        "{name}: `{missing}` is missing; write {name} = {{tool = \"get_order\", expect = \"paid\"}}"
    ))
}

fn number(value: &DeValue<'_>) -> Option<i64> {
    let integer = value.as_integer()?;
    i64::from_str_radix(integer.as_str(), integer.radix()).ok()
}

/// A value as an author of a policy calls it.
fn shown(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("the text {text:?}"),
        DeValue::Integer(number) => format!("the number {number}"),
        DeValue::Float(number) => format!("the number {number}"),
        DeValue::Boolean(flag) => flag.to_string(),
        DeValue::Datetime(_) => "a date".to_owned(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

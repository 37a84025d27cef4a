//! Rules about requests: what a preset and the configuration say, and what applies to one request.

use onceward::{Class, Effect, InvalidInput, KeyPolicy, RequestUndo};
use serde::Deserialize;

/// Settings for requests to an upstream. Settings that a rule leaves out come from the rules below it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Rule {
    /// The methods to which the rule applies. All of them if there are none.
    pub methods: Vec<String>,
    /// The paths to which it applies; `*` matches any text. All of them if there are none.
    pub paths: Vec<String>,
    /// The actions to which it applies, in the header `X-Amz-Target` or the form field `Action`.
    pub targets: Vec<String>,
    /// The page that documents the vendor's rules.
    pub source: Option<String>,
    /// How safe a request is to repeat when it is in doubt.
    pub class: Option<Class>,
    /// How keys work.
    pub keys: Option<KeyPolicy>,
    /// Where the vendor's key goes.
    pub key: Option<Placement>,
    /// How long the vendor honours a key.
    pub window: Option<String>,
    /// What the vendor answers to a key that it knows.
    pub replay: Option<Replay>,
    /// The fields of the body that identify the action if no key is given.
    pub key_fields: Option<Vec<String>>,
    /// The fields of the body that may differ between a request and its retry.
    pub volatile: Option<Vec<String>>,
    /// What a success changes.
    pub effect: Option<Effect>,
    /// Answers that say that the vendor replayed a stored answer.
    pub replayed: Option<Vec<Sign>>,
    /// Answers that say that a request with this key is still being executed.
    pub in_flight: Option<Vec<Sign>>,
    /// Answers that say that the key was used with other parameters.
    pub mismatch: Option<Vec<Sign>>,
    /// Answers that prove that nothing was executed.
    pub rejected: Option<Vec<Sign>>,
    /// Successes that only say that the request was accepted.
    pub accepted: Option<Vec<Sign>>,
    /// How to find out whether a request in doubt happened.
    pub probe: Option<Probe>,
    /// How to check a reported success.
    pub verify: Option<Verify>,
    /// The request that takes a success back.
    pub undo: Option<RequestUndo>,
    /// How long the vendor has for its answer.
    pub timeout: Option<String>,
    /// How long a caller waits for another caller's attempt, or for the vendor to finish one.
    pub wait: Option<String>,
    /// The maximum number of attempts of an operation, over all callers.
    pub attempts: Option<u32>,
    /// The pause before the gateway repeats an attempt; it doubles after each.
    pub backoff: Option<String>,
    /// How long a stored answer is replayed.
    pub retention: Option<String>,
    /// How long a probe's *no* does not count after a doubt.
    pub quarantine: Option<String>,
}

/// Where the vendor expects the key.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Placement {
    /// The part of the request.
    #[serde(rename = "in")]
    pub part: Part,
    /// The name of the header, field, parameter or directive. Dots separate the steps to a field inside others.
    pub name: String,
    /// Other names of the field. The first one that the request has is used, else `name`.
    #[serde(default)]
    pub names: Vec<String>,
    /// The longest key that the vendor accepts.
    #[serde(default = "default_max")]
    pub max: usize,
    /// The form of a key.
    #[serde(default)]
    pub format: Format,
    /// Whether the key is only sent if the request already has one: not every call accepts it.
    #[serde(default)]
    pub if_present: bool,
}

fn default_max() -> usize {
    255
}

/// A part of a request that can hold a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// A header.
    Header,
    /// A field of a JSON or form body.
    Body,
    /// A query parameter.
    Query,
    /// The argument `key` of a directive in a GraphQL document.
    Graphql,
}

/// The form of a key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Lower-case letters, digits and `_`.
    #[default]
    Plain,
    /// A version 4 UUID.
    Uuid,
}

/// What a vendor answers to a key that it knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Replay {
    /// The first answer, even if it was an error.
    Bytes,
    /// The state of the resource now.
    Current,
    /// It resumes work that failed, and returns the outcome.
    Resume,
    /// It does not know keys.
    #[default]
    None,
}

/// A recognizable answer. All of its conditions must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Sign {
    /// One of these statuses.
    pub status: Vec<u16>,
    /// This header has one of the values of `is`.
    pub header: Option<String>,
    /// The JSON pointer to a value that is one of `is`; `*` stands for every item or member.
    pub at: Option<String>,
    /// The values.
    pub is: Vec<String>,
    /// The body contains one of these texts.
    pub contains: Vec<String>,
}

/// A read-only request that tells whether an operation happened.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Probe {
    /// The path to get. `{path}`, `{since}`, `{key}` and `{body.FIELD}` are replaced.
    pub get: String,
    /// A JSONPath query for the resource that the operation created; the same words are replaced by quoted texts.
    pub found: String,
    /// The statuses that mean that there is none.
    #[serde(default)]
    pub absent: Vec<u16>,
    /// The status with which the resource is given to the caller.
    #[serde(default = "default_status")]
    pub status: u16,
    /// The most items of one page, if the path does not ask for a size: a shorter page is the last one.
    #[serde(default)]
    pub page: Option<usize>,
    /// Whether the answer always has all items, so that there are no pages.
    #[serde(default)]
    pub complete: bool,
}

fn default_status() -> u16 {
    200
}

/// A read-only request that checks a reported success.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Verify {
    /// The path to get. `{FIELD}` is a field of the answer, by its dotted path or pointer.
    pub get: String,
    /// A JSONPath comparison that is true when the success is confirmed.
    pub expect: String,
    /// A JSONPath comparison that is true when the success turned out to be a failure.
    pub refute: Option<String>,
    /// The pause between two checks.
    pub every: Option<String>,
    /// How long the check is repeated.
    #[serde(rename = "for")]
    pub deadline: Option<String>,
}

impl Rule {
    /// Whether the rule applies to a request.
    pub(crate) fn fits(&self, method: &str, path: &str, target: Option<&str>) -> bool {
        let is_any = |patterns: &[String], text: &str| patterns.iter().any(|pattern| glob(pattern, text));
        (self.methods.is_empty() || self.methods.iter().any(|own| own.eq_ignore_ascii_case(method)))
            && (self.paths.is_empty() || is_any(&self.paths, path))
            && (self.targets.is_empty() || target.is_some_and(|target| is_any(&self.targets, target)))
    }

    /// This rule, with missing settings taken from `below`.
    pub(crate) fn over(self, below: Self) -> Self {
        macro_rules! layered {
            ($($field:ident),*) => {
                Self {
                    methods: self.methods,
                    paths: self.paths,
                    targets: self.targets,
                    $($field: self.$field.or(below.$field)),*
                }
            };
        }
        layered!(
            source, class, keys, key, window, replay, key_fields, volatile, effect, replayed, in_flight,
            mismatch, rejected, accepted, probe, verify, undo, timeout, wait, attempts, backoff, retention,
            quarantine
        )
    }

    /// Checks durations, pointers and queries, so that a mistake is found before the first request.
    pub(crate) fn check(&self) -> Result<(), InvalidInput> {
        let mut problems = Vec::new();
        let mut note = |result: Result<(), InvalidInput>| {
            if let Err(invalid) = result {
                problems.extend_from_slice(invalid.problems());
            }
        };
        let verify = self.verify.as_ref();
        let spans =
            [&self.window, &self.timeout, &self.wait, &self.backoff, &self.retention, &self.quarantine];
        let own = verify.into_iter().flat_map(|verify| [&verify.every, &verify.deadline]);
        for text in spans.into_iter().chain(own).flatten() {
            note(onceward::span_ms(text).map(|_| ()));
        }
        let is_zero = |text: &Option<String>| text.as_deref().map(onceward::span_ms) == Some(Ok(0));
        if is_zero(&self.timeout) {
            note(Err(InvalidInput::new("timeout is 0, so nothing could be answered")));
        }
        if self.attempts == Some(0) {
            note(Err(InvalidInput::new("attempts is 0, so nothing could be sent")));
        }
        if let Some(key) = &self.key {
            note(key.check());
        }
        if let Some(probe) = &self.probe {
            note(is_path("probe", probe.get.strip_prefix("{path}").map_or(&*probe.get, |_| "/")));
            note(super::query::check(&probe.found));
        }
        if let Some(verify) = verify {
            note(is_path("verify", &verify.get));
        }
        for field in self.key_fields.iter().chain(&self.volatile).flatten() {
            note(onceward::Pointer::parse(field).map(|_| ()));
        }
        if let Some(verify) = verify {
            note(super::query::Condition::parse(&verify.expect).map(|_| ()));
            if let Some(refute) = &verify.refute {
                note(super::query::Condition::parse(refute).map(|_| ()));
            }
        }
        if let Some(undo) = &self.undo {
            note(undo.check().map_err(|invalid| InvalidInput::new(format!("undo: {invalid}"))));
        }
        if self.class == Some(Class::Probed) && self.probe.is_none() {
            note(Err(InvalidInput::new(
                "the class is \"probed\", but there is no probe to ask; add probe = { … }",
            )));
        }
        InvalidInput::all(problems).map_or(Ok(()), Err)
    }
}

/// Headers in which a key would be lost, or would break the request.
const RESERVED: [&str; 19] = [
    "accept-encoding",
    "authorization",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "cookie",
    "date",
    "expect",
    "host",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "traceparent",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
];
/// The shortest key that two operations do not share by chance.
const SHORTEST: usize = 16;

impl Placement {
    /// The name, and the other names of the field.
    pub(crate) fn all_names(&self) -> impl Iterator<Item = &String> {
        std::iter::once(&self.name).chain(&self.names)
    }

    /// Checks that a key can be sent there.
    fn check(&self) -> Result<(), InvalidInput> {
        let mut problems = Vec::new();
        for name in self.all_names() {
            if name.is_empty() {
                problems.push("key: it has no name".to_owned());
            } else if self.part == Part::Header {
                problems.extend(header_problem(name).map(|problem| format!("key: {problem}")));
            }
        }
        if self.max < SHORTEST {
            problems.push(format!("key: max is too short; the least is {SHORTEST}"));
        }
        InvalidInput::all(problems).map_or(Ok(()), Err)
    }
}

/// Why a header cannot hold a key.
fn header_problem(name: &str) -> Option<String> {
    let Ok(parsed) = name.parse::<hyper::header::HeaderName>() else {
        return Some(format!("{name:?} is not the name of a header"));
    };
    let is_ours = parsed.as_str().starts_with("once-");
    (is_ours || RESERVED.contains(&parsed.as_str()))
        .then(|| format!("the header {name} cannot hold a key: it has another meaning, or is not passed on"))
}

/// A question is asked at the upstream itself, which gets the caller's credentials.
fn is_path(what: &str, get: &str) -> Result<(), InvalidInput> {
    match get.starts_with('/') && !get.starts_with("//") {
        true => Ok(()),
        false => {
            Err(InvalidInput::new(format!("{what}: get: must be a path at the upstream, such as /orders")))
        }
    }
}

/// Whether the pattern matches the text; `*` matches any text.
fn glob(pattern: &str, text: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(text) = text.strip_prefix(head) else {
        return false;
    };
    rest.is_empty()
        || (0..=text.len()).filter(|at| text.is_char_boundary(*at)).any(|at| glob(rest, &text[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_fit_by_method_path_and_target() {
        let rule = Rule { paths: vec!["/v2/*/x".into()], methods: vec!["POST".into()], ..Rule::default() };
        assert!(rule.fits("post", "/v2/a/b/x", None));
        assert!(!rule.fits("PUT", "/v2/a/x", None) && !rule.fits("POST", "/v2/a/y", None));
        let rule = Rule { targets: vec!["*.Get*".into()], ..Rule::default() };
        assert!(rule.fits("POST", "/", Some("S.GetItem")) && !rule.fits("POST", "/", None));
    }
}

//! The policy file `onceward.toml`: typed, strict about unknown keys, and documented by its default.

mod exits;
mod explain;
mod fields;
mod hold;
mod read;
mod sections;
#[cfg(test)]
mod tests;
mod tools;
mod trust;
mod undo;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Deserializer, Serialize};

use crate::invalid::InvalidInput;
use crate::record::{Class, Compensation, Effect, check_compensation};
use crate::redact::Redaction;

pub use exits::ExitRule;
pub use explain::{Origin, Setting};
pub use fields::suggestion;
pub use hold::{Hold, Release};
use tools::Question;
pub use tools::{OnToolError, ToolQuestion, ToolRule, ToolSettings};
use undo::Undo;
pub use undo::{RequestUndo, ToolUndo};

/// The default policy, which is also its documentation.
pub const DEFAULT_POLICY: &str = include_str!("default.toml");

static DEFAULT_SETTINGS: LazyLock<Result<Settings, InvalidInput>> =
    LazyLock::new(|| Policy::parse(DEFAULT_POLICY).and_then(|policy| policy.defaults.complete(None)));

/// How keys work for calls that give none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyPolicy {
    /// Derived from the intent. After the answer was delivered, an equal call is the next occurrence. The same as
    /// strict in a scope that the caller chose, and on a surface that does not observe delivery.
    Auto,
    /// Derived from the intent.
    Strict,
    /// A key must be given.
    Keyed,
}

/// What a retry of a definite failure returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// The next attempt, within the budget.
    Retry,
    /// The stored failure.
    Replay,
}

/// What happens to a key after its retention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnExpired {
    /// Refuse a given key, and every key in a scope that the caller chose. Start the next occurrence for a derived
    /// key in the default scope or the host's scope.
    Auto,
    /// Refuse it.
    Refuse,
    /// Run it again.
    Rerun,
    /// Try what failed again, within its budget, and refuse everything else. For what this program itself has promised
    /// to do: the deliveries of an inbox.
    #[serde(skip_deserializing)]
    RetryFailed,
}

/// The times, limits and rules of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Terms {
    /// How safe it is to repeat when it is in doubt.
    pub class: Class,
    /// How keys work for calls that give none.
    pub keys: KeyPolicy,
    /// How long an owner may go without renewing its lease.
    pub lease_ms: u64,
    /// How long a caller waits for another caller's attempt.
    pub wait_ms: u64,
    /// How long a result is replayed.
    pub retention_ms: u64,
    /// The minimum of that in a scope that the caller chose.
    pub session_retention_ms: u64,
    /// How long the tombstone refuses the key after that.
    pub tombstone_ms: u64,
    /// The maximum number of attempts of an operation.
    pub max_attempts: u32,
    /// How often one call retries after a definite failure.
    pub retries: u32,
    /// The pause before the first retry; it doubles after each.
    pub backoff_ms: u64,
    /// What a retry of a definite failure returns.
    pub on_failure: OnFailure,
    /// What happens to a key after its retention.
    pub on_expired: OnExpired,
    /// Whether it is held back before its first attempt.
    pub hold: Hold,
    /// How long a probe's *no* does not count after an attempt ended in doubt.
    pub quarantine_ms: u64,
    /// How long the downstream honours its key.
    pub downstream_window_ms: u64,
    /// How long an equal call is the same one where it cannot be known whether the answer arrived, and after a
    /// refusal.
    pub repeat_window_ms: u64,
    /// How long a check is repeated before the result is "pending".
    pub verify_deadline_ms: u64,
    /// The pause between two checks.
    pub verify_interval_ms: u64,
    /// What is removed from results before they are stored.
    #[serde(skip_serializing_if = "Redaction::is_empty")]
    pub redact: Redaction,
}

impl Terms {
    /// Sets how long results are kept, in every scope.
    pub fn keep_results_for(&mut self, ms: u64) {
        (self.retention_ms, self.session_retention_ms) = (ms, ms);
    }

    /// Checks that the terms are consistent.
    ///
    /// # Errors
    /// Lists each invalid term and why.
    pub fn check(&self) -> Result<(), InvalidInput> {
        let mut problems = Vec::new();
        if self.max_attempts == 0 {
            problems.push("attempts is 0, so nothing could ever run".to_owned());
        }
        if self.lease_ms < 100 {
            problems.push("lease is shorter than 100ms: a live owner could not renew it in time".to_owned());
        }
        if self.retention_ms == 0 {
            problems.push("retention is 0, so no retry could be recognised".to_owned());
        }
        InvalidInput::all(problems).map_or(Ok(()), Err)
    }
}

impl Default for Terms {
    fn default() -> Self {
        default_settings().terms.clone()
    }
}

/// Everything that a policy says about an operation with a given name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Settings {
    /// Times, limits and rules.
    pub terms: Terms,
    /// The fields that identify the action.
    pub key_fields: Vec<String>,
    /// The fields that may differ between a call and its retry.
    pub volatile: Vec<String>,
    /// How long an attempt may take; 0 means no limit.
    pub timeout_ms: u64,
    /// What a success changes.
    pub effect: Effect,
    /// A command that tells whether it happened.
    pub probe: Option<String>,
    /// A command that checks a reported success.
    pub verify: Option<String>,
    /// What takes it back.
    pub undo: Option<Compensation>,
    /// Exit codes that mean "no effect". They override the table of known programs.
    pub no_effect_exits: Vec<i32>,
    /// Exit codes that leave the effect in doubt. They override the table of known programs.
    pub doubt_exit: Vec<i32>,
    /// Exit codes of the probe that mean "it did not happen", in addition to 10.
    pub probe_no: Vec<i32>,
    /// Whether a program may run its stored command when its time has come.
    pub release: Release,
    /// Whether the command line is stored with the record, to show it in listings.
    pub store_command: bool,
    /// How much output is stored, in bytes.
    pub max_output: u64,
    /// Settings for the tools of an MCP server.
    #[serde(skip_serializing_if = "ToolSettings::is_empty")]
    pub tool: ToolSettings,
}

impl Settings {
    /// Checks that no two settings contradict each other and that the terms are consistent.
    fn check(&self) -> Result<(), InvalidInput> {
        let mut problems =
            self.terms.check().err().map_or_else(Vec::new, |invalid| invalid.problems().to_vec());
        if let Some(field) = self.key_fields.iter().find(|field| self.volatile.contains(field)) {
            problems.push(format!(
                "`{field}` is in both key and volatile: it cannot both identify the action and differ between retries"
            ));
        }
        if let Some(code) = self.no_effect_exits.iter().find(|code| self.doubt_exit.contains(code)) {
            problems.push(format!(
                "exit code {code} is in both no_effect_exits and doubt_exit: it cannot mean both"
            ));
        }
        if let Some(Err(invalid)) = self.undo.as_ref().map(Compensation::check) {
            problems.extend_from_slice(invalid.problems());
        }
        InvalidInput::all(problems).map_or(Ok(()), Err)
    }
}

impl Default for Settings {
    fn default() -> Self {
        default_settings().clone()
    }
}

#[expect(clippy::expect_used, reason = "the default policy is part of the build, and a test reads it")]
fn default_settings() -> &'static Settings {
    DEFAULT_SETTINGS.as_ref().expect("the default policy is complete")
}

/// A parsed policy file.
///
/// ```
/// use onceward::{Class, Policy};
///
/// let policy = Policy::parse("[operation.\"charge_*\"]\nclass = \"keyed\"\nretention = \"7d\"")?;
/// let settings = policy.settings("charge_card")?;
/// assert_eq!(settings.terms.class, Class::Keyed);
/// assert_eq!(settings.terms.retention_ms, 7 * 24 * 60 * 60 * 1000);
/// assert_eq!(policy.settings("other")?.terms.class, Class::Once);
/// # Ok::<(), onceward::InvalidInput>(())
/// ```
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    #[serde(default)]
    ledger: LedgerSection,
    #[serde(default)]
    defaults: Rule,
    #[serde(default)]
    operation: BTreeMap<String, Rule>,
    #[serde(default)]
    exits: BTreeMap<String, ExitRule>,
    #[serde(default)]
    serve: toml::Table,
    #[serde(default)]
    tenant: toml::Table,
    #[serde(default)]
    upstream: toml::Table,
    #[serde(default)]
    hook: toml::Table,
    #[serde(default)]
    prices: toml::Table,
    /// The settings as the file writes them, to report which rule decides.
    #[serde(skip)]
    source: toml::Table,
    /// The text of the file, to report the lines of mistakes in the server's sections.
    #[serde(skip)]
    text: Arc<str>,
    /// Whether it was found in a working folder and the user has not trusted it.
    #[serde(skip)]
    is_untrusted: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LedgerSection {
    url: Option<String>,
    encryption_key_file: Option<String>,
}

impl Policy {
    /// Parses a policy.
    ///
    /// # Errors
    /// Lists every problem, with its line.
    pub fn parse(text: &str) -> Result<Self, InvalidInput> {
        read::read(text)
    }

    /// The URL of the ledger, if the policy sets one.
    #[must_use]
    pub fn ledger_url(&self) -> Option<&str> {
        self.ledger.url.as_deref()
    }

    /// The file with the encryption keys for stored results, if the policy sets one.
    #[must_use]
    pub fn encryption_key_file(&self) -> Option<&str> {
        self.ledger.encryption_key_file.as_deref()
    }

    /// The settings for an operation: the defaults, then every matching pattern, the longest last.
    ///
    /// # Errors
    /// When the terms are inconsistent.
    pub fn settings(&self, name: &str) -> Result<Settings, InvalidInput> {
        self.settings_of(&[name])
    }

    /// The settings of an operation that has several names, from the most specific one to the most general: rules
    /// for all of them apply, and those that the most general name does not fit count most.
    ///
    /// # Errors
    /// If the settings are inconsistent.
    pub fn settings_of(&self, names: &[&str]) -> Result<Settings, InvalidInput> {
        let rules = self.layered(names).into_iter();
        let rule = rules.fold(Rule::default(), |below, (_, rule)| rule.clone().over(below));
        let rule = rule.over(self.defaults.clone());
        let settings = rule.complete(Some(Settings::default()))?;
        settings.terms.check()?;
        Ok(settings)
    }

    /// The combined rules for an operation with these names, without the defaults.
    fn rule(&self, names: &[&str]) -> Rule {
        self.matching(names).into_iter().fold(Rule::default(), |below, (_, rule)| rule.clone().over(below))
    }

    /// The rules that match one of these names; each overrides the ones before it.
    fn matching(&self, names: &[&str]) -> Vec<(&str, &Rule)> {
        let fits_one = |pattern: &str| names.iter().any(|name| matches_pattern(pattern, name));
        let rules = self.operation.iter().map(|(pattern, rule)| (pattern.as_str(), rule));
        let mut fitting: Vec<_> = rules.filter(|(pattern, _)| fits_one(pattern)).collect();
        fitting.sort_by_key(|(pattern, _)| (!pattern.contains('*'), pattern.len()));
        fitting
    }

    /// The rules that match one of these names, from the most specific one to the most general; each overrides the
    /// ones before it.
    fn layered(&self, names: &[&str]) -> Vec<(&str, &Rule)> {
        let mut fitting = self.matching(names);
        let general = names.last().copied().unwrap_or_default();
        fitting.sort_by_key(|(pattern, _)| !matches_pattern(pattern, general));
        fitting
    }

    /// Whether any rule holds operations back.
    #[must_use]
    pub fn holds(&self) -> bool {
        let mut rules = std::iter::once(&self.defaults).chain(self.operation.values());
        rules.any(|rule| rule.hold.is_some_and(|hold| hold != Hold::No))
    }

    /// Checks every rule, so that a mistake is found before the first call that it affects.
    ///
    /// # Errors
    /// All problems at once, each with its rule.
    pub fn check(&self) -> Result<(), InvalidInput> {
        self.check_each(|name, settings| {
            settings.check()?;
            // A rule for several names can be meant for the operations only; `once undo` refuses it then.
            match name.filter(|name| name.starts_with("undo:")) {
                Some(name) => check_compensation(name, settings.terms.class),
                None => Ok(()),
            }
        })
    }

    /// Checks that every rule of class `probed` has a probe, for surfaces on which only the policy can name one.
    ///
    /// # Errors
    /// All problems at once, each with its rule.
    pub fn check_probes(&self) -> Result<(), InvalidInput> {
        self.check_each(|_, settings| {
            if settings.terms.class != Class::Probed
                || settings.probe.is_some()
                || settings.tool.probe.is_some()
            {
                return Ok(());
            }
            let problem = "the class is \"probed\", but there is no probe to ask; add probe = \"COMMAND\"";
            Err(InvalidInput::new(problem))
        })
    }

    /// Checks each rule with the pattern of its operations; the defaults have none.
    fn check_each(
        &self,
        check: fn(Option<&str>, &Settings) -> Result<(), InvalidInput>,
    ) -> Result<(), InvalidInput> {
        let mut problems = Vec::new();
        let operations = self.operation.iter().map(|(name, rule)| (Some(name.as_str()), rule));
        for (name, rule) in std::iter::once((None, &self.defaults)).chain(operations) {
            let complete = rule.clone().over(self.defaults.clone()).complete(Some(Settings::default()));
            if let Err(invalid) = complete.and_then(|settings| check(name, &settings)) {
                let title =
                    name.map_or_else(|| "[defaults]".to_owned(), |name| read::title("operation", name));
                problems.extend(invalid.problems().iter().map(|problem| format!("{title} {problem}")));
            }
        }
        InvalidInput::all(problems).map_or(Ok(()), Err)
    }
}

/// A rule. Settings that it leaves out come from the rules below it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    class: Option<Class>,
    keys: Option<KeyPolicy>,
    key: Option<Vec<String>>,
    volatile: Option<Vec<String>>,
    lease: Option<Span>,
    wait: Option<Span>,
    retention: Option<Span>,
    session_retention: Option<Span>,
    tombstones: Option<Span>,
    attempts: Option<u32>,
    retries: Option<u32>,
    backoff: Option<Span>,
    on_failure: Option<OnFailure>,
    on_expired: Option<OnExpired>,
    hold: Option<Hold>,
    release: Option<Release>,
    quarantine: Option<Span>,
    downstream_window: Option<Span>,
    repeat_window: Option<Span>,
    timeout: Option<Span>,
    effect: Option<Effect>,
    probe: Option<Question>,
    verify: Option<Question>,
    undo: Option<Undo>,
    verify_deadline: Option<Span>,
    verify_interval: Option<Span>,
    no_effect_exits: Option<Vec<i32>>,
    doubt_exit: Option<Vec<i32>>,
    probe_no: Option<Vec<i32>>,
    store_command: Option<bool>,
    max_output: Option<u64>,
    redact: Option<Redaction>,
    key_argument: Option<String>,
    on_tool_error: Option<OnToolError>,
    lock: Option<String>,
    concurrency: Option<u32>,
    agents_settle: Option<bool>,
}

macro_rules! layered {
    ($self:ident, $below:ident: $($field:ident),*) => { Rule { $($field: $self.$field.or($below.$field)),* } };
}

impl Rule {
    /// This rule, with missing settings taken from `below`.
    fn over(self, below: Self) -> Self {
        layered!(self, below: class, keys, key, volatile, lease, wait, retention, session_retention, tombstones,
                 attempts, retries, backoff, on_failure, on_expired, hold, release, quarantine, downstream_window,
                 repeat_window, timeout, effect, probe, verify, undo, verify_deadline, verify_interval,
                 no_effect_exits, doubt_exit, probe_no, store_command, max_output, redact, key_argument,
                 on_tool_error, lock, concurrency, agents_settle)
    }

    /// The complete settings, with missing ones taken from `base`.
    fn complete(self, base: Option<Settings>) -> Result<Settings, InvalidInput> {
        let base = base.as_ref();
        let tool = self.tool_settings(base)?;
        let open = |field: &str| InvalidInput::new(format!("the default policy does not set `{field}`"));
        macro_rules! take {
            ($field:ident, $from:expr) => {
                self.$field.or_else(|| base.map($from)).ok_or_else(|| open(stringify!($field)))?
            };
        }
        macro_rules! span {
            ($field:ident, $from:expr) => {
                self.$field
                    .map(|span| span.0)
                    .or_else(|| base.map($from))
                    .ok_or_else(|| open(stringify!($field)))?
            };
        }
        let effect = take!(effect, |s| s.effect);
        if !Effect::REAL.contains(&effect) {
            return Err(InvalidInput::new(format!(
                "effect is {effect}, which is for dry runs; use created, updated, deleted or noop"
            )));
        }
        Ok(Settings {
            terms: Terms {
                class: take!(class, |s| s.terms.class),
                keys: take!(keys, |s| s.terms.keys),
                lease_ms: span!(lease, |s| s.terms.lease_ms),
                wait_ms: span!(wait, |s| s.terms.wait_ms),
                retention_ms: span!(retention, |s| s.terms.retention_ms),
                session_retention_ms: span!(session_retention, |s| s.terms.session_retention_ms),
                tombstone_ms: span!(tombstones, |s| s.terms.tombstone_ms),
                max_attempts: take!(attempts, |s| s.terms.max_attempts),
                retries: take!(retries, |s| s.terms.retries),
                backoff_ms: span!(backoff, |s| s.terms.backoff_ms),
                on_failure: take!(on_failure, |s| s.terms.on_failure),
                on_expired: take!(on_expired, |s| s.terms.on_expired),
                hold: take!(hold, |s| s.terms.hold),
                quarantine_ms: span!(quarantine, |s| s.terms.quarantine_ms),
                downstream_window_ms: span!(downstream_window, |s| s.terms.downstream_window_ms),
                repeat_window_ms: span!(repeat_window, |s| s.terms.repeat_window_ms),
                verify_deadline_ms: span!(verify_deadline, |s| s.terms.verify_deadline_ms),
                verify_interval_ms: span!(verify_interval, |s| s.terms.verify_interval_ms),
                redact: take!(redact, |s| s.terms.redact.clone()),
            },
            key_fields: take!(key, |s| s.key_fields.clone()),
            volatile: take!(volatile, |s| s.volatile.clone()),
            timeout_ms: span!(timeout, |s| s.timeout_ms),
            effect,
            probe: self.probe.map_or_else(|| base.and_then(|s| s.probe.clone()), Question::command),
            verify: self.verify.map_or_else(|| base.and_then(|s| s.verify.clone()), Question::command),
            undo: self.undo.map(Undo::compensation).or_else(|| base.and_then(|s| s.undo.clone())),
            no_effect_exits: take!(no_effect_exits, |s| s.no_effect_exits.clone()),
            doubt_exit: take!(doubt_exit, |s| s.doubt_exit.clone()),
            probe_no: take!(probe_no, |s| s.probe_no.clone()),
            release: take!(release, |s| s.release),
            store_command: take!(store_command, |s| s.store_command),
            max_output: take!(max_output, |s| s.max_output),
            tool,
        })
    }
}

/// A duration as people write it: `500ms`, `15s`, `24h`, `30d`.
#[derive(Debug, Clone, Copy)]
struct Span(u64);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        span_ms(&text).map(Self).map_err(serde::de::Error::custom)
    }
}

/// Parses a duration (`500ms`, `15s`, `24h`, `30d`) into milliseconds.
///
/// # Errors
/// When it is not a duration, or longer than a hundred years.
pub fn span_ms(text: &str) -> Result<u64, InvalidInput> {
    const CENTURY_MS: u64 = 100 * 365 * 24 * 60 * 60 * 1000;
    let invalid = |why: String| {
        InvalidInput::new(format!("{text:?} is not a duration ({why}); write 500ms, 15s, 24h or 30d"))
    };
    let span = humantime::parse_duration(text).map_err(|error| invalid(error.to_string()))?;
    let ms = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    if ms > CENTURY_MS { Err(invalid("it is longer than a hundred years".to_owned())) } else { Ok(ms) }
}

/// Whether the pattern matches the name; `*` matches any text.
fn matches_pattern(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(name) = name.strip_prefix(head) else {
        return false;
    };
    rest.is_empty()
        || (0..=name.len())
            .filter(|at| name.is_char_boundary(*at))
            .any(|at| matches_pattern(rest, &name[at..]))
}

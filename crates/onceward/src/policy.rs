//! The policy file `onceward.toml`: typed, with unknown keys refused, and documented by its own default.

mod exits;
mod explain;
mod fields;
mod read;
mod tools;
mod trust;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::{Deserialize, Deserializer, Serialize};

use crate::error::InvalidInput;
use crate::record::{Class, Effect};

pub use exits::ExitRule;
pub use explain::{Origin, Setting};
use tools::Question;
pub use tools::{OnToolError, ToolQuestion, ToolRule, ToolSettings};

/// The default policy, which is also its documentation.
pub const DEFAULT_POLICY: &str = include_str!("default.toml");

static DEFAULT_SETTINGS: LazyLock<Result<Settings, InvalidInput>> =
    LazyLock::new(|| Policy::parse(DEFAULT_POLICY).and_then(|policy| policy.defaults.complete(None)));

/// Where a key may come from when the caller gives none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyPolicy {
    /// It is derived from the intent. Once the answer was delivered, the same call is wanted again: it is the next
    /// occurrence. The same as strict in a scope that the caller chose, and where a surface does not observe delivery.
    Auto,
    /// It is derived from the intent.
    Strict,
    /// It must be given.
    Keyed,
}

/// What a retry of a certain failure gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// The next attempt, within the budget.
    Retry,
    /// The stored failure.
    Replay,
}

/// What a key gets whose retention is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnExpired {
    /// A given key, and every key in a scope that the caller chose, is refused. A derived key of the default scope or
    /// of the host's begins its next occurrence.
    Auto,
    /// It is refused.
    Refuse,
    /// It runs again.
    Rerun,
}

/// The times, limits and rules that decide over an operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Terms {
    /// What may be done when it is in doubt.
    pub class: Class,
    /// Where its key may come from.
    pub keys: KeyPolicy,
    /// How long an attempt may be silent.
    pub lease_ms: u64,
    /// How long a caller waits for another one.
    pub wait_ms: u64,
    /// How long a result is replayed.
    pub retention_ms: u64,
    /// How long a result is replayed at least, in a scope that the caller chose.
    pub session_retention_ms: u64,
    /// How long its tombstone refuses the key after that.
    pub tombstone_ms: u64,
    /// How many attempts it may have in its life.
    pub max_attempts: u32,
    /// How often one call tries again after a certain failure.
    pub retries: u32,
    /// The pause before the first of these tries.
    pub backoff_ms: u64,
    /// What a retry of a certain failure gets.
    pub on_failure: OnFailure,
    /// What a key gets whose retention is over.
    pub on_expired: OnExpired,
    /// How long a probe's *no* does not count when the owner may live.
    pub quarantine_ms: u64,
    /// How long the downstream honours its key.
    pub downstream_window_ms: u64,
    /// How long a check is repeated before its answer is "pending".
    pub verify_deadline_ms: u64,
    /// The pause between two checks.
    pub verify_interval_ms: u64,
}

impl Terms {
    /// Keeps results for this long, in every scope.
    pub fn keep_results_for(&mut self, ms: u64) {
        (self.retention_ms, self.session_retention_ms) = (ms, ms);
    }

    /// Checks that the terms can be kept.
    ///
    /// # Errors
    /// Says which one cannot, and why.
    pub fn check(&self) -> Result<(), InvalidInput> {
        let mut problems = Vec::new();
        if self.max_attempts == 0 {
            problems.push("attempts is 0: then nothing could ever run".to_owned());
        }
        if self.lease_ms < 100 {
            problems.push("lease is shorter than 100ms: a live owner could not renew it in time".to_owned());
        }
        if self.retention_ms == 0 {
            problems.push("retention is 0: then no retry could be recognised".to_owned());
        }
        InvalidInput::all(problems).map_or(Ok(()), Err)
    }
}

impl Default for Terms {
    fn default() -> Self {
        default_settings().terms.clone()
    }
}

/// Everything that a policy says about an operation of some name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Settings {
    /// What decides.
    pub terms: Terms,
    /// The fields that identify the action.
    pub key_fields: Vec<String>,
    /// The fields that may differ.
    pub volatile: Vec<String>,
    /// How long an attempt may take; 0 is no limit.
    pub timeout_ms: u64,
    /// What a success changes.
    pub effect: Effect,
    /// A command that tells whether it happened.
    pub probe: Option<String>,
    /// A command that checks a reported success.
    pub verify: Option<String>,
    /// Exit codes that mean "no effect", whatever the table of known programs says.
    pub no_effect_exits: Vec<i32>,
    /// Exit codes that leave the effect in doubt, whatever the table of known programs says.
    pub doubt_exit: Vec<i32>,
    /// Exit codes of the probe that mean "it did not happen", besides 10.
    pub probe_no: Vec<i32>,
    /// Whether the command line is stored with the record, to be shown in lists.
    pub store_command: bool,
    /// How much output is kept.
    pub max_output: u64,
    /// What is said of tools of an MCP server only.
    #[serde(skip_serializing_if = "ToolSettings::is_empty")]
    pub tool: ToolSettings,
}

impl Settings {
    /// Checks that no two settings contradict each other, and that the terms can be kept.
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

/// A policy file.
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
    /// The file as it was written, to say which line decides.
    #[serde(skip)]
    source: toml::Table,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LedgerSection {
    url: Option<String>,
}

impl Policy {
    /// Reads a policy.
    ///
    /// # Errors
    /// Says everything that is wrong, and on which line.
    pub fn parse(text: &str) -> Result<Self, InvalidInput> {
        read::read(text)
    }

    /// Where the ledger lives, if the policy says so.
    #[must_use]
    pub fn ledger_url(&self) -> Option<&str> {
        self.ledger.url.as_deref()
    }

    /// What holds for an operation of that name: the default, then each pattern that fits, the longest last.
    ///
    /// # Errors
    /// When the terms cannot be kept.
    pub fn settings(&self, name: &str) -> Result<Settings, InvalidInput> {
        let rule = self.rule(&[name]).over(self.defaults.clone());
        let settings = rule.complete(Some(Settings::default()))?;
        settings.terms.check()?;
        Ok(settings)
    }

    /// What the rules say of an operation that goes by these names, without the defaults.
    fn rule(&self, names: &[&str]) -> Rule {
        self.fitting(names).into_iter().fold(Rule::default(), |below, (_, rule)| rule.clone().over(below))
    }

    /// The rules that fit one of these names; each decides over those before it.
    fn fitting(&self, names: &[&str]) -> Vec<(&str, &Rule)> {
        let fits_one = |pattern: &str| names.iter().any(|name| fits(pattern, name));
        let rules = self.operation.iter().map(|(pattern, rule)| (pattern.as_str(), rule));
        let mut fitting: Vec<_> = rules.filter(|(pattern, _)| fits_one(pattern)).collect();
        fitting.sort_by_key(|(pattern, _)| (!pattern.contains('*'), pattern.len()));
        fitting
    }

    /// Checks every rule of the policy, so that a mistake is seen before its operation comes by.
    ///
    /// # Errors
    /// All problems at once, each with its rule.
    pub fn check(&self) -> Result<(), InvalidInput> {
        self.check_each(Settings::check)
    }

    /// Checks that every rule of class `probed` has a probe, where a policy is the only place that can name one.
    ///
    /// # Errors
    /// All problems at once, each with its rule.
    pub fn check_probes(&self) -> Result<(), InvalidInput> {
        self.check_each(|settings| {
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

    fn check_each(&self, check: fn(&Settings) -> Result<(), InvalidInput>) -> Result<(), InvalidInput> {
        let mut problems = Vec::new();
        let operations = self.operation.iter().map(|(name, rule)| (read::title("operation", name), rule));
        for (title, rule) in std::iter::once(("[defaults]".to_owned(), &self.defaults)).chain(operations) {
            let complete = rule.clone().over(self.defaults.clone()).complete(Some(Settings::default()));
            if let Err(invalid) = complete.and_then(|settings| check(&settings)) {
                problems.extend(invalid.problems().iter().map(|problem| format!("{title} {problem}")));
            }
        }
        InvalidInput::all(problems).map_or(Ok(()), Err)
    }
}

/// A rule: what it does not say is left to the rules below it.
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
    quarantine: Option<Span>,
    downstream_window: Option<Span>,
    timeout: Option<Span>,
    effect: Option<Effect>,
    probe: Option<Question>,
    verify: Option<Question>,
    verify_deadline: Option<Span>,
    verify_interval: Option<Span>,
    no_effect_exits: Option<Vec<i32>>,
    doubt_exit: Option<Vec<i32>>,
    probe_no: Option<Vec<i32>>,
    store_command: Option<bool>,
    max_output: Option<u64>,
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
    /// This rule over another one.
    fn over(self, below: Self) -> Self {
        layered!(self, below: class, keys, key, volatile, lease, wait, retention, session_retention, tombstones,
                 attempts, retries, backoff, on_failure, on_expired, quarantine, downstream_window, timeout, effect,
                 probe, verify, verify_deadline, verify_interval, no_effect_exits, doubt_exit, probe_no,
                 store_command, max_output, key_argument, on_tool_error, lock,
                 concurrency, agents_settle)
    }

    /// The settings, with what is still left open taken from `base`.
    fn complete(self, base: Option<Settings>) -> Result<Settings, InvalidInput> {
        let base = base.as_ref();
        let tool = self.tool_settings(base)?;
        let open = |field: &str| InvalidInput::new(format!("the default policy says nothing of `{field}`"));
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
                quarantine_ms: span!(quarantine, |s| s.terms.quarantine_ms),
                downstream_window_ms: span!(downstream_window, |s| s.terms.downstream_window_ms),
                verify_deadline_ms: span!(verify_deadline, |s| s.terms.verify_deadline_ms),
                verify_interval_ms: span!(verify_interval, |s| s.terms.verify_interval_ms),
            },
            key_fields: take!(key, |s| s.key_fields.clone()),
            volatile: take!(volatile, |s| s.volatile.clone()),
            timeout_ms: span!(timeout, |s| s.timeout_ms),
            effect,
            probe: self.probe.map_or_else(|| base.and_then(|s| s.probe.clone()), Question::command),
            verify: self.verify.map_or_else(|| base.and_then(|s| s.verify.clone()), Question::command),
            no_effect_exits: take!(no_effect_exits, |s| s.no_effect_exits.clone()),
            doubt_exit: take!(doubt_exit, |s| s.doubt_exit.clone()),
            probe_no: take!(probe_no, |s| s.probe_no.clone()),
            store_command: take!(store_command, |s| s.store_command),
            max_output: take!(max_output, |s| s.max_output),
            tool,
        })
    }
}

/// A span of time as people write it: `500ms`, `15s`, `24h`, `30d`.
#[derive(Debug, Clone, Copy)]
struct Span(u64);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        span_ms(&text).map(Self).map_err(serde::de::Error::custom)
    }
}

/// Reads a span of time (`500ms`, `15s`, `24h`, `30d`) as milliseconds.
///
/// # Errors
/// When it is not one, or longer than a hundred years.
pub fn span_ms(text: &str) -> Result<u64, InvalidInput> {
    const CENTURY_MS: u64 = 100 * 365 * 24 * 60 * 60 * 1000;
    let invalid = |why: String| {
        InvalidInput::new(format!("{text:?} is not a span of time ({why}); write 500ms, 15s, 24h or 30d"))
    };
    let span = humantime::parse_duration(text).map_err(|error| invalid(error.to_string()))?;
    let ms = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    if ms > CENTURY_MS { Err(invalid("it is longer than a hundred years".to_owned())) } else { Ok(ms) }
}

/// Whether a pattern, in which `*` stands for any text, fits a name.
fn fits(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(name) = name.strip_prefix(head) else {
        return false;
    };
    rest.is_empty()
        || (0..=name.len()).filter(|at| name.is_char_boundary(*at)).any(|at| fits(rest, &name[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_complete_and_commented() {
        let settings = Settings::default();
        assert_eq!(settings.terms.lease_ms, 15_000);
        assert_eq!(settings.terms.retention_ms, 86_400_000);
        settings.terms.check().unwrap();
    }

    #[test]
    fn the_longest_pattern_decides_last_and_an_exact_name_wins() {
        let policy = Policy::parse(
            r#"
            [defaults]
            attempts = 7
            [operation."charge_*"]
            class = "keyed"
            wait = "1s"
            [operation."charge_card_*"]
            class = "probed"
            [operation."charge_card_x"]
            class = "idempotent"
            "#,
        )
        .unwrap();
        let class = |name: &str| policy.settings(name).unwrap().terms.class;
        assert_eq!(class("mail"), Class::Once);
        assert_eq!(class("charge_bank"), Class::Keyed);
        assert_eq!(class("charge_card_y"), Class::Probed);
        assert_eq!(class("charge_card_x"), Class::Idempotent);
        let settings = policy.settings("charge_card_x").unwrap();
        assert_eq!((settings.terms.wait_ms, settings.terms.max_attempts), (1_000, 7));
    }

    #[test]
    fn patterns() {
        assert!(fits("a*c*e", "abcde") && fits("*", "") && fits("*x", "xxx") && fits("é*", "éa"));
        assert!(!fits("a*c", "ab") && !fits("a", "ab") && !fits("a*b", "a"));
    }

    #[test]
    fn mistakes_are_named() {
        let problem = |text: &str| match Policy::parse(text) {
            Err(invalid) => invalid.to_string(),
            Ok(policy) => policy.check().unwrap_err().to_string(),
        };
        assert!(problem("[defaults]\nclas = \"once\"").contains("clas"));
        assert!(problem("[defaults]\nclass = \"twice\"").contains("twice"));
        assert!(problem("[defaults]\nlease = \"soon\"").contains("soon"));
        assert!(problem("[defaults]\nattempts = 0").contains("nothing could ever run"));
        assert!(problem("[operation.\"x\"]\nlease = \"1ms\"").starts_with("[operation.x] lease"));
        assert!(problem("[defaults]\neffect = \"would_create\"").contains("would_create"));
        assert!(problem("[defaults]\nkey = [\"a\", \"b\"]\nvolatile = [\"b\"]").contains("`b` is in both"));
        assert!(problem("[defaults]\nno_effect_exits = [3]\ndoubt_exit = [3]").contains("exit code 3"));
    }

    #[test]
    fn all_mistakes_are_told_at_once_in_the_order_of_their_lines() {
        let text = "[defaults]\nretension = \"1h\"\nattempts = \"three\"\n[default]\n\
                    [operation.\"[a-z]\"]\nprobe = true\nwait = 30\ndoubt_exit = [0]\n\
                    key = \"id\"\nstore_command = \"no\"\n";
        let problems = Policy::parse(text).unwrap_err();
        insta::assert_snapshot!(problems.problems().join("\n"), @r#"
        line 2: [defaults] has no setting `retension`; did you mean `retention`?
        line 3: attempts is the text "three"; it must be a whole number, such as 20
        line 4: `default` is not a section of a policy; did you mean `defaults`?
        line 5: [operation."[a-z]"]: `[` has no meaning in a name; only * stands for any text
        line 6: probe is true; it must be a command in quotes, or a table such as {tool = "get_order", expect = "paid"}
        line 7: wait is the number 30; it must be a time with its unit, in quotes, such as "30s"
        line 8: doubt_exit holds the number 0; an exit code here is a number from 1 to 255; 0 is success
        line 9: key is the text "id"; it must be a list of texts, such as ["customer", "amount"]
        line 10: store_command is the text "no"; it must be true or false
        "#);
    }

    #[test]
    fn every_setting_of_a_rule_is_described() {
        let error = toml::from_str::<Rule>("nothing = 1").unwrap_err().to_string();
        let (_, names) = error.split_once("expected one of ").unwrap();
        let mut known: Vec<&str> =
            names.split(['`', ',', ' ', '\n']).filter(|name| !name.is_empty()).collect();
        let mut described: Vec<&str> = fields::RULE.iter().map(|(name, _)| *name).collect();
        known.sort_unstable();
        described.sort_unstable();
        assert_eq!(known, described);
    }

    #[test]
    fn each_setting_says_what_decided_it() {
        let text = "[defaults]\nwait = \"1s\"\nclass = \"once\"\n[operation.\"pay_*\"]\nclass = \"keyed\"\n\
                    [operation.pay_x]\nattempts = 3\n";
        let settings = Policy::parse(text).unwrap().explain("pay_x");
        let told = |name: &str| {
            let setting = settings.iter().find(|setting| setting.name == name).unwrap();
            format!("{} # {}", setting.value, setting.origin)
        };
        assert_eq!(told("class"), "\"keyed\" # [operation.\"pay_*\"]");
        assert_eq!(told("attempts"), "3 # [operation.pay_x]");
        assert_eq!(told("wait"), "\"1s\" # [defaults]");
        assert_eq!(told("retention"), "\"24h\" # built in");
        assert!(settings.iter().all(|setting| setting.name != "probe"));
    }
}

//! The `[hook.NAME]` sections: a source, how long its events are kept, and its handlers.

use std::collections::BTreeMap;
use std::time::Duration;

use onceward::{Class, InvalidInput, Pointer};
use serde::Deserialize;

use super::{SourceConfig, presets};
use crate::mistake::Mistake;
use crate::time::span;

/// How long ids are remembered if the configuration does not say: longer than every vendor sends an event again.
const IDS: Duration = Duration::from_secs(30 * 24 * 3600);
/// How long contents are kept after the event was delivered, if the configuration does not say.
const PAYLOADS: Duration = Duration::from_secs(7 * 24 * 3600);
/// The largest event: a record holds 16 MiB, and its headers and what is known about it take some of it.
pub(super) const MAX_BODY: usize = onceward::MAX_RESULT - 64 * 1024;
/// How long an attempt may take if the configuration does not say.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The longest name of a source or handler.
const MAX_NAME: usize = 64;

/// A `[hook.NAME]` section.
///
/// ```
/// let policy = onceward::Policy::parse(r#"
///     [hook.stripe]
///     secrets = ["$STRIPE_SECRET"]
///     [hook.stripe.handler.billing]
///     url = "http://127.0.0.1:8000/stripe"
///     types = ["invoice.*"]
/// "#)?;
/// let config = onceward_http::Config::from_policy(&policy)?;
/// assert_eq!(config.hooks["stripe"].handlers["billing"].types, ["invoice.*"]);
/// # Ok::<(), onceward::InvalidInput>(())
/// ```
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(try_from = "toml::Table")]
#[non_exhaustive]
pub struct HookConfig {
    /// How its requests are verified.
    pub source: SourceConfig,
    /// How its events are kept.
    pub keeping: KeepingConfig,
    /// Who gets its events, by name.
    pub handlers: BTreeMap<String, HandlerConfig>,
}

/// How the events of a source are kept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct KeepingConfig {
    /// Whose events they are. Needed if the server has tenants.
    pub tenant: Option<String>,
    /// How long the content is kept after the event was delivered; 7 days by default.
    #[serde(deserialize_with = "span")]
    pub payloads: Option<Duration>,
    /// How long the id is remembered; 30 days by default.
    #[serde(deserialize_with = "span")]
    pub ids: Option<Duration>,
    /// The longest request body, in bytes: 16 MiB less 64 KiB at most, which is the default.
    pub max_body: Option<usize>,
}

/// A `[hook.NAME.handler.NAME]` section.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct HandlerConfig {
    /// The URL that events are sent to with `POST`.
    pub url: Option<String>,
    /// The command that is run for each event, with the body on its standard input.
    pub command: Option<Vec<String>>,
    /// Whether programs fetch the events through the API.
    pub pull: bool,
    /// The kinds of events that it gets; all by default. `*` matches any text.
    pub types: Vec<String>,
    /// What may be done about a delivery in doubt: `keyed` by default for URLs and pull, `once` for commands.
    pub class: Option<Class>,
    /// How long a `keyed` handler remembers the key.
    #[serde(deserialize_with = "span")]
    pub window: Option<Duration>,
    /// A JSON pointer: events with the same value are delivered one at a time, in the order of their arrival.
    pub order: Option<String>,
    /// The most attempts; then the delivery is a dead letter.
    pub attempts: Option<u32>,
    /// The pause after the first attempt. It doubles after each, up to an hour.
    #[serde(deserialize_with = "span")]
    pub backoff: Option<Duration>,
    /// How long an attempt may take.
    #[serde(deserialize_with = "span")]
    pub timeout: Option<Duration>,
    /// How many events it gets at once, from each server.
    pub concurrency: Option<usize>,
    /// Statuses with which the handler says that it did nothing, besides those that always mean it.
    pub no_effect_statuses: Vec<u16>,
    /// Further headers of the requests; `@FILE` and `$VARIABLE` read a value.
    pub headers: BTreeMap<String, String>,
    /// Where the secret is with which requests are signed, as `@FILE` or `$VARIABLE`: `whsec_` and base64.
    pub secret: Option<String>,
    /// How a handler is asked whether it has an event whose delivery is in doubt.
    pub probe: Option<HandlerProbe>,
}

/// How a handler is asked whether it has an event. It must not change anything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct HandlerProbe {
    /// For a `url`: the path on the same server to get. `{key}` is the `Idempotency-Key` of the delivery, `{id}` the
    /// vendor's id of the event. A success means that the handler has it.
    pub get: Option<String>,
    /// Text that the answer contains if the handler has the event. The same words are replaced.
    pub expect: Option<String>,
    /// The statuses that mean that the handler does not have it; 404 by default.
    pub absent: Option<Vec<u16>>,
    /// For a `command`: a command for `sh -c`. Exit code 0 means that the handler has it, 10 that it does not.
    pub command: Option<String>,
}

impl TryFrom<toml::Table> for HookConfig {
    type Error = toml::de::Error;

    fn try_from(mut table: toml::Table) -> Result<Self, toml::de::Error> {
        let handlers = match table.remove("handler") {
            Some(handlers) => handlers.try_into()?,
            None => BTreeMap::new(),
        };
        let own = ["tenant", "payloads", "ids", "max_body"];
        let keeping: toml::Table = own.iter().filter_map(|name| table.remove_entry(*name)).collect();
        Ok(Self { source: table.try_into()?, keeping: keeping.try_into()?, handlers })
    }
}

impl HookConfig {
    /// The environment variables with the secrets of the source and of its handlers.
    #[must_use]
    pub fn secret_variables(&self) -> Vec<String> {
        let handlers = self.handlers.values().filter_map(|handler| handler.secret.as_ref());
        let places = self.source.secrets.iter().chain(handlers);
        places.filter_map(|place| place.strip_prefix('$')).map(str::to_owned).collect()
    }
}

impl KeepingConfig {
    pub(super) fn kept(&self) -> super::record::Kept {
        let ms = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        super::record::Kept {
            payload_ms: ms(self.payloads.unwrap_or(PAYLOADS)),
            id_ms: ms(self.ids.unwrap_or(IDS)),
        }
    }
}

impl HandlerConfig {
    /// The class of a handler that names none. Every vendor sends an event more than once, so handlers of requests
    /// expect it. A command does not. A handler that can be asked is asked.
    pub(super) fn default_class(&self) -> Class {
        match (&self.probe, &self.command) {
            (Some(_), _) => Class::Probed,
            (None, Some(_)) => Class::Once,
            (None, None) => Class::Keyed,
        }
    }

    /// How long an attempt may take.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout.unwrap_or(TIMEOUT)
    }

    pub(super) fn wants(&self, kind: Option<&str>) -> bool {
        self.types.is_empty()
            || kind.is_some_and(|kind| self.types.iter().any(|pattern| matches(pattern, kind)))
    }
}

/// Whether the text matches the pattern, in which `*` is any text.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = text.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// What is wrong with the sections of hooks, beside what each setting says for itself.
pub(crate) fn mistakes(
    hooks: &BTreeMap<String, HookConfig>,
    is_tenant: impl Fn(&str) -> bool,
    has_tenants: bool,
    most: usize,
) -> Vec<Mistake> {
    let mut mistakes = Vec::new();
    for (name, hook) in hooks {
        let mut note = |path: &[&str], what: String| {
            let path: Vec<&str> = ["hook", name].into_iter().chain(path.iter().copied()).collect();
            let title = match path.as_slice() {
                [.., "handler", handler, _] => format!("[hook.{name}.handler.{handler}]"),
                _ => format!("[hook.{name}]"),
            };
            mistakes.push(Mistake::of(&path, format!("{title} {what}")));
        };
        if let Err(invalid) = check_name(name) {
            note(&[], invalid.to_string());
        }
        match &hook.keeping.tenant {
            Some(tenant) if !is_tenant(tenant) => {
                note(&["tenant"], "tenant: there is no such tenant".to_owned())
            }
            None if has_tenants => {
                note(&["tenant"], "needs `tenant`, because the server has tenants".to_owned());
            }
            Some(_) | None => {}
        }
        let kept = hook.keeping.kept();
        if kept.payload_ms > kept.id_ms {
            note(&["payloads"], "payloads: a content cannot be kept for longer than its id".to_owned());
        }
        let most = most.min(MAX_BODY);
        if hook.keeping.max_body.is_some_and(|bytes| bytes == 0 || bytes > most) {
            note(&["max_body"], format!("max_body: must be 1 to {most} bytes"));
        }
        let preset = presets::of(hook.source.preset.as_deref().unwrap_or(name)).ok();
        let tolerance = hook.source.tolerance.or(preset.and_then(|preset| preset.config.tolerance));
        if tolerance.is_some_and(|tolerance| tolerance.as_millis() > u128::from(kept.id_ms)) {
            let what =
                "ids: they are remembered for less than the tolerance, so a captured request could run again";
            note(&["ids"], what.to_owned());
        }
        for (handler, config) in &hook.handlers {
            for (setting, what) in config.mistakes(handler, has_tenants) {
                note(&["handler", handler, setting], format!("{setting}: {what}"));
            }
        }
    }
    mistakes
}

impl HandlerConfig {
    fn mistakes(&self, name: &str, has_tenants: bool) -> Vec<(&'static str, String)> {
        let mut mistakes = Vec::new();
        let mut note = |setting: &'static str, what: &str| mistakes.push((setting, what.to_owned()));
        if let Err(invalid) = check_name(name) {
            note("url", &invalid.to_string());
        }
        let ways = [self.url.is_some(), self.command.is_some(), self.pull];
        if ways.into_iter().filter(|is_set| *is_set).count() != 1 {
            note("url", "a handler has one of `url`, `command` and `pull = true`");
        }
        if self.command.as_ref().is_some_and(Vec::is_empty) {
            note("command", "the command is empty");
        }
        if self.command.is_some() && has_tenants {
            note(
                "command",
                "commands use the whole ledger, so a server with tenants has none; use `url` or `pull`",
            );
        }
        match (self.class, &self.probe) {
            (Some(Class::Read), _) => {
                note("class", "a handler that changes nothing needs no inbox; use \"idempotent\"")
            }
            (Some(Class::Probed), None) => {
                note("class", "\"probed\" needs a probe to ask; add probe = { … }")
            }
            (Some(Class::Idempotent | Class::Keyed | Class::Once), Some(_)) => {
                note("class", "a handler with a probe has the class \"probed\"; remove one of them")
            }
            (Some(Class::Idempotent | Class::Keyed | Class::Once), None) => {}
            (Some(Class::Probed) | None, _) => {}
        }
        if let Some(probe) = &self.probe
            && let Some(what) = probe.mistake(self)
        {
            note("probe", what);
        }
        if self.timeout == Some(Duration::ZERO) {
            note("timeout", "0, so no attempt could ever succeed");
        }
        if self.attempts == Some(0) {
            note("attempts", "0, so nothing could ever be delivered");
        }
        if self.concurrency == Some(0) {
            note("concurrency", "0, so nothing could ever be delivered");
        }
        if self
            .order
            .as_deref()
            .is_some_and(|order| Pointer::parse(order).is_err() || !order.starts_with('/'))
        {
            note("order", "must be a JSON pointer, such as /data/object/id");
        }
        if self.url.is_none() && (!self.headers.is_empty() || self.secret.is_some()) {
            note("headers", "only requests to a `url` have headers and a signature");
        }
        mistakes
    }
}

impl HandlerProbe {
    fn mistake(&self, handler: &HandlerConfig) -> Option<&'static str> {
        match (&self.get, &self.command) {
            (Some(get), None) if handler.url.is_some() => (!get.starts_with('/'))
                .then_some("get: must be a path on the handler's server, such as /events/{key}"),
            (None, Some(command)) if handler.command.is_some() => {
                let is_other = self.expect.is_some() || self.absent.is_some();
                match (command.trim().is_empty(), is_other) {
                    (true, _) => Some("command: it is empty"),
                    (false, true) => Some("a command answers with its exit code: 0 yes, 10 no"),
                    (false, false) => None,
                }
            }
            _ => Some(
                "a handler with a `url` has probe = { get = … }, one with a `command` probe = { command = … }",
            ),
        }
    }
}

fn check_name(name: &str) -> Result<(), InvalidInput> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(plain) {
        return Ok(());
    }
    Err(InvalidInput::new(format!("the name must be 1 to {MAX_NAME} of a-z, A-Z, 0-9, `-`, `_` and `.`")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_matches_any_text() {
        for (pattern, text, expected) in [
            ("invoice.*", "invoice.paid", true),
            ("invoice.*", "invoices", false),
            ("*", "", true),
            ("*.paid", "invoice.paid", true),
            ("*.paid", "invoice.paid.now", false),
            ("a*b*c", "a-b-c", true),
            ("a*b*c", "a-c", false),
            ("push", "push", true),
            ("push", "pushed", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
        let all = HandlerConfig::default();
        assert!(all.wants(None));
        let some = HandlerConfig { types: vec!["push".to_owned()], ..all };
        assert!(some.wants(Some("push")) && !some.wants(None));
    }
}

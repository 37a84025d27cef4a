//! An upstream: its address, its rules, and what applies to one request.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hyper::header::{HeaderName, HeaderValue};
use hyper::{HeaderMap, Method};
use onceward::{Class, Effect, InvalidInput, KeyPolicy, Operation, PRINCIPAL, RequestUndo, Terms, span_ms};

use super::config::UpstreamConfig;
use super::models::dialect::ModelApi;
use super::models::settings::Settings;
use super::policy::OperationRule;
use super::presets;
use super::rules::{Placement, Probe, Replay, Rule, Sign, Verify};
use crate::client::{Reach, Remote};
use crate::principal::{Caller, Principals};
use crate::tenant::Tenant;

/// How long an upstream has for its answer.
const TIMEOUT_MS: u64 = 60_000;
/// The budget of attempts of one operation, over all callers and layers.
const ATTEMPTS: u32 = 5;
/// The pause before the gateway repeats an attempt.
const BACKOFF_MS: u64 = 300;
/// The pause between two checks of a success, and how long it is checked.
const CHECK_MS: (u64, u64) = (2_000, 600_000);
/// The largest body of a mutating request.
const MAX_REQUEST: u64 = 64 * 1024 * 1024;
/// The largest answer that is stored. The ledger's own limit is 16 MiB.
const MAX_STORED: usize = 8 * 1024 * 1024;

/// An API behind the gateway.
pub(crate) struct Upstream {
    /// Its name.
    pub(crate) name: String,
    /// The client that reaches it.
    pub(crate) remote: Remote,
    /// The path that precedes every request's path.
    base: String,
    /// A further host name under which it answers.
    pub(crate) host: Option<String>,
    /// A port of its own.
    pub(crate) port: Option<u16>,
    /// Headers that do not identify the caller.
    ignored: Vec<String>,
    /// The only headers that identify the caller.
    only: Option<Vec<String>>,
    principals: OnceLock<Principals>,
    /// Further headers that say what a request does.
    pub(crate) action_headers: Arc<[String]>,
    /// The headers of checks that no caller waits for.
    pub(crate) check_headers: HeaderMap,
    /// The largest body of a mutating request.
    pub(crate) max_request: u64,
    /// Whether that is configured.
    pub(crate) has_own_limit: bool,
    /// The largest answer that is stored.
    pub(crate) max_stored: usize,
    /// The configured rules, then the preset's: for some requests, then for all.
    layers: Vec<Layer>,
    /// The kind of model API and its settings, if it serves models.
    pub(crate) models: Option<(ModelApi, Settings)>,
}

/// Rules for some requests, and one for the rest.
struct Layer {
    some: Vec<Rule>,
    rest: Rule,
}

/// What applies to one request.
#[derive(Debug, Clone)]
pub(crate) struct Ruling {
    pub(crate) terms: Terms,
    pub(crate) key: Option<Placement>,
    pub(crate) replay: Replay,
    pub(crate) key_fields: Vec<String>,
    pub(crate) volatile: Vec<String>,
    pub(crate) effect: Effect,
    pub(crate) signs: Signs,
    pub(crate) probe: Option<Probe>,
    pub(crate) verify: Option<Check>,
    pub(crate) undo: Option<RequestUndo>,
    pub(crate) timeout: Duration,
}

/// How a vendor's answers are recognized.
#[derive(Debug, Clone, Default)]
pub(crate) struct Signs {
    pub(crate) replayed: Vec<Sign>,
    pub(crate) in_flight: Vec<Sign>,
    pub(crate) mismatch: Vec<Sign>,
    pub(crate) rejected: Option<Vec<Sign>>,
    pub(crate) accepted: Vec<Sign>,
}

/// A check of a reported success, with its times.
#[derive(Debug, Clone)]
pub(crate) struct Check {
    pub(crate) verify: Verify,
    pub(crate) every_ms: u64,
    pub(crate) deadline_ms: u64,
}

impl Upstream {
    pub(crate) fn new(name: &str, config: UpstreamConfig) -> Result<Self, InvalidInput> {
        let own = config.upstream;
        let preset = presets::of(name, own.preset.as_deref().or(own.models.map(ModelApi::preset)))?;
        let vendor = preset.map(|preset| &preset.upstream);
        let models = match own.models.or(vendor.and_then(|vendor| vendor.models)) {
            Some(api) => Some((api, Settings::new(&own)?)),
            None => None,
        };
        let url = own.url.or_else(|| vendor.and_then(|vendor| vendor.url.clone()));
        let url = url.ok_or_else(|| InvalidInput::new("url is missing"))?;
        let reach = if own.allow_private { Reach::Anywhere } else { Reach::Public };
        let remote = Remote::within(&url, reach)?;
        if remote.path().contains('?') {
            return Err(InvalidInput::new("url must not have a query"));
        }
        let base = remote.path().trim_end_matches('/').to_owned();
        let mut layers = vec![Layer { some: config.rules, rest: config.rule }];
        layers.extend(preset.map(|preset| Layer { some: preset.rules.clone(), rest: preset.rule.clone() }));
        if let Some(name) = own.action_headers.iter().find(|name| name.parse::<HeaderName>().is_err()) {
            return Err(InvalidInput::new(format!("action_headers: {name:?} is not the name of a header")));
        }
        let all = || layers.iter().flat_map(|layer| layer.some.iter().chain([&layer.rest]));
        if all().any(|rule| rule.class == Some(Class::Keyed)) && all().all(|rule| rule.key.is_none()) {
            return Err(InvalidInput::new(
                "the class is \"keyed\", but there is no key to send; add key = { in = \"header\", name = \"…\" }",
            ));
        }
        let mut ignored = own.ignore_headers;
        ignored.extend(vendor.into_iter().flat_map(|vendor| vendor.ignore_headers.clone()));
        let rules = layers.iter().flat_map(|layer| layer.some.iter().chain([&layer.rest]));
        for rule in rules {
            rule.check()?;
            // A header with a key does not identify the caller.
            ignored.extend(rule.key.iter().map(|key| key.name.clone()));
        }
        Ok(Self {
            models,
            name: name.to_owned(),
            remote,
            base,
            host: own.host.map(|host| host.to_ascii_lowercase()),
            port: own.port,
            ignored,
            only: own.principal_headers,
            principals: OnceLock::new(),
            action_headers: own.action_headers.into(),
            check_headers: check_headers(&own.check_headers)?,
            max_request: own.max_request.unwrap_or(MAX_REQUEST),
            has_own_limit: own.max_request.is_some(),
            max_stored: own.max_stored.unwrap_or(MAX_STORED).min(onceward::MAX_RESULT / 2),
            layers,
        })
    }

    /// The path at the upstream for a path at the gateway.
    pub(crate) fn path(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// A hash of what identifies the caller.
    pub(crate) fn principal(&self, tenant: &Tenant, headers: &HeaderMap) -> Option<String> {
        let principals = self.principals.get_or_init(|| {
            let secret = tenant.ledger.identity().secret.clone();
            // The upstream authenticates every first request itself.
            Principals::new(secret, &self.ignored).only(self.only.as_deref()).by_key_name().by_header_name()
        });
        let caller = if tenant.name.is_some() { Caller::Known } else { Caller::Unknown };
        principals.of_caller(caller, headers, &[])
    }

    /// The operation in the scope that its caller chose, apart from other callers' operations.
    ///
    /// # Errors
    /// If the scope could be one of another caller.
    pub(crate) fn in_scope(
        &self,
        operation: Operation,
        tenant: &Tenant,
        headers: &HeaderMap,
        scope: Option<&str>,
    ) -> Result<Operation, InvalidInput> {
        let principal = self.principal(tenant, headers);
        let own = |scope: &str| match &principal {
            Some(principal) => format!("{scope}{PRINCIPAL}{principal}"),
            None => scope.to_owned(),
        };
        Ok(match scope {
            Some(scope) if scope.contains(PRINCIPAL) => {
                return Err(InvalidInput::new(format!("Once-Scope must not contain `{PRINCIPAL}`")));
            }
            Some(scope) if scope != onceward::DEFAULT_SCOPE => operation.scope(own(scope)),
            Some(_) | None => match &principal {
                Some(_) => operation.host_scope(own(onceward::DEFAULT_SCOPE)),
                None => operation,
            },
        })
    }

    /// What applies to a request.
    pub(crate) fn ruling(
        &self,
        method: &Method,
        path: &str,
        target: Option<&str>,
        own: OperationRule,
    ) -> Ruling {
        let mut rule = own.rule.clone();
        for layer in &self.layers {
            if let Some(some) = layer.some.iter().find(|some| some.fits(method.as_str(), path, target)) {
                rule = rule.over(some.clone());
            }
            rule = rule.over(layer.rest.clone());
        }
        let mut ruling = Ruling::new(rule, method);
        own.apply(&mut ruling.terms);
        ruling
    }

    /// The longest time for which a success is checked. `None` if none is.
    pub(crate) fn longest_check_ms(&self) -> Option<u64> {
        let rules = self.layers.iter().flat_map(|layer| layer.some.iter().chain([&layer.rest]));
        let checks = rules.filter_map(|rule| rule.verify.as_ref());
        checks
            .map(|verify| {
                verify.deadline.as_deref().and_then(|text| span_ms(text).ok()).unwrap_or(CHECK_MS.1)
            })
            .max()
    }
}

/// The configured headers. A value that begins with `@` names a file with it.
fn check_headers(configured: &BTreeMap<String, String>) -> Result<HeaderMap, InvalidInput> {
    let mut headers = HeaderMap::new();
    for (name, value) in configured {
        let read = match value.strip_prefix('@') {
            Some(path) => std::fs::read_to_string(path).map_err(|error| {
                InvalidInput::new(format!("check_headers.{name}: {path} cannot be read: {error}"))
            })?,
            None => value.clone(),
        };
        // The value may be a secret, so it is not repeated.
        let invalid = || InvalidInput::new(format!("check_headers.{name} is not a valid header"));
        let mut value: HeaderValue = read.trim_end().parse().map_err(|_| invalid())?;
        value.set_sensitive(true);
        headers.insert(name.parse::<HeaderName>().map_err(|_| invalid())?, value);
    }
    Ok(headers)
}

impl Ruling {
    fn new(rule: Rule, method: &Method) -> Self {
        // `Rule::check` has parsed every duration.
        let span = |text: &Option<String>| text.as_deref().and_then(|text| span_ms(text).ok());
        // RFC 9110 defines PUT and DELETE as idempotent.
        let (class, effect) = match *method {
            Method::PUT => (Class::Idempotent, Effect::Updated),
            Method::DELETE => (Class::Idempotent, Effect::Deleted),
            Method::PATCH => (Class::Once, Effect::Updated),
            _ => (Class::Once, Effect::Created),
        };
        let mut terms = Terms { class: rule.class.unwrap_or(class), ..Terms::default() };
        terms.keys = rule.keys.unwrap_or(KeyPolicy::Auto);
        terms.max_attempts = rule.attempts.unwrap_or(ATTEMPTS).max(1);
        terms.retries = terms.max_attempts - 1;
        terms.backoff_ms = span(&rule.backoff).unwrap_or(BACKOFF_MS);
        terms.wait_ms = span(&rule.wait).unwrap_or(terms.wait_ms);
        terms.quarantine_ms = span(&rule.quarantine).unwrap_or(terms.quarantine_ms);
        terms.downstream_window_ms = span(&rule.window).unwrap_or(terms.downstream_window_ms);
        if let Some(ms) = span(&rule.retention) {
            terms.keep_results_for(ms);
        }
        if rule.probe.is_some() {
            terms.class = terms.class.with_probe();
        }
        let check = |verify: Verify| Check {
            every_ms: span(&verify.every).unwrap_or(CHECK_MS.0).max(10),
            deadline_ms: span(&verify.deadline).unwrap_or(CHECK_MS.1),
            verify,
        };
        Self {
            key: rule.key.filter(|_| terms.class == Class::Keyed),
            replay: rule.replay.unwrap_or_default(),
            key_fields: rule.key_fields.unwrap_or_default(),
            volatile: rule.volatile.unwrap_or_default(),
            effect: rule.effect.unwrap_or(effect),
            signs: Signs {
                replayed: rule.replayed.unwrap_or_default(),
                in_flight: rule.in_flight.unwrap_or_default(),
                mismatch: rule.mismatch.unwrap_or_default(),
                rejected: rule.rejected,
                accepted: rule.accepted.unwrap_or_default(),
            },
            probe: rule.probe,
            verify: rule.verify.map(check),
            undo: rule.undo,
            timeout: Duration::from_millis(span(&rule.timeout).unwrap_or(TIMEOUT_MS)),
            terms,
        }
    }
}

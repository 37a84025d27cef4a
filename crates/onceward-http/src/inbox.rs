//! The webhook inbox: each event once, nothing lost, nothing forged.
//!
//! - [`judgement`]: a request as it arrived, and what the source says about it.
//! - [`settings`]: what can be configured about a source; [`presets`]: the vendors as data, in `presets.toml`.
//! - [`source`]: judges a request: signature, time, identity, handshakes. `scheme`: what is signed, and with which
//!   algorithm. `selectors`: values in headers, JSON and forms.
//! - [`certificates`]: the signing certificates of PayPal and Amazon SNS.
//! - [`signer`]: signs samples as the vendor would.
//! - `config`: the `[hook.NAME]` sections. `host_environment`: what the program supplies.
//! - `accept`: verify, deduplicate, record, answer. [`record`]: how an event is recorded. [`rejected`]: what was not
//!   believed.
//! - `hook`: a source while the server runs. `handler_queue`: what waits for a handler. `target`, `endpoint`: how a
//!   handler gets its events. `deliver`: attempts. [`admin`]: lists, retries and replays.

mod accept;
pub mod admin;
pub mod config;
mod deliver;
mod endpoint;
mod hook;
mod handler_queue;
mod host_environment;
pub mod record;
pub mod rejected;
pub mod certificates;
pub mod judgement;
mod selectors;
pub mod presets;
mod scheme;
pub mod settings;
pub mod signer;
pub mod source;
mod target;

pub use certificates::Certificates;
pub use judgement::{Confirmation, Event, Judgement, Reason, Received, Rejection, Reply};
pub use scheme::certificate::{CertificateError, FetchCertificate};
pub use settings::SourceConfig;
pub use signer::{Sample, Signed, Signer, Trial};
pub use source::Source;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::any;
use onceward::{InvalidInput, Policy, Record};

pub use host_environment::{CommandDelivery, HostEnvironment, RunCommand, Unsuccessful};

use crate::detached_tasks::DetachedTasks;
use crate::intake::Intake;
use crate::telemetry::Metrics;
use config::HookConfig;
pub(crate) use deliver::{Next, after_error, follow, look, run};
pub(crate) use handler_queue::{Job, Seen};
pub(crate) use hook::{Handler, Hook};
use rejected::Refusals;
pub(crate) use target::Target;

/// All sources of this server.
pub(crate) struct Inbox {
    hooks: BTreeMap<String, Arc<Hook>>,
    /// The newest requests that ran nothing.
    pub(crate) refusals: Refusals,
    pub(crate) certificates: Certificates,
    /// Fetches certificates instead, if the program says so.
    fetcher: Option<Arc<dyn FetchCertificate>>,
    metrics: Metrics,
    /// Calls that continue if their client disconnects.
    tasks: DetachedTasks,
    /// Reads request bodies within the server's limits.
    intake: Arc<Intake>,
}

impl Inbox {
    pub(crate) fn new(
        hooks: Vec<Hook>,
        fetcher: Option<Arc<dyn FetchCertificate>>,
        metrics: Metrics,
        tasks: DetachedTasks,
        intake: Arc<Intake>,
    ) -> Self {
        let hooks = hooks.into_iter().map(|hook| (hook.name().to_owned(), Arc::new(hook))).collect();
        let (refusals, certificates) = (Refusals::default(), Certificates::default());
        Self { hooks, refusals, certificates, fetcher, metrics, tasks, intake }
    }

    /// Checks a section as [`Hook::new`] does, without a ledger.
    pub(crate) fn check(
        name: &str,
        config: &HookConfig,
        policy: &Policy,
        environment: &HostEnvironment,
    ) -> Result<(), InvalidInput> {
        Source::new(name, &config.source, &|variable| environment.variable(variable))?;
        for (handler, config) in &config.handlers {
            hook::terms_of(policy, name, handler)?;
            Target::new(config, environment)
                .map_err(|invalid| InvalidInput::new(format!("[hook.{name}.handler.{handler}] {invalid}")))?;
        }
        policy.settings(name).map(drop)
    }

    pub(crate) fn hook(&self, name: &str) -> Option<&Arc<Hook>> {
        self.hooks.get(name)
    }

    /// Where signing certificates come from.
    pub(crate) fn fetcher(&self) -> &dyn FetchCertificate {
        self.fetcher.as_deref().unwrap_or(&self.certificates)
    }

    pub(crate) fn hooks(&self) -> impl Iterator<Item = &Arc<Hook>> {
        self.hooks.values()
    }

    /// The hook of a source, if this tenant owns it.
    pub(crate) fn of_tenant(&self, tenant: Option<&str>, source: &str) -> Option<&Arc<Hook>> {
        self.hook(source).filter(|hook| hook.tenant.name.as_deref() == tenant)
    }
}

/// Notes that a program has reported how its attempt at a delivery ended.
pub(crate) fn reported(inbox: &Inbox, tenant: Option<&str>, record: &Arc<Record>) {
    let source = record.scope.strip_prefix(record::SCOPE_PREFIX);
    let Some(hook) = source.and_then(|source| inbox.of_tenant(tenant, source)).cloned() else { return };
    let Some((handler, item)) = hook.of_delivery(record) else { return };
    let (metrics, id) = (inbox.metrics.clone(), record.id.clone());
    inbox.tasks.spawn(async move {
        handler.queue.take_out(&item);
        let next = match look(&hook, &handler, &item, &id).await {
            Ok(next) => next.unwrap_or(Next::Again(Duration::ZERO)),
            Err(_) => Next::Again(Duration::from_secs(1)),
        };
        follow(&metrics, &hook, &handler, &item, next).await;
    });
}

/// The path under which sources take requests.
pub(crate) const PREFIX: &str = "/hooks/";

/// `/hooks/SOURCE`.
pub(crate) fn router<S>(inbox: Arc<Inbox>) -> Router<S> {
    let hook = Router::new().route("/hooks/{source}", any(accept::hook));
    hook.layer(DefaultBodyLimit::disable()).with_state(inbox)
}

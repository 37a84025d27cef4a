//! What all requests share.

use std::sync::Arc;

use onceward::{InvalidInput, Ledger, Policy, Store};

use crate::api::Leases;
use crate::config::{Config, HookConfig};
use crate::detached_tasks::DetachedTasks;
use crate::gateway::Gateway;
use crate::inbox::{Hook, Inbox};
use crate::intake::Intake;
use crate::limits::Limits;
use crate::mistake::Mistake;
use crate::observe::{Health, MetricsGate};
use crate::telemetry::Metrics;
use crate::tenants::{self, Tenants};

/// A server's state: the ledger, the tenants and the upstreams.
pub struct App {
    pub(crate) tenants: Tenants,
    pub(crate) gateway: Arc<Gateway>,
    /// The sources of webhooks and their handlers.
    pub(crate) inbox: Arc<Inbox>,
    /// The rules for operations, by their names.
    pub(crate) policy: Policy,
    /// Reads request bodies within the server's limits.
    pub(crate) intake: Arc<Intake>,
    /// The attempts of API callers whose locks this server holds.
    pub(crate) leases: Arc<Leases>,
    /// Calls that continue if their client disconnects.
    pub(crate) tasks: DetachedTasks,
    pub(crate) metrics: Metrics,
    pub(crate) metrics_gate: MetricsGate,
    pub(crate) health: Health,
    limits: Limits,
}

impl App {
    /// Checks a configuration as [`App::new`] does, without a store.
    ///
    /// # Errors
    /// Names every mistake with its section and, if the policy is known, its line.
    pub fn check(config: &Config) -> Result<(), InvalidInput> {
        let mut mistakes = tenants::mistakes(&config.tenants);
        for (name, upstream) in &config.upstreams {
            if let Err(invalid) = Gateway::check(name, upstream) {
                let problems = invalid.problems().iter();
                mistakes.extend(problems.map(|problem| Mistake::at(["upstream", name], problem)));
            }
        }
        for (name, hook) in &config.hooks {
            if let Err(invalid) = Inbox::check(name, hook, &config.policy, &config.environment) {
                let problems = invalid.problems().iter();
                let said = |problem: &String| match problem.starts_with('[') {
                    true => problem.clone(),
                    false => format!("[hook.{name}] {problem}"),
                };
                mistakes.extend(problems.map(|problem| Mistake::at(["hook", name], said(problem))));
            }
        }
        if let Err(invalid) = MetricsGate::new(&config.serve) {
            mistakes.push(Mistake::at(["serve", "metrics_tokens"], invalid.to_string()));
        }
        Mistake::all(mistakes, |path| config.policy.line(path)).map_or(Ok(()), Err)
    }

    /// A server on this store.
    ///
    /// # Errors
    /// If the configuration contradicts itself.
    pub fn new(store: Arc<dyn Store>, config: Config) -> Result<Arc<Self>, InvalidInput> {
        let tenants = Tenants::new(&store, &config.tenants)?;
        let (limits, metrics, tasks) = (config.serve.limits(), Metrics::new(), DetachedTasks::default());
        let (policy, max_body) = (config.policy.clone(), limits.body_bytes);
        let gateway =
            Gateway::new(config.upstreams.clone(), policy, metrics.clone(), tasks.clone(), max_body)?;
        let intake = Arc::new(Intake::new(&limits));
        let fetcher = config.environment.fetcher().cloned();
        let hooks = hooks(&config, &tenants)?;
        let inbox = Inbox::new(hooks, fetcher, metrics.clone(), tasks.clone(), Arc::clone(&intake));
        let metrics_gate = MetricsGate::new(&config.serve)?;
        let (policy, leases, health) = (config.policy, Arc::default(), Health::new(store));
        Ok(Arc::new(Self {
            tenants,
            gateway: Arc::new(gateway),
            inbox: Arc::new(inbox),
            policy,
            intake,
            leases,
            tasks,
            metrics,
            metrics_gate,
            health,
            limits,
        }))
    }

    /// The counters of all calls through this server.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Whether the server can be used. Call [`Health::drain`] when it begins to shut down.
    #[must_use]
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// The upstreams with a port of their own. [`crate::server::upstream_router`] answers for them.
    #[must_use]
    pub fn upstream_ports(&self) -> Vec<(String, u16)> {
        self.gateway.ports()
    }

    /// The ledger of callers without a token. `None` if tokens are required.
    #[must_use]
    pub fn ledger(&self) -> Option<&Ledger> {
        self.tenants.open().map(|tenant| &tenant.ledger)
    }

    /// The limits of its listeners.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Whether callers must show a token.
    #[must_use]
    pub fn requires_tokens(&self) -> bool {
        self.tenants.open().is_none()
    }
}

/// The sources of the configuration with their tenants.
fn hooks(config: &Config, tenants: &Tenants) -> Result<Vec<Hook>, InvalidInput> {
    let hook = |(name, hook): (&String, &HookConfig)| {
        let tenant = tenants.named(hook.keeping.tenant.as_deref()).ok_or_else(|| {
            InvalidInput::new(format!("[hook.{name}] tenant: the server has no such tenant"))
        })?;
        Hook::new(name, hook, tenant, &config.policy, &config.environment)
            .map_err(|invalid| InvalidInput::new(format!("[hook.{name}] {invalid}")))
    };
    config.hooks.iter().map(hook).collect()
}

//! What all calls of one server share, whatever carries them: the ledger, the rules, and what is known of its tools.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use onceward::{Class, InvalidInput, KeyPolicy, Ledger, OperationId, Policy, Verification};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::delivery::Memory;
use crate::elicit::Asking;
use crate::message::{Head, Id};
use crate::orphans::Orphans;
use crate::progress::Progress;
use crate::raw::{self, Object};
use crate::scope::HostScope;
use crate::seal::Seal;
use crate::tools::{Catalogue, Exposure, Rules, Standing, Trust, expose};
use crate::upstream::lock;
use crate::waiters::{Caller, Cancelled, Waiters};

/// What the proxy is told.
pub struct Options {
    /// A short name of the server: operations are called `server/tool`.
    pub server: String,
    /// What tells this server from another one of the same name: its command, its address.
    pub identity: String,
    /// The policy.
    pub policy: Policy,
    /// Who shares keys.
    pub scope: HostScope,
    /// Where keys come from, unless the policy says so for a tool.
    pub keys: Option<KeyPolicy>,
    /// Whether the server is believed what it says about its tools.
    pub trust: Trust,
    /// Whether the model sees arguments for a key and a dry run.
    pub exposure: Exposure,
    /// Whether nothing is to be run that changes something.
    pub dry_run: bool,
    /// After how long a caller may have given up, so that its answer counts as delivered only later.
    pub slow_ms: u64,
    /// How much later.
    pub window_ms: u64,
    /// How long a call waits for the same one of another caller, and for a lock.
    pub wait_ms: u64,
    /// How long calls may go on when the client is gone.
    pub drain_ms: u64,
    /// Whether the human may be asked about an operation in doubt.
    pub asking: Asking,
    /// Where notices for people go.
    pub notice: Box<dyn Fn(&str) + Send + Sync>,
}

/// What all calls of one server share.
pub(crate) struct Desk {
    pub(crate) ledger: Ledger,
    pub(crate) options: Options,
    pub(crate) rules: Rules,
    pub(crate) memory: Memory,
    pub(crate) catalogue: Mutex<Catalogue>,
    pub(crate) listing: tokio::sync::Mutex<()>,
    pub(crate) limits: Mutex<HashMap<String, Arc<Semaphore>>>,
    /// Operations that were accepted as a task, by the task's id.
    pub(crate) tasks: Mutex<HashMap<String, OperationId>>,
    pub(crate) progress: Progress,
    pub(crate) waiters: Waiters,
    pub(crate) orphans: Orphans,
    /// What makes our questions ours when they come back; none where there is no randomness.
    pub(crate) seal: Option<Seal>,
    /// Operations that a human is being asked about.
    pub(crate) asking: Mutex<HashSet<OperationId>>,
    pub(crate) runtime: Handle,
    active: (Mutex<usize>, Condvar),
}

/// Counts a call that is under way, until it is dropped.
pub(crate) struct Active(Arc<Desk>);

impl Drop for Active {
    fn drop(&mut self) {
        let (count, changed) = &self.0.active;
        *lock(count) -= 1;
        changed.notify_all();
    }
}

impl Desk {
    /// A desk that keeps its calls on that runtime.
    pub(crate) fn new(ledger: Ledger, mut options: Options, runtime: Handle) -> Arc<Self> {
        let rules = Rules {
            policy: std::mem::take(&mut options.policy),
            server: options.server.clone(),
            keys: options.keys,
            trust: options.trust,
        };
        Arc::new(Self {
            ledger,
            options,
            rules,
            memory: Memory::default(),
            catalogue: Mutex::default(),
            listing: tokio::sync::Mutex::default(),
            limits: Mutex::default(),
            tasks: Mutex::default(),
            progress: Progress::default(),
            waiters: Waiters::default(),
            orphans: Orphans::default(),
            seal: Seal::new(),
            asking: Mutex::default(),
            runtime,
            active: (Mutex::new(0), Condvar::new()),
        })
    }

    pub(crate) fn notice(&self, text: &str) {
        (self.options.notice)(text);
    }

    pub(crate) fn begin_activity(self: &Arc<Self>) -> Active {
        *lock(&self.active.0) += 1;
        Active(Arc::clone(self))
    }

    /// Waits until no call is under way, or for so long; tells whether none is. Blocks.
    pub(crate) fn wait_idle(&self, patience_ms: u64) -> bool {
        let (count, changed) = &self.active;
        let patience = Duration::from_millis(patience_ms);
        let waited = changed.wait_timeout_while(lock(count), patience, |count| *count > 0);
        waited.is_ok_and(|(count, _)| *count == 0)
    }

    pub(crate) fn standing(&self, tool: &str) -> Result<Standing, InvalidInput> {
        self.standing_with(tool, &lock(&self.catalogue))
    }

    fn standing_with(&self, tool: &str, catalogue: &Catalogue) -> Result<Standing, InvalidInput> {
        self.rules.standing(tool, catalogue.get(tool))
    }

    /// Whether the tool changes nothing, as far as is known.
    fn is_read(&self, tool: &str, catalogue: &Catalogue) -> bool {
        self.standing_with(tool, catalogue).is_ok_and(|standing| standing.class == Class::Read)
    }

    /// Whether it is known at once that the tool changes nothing.
    pub(crate) fn passes(&self, tool: &str) -> bool {
        let catalogue = lock(&self.catalogue);
        let known = catalogue.is_listed() || self.rules.decide_alone(tool);
        known && self.is_read(tool, &catalogue)
    }

    /// The tools that change nothing, for whoever has to look.
    pub(crate) fn readers(&self) -> Vec<String> {
        let catalogue = lock(&self.catalogue);
        catalogue.all().keys().filter(|tool| self.is_read(tool, &catalogue)).cloned().collect()
    }

    /// A cancellation of a call that the ledger knows: nobody waits for it any more, and it goes on, because to stop it
    /// would destroy the only witness. Tells whether it was such a call.
    pub(crate) fn cancelled(self: &Arc<Self>, caller: &Caller, head: &Head<'_>) -> bool {
        let params = head.params.and_then(Object::parse);
        let Some(id) = params.and_then(|params| params.get("requestId").map(Id::of)) else {
            return false;
        };
        match self.waiters.cancel(caller, id) {
            Cancelled::Waiting => true,
            // The answer had left, and the client had given up before it came: it was not taken.
            Cancelled::Answered(operation) => {
                self.not_delivered(operation);
                true
            }
            Cancelled::Unknown => false,
        }
    }

    /// An answer that has left was not taken.
    pub(crate) fn not_delivered(self: &Arc<Self>, operation: OperationId) {
        let (desk, active) = (Arc::clone(self), self.begin_activity());
        self.runtime.spawn(async move {
            desk.memory.not_delivered(&operation);
            drop(desk.ledger.take_delivery_back(&operation).await);
            drop(active);
        });
    }

    /// Learns from the answer to `tools/list`, and gives it as the client is to see it.
    pub(crate) fn learn_tools(&self, line: Vec<u8>) -> Vec<u8> {
        let Ok(text) = std::str::from_utf8(&line) else { return line };
        let Some(result) = Head::parse(text).and_then(|head| head.result) else { return line };
        let mut catalogue = lock(&self.catalogue);
        drop(catalogue.learn(result));
        match self.options.exposure {
            Exposure::Hidden => line,
            Exposure::Arguments => {
                let guarded = |tool: &str| {
                    let standing = self.standing_with(tool, &catalogue);
                    standing.is_ok_and(|standing| standing.class != Class::Read)
                };
                let shown = expose(result, guarded);
                raw::spliced(text, raw::range(text, result), &shown).into_bytes()
            }
        }
    }

    /// A task that ended tells what became of the operation that it was accepted for.
    pub(crate) fn learn_task(&self, line: &[u8]) {
        let Ok(text) = std::str::from_utf8(line) else { return };
        let Some(result) = Head::parse(text).and_then(|head| head.result).and_then(Object::parse) else {
            return;
        };
        let Some(task) = result.string("taskId") else { return };
        let verification = match result.string("status").as_deref() {
            Some("completed") => Verification::Confirmed,
            Some("failed" | "cancelled") => Verification::Refuted,
            Some(_) | None => return,
        };
        let Some(operation) = lock(&self.tasks).remove(&task) else { return };
        let ledger = self.ledger.clone();
        self.runtime.spawn(async move {
            let reason = Some("its task ended without success".to_owned());
            drop(ledger.record_verification(&operation, verification, reason).await);
        });
    }
}

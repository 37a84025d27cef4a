//! What a call would come to.

use std::sync::Arc;

use onceward::{Decision, Effect, Intent, Refusal};
use pyo3::prelude::*;

use crate::record::Record;

/// What a call would come to. Nothing was run or written to find out.
#[pyclass(frozen, module = "onceward")]
pub(crate) struct Plan {
    decision: &'static str,
    effect: &'static str,
    id: String,
    key: String,
    record: Option<Arc<onceward::Record>>,
}

impl Plan {
    pub(crate) fn new(plan: onceward::Plan, intent: &Intent, would: Effect) -> Self {
        let (decision, effect) = in_words(&plan.decision, would);
        Self {
            decision,
            effect: effect.as_str(),
            id: intent.id.to_string(),
            key: intent.key.text.clone(),
            record: plan.record,
        }
    }
}

#[pymethods]
impl Plan {
    /// `execute`, `replay`, `replay_failure`, `wait`, `ask` (a probe first), or `refuse_…` with the code.
    #[getter]
    fn decision(&self) -> &'static str {
        self.decision
    }

    /// `would_create`, `would_update`, `would_delete` or `would_noop`.
    #[getter]
    fn effect(&self) -> &'static str {
        self.effect
    }

    /// `op_…`: names the operation.
    #[getter]
    fn id(&self) -> &str {
        &self.id
    }

    /// The operation's key.
    #[getter]
    fn key(&self) -> &str {
        &self.key
    }

    /// The operation as the ledger remembers it; `None` where it was never asked for.
    #[getter]
    fn operation(&self) -> Option<Record> {
        self.record.as_ref().map(|record| Record::new(Arc::clone(record), record.state))
    }

    fn __repr__(&self) -> String {
        format!("Plan(decision={:?}, effect={:?}, id={:?})", self.decision, self.effect, self.id)
    }
}

fn in_words(decision: &Decision, would: Effect) -> (&'static str, Effect) {
    match decision {
        Decision::Start { .. } => ("execute", would),
        Decision::Replay => ("replay", Effect::WouldNoop),
        Decision::ReplayFailure => ("replay_failure", Effect::WouldNoop),
        Decision::Wait => ("wait", Effect::WouldNoop),
        Decision::Probe => ("ask", would),
        Decision::Doubt => ("refuse_in_doubt", Effect::WouldNoop),
        Decision::Refuse(refusal) => {
            let word = match refusal {
                Refusal::KeyReused(_) => "refuse_key_reused",
                Refusal::KeyExpired => "refuse_key_expired",
                Refusal::Cancelled => "refuse_cancelled",
                Refusal::BudgetExhausted => "refuse_budget_exhausted",
                Refusal::InDoubt => "refuse_in_doubt",
            };
            (word, Effect::WouldNoop)
        }
    }
}

//! What would change: the answer of a dry run.

use std::fmt::Display;

use onceward::Effect;

/// What a command would change.
///
/// ```
/// use onceward_clap::Plan;
/// let plan = Plan::update("the service to 1.2.3").also("restart 2 instances");
/// assert_eq!(plan.changes(), ["would update the service to 1.2.3", "would restart 2 instances"]);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    effect: Effect,
    changes: Vec<String>,
    reason: Option<String>,
}

impl Plan {
    /// Something new would exist.
    #[must_use]
    pub fn create(what: impl Display) -> Self {
        Self::of(Effect::WouldCreate, format!("would create {what}"))
    }

    /// Something that exists would be different.
    #[must_use]
    pub fn update(what: impl Display) -> Self {
        Self::of(Effect::WouldUpdate, format!("would update {what}"))
    }

    /// Something would be gone.
    #[must_use]
    pub fn delete(what: impl Display) -> Self {
        Self::of(Effect::WouldDelete, format!("would delete {what}"))
    }

    /// Nothing would change, and why.
    #[must_use]
    pub fn noop(reason: impl Into<String>) -> Self {
        Self { effect: Effect::WouldNoop, changes: Vec::new(), reason: Some(reason.into()) }
    }

    /// What would also be done, as a verb and its object: `restart 2 instances`.
    #[must_use]
    pub fn also(mut self, what: impl Display) -> Self {
        self.changes.push(format!("would {what}"));
        self
    }

    /// `would_create`, `would_update`, `would_delete` or `would_noop`.
    #[must_use]
    pub fn effect(&self) -> Effect {
        self.effect
    }

    /// Each change, in words.
    #[must_use]
    pub fn changes(&self) -> &[String] {
        &self.changes
    }

    /// Why nothing would change.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    fn of(effect: Effect, change: String) -> Self {
        Self { effect, changes: vec![change], reason: None }
    }
}

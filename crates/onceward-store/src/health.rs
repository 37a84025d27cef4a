//! What a back end reports about itself, for `once doctor`.

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// As it should be.
    Good,
    /// It works, but the operator should know about it.
    Look,
    /// The guarantees of the ledger do not hold.
    Bad,
}

/// The result of one check, with its explanation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What was checked.
    pub what: &'static str,
    /// The result.
    pub verdict: Verdict,
    /// What was found and, if it is not good, what to do about it.
    pub found: String,
}

impl Finding {
    pub(crate) fn good(what: &'static str, found: impl Into<String>) -> Self {
        Self { what, verdict: Verdict::Good, found: found.into() }
    }

    /// `Good` if the condition holds, else `otherwise`.
    pub(crate) fn check(
        what: &'static str,
        good: bool,
        otherwise: Verdict,
        found: impl Into<String>,
    ) -> Self {
        Self { what, verdict: if good { Verdict::Good } else { otherwise }, found: found.into() }
    }

    pub(crate) fn look(what: &'static str, found: impl Into<String>) -> Self {
        Self { what, verdict: Verdict::Look, found: found.into() }
    }

    pub(crate) fn bad(what: &'static str, found: impl Into<String>) -> Self {
        Self { what, verdict: Verdict::Bad, found: found.into() }
    }
}

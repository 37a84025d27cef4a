//! What a back end says about itself, for `once doctor`.

/// Whether what was found is as it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is.
    Good,
    /// It works, and somebody should know.
    Look,
    /// The promise does not hold with it.
    Bad,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at.
    pub what: &'static str,
    /// Whether it is as it should be.
    pub verdict: Verdict,
    /// What was found, and where it is not good, what to do about it.
    pub found: String,
}

impl Finding {
    pub(crate) fn good(what: &'static str, found: impl Into<String>) -> Self {
        Self { what, verdict: Verdict::Good, found: found.into() }
    }

    /// Good where it is as it should be, else `otherwise`.
    pub(crate) fn judged(
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

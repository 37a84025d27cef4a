//! Input that was refused.

use std::fmt;

/// Input that was refused before anything ran. Lists all problems.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct InvalidInput {
    problems: Vec<String>,
}

impl InvalidInput {
    /// One problem.
    pub fn new(problem: impl Into<String>) -> Self {
        Self { problems: vec![problem.into()] }
    }

    /// All problems that were found, or `None` if there are none.
    #[must_use]
    pub fn all(problems: Vec<String>) -> Option<Self> {
        (!problems.is_empty()).then_some(Self { problems })
    }

    /// The problems, in the order in which they were found.
    #[must_use]
    pub fn problems(&self) -> &[String] {
        &self.problems
    }
}

impl fmt::Display for InvalidInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problems.join("; "))
    }
}

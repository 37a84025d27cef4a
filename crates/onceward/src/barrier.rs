//! A stopped scope: nothing in it may begin until it is resumed.

use serde::{Deserialize, Serialize};

use crate::text::one_line;
use crate::time::rfc3339;
use crate::word::Word;

/// Separates a scope from the hash of its caller's credentials, where a surface keeps callers apart.
pub const PRINCIPAL: char = '~';

/// The barrier of a stopped scope. The store checks it in the write that begins an attempt.
///
/// ```
/// use onceward::{Barrier, Word};
///
/// let nightly = Barrier::new("nightly", Word::person("ada").note("wrong list".to_owned()));
/// assert!(nightly.covers("nightly") && nightly.covers("nightly~q2w3"));
/// assert!(!nightly.covers("nightly/7"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct Barrier {
    /// The scope that is stopped. The scopes of its callers (`SCOPE~…`) are stopped with it.
    pub scope: String,
    /// Who stopped it, when, and why.
    pub word: Box<Word>,
}

impl Barrier {
    /// A barrier for this scope.
    pub fn new(scope: impl Into<String>, word: Word) -> Self {
        Self { scope: scope.into(), word: Box::new(word) }
    }

    /// When, by whom and why the scope was stopped, in words.
    #[must_use]
    pub fn in_words(&self) -> String {
        let why = self.word.note.as_deref().map(one_line);
        let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
        format!("at {} by {}{why}", rfc3339(self.word.at_ms), self.word)
    }

    /// The same word as the reason why an operation that was held back is cancelled.
    pub(crate) fn word_of_cancel(&self) -> Word {
        let why = self.word.note.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        Word::clone(&self.word).note(format!("the scope was stopped{why}"))
    }

    /// Whether operations in this scope must not begin.
    #[must_use]
    pub fn covers(&self, scope: &str) -> bool {
        is_in_scope(scope, &self.scope)
    }
}

/// Whether a stored scope is this scope, of whichever caller. Gateways and proxies separate callers within a scope.
///
/// ```
/// assert!(onceward::is_in_scope("nightly", "nightly"));
/// assert!(onceward::is_in_scope("nightly~q2w3", "nightly"));
/// assert!(!onceward::is_in_scope("nightly/7", "nightly"));
/// ```
#[must_use]
pub fn is_in_scope(stored: &str, scope: &str) -> bool {
    stored.strip_prefix(scope).is_some_and(|rest| rest.is_empty() || rest.starts_with(PRINCIPAL))
}

/// The scopes whose barriers cover this scope: itself, and each part of it that ends before a `~`. For stores that
/// look a barrier up by its scope.
///
/// ```
/// assert_eq!(onceward::stopping_scopes("a~b").collect::<Vec<_>>(), ["a~b", "a"]);
/// ```
pub fn stopping_scopes(scope: &str) -> impl Iterator<Item = &str> {
    std::iter::once(scope).chain(scope.rmatch_indices(PRINCIPAL).map(|(end, _)| &scope[..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scopes_to_look_up_are_those_whose_barriers_cover_it() {
        for scope in ["a", "a~b", "a~b~c", "~a", "a~", ""] {
            for at in ["a", "a~b", "a~b~c", "b", "~a", "", "a~"] {
                let found = stopping_scopes(scope).any(|name| name == at);
                assert_eq!(
                    found,
                    Barrier::new(at, Word::person("ada")).covers(scope),
                    "{at:?} and {scope:?}"
                );
            }
        }
    }
}

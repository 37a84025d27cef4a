//! The newest requests that were not believed, and the suspected replays. They are kept in memory: a flood of forged
//! requests costs no write, and the oldest ones make room for the newest.

use std::collections::VecDeque;
use std::sync::Mutex;

use serde::Serialize;
use utoipa::ToSchema;

use crate::locks::lock;

/// How many are kept.
pub const KEPT: usize = 1_000;
/// The longest id and reason that are kept, in characters.
const MAX_TEXT: usize = 200;

/// A request that ran nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Refused {
    /// When it arrived, in RFC 3339.
    pub at: String,
    /// The source whose address it was sent to.
    pub source: String,
    /// The reason, for programs: `signature`, `old`, …, or `suspected_replay`.
    pub reason: &'static str,
    /// The reason, for people.
    pub message: String,
    /// The status of the answer.
    pub status: u16,
    /// The length of the body.
    pub bytes: usize,
    /// For a suspected replay: the id that it was sent under.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// For a suspected replay: the key of the event that has the same content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub same_as: Option<String>,
}

/// The newest of them.
#[derive(Debug, Default)]
pub struct Refusals {
    newest: Mutex<VecDeque<Refused>>,
}

impl Refusals {
    /// Adds one. The oldest is dropped if there are too many.
    pub fn add(&self, mut refused: Refused) {
        refused.message = short(&refused.message);
        refused.id = refused.id.as_deref().map(short);
        let mut newest = lock(&self.newest);
        newest.truncate(KEPT - 1);
        newest.push_front(refused);
    }

    /// Those of a source, newest first.
    #[must_use]
    pub fn of(&self, is_asked_for: impl Fn(&Refused) -> bool, limit: usize) -> Vec<Refused> {
        lock(&self.newest).iter().filter(|refused| is_asked_for(refused)).take(limit).cloned().collect()
    }
}

/// The beginning of a text, on one line.
fn short(text: &str) -> String {
    onceward::text::one_line(&text.chars().take(MAX_TEXT).collect::<String>()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_leaves_the_newest_ones() {
        let refusals = Refusals::default();
        for at in 0..KEPT + 5 {
            refusals.add(Refused {
                at: at.to_string(),
                source: "stripe".to_owned(),
                reason: "signature",
                message: "x".repeat(10_000),
                status: 401,
                bytes: 1,
                id: Some("a\nb".to_owned()),
                same_as: None,
            });
        }
        let all = refusals.of(|_| true, usize::MAX);
        assert_eq!((all.len(), all[0].at.as_str()), (KEPT, "1004"));
        assert_eq!(all[0].message.len(), MAX_TEXT);
        assert!(!all[0].id.as_ref().unwrap().contains('\n'));
        assert_eq!(refusals.of(|_| true, 3).len(), 3);
    }
}

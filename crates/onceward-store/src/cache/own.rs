//! Which epochs only this store has advanced, and which records it has changed in them.

use std::collections::HashMap;

use onceward::OperationId;

/// The most changed records that are remembered. A record that was read before them is not kept.
const MOST: usize = 4_096;

/// The latest changes of this store, without a change of another store between them.
#[derive(Default)]
pub(super) struct OwnChanges {
    /// The epochs before the first and after the last change.
    since: u64,
    until: u64,
    /// The epoch after the last change of each record, from the epoch `known_since` on.
    changed: HashMap<OperationId, u64>,
    known_since: u64,
}

impl OwnChanges {
    /// Whether only this store has changed records between these epochs. It has removed those from the cache.
    pub(super) fn are_all_between(&self, read: u64, now: u64) -> bool {
        now == self.until && (self.since..=self.until).contains(&read)
    }

    /// Whether this store may have changed the record since that epoch. Changes of other stores do not count: the
    /// epoch shows them.
    pub(super) fn may_have_changed(&self, id: &OperationId, read: u64) -> bool {
        read < self.until
            && (read < self.known_since || self.changed.get(id).is_some_and(|changed| *changed > read))
    }

    /// A change of this store has advanced the epoch. `before` is `None` if others may have changed records as well.
    pub(super) fn advance(&mut self, before: Option<u64>, after: u64) {
        if before.is_none_or(|before| before != self.until) {
            self.since = before.unwrap_or(after);
        }
        self.until = after;
        if self.changed.len() >= MOST {
            self.changed.clear();
            self.known_since = after;
        }
    }

    /// The last change was of this record.
    pub(super) fn add(&mut self, id: &OperationId) {
        self.changed.insert(id.clone(), self.until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_before_a_change_of_this_store_stays_current_and_what_others_changed_does_not() {
        let (a, b) = (OperationId::of("s", "n", "a"), OperationId::of("s", "n", "b"));
        let mut own = OwnChanges::default();
        own.advance(Some(4), 6);
        own.add(&a);
        // (the epoch under which it was read, the epoch now, whether it is current)
        for (read, now, expected) in [(4, 6, true), (6, 6, true), (2, 6, false), (4, 4, false), (6, 8, false)]
        {
            assert_eq!(own.are_all_between(read, now), expected, "{read}, {now}");
        }
        assert!(own.may_have_changed(&a, 4), "it was read before the change");
        assert!(!own.may_have_changed(&a, 6) && !own.may_have_changed(&b, 4));
        own.advance(Some(6), 8);
        assert!(own.are_all_between(4, 8), "the changes follow each other");
        own.advance(Some(12), 14);
        assert!(own.are_all_between(12, 14) && !own.are_all_between(8, 14), "another store was there");
        own.advance(None, 20);
        assert!(
            own.are_all_between(20, 20) && !own.are_all_between(14, 20),
            "another store may have been there"
        );
    }

    #[test]
    fn a_record_that_was_read_before_changes_that_are_forgotten_is_not_kept() {
        let id = |number: usize| OperationId::of("s", "n", &number.to_string());
        let mut own = OwnChanges::default();
        let last = (0..=MOST as u64).fold(0, |epoch, number| {
            own.advance(Some(epoch), epoch + 2);
            own.add(&id(usize::try_from(number).unwrap()));
            epoch + 2
        });
        assert!(own.changed.len() <= MOST);
        assert!(own.may_have_changed(&id(MOST + 7), 2), "which were changed then is not known");
        assert!(!own.may_have_changed(&id(MOST + 7), last));
    }
}

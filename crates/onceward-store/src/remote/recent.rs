//! The newest records that a handle wrote, to recognize a server that was reset to an older state.
//!
//! The number of the newest operation and the count of writes are not enough: other processes that write to the older
//! state pass them. A record that was acknowledged and is missing afterwards shows the loss however much is written.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use onceward::{OperationId, Record};

/// How many records are remembered in each part of a ledger that can be lost separately.
const REMEMBERED: usize = 8;

/// A record as this handle wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) id: OperationId,
    version: u64,
    created_ms: i64,
    updated_ms: i64,
    /// Whether a later change was announced. It may have been a deletion.
    pub(crate) changed: bool,
}

/// Version, time of creation and time of the last update of the stored record, if there is one.
pub(crate) type Stored = Option<(u64, i64, i64)>;

/// How a stored record compares with the written one.
#[derive(Debug, PartialEq, Eq)]
enum Kept {
    Yes,
    /// An earlier version of it is stored, or one that was written in its place.
    Older(u64),
    /// It is not stored, or another record has taken its id.
    Gone,
}

impl Written {
    fn kept(&self, stored: &Stored) -> Kept {
        let same = Some((self.version, self.created_ms, self.updated_ms));
        match *stored {
            stored if stored == same => Kept::Yes,
            Some((version, ..)) if version > self.version => Kept::Yes,
            Some((version, created_ms, _)) if created_ms == self.created_ms => Kept::Older(version),
            Some(_) | None => Kept::Gone,
        }
    }
}

/// The newest records that a handle wrote, for each part of the ledger.
#[derive(Debug, Default)]
pub(crate) struct RecentWrites(Mutex<BTreeMap<u16, VecDeque<Written>>>);

impl RecentWrites {
    fn parts(&self) -> MutexGuard<'_, BTreeMap<u16, VecDeque<Written>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a write that was acknowledged.
    pub(crate) fn add(&self, part: u16, record: &Record) {
        let Record { id, version, created_ms, updated_ms, .. } = record;
        let mut parts = self.parts();
        let recent = parts.entry(part).or_default();
        recent.retain(|written| written.id != *id);
        if recent.len() == REMEMBERED {
            recent.pop_front();
        }
        recent.push_back(Written {
            id: id.clone(),
            version: *version,
            created_ms: *created_ms,
            updated_ms: *updated_ms,
            changed: false,
        });
    }

    /// Forgets a record that this handle is about to delete.
    pub(crate) fn remove(&self, part: u16, id: &OperationId) {
        if let Some(recent) = self.parts().get_mut(&part) {
            recent.retain(|written| written.id != *id);
        }
    }

    /// Notes that a change of a record was announced.
    pub(crate) fn announced(&self, id: &OperationId) {
        for written in self.parts().values_mut().flatten().filter(|written| written.id == *id) {
            written.changed = true;
        }
    }

    /// All that is remembered, in the order of the writes.
    pub(crate) fn all(&self) -> Vec<(u16, Vec<Written>)> {
        let parts = self.parts();
        let some = parts.iter().filter(|(_, recent)| !recent.is_empty());
        some.map(|(part, recent)| (*part, recent.iter().cloned().collect())).collect()
    }

    /// Takes over what a server that has lost nothing stores: a missing record was deleted.
    pub(crate) fn settle(&self, part: u16, compared: &[(Written, Stored)]) {
        if let Some(recent) = self.parts().get_mut(&part) {
            for (written, stored) in compared {
                if written.kept(stored) == Kept::Gone {
                    recent.retain(|now| now.version != written.version || now.id != written.id);
                } else if let Some(now) = recent.iter_mut().find(|now| *now == written) {
                    now.changed = false;
                }
            }
        }
    }
}

/// What shows that a server has lost acknowledged writes: an earlier version of a record, or the newest record missing.
/// A missing record whose change was announced, or one that is not the newest, may have been deleted by another
/// process.
pub(crate) fn lost(compared: &[(Written, Stored)]) -> Option<String> {
    let older = compared.iter().find_map(|(written, stored)| match written.kept(stored) {
        Kept::Older(version) => Some(format!(
            "operation {} was acknowledged at version {}, and an older or different version {version} is stored",
            written.id, written.version
        )),
        Kept::Yes | Kept::Gone => None,
    });
    older.or_else(|| {
        let (newest, stored) = compared.iter().rev().find(|(written, _)| !written.changed)?;
        (newest.kept(stored) == Kept::Gone)
            .then(|| format!("operation {} was acknowledged and is missing", newest.id))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(number: u8, version: u64) -> Written {
        let id = OperationId::parse(&format!("op_{}", char::from(b'a' + number).to_string().repeat(32)));
        Written { id: id.expect("an id"), version, created_ms: 5, updated_ms: 6, changed: false }
    }

    #[test]
    fn an_earlier_version_or_the_newest_record_missing_is_a_loss() {
        let (first, last) = (written(0, 3), written(1, 2));
        let of = |one: Stored, other: Stored| lost(&[(first.clone(), one), (last.clone(), other)]);
        assert_eq!(of(Some((3, 5, 6)), Some((2, 5, 6))), None);
        assert_eq!(of(Some((9, 8, 9)), Some((4, 5, 7))), None, "others have changed them");
        assert_eq!(of(None, Some((2, 5, 6))), None, "the first was deleted");
        assert!(of(Some((2, 5, 6)), Some((2, 5, 6))).is_some_and(|said| said.contains("version 2")));
        assert!(of(Some((3, 5, 6)), Some((2, 5, 7))).is_some(), "another process wrote this version");
        assert!(of(Some((3, 5, 6)), None).is_some_and(|said| said.contains("missing")));
        assert!(of(Some((3, 5, 6)), Some((2, 6, 6))).is_some(), "another record has its id");
    }

    #[test]
    fn a_record_whose_change_was_announced_may_be_missing() {
        let deleted = Written { changed: true, ..written(1, 2) };
        assert_eq!(lost(&[(written(0, 3), Some((3, 5, 6))), (deleted.clone(), None)]), None);
        assert!(lost(&[(written(0, 3), None), (deleted, None)]).is_some());
    }
}

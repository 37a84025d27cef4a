//! Records as the server keeps them: a line that its scripts read, and the record as JSON.
//!
//! ```text
//! -0000000003- 2 done 1763251200000 \n{"id":"op_…","scope":"default",…}
//! ```
//! `w` at the beginning where somebody waits for a change, the tally of replays, `b` where there is a body, version,
//! state, due time, and the scope unless it is the default one. The body has a key of its own, so that listings do not
//! bring it along.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use onceward::operation::DEFAULT_SCOPE;
use onceward::{OperationId, Record, State, StoreError};

use super::options::MAX_SHARDS;

/// Where the part begins that only a swap changes.
const CONTENT_AT: usize = 11;
const MAX_REPLAYS: u64 = 9_999_999_999;

/// The names of the keys of a ledger. All keys of a shard have one hash tag, so they are on one server.
#[derive(Debug, Clone)]
pub(super) struct Keys {
    prefix: String,
    // Known for certain only when the ledger was found, and then to all who hold these names.
    shards: Arc<AtomicU16>,
}

impl Keys {
    pub(super) fn new(prefix: &str, shards: u16) -> Self {
        Self { prefix: prefix.to_owned(), shards: Arc::new(AtomicU16::new(shards)) }
    }

    /// How many shards there are.
    pub(super) fn shards(&self) -> u16 {
        self.shards.load(Ordering::Relaxed)
    }

    /// The ledger was made with that many.
    pub(super) fn found_shards(&self, shards: u16) {
        self.shards.store(shards, Ordering::Relaxed);
    }

    /// The shard of an operation. Ids are hashes, so some digits of one are as good as random.
    pub(super) fn shard(&self, id: &OperationId) -> u16 {
        let digits = id.as_str().as_bytes().iter().rev().take(6);
        let bits = digits.fold(0_u32, |bits, digit| {
            let value = if digit.is_ascii_lowercase() { digit - b'a' } else { digit.wrapping_sub(b'2') + 26 };
            (bits << 5) | u32::from(value & 31)
        });
        u16::try_from(bits % u32::from(self.shards().max(1))).unwrap_or_default()
    }

    /// What the keys of a shard begin with. No key has this very name.
    pub(super) fn tag(&self, shard: u16) -> String {
        format!("{{{}:{shard}}}", self.prefix)
    }

    /// Where the record of an operation is.
    pub(super) fn record(&self, id: &OperationId) -> String {
        format!("{{{}:{}}}:{id}", self.prefix, self.shard(id))
    }

    /// The ids of a shard that are in that state, by their places in listings.
    pub(super) fn in_state(&self, shard: u16, state: State) -> String {
        format!("{}:{state}", self.tag(shard))
    }

    /// The ids of a shard that are of that scope, unless it is the default one.
    pub(super) fn of_scope(&self, shard: u16, scope: &str) -> String {
        format!("{}:scope:{scope}", self.tag(shard))
    }

    /// The ids of a shard that have a due time, by it.
    pub(super) fn due(&self, shard: u16) -> String {
        format!("{}:due", self.tag(shard))
    }

    /// The ids of a shard, and its keys with their ids, in the order of their letters.
    pub(super) fn lookup(&self, shard: u16) -> String {
        format!("{}:lookup", self.tag(shard))
    }

    /// What is written last before replicas are waited for.
    pub(super) fn mark(&self, shard: u16) -> String {
        format!("{}:mark", self.tag(shard))
    }

    /// What is known of the ledger itself. It is in the shard that every ledger has.
    pub(super) fn meta(&self) -> String {
        format!("{}:ledger", self.tag(0))
    }

    /// Where changes are told.
    pub(super) fn channel(&self) -> &str {
        &self.prefix
    }
}

/// The slot of a cluster that a hash tag is in: CRC-16 (XMODEM) of what is between the braces.
pub(super) fn slot(tag: &str) -> u16 {
    let tagged = tag.trim_start_matches('{').trim_end_matches('}');
    let crc = tagged.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| match crc & 0x8000 {
            0 => crc << 1,
            _ => (crc << 1) ^ 0x1021,
        })
    });
    crc % 16_384
}

/// A place in the listing of the whole ledger: that in its shard, and which shard.
pub(super) fn cursor(place: i64, shard: u16) -> i64 {
    place.saturating_mul(i64::from(MAX_SHARDS)) + i64::from(shard)
}

/// The other way round.
pub(super) fn place(cursor: i64) -> (i64, u16) {
    let shards = i64::from(MAX_SHARDS);
    (cursor.div_euclid(shards), u16::try_from(cursor.rem_euclid(shards)).unwrap_or_default())
}

/// The scope as an index has it: the default one has none.
pub(super) fn indexed_scope(scope: &str) -> &str {
    if scope == DEFAULT_SCOPE { "" } else { scope }
}

/// The body of a record's result.
pub(super) fn body(record: &Record) -> Option<&[u8]> {
    record.outcome.as_ref()?.body.as_deref()
}

/// A record as the server keeps it, without its body.
pub(super) fn encode(record: &Record) -> Result<Vec<u8>, StoreError> {
    let due = record.due_ms.map(|due| due.to_string()).unwrap_or_default();
    let mut value = format!(
        "-{:010}{} {} {} {due} {}\n",
        record.replays.min(MAX_REPLAYS),
        if body(record).is_some() { 'b' } else { '-' },
        record.version,
        record.state,
        indexed_scope(&record.scope),
    )
    .into_bytes();
    serde_json::to_writer(&mut value, record)
        .map_err(|error| StoreError::because("the record cannot be written as JSON", error))?;
    Ok(value)
}

/// The record that the server keeps so.
pub(super) fn decode(value: &[u8], body: Option<Vec<u8>>) -> Result<Record, StoreError> {
    let damaged = || {
        StoreError::Unusable {
        what: "the server holds a record that no version of this program wrote; is another program using its keys?"
            .to_owned(),
    }
    };
    let line = value.iter().position(|byte| *byte == b'\n').ok_or_else(damaged)?;
    let replays = value.get(1..CONTENT_AT).and_then(|digits| std::str::from_utf8(digits).ok());
    let mut record: Record = serde_json::from_slice(&value[line + 1..]).map_err(|_| damaged())?;
    record.replays = replays.and_then(|digits| digits.parse().ok()).ok_or_else(damaged)?;
    if let Some(outcome) = &mut record.outcome {
        outcome.body = body.map(Arc::from);
    }
    Ok(record)
}

/// Whether both are the same but for tallies and waiters.
pub(super) fn same(one: &[u8], other: &[u8]) -> bool {
    one.get(CONTENT_AT..) == other.get(CONTENT_AT..)
}

/// The version that a value has.
pub(super) fn version(value: &[u8]) -> Option<u64> {
    let head = value.get(CONTENT_AT + 2..)?;
    let digits = head.split(|byte| *byte == b' ').next()?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_server() {
        // From the specification of the cluster, and from `CLUSTER KEYSLOT`.
        assert_eq!(slot("{123456789}"), 0x31C3);
        assert_eq!(slot("{foo}"), 12_182);
        assert_eq!(slot("{once:0}"), slot("once:0"));
    }

    #[test]
    fn places_are_told_apart_by_their_shards() {
        let now = 1_763_251_200_123_456;
        assert_eq!(place(cursor(now, 63)), (now, 63));
        assert!(cursor(now, 63) < cursor(now + 1, 0));
    }

    #[test]
    fn a_value_tells_its_version() {
        assert_eq!(version(b"-0000000003- 17 done 5 \n{}"), Some(17));
        assert!(same(b"w0000000009- 1 done  \n{}", b"-0000000000- 1 done  \n{}"));
        assert!(!same(b"w0000000009- 1 done  \n{}", b"-0000000000b 1 done  \n{}"));
    }
}

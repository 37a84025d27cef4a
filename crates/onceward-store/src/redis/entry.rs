//! Records as the server stores them: a header line that the scripts read, and the record as JSON.
//!
//! ```text
//! -0000000003-= 2 done 1763251200000 \n{"id":"op_…","scope":"default",…}
//! ```
//! The header has `w` if a caller waits for a change, the replay tally, `b` if there is a body, `=` if listings show
//! such a record and `~` if they do not, the version, the state, the due time, and the scope unless it is the default
//! one. The body has its own key, so that listings do not load it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use onceward::{DEFAULT_SCOPE, Kind, OperationId, Record, State, StoreError};

use super::options::MAX_SHARDS;

/// The offset of the part that only a swap changes.
const CONTENT_AT: usize = 11;
const MAX_REPLAYS: u64 = 9_999_999_999;

/// The key names of a ledger. All keys of a shard share a hash tag, so they are on one server.
#[derive(Debug, Clone)]
pub(super) struct Keys {
    prefix: String,
    // Final only after the ledger was found. Shared by all clones.
    shards: Arc<AtomicU16>,
}

impl Keys {
    pub(super) fn new(prefix: &str, shards: u16) -> Self {
        Self { prefix: prefix.to_owned(), shards: Arc::new(AtomicU16::new(shards)) }
    }

    /// The number of shards.
    pub(super) fn shards(&self) -> u16 {
        self.shards.load(Ordering::Relaxed)
    }

    /// Sets the number of shards of an existing ledger.
    pub(super) fn set_shards(&self, shards: u16) {
        self.shards.store(shards, Ordering::Relaxed);
    }

    /// The shard of an operation. Ids are hashes, so a few digits of one are effectively random.
    pub(super) fn shard(&self, id: &OperationId) -> u16 {
        let digits = id.as_str().as_bytes().iter().rev().take(6);
        let bits = digits.fold(0_u32, |bits, digit| {
            let value = if digit.is_ascii_lowercase() { digit - b'a' } else { digit.wrapping_sub(b'2') + 26 };
            (bits << 5) | u32::from(value & 31)
        });
        u16::try_from(bits % u32::from(self.shards().max(1))).unwrap_or_default()
    }

    /// The hash tag of a shard.
    pub(super) fn tag(&self, shard: u16) -> String {
        format!("{{{}:{shard}}}", self.prefix)
    }

    /// The prefix of a shard's keys. No key has exactly this name.
    pub(super) fn root(&self, shard: u16) -> String {
        format!("{{{}:{shard}}}v3", self.prefix)
    }

    /// The hash with the ledger's mark as its only field and the number of the shard's writes as its value.
    pub(super) fn ledger(&self, shard: u16) -> String {
        format!("{}:ledger", self.root(shard))
    }

    /// The key of an operation's record.
    pub(super) fn record(&self, id: &OperationId) -> String {
        format!("{}:{id}", self.root(self.shard(id)))
    }

    /// The ids of a shard in that state, ordered by position: of records that listings show, or of the others.
    pub(super) fn in_state(&self, shard: u16, listed: Listing, state: State) -> String {
        format!("{}:{}{state}", self.root(shard), listed.mark())
    }

    /// The ids of a shard with that scope. The default scope has no index.
    pub(super) fn of_scope(&self, shard: u16, scope: &str) -> String {
        format!("{}:scope:{}", self.root(shard), one_line(scope))
    }

    /// The ids of a shard that have a due time, ordered by it.
    pub(super) fn due(&self, shard: u16) -> String {
        format!("{}:due", self.root(shard))
    }

    /// The ids of a shard, and its keys with their ids, in lexical order.
    pub(super) fn lookup(&self, shard: u16) -> String {
        format!("{}:lookup", self.root(shard))
    }

    /// The stopped scopes and their barriers, the same in every shard.
    pub(super) fn stopped(&self, shard: u16) -> String {
        format!("{}:stopped", self.root(shard))
    }

    /// The key that is written last before waiting for replicas.
    pub(super) fn mark(&self, shard: u16) -> String {
        format!("{}:mark", self.root(shard))
    }

    /// The ledger's own key. It is in the first shard, which every ledger has, and has the same name in every format,
    /// so that another version finds it and refuses.
    pub(super) fn meta(&self) -> String {
        format!("{}:ledger", self.tag(0))
    }

    /// The channel on which changes are published.
    pub(super) fn channel(&self) -> &str {
        &self.prefix
    }
}

/// Whether listings show a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Listing {
    Shown,
    Hidden,
}

impl Listing {
    pub(super) const ALL: [Self; 2] = [Self::Shown, Self::Hidden];

    pub(super) fn of(kind: Kind) -> Self {
        if kind.is_listed() { Self::Shown } else { Self::Hidden }
    }

    /// The character in the header of a record and in the names of its indexes.
    fn mark(self) -> char {
        match self {
            Self::Shown => '=',
            Self::Hidden => '~',
        }
    }
}

/// The cluster slot of a hash tag: CRC-16 (XMODEM) of the text between the braces.
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

/// The cursor in the listing of the whole ledger: the position in the shard, and the shard.
pub(super) fn cursor(place: i64, shard: u16) -> i64 {
    place.saturating_mul(i64::from(MAX_SHARDS)) + i64::from(shard)
}

/// The inverse of [`cursor`].
pub(super) fn place(cursor: i64) -> (i64, u16) {
    let shards = i64::from(MAX_SHARDS);
    (cursor.div_euclid(shards), u16::try_from(cursor.rem_euclid(shards)).unwrap_or_default())
}

/// The scope as stored in the index. The default scope is empty.
pub(super) fn indexed_scope(scope: &str) -> String {
    if scope == DEFAULT_SCOPE { String::new() } else { one_line(scope) }
}

/// Replaces control characters, so that the text cannot end its line. Different scopes may become equal. They share
/// an index then, and listings check the records themselves.
fn one_line(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

/// Until when an occurrence is open, as a score; empty if it is over, or found by its id.
pub(super) fn open_until(record: &Record) -> String {
    match record.action.as_ref().and_then(|_| record.open_until_ms()) {
        Some(i64::MAX) => "+inf".to_owned(),
        Some(until_ms) => until_ms.to_string(),
        None => String::new(),
    }
}

/// The body of a record's result.
pub(super) fn body(record: &Record) -> Option<&[u8]> {
    record.outcome.as_ref()?.body.as_deref()
}

/// Encodes a record without its body.
pub(super) fn encode(record: &Record) -> Result<Vec<u8>, StoreError> {
    let due = record.due_ms.map(|due| due.to_string()).unwrap_or_default();
    let mut value = format!(
        "-{:010}{}{} {} {} {due} {}\n",
        record.replays.min(MAX_REPLAYS),
        if body(record).is_some() { 'b' } else { '-' },
        Listing::of(record.kind).mark(),
        record.version,
        record.state,
        indexed_scope(&record.scope),
    )
    .into_bytes();
    serde_json::to_writer(&mut value, record)
        .map_err(|error| StoreError::because("the record cannot be written as JSON", error))?;
    Ok(value)
}

/// The record that the server keeps so, with its body.
pub(super) fn decode(value: &[u8], body: Option<Vec<u8>>) -> Result<Record, StoreError> {
    let mut record = decode_bare(value)?;
    if let Some(outcome) = &mut record.outcome
        && value.get(CONTENT_AT) == Some(&b'b')
    {
        outcome.set_body(body.map(Arc::from));
    }
    Ok(record)
}

/// The same without its body, for listings.
pub(super) fn decode_bare(value: &[u8]) -> Result<Record, StoreError> {
    let damaged = || {
        StoreError::Unusable {
        what: "the server contains a record that no version of this program wrote; is another program using its keys?"
            .to_owned(),
    }
    };
    let line = value.iter().position(|byte| *byte == b'\n').ok_or_else(damaged)?;
    let replays = value.get(1..CONTENT_AT).and_then(|digits| std::str::from_utf8(digits).ok());
    let mut record: Record = serde_json::from_slice(&value[line + 1..]).map_err(|_| damaged())?;
    record.replays = replays.and_then(|digits| digits.parse().ok()).ok_or_else(damaged)?;
    Ok(record)
}

/// Whether two values are equal, ignoring tallies and waiters.
pub(super) fn same(one: &[u8], other: &[u8]) -> bool {
    one.get(CONTENT_AT..) == other.get(CONTENT_AT..)
}

/// The version in a value.
pub(super) fn version(value: &[u8]) -> Option<u64> {
    let head = value.get(CONTENT_AT + 3..)?;
    let digits = head.split(|byte| *byte == b' ').next()?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_match_the_server() {
        // From the cluster specification, and from `CLUSTER KEYSLOT`.
        assert_eq!(slot("{123456789}"), 0x31C3);
        assert_eq!(slot("{foo}"), 12_182);
        assert_eq!(slot("{once:0}"), slot("once:0"));
    }

    #[test]
    fn cursors_include_the_shard() {
        let now = 1_763_251_200_123_456;
        assert_eq!(place(cursor(now, 63)), (now, 63));
        assert!(cursor(now, 63) < cursor(now + 1, 0));
    }

    #[test]
    fn the_version_is_read_from_a_value() {
        assert_eq!(version(b"-0000000003-= 17 done 5 \n{}"), Some(17));
        assert!(same(b"w0000000009-= 1 done  \n{}", b"-0000000000-= 1 done  \n{}"));
        assert!(!same(b"w0000000009-= 1 done  \n{}", b"-0000000000b= 1 done  \n{}"));
    }
}

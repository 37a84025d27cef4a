//! How an event is recorded.
//!
//! An event is one record: scope `hooks~SOURCE`, name `SOURCE`, key the vendor's id. Without one, or if the id is not
//! signed and other content has it, the key is the digest. One write makes an event durable together with the fact that
//! it must be delivered, on every back end; [`onceward::event`] is what becomes of it.
//!
//! Each delivery is an operation of its own in the same scope: name `SOURCE/HANDLER`, and the key of the event.

use std::collections::BTreeMap;
use std::sync::Arc;

use data_encoding::HEXLOWER;
use onceward::event::Deliveries;
use onceward::{Effect, Error, Intent, Key, Kind, Ledger, Operation, OperationId, Outcome, Record, Terms};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::Event;

/// What the scopes of all inboxes begin with. Callers of the API cannot choose a scope that begins so.
pub const SCOPE_PREFIX: &str = "hooks~";

/// The scope of a source's events and deliveries.
#[must_use]
pub fn scope(source: &str) -> String {
    format!("{SCOPE_PREFIX}{source}")
}

/// The name of the deliveries to a handler.
#[must_use]
pub fn delivery_name(source: &str, handler: &str) -> String {
    format!("{source}/{handler}")
}

/// What is stored about an event beside its body.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EventData {
    /// The vendor's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Whether that id is not signed: anyone who saw the request could choose it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unsigned_id: bool,
    /// The kind of event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// When it happened according to the vendor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub occurred_ms: Option<i64>,
    /// SHA-256 of what was signed, in hex.
    pub digest: String,
    /// The type of the body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Headers for the handlers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
    /// For ordered handlers: the value by which it is ordered.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub order: BTreeMap<String, String>,
}

impl EventData {
    /// What is stored about this event.
    #[must_use]
    pub fn of(event: &Event) -> Self {
        let header = |(name, value): &(http::HeaderName, http::HeaderValue)| {
            Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned()))
        };
        Self {
            id: event.id.clone(),
            unsigned_id: event.id.is_some() && !event.is_id_signed,
            kind: event.kind.clone(),
            occurred_ms: event.occurred_ms,
            digest: HEXLOWER.encode(&event.digest),
            content_type: event.content_type.clone(),
            headers: event.headers.iter().filter_map(header).collect(),
            ..Self::default()
        }
    }

    /// The data of a recorded event. `None` if the record is not an event, has expired, or is sealed with a key that
    /// is missing.
    #[must_use]
    pub fn read(record: &Record) -> Option<Self> {
        serde_json::from_str(record.outcome.as_ref()?.data.as_ref()?.get()).ok()
    }

    fn raw(&self) -> Option<Arc<RawValue>> {
        serde_json::value::to_raw_value(self).ok().map(Arc::from)
    }
}

/// How long events are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// The content, after the event was delivered.
    pub payload_ms: u64,
    /// The id.
    pub id_ms: u64,
}

impl Kept {
    /// The terms of an event's record.
    #[must_use]
    pub fn terms(&self, mut terms: Terms) -> Terms {
        terms.keep_results_for(self.payload_ms.max(1));
        terms.tombstone_ms = self.id_ms.saturating_sub(self.payload_ms);
        terms
    }
}

/// The key of an event: the vendor's id, or the digest of what was signed.
#[must_use]
pub fn key(event: &Event) -> String {
    match &event.id {
        Some(id) => id_key(id),
        None => digest_key(&event.digest),
    }
}

/// The key of an event with this id. An id that cannot be a key is hashed.
#[must_use]
pub fn id_key(id: &str) -> String {
    // A reserved beginning, so that no id is mistaken for a digest.
    if Key::given(id).is_ok() && !id.starts_with(DIGEST) && !id.starts_with(HASHED) {
        return id.to_owned();
    }
    format!("{HASHED}{}", HEXLOWER.encode(&Sha256::digest(id)))
}

const DIGEST: &str = "digest:";
const HASHED: &str = "id-sha256:";

/// The key of an event that is known by its content.
#[must_use]
pub fn digest_key(digest: &[u8; 32]) -> String {
    format!("{DIGEST}{}", HEXLOWER.encode(digest))
}

/// The id of the record of an event with this key.
#[must_use]
pub fn event_id(source: &str, key: &str) -> OperationId {
    OperationId::of_kind(Kind::Event, &scope(source), source, key)
}

/// The record of an event under this key, which is to be delivered to these handlers.
///
/// # Errors
/// If the source's name is too long for a scope.
pub fn event(
    ledger: &Ledger,
    source: &str,
    terms: &Terms,
    key: &str,
    event: &Event,
    (data, to): &(EventData, Deliveries),
) -> Result<Record, Error> {
    let operation = Operation::of_kind(Kind::Event, source)
        .scope(scope(source))
        .key(key)
        .input(serde_json::json!({ "digest": data.digest }))
        .terms(terms.clone());
    let intent = ledger.intent(operation)?;
    let content = Outcome {
        data: data.raw(),
        body: Some(Arc::from(&event.body[..])),
        ..Outcome::with_effect(Effect::Created)
    };
    Ok(ledger.events().new_record(&intent, to.clone(), content))
}

/// The intent of the record that binds a digest to one event.
///
/// # Errors
/// If the source's name is too long for a scope.
pub fn guard(ledger: &Ledger, source: &str, kept: Kept, event: &Event) -> Result<Intent, Error> {
    let operation =
        Operation::of_kind(Kind::Guard, source).scope(scope(source)).key(digest_key(&event.digest));
    let mut intent = ledger.intent(operation)?;
    intent.terms.keep_results_for(kept.id_ms.max(1));
    intent.terms.tombstone_ms = 0;
    Ok(intent)
}

/// The operation of one delivery.
#[must_use]
pub fn delivery(
    source: &str,
    handler: &str,
    key: &str,
    data: &EventData,
    occurrence: u32,
    terms: Terms,
) -> Operation {
    let operation = Operation::new(delivery_name(source, handler))
        .scope(scope(source))
        .key(key)
        .input(serde_json::json!({ "event": key, "digest": data.digest }))
        .distinct()
        .terms(terms);
    match occurrence {
        1 => operation,
        more => operation.occurrence(more.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use onceward::{ManualClock, MemoryStore, State};

    use super::*;

    fn sample(id: Option<&str>) -> Event {
        Event {
            id: id.map(str::to_owned),
            digest: [7; 32],
            is_id_signed: true,
            is_digest_of_content: true,
            kind: Some("invoice.paid".to_owned()),
            occurred_ms: None,
            body: bytes::Bytes::from_static(b"{}"),
            content_type: Some("application/json".to_owned()),
            headers: Vec::new(),
        }
    }

    #[test]
    fn no_id_is_mistaken_for_a_digest_or_a_hash() {
        let digest = key(&sample(None));
        assert!(digest.starts_with("digest:0707"));
        for id in [digest.as_str(), "id-sha256:00", "two words", "é", "", &"x".repeat(256)] {
            let key = key(&sample(Some(id)));
            assert!(key.starts_with("id-sha256:") && key != id, "{id}");
            assert!(Key::given(&key).is_ok());
        }
        assert_eq!(key(&sample(Some("evt_1"))), "evt_1");
    }

    #[test]
    fn the_records_of_an_event_are_those_that_a_ledger_may_have() {
        let ledger = Ledger::new(Arc::new(MemoryStore::new(ManualClock::at(1_000))));
        let terms = Kept { payload_ms: 5_000, id_ms: 9_000 }.terms(Terms::default());
        let arrived = sample(Some("evt_1"));
        let new = |handlers: &[&str]| {
            let to = Deliveries::to(handlers.iter().map(|handler| (*handler).to_owned()));
            event(&ledger, "stripe", &terms, "evt_1", &arrived, &(EventData::of(&arrived), to)).unwrap()
        };
        let staged = new(&["bill"]);
        assert_eq!((staged.state, staged.due_ms), (State::Staged, None));
        assert_eq!(staged.id, event_id("stripe", "evt_1"));
        assert_eq!(EventData::read(&staged).unwrap(), EventData::of(&arrived));
        assert_eq!(staged.detail.tombstone_ms, 4_000);
        staged.check().unwrap();
        let unwanted = new(&[]);
        assert_eq!((unwanted.state, unwanted.due_ms), (State::Done, Some(6_000)));
        unwanted.check().unwrap();
    }
}

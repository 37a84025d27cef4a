//! Messages between a server and its stores: what is read is what was written, and damaged bytes are refused.

use std::sync::Arc;

use onceward::wire::{self, ApplyRequest, ListReply, Loaded, RecordsReply, SwapReply, SwapRequest};
use onceward::{
    Change, Cursor, Ending, Evidence, Listed, Operation, OperationId, Outcome, Owner, Record, WriteMode,
    transition,
};
use proptest::prelude::*;
use serde_json::value::RawValue;

/// A result as JSON text, in the spelling of the caller.
fn data() -> impl Strategy<Value = Option<Arc<RawValue>>> {
    let texts = prop_oneof![
        any::<i64>().prop_map(|number| number.to_string()),
        any::<String>().prop_map(|text| serde_json::to_string(&text).unwrap()),
        Just("{\"a\" : 1.0e3,\n \"a\":null}".to_owned()),
        Just("null".to_owned()),
        "-?[1-9][0-9]{18,40}",
    ];
    proptest::option::of(texts.prop_map(|text| RawValue::from_string(text).unwrap().into()))
}

fn outcomes() -> impl Strategy<Value = Outcome> {
    let body = proptest::option::of(proptest::collection::vec(any::<u8>(), 0..64));
    (body, data(), any::<Option<String>>(), any::<bool>()).prop_map(|(body, data, reason, lost)| {
        let mut outcome = Outcome { data, ..Outcome::because(reason) };
        match body {
            Some(body) => outcome.set_body(Some(body.into())),
            None if lost => outcome.set_body(None),
            None => {}
        }
        outcome
    })
}

/// A record as calls leave it: running, or ended, perhaps with a late answer of an earlier attempt.
fn records() -> impl Strategy<Value = Record> {
    let texts = ("[a-z]{1,8}", "[!-~]{1,20}", any::<u64>(), 0_i64..4_000_000_000_000);
    let ended = proptest::option::of((0..3, outcomes()));
    (texts, ended, proptest::option::of(outcomes()), any::<u32>()).prop_map(
        |((name, key, token, now_ms), ended, late, replays)| {
            let intent = Operation::new(&name).key(key).intent().unwrap();
            let owner = Owner { token, lease_until_ms: now_ms };
            let started = transition::start(None, &intent, owner, now_ms);
            let mut record = match ended {
                None => started,
                Some((0, outcome)) => transition::finish(&started, 1, Ending::Done(outcome), now_ms),
                Some((1, outcome)) => {
                    transition::finish(&started, 1, Ending::Failed(Evidence::NotSent, outcome), now_ms)
                }
                Some((_, outcome)) => transition::finish(&started, 1, Ending::InDoubt(outcome), now_ms),
            };
            record.detail.late = late.filter(|late| !late.lost);
            record.replays = u64::from(replays);
            record
        },
    )
}

/// Everything in a record, for comparison.
fn all(record: &Record) -> String {
    let json = serde_json::to_string(record).unwrap();
    let outcome = record.outcome.as_ref();
    format!("{json} {:?}", outcome.map(|outcome| (&outcome.body, outcome.lost, outcome.unavailable)))
}

fn alls(records: &[&Record]) -> Vec<String> {
    records.iter().map(|record| all(record)).collect()
}

proptest! {
    #[test]
    fn a_swap_and_its_replies_round_trip(record in records(), expected in any::<Option<u64>>()) {
        let record = Arc::new(record);
        let swap = SwapRequest { writing: onceward::Writing::Change, expected, mode: WriteMode::Async, record: Arc::clone(&record) };
        let read: SwapRequest = wire::decode(&wire::encode(&swap).unwrap()).unwrap();
        prop_assert_eq!((read.expected, read.mode), (expected, WriteMode::Async));
        prop_assert_eq!(all(&read.record), all(&record));

        let conflict = SwapReply::Conflict(Some(Arc::clone(&record)));
        match wire::decode(&wire::encode(&conflict).unwrap()).unwrap() {
            SwapReply::Conflict(Some(read)) => prop_assert_eq!(all(&read), all(&record)),
            other @ (SwapReply::Written | SwapReply::Conflict(_) | SwapReply::Stopped(_)) => prop_assert!(false, "{:?}", other),
        }
        let loaded = Loaded { record: Some(Arc::clone(&record)) };
        let read: Loaded = wire::decode(&wire::encode(&loaded).unwrap()).unwrap();
        prop_assert_eq!(all(&read.record.unwrap()), all(&record));
    }

    #[test]
    fn many_records_keep_their_own_bodies(found in proptest::collection::vec(records(), 0..5)) {
        let shown: Vec<&Record> = found.iter().collect();
        let due = RecordsReply { records: found.clone() };
        let read: RecordsReply = wire::decode(&wire::encode(&due).unwrap()).unwrap();
        prop_assert_eq!(alls(&read.records.iter().collect::<Vec<_>>()), alls(&shown));

        let page = found.iter().map(|record| Listed { cursor: Cursor(7), record: record.clone() });
        let list = ListReply { listed: page.collect(), more: true };
        let read: ListReply = wire::decode(&wire::encode(&list).unwrap()).unwrap();
        prop_assert_eq!(alls(&read.listed.iter().map(|listed| &listed.record).collect::<Vec<_>>()), alls(&shown));

        let mut changes: Vec<Change> =
            found.iter().map(|record| Change::Swap { expected: None, record: record.clone() }).collect();
        changes.insert(0, Change::Delete { id: OperationId::of("a", "b", "c"), expected: 3 });
        let apply = ApplyRequest { changes, mode: WriteMode::Deferred };
        let read: ApplyRequest = wire::decode(&wire::encode(&apply).unwrap()).unwrap();
        let read: Vec<String> = read.changes.iter().filter_map(|change| match change {
            Change::Swap { record, .. } => Some(all(record)),
            Change::Delete { .. } => None,
        }).collect();
        prop_assert_eq!(read, alls(&shown));
    }

    #[test]
    fn a_message_that_is_cut_or_longer_is_refused(record in records(), at in any::<prop::sample::Index>()) {
        let bytes = wire::encode(&Loaded { record: Some(Arc::new(record)) }).unwrap();
        prop_assert!(wire::decode::<Loaded>(&bytes[..at.index(bytes.len())]).is_err());
        let longer = [&bytes[..], &[0]].concat();
        prop_assert!(wire::decode::<Loaded>(&longer).is_err());
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        prop_assert!(wire::decode::<Loaded>(&bytes).is_err());
    }
}

#[test]
fn no_record_is_a_message_too() {
    let bytes = wire::encode(&Loaded { record: None }).unwrap();
    assert!(wire::decode::<Loaded>(&bytes).unwrap().record.is_none());
    assert!(matches!(wire::decode(&wire::encode(&SwapReply::Written).unwrap()), Ok(SwapReply::Written)));
}

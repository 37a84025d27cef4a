//! Events of an inbox: what follows from each state of a delivery, and how an event ends. The tables restate the
//! contract without using the code's own rules.

use std::collections::BTreeMap;

use crate::common::combinations;
use crate::common::table::Table;
use onceward::event::{Again, Allowed, Deliveries, Fate, Next, again, ended, next, seen_now};
use onceward::{
    Class, Downstream, Effect, Evidence, Intent, Kind, Ledger, ManualClock, MemoryStore, Operation, Outcome,
    Record, State,
};
use proptest::prelude::*;
use std::sync::Arc;

const FOUND: &[&str] = &[
    "none",
    "staged",
    "running",
    "done",
    "failed",
    "in_doubt",
    "cancelled",
    "expired-done",
    "expired-failed",
    "expired-cancelled",
    "expired",
];
const CLASS: &[&str] = &["read", "idempotent", "keyed", "keyed-over", "probed", "probed-over", "once"];
const BUDGET: &[&str] = &["left", "spent"];
const PAUSE: &[&str] = &["over", "running"];

const NEXT: &str = "
    delivery               class                    budget  pause    => next
    none|staged            *                        *       *        => attempt
    running                *                        *       *        => running
    done|expired-done      *                        *       *        => handled
    cancelled              *                        *       *        => refused
    expired-cancelled      *                        *       *        => refused
    failed|expired-failed  *                        left    over     => attempt
    failed|expired-failed  *                        left    running  => pause
    failed|expired-failed  *                        spent   *        => dead
    in_doubt               read|idempotent|keyed    left    over     => attempt
    in_doubt               read|idempotent|keyed    left    running  => pause
    in_doubt               read|idempotent|keyed    spent   *        => in-doubt
    in_doubt               probed                   *       over     => attempt
    in_doubt               probed                   *       running  => pause
    in_doubt               keyed-over|probed-over   *       *        => in-doubt
    in_doubt               once                     *       *        => in-doubt
    expired                *                        *       *        => in-doubt
";

const NOW_MS: i64 = 10_000;

fn ledger() -> Ledger {
    Ledger::new(Arc::new(MemoryStore::new(ManualClock::at(NOW_MS))))
}

fn intent(kind: Kind) -> Intent {
    ledger().intent(Operation::of_kind(kind, "hook").scope("hooks~hook").key("evt_1")).expect("an intent")
}

/// A delivery with this stored and effective state.
fn delivery(found: &str, is_spent: bool) -> Option<(Record, State)> {
    let (state, ended) = match found.split_once('-') {
        Some((state, ended)) => (state, Some(ended.parse().expect("a state"))),
        None if found == "none" => return None,
        None => (found, None),
    };
    let state: State = state.parse().expect("a state");
    let mut record = onceward::transition::stage(&intent(Kind::Operation), NOW_MS - 100);
    (record.state, record.detail.ended) = (state, ended);
    record.attempt = if is_spent { 3 } else { 1 };
    Some((record, state))
}

#[test]
fn what_follows_from_a_delivery() {
    let mut table = Table::read(NEXT);
    for [found, class, budget, pause] in combinations([FOUND, CLASS, BUDGET, PAUSE]) {
        let (class_name, is_over) = class.split_once('-').map_or((class, false), |(class, _)| (class, true));
        let mut seen = delivery(found, budget == "spent");
        if let Some((record, _)) = &mut seen {
            let safe_until_ms = if is_over { NOW_MS } else { NOW_MS + 1 };
            record.detail.downstream = Some(Downstream { key: "k".to_owned(), safe_until_ms });
        }
        let allowed = Allowed {
            class: class_name.parse::<Class>().expect("a class"),
            attempts: 3,
            pause_ms: if pause == "over" { 100 } else { 101 },
            asked_for_ms: if is_over { 100 } else { 1_000 },
        };
        let found_now = next(seen.as_ref().map(|(record, state)| (record, *state)), &allowed, NOW_MS);
        let word = match found_now {
            Next::Attempt => "attempt",
            Next::Running => "running",
            Next::At(due_ms) => {
                assert_eq!(due_ms, NOW_MS + 1);
                "pause"
            }
            Next::Ended(Fate::Handled) => "handled",
            Next::Ended(Fate::Refused) => "refused",
            Next::Ended(Fate::Dead) => "dead",
            Next::Ended(Fate::InDoubt) => "in-doubt",
        };
        assert_eq!(word, table.look_up(&[found, class, budget, pause]), "{found} {class} {budget} {pause}");
    }
    table.assert_all_rows_fitted();
}

fn event(handlers: &[&str]) -> Record {
    let content = Outcome { body: Some(Arc::from(&b"{}"[..])), ..Outcome::with_effect(Effect::Created) };
    let to = Deliveries::to(handlers.iter().map(|handler| (*handler).to_owned()));
    ledger().events().new_record(&intent(Kind::Event), to, content)
}

fn fates<const N: usize>(fates: [(&str, Fate); N]) -> BTreeMap<String, Fate> {
    fates.into_iter().map(|(handler, fate)| (handler.to_owned(), fate)).collect()
}

fn round(event: &Record) -> onceward::event::Round {
    event.deliveries().expect("it is an event").round
}

#[test]
fn an_event_is_done_when_its_handlers_have_it_or_a_person_refused_it() {
    let new = event(&["bill", "mail"]);
    let first = round(&new);
    let half = ended(&new, first, &fates([("bill", Fate::Handled)]), NOW_MS).expect("it says something new");
    assert_eq!((half.state, half.due_ms), (State::Staged, None));
    assert!(ended(&half, first, &fates([("bill", Fate::Handled)]), NOW_MS).is_none(), "it is known");
    let done = ended(&half, first, &fates([("mail", Fate::Refused)]), NOW_MS).expect("it says something new");
    assert_eq!(done.state, State::Done);
    assert!(done.due_ms.is_some());
    assert!(ended(&done, first, &fates([("mail", Fate::Dead)]), NOW_MS).is_none(), "it is done");
    assert!(again(&done, Again::Dead, NOW_MS).is_none(), "nothing is dead");
    let replayed = again(&done, Again::Everything, NOW_MS).expect("its content is there");
    assert_eq!((replayed.state, replayed.due_ms, round(&replayed).occurrence), (State::Staged, None, 2));
    assert!(
        ended(&replayed, first, &fates([("bill", Fate::Dead)]), NOW_MS).is_none(),
        "that was the first time"
    );
    for record in [&new, &half, &done, &replayed] {
        record.check().expect("a ledger may have it");
    }
}

#[test]
fn a_dead_letter_waits_for_a_person_and_keeps_its_content() {
    let new = event(&["bill", "book", "mail"]);
    let all = fates([("bill", Fate::Dead), ("book", Fate::InDoubt), ("mail", Fate::Handled)]);
    let dead = ended(&new, round(&new), &all, NOW_MS).expect("it says something new");
    assert_eq!((dead.state, dead.due_ms), (State::InDoubt, None), "it has no end by time");
    dead.check().expect("a ledger may have it");
    let retried = again(&dead, Again::Dead, NOW_MS).expect("one is dead");
    let open = |event: &Record| -> Vec<String> {
        let handlers = &event.deliveries().expect("it is an event").handlers;
        handlers.iter().filter(|(_, fate)| fate.is_none()).map(|(handler, _)| handler.clone()).collect()
    };
    assert_eq!((open(&retried), round(&retried).budgets), (vec!["bill".to_owned()], 2));
    assert_eq!(open(&again(&dead, Again::DeadAndInDoubt, NOW_MS).expect("two are")), ["bill", "book"]);
    assert_eq!(open(&again(&dead, Again::Everything, NOW_MS).expect("all are")), ["bill", "book", "mail"]);
    let settled = fates([("bill", Fate::Refused), ("book", Fate::Handled)]);
    assert_eq!(
        ended(&dead, round(&dead), &settled, NOW_MS).expect("it says something new").state,
        State::Done
    );
    let empty = Record { outcome: Some(Outcome::with_effect(Effect::Created)), ..dead };
    assert!(again(&empty, Again::Dead, NOW_MS).is_none(), "its content is gone");
}

#[test]
fn a_word_about_a_delivery_counts_after_its_end() {
    let now =
        |fate, found| seen_now(fate, delivery(found, true).as_ref().map(|(record, state)| (record, *state)));
    for waiting in [Fate::Dead, Fate::InDoubt] {
        assert_eq!(now(waiting, "done"), Fate::Handled);
        assert_eq!(now(waiting, "expired-done"), Fate::Handled);
        assert_eq!(now(waiting, "cancelled"), Fate::Refused);
        assert_eq!(now(waiting, "failed"), Fate::Dead);
        assert_eq!(now(waiting, "in_doubt"), Fate::InDoubt);
        assert_eq!(now(waiting, "none"), waiting);
        assert_eq!(now(waiting, "running"), waiting);
    }
    assert_eq!((now(Fate::Handled, "failed"), now(Fate::Refused, "done")), (Fate::Handled, Fate::Refused));
}

/// What happens to an event.
#[derive(Debug, Clone)]
enum Said {
    Ended(&'static str, Fate),
    Late(&'static str, Fate),
    Again(Again),
}

fn said() -> impl Strategy<Value = Said> {
    let handler = prop::sample::select(vec!["a", "b"]);
    let fate = prop::sample::select(vec![Fate::Handled, Fate::Refused, Fate::Dead, Fate::InDoubt]);
    let again = prop::sample::select(vec![Again::Dead, Again::DeadAndInDoubt, Again::Everything]);
    prop_oneof![
        (handler.clone(), fate.clone()).prop_map(|(handler, fate)| Said::Ended(handler, fate)),
        (handler, fate).prop_map(|(handler, fate)| Said::Late(handler, fate)),
        again.prop_map(Said::Again),
    ]
}

proptest! {
    /// Nothing but `done` has a due time, whatever is said about an event in whatever order; and what was said to be
    /// handled is not delivered again without a replay.
    #[test]
    fn an_event_ends_only_as_handled_refused_or_a_dead_letter(all in prop::collection::vec(said(), 1..12)) {
        let mut now = event(&["a", "b"]);
        let first = round(&now);
        for said in all {
            let next = match &said {
                Said::Ended(handler, fate) => ended(&now, round(&now), &fates([(handler, *fate)]), NOW_MS),
                Said::Late(handler, fate) => {
                    let late = ended(&now, first, &fates([(handler, *fate)]), NOW_MS);
                    prop_assert!(late.is_none() || round(&now) == first, "{said:?}");
                    late
                }
                Said::Again(what) => again(&now, *what, NOW_MS),
            };
            let Some(next) = next else { continue };
            prop_assert_eq!(next.version, now.version + 1);
            prop_assert!(next.check().is_ok(), "{:?}", next.check());
            prop_assert_eq!(next.due_ms.is_some(), next.state == State::Done);
            let known = now.deliveries().expect("it is an event");
            let fates = &next.deliveries().expect("it is an event").handlers;
            let reopened = |handler: &String| {
                let before = known.handlers[handler];
                matches!(before, Some(Fate::Handled | Fate::Refused)) && fates[handler].is_none()
            };
            let is_replay = matches!(said, Said::Again(Again::Everything));
            prop_assert!(is_replay || !fates.keys().any(reopened), "{:?}", said);
            now = next;
        }
    }
}

/// What was acknowledged is tried as long as attempts are left: a failure is proof that nothing happened, so its retry
/// is no second effect however late it comes. Its budget is the same as before.
#[test]
fn what_failed_is_tried_again_after_its_record_has_expired() {
    use onceward::transition::{Ageing, age, finish, start};
    use onceward::{Decision, Ending, Liveness, Owner, Refusal, decide};
    let owner = Owner { token: 0, lease_until_ms: NOW_MS };
    let mut intent = intent(Kind::Operation);
    (intent.terms.max_attempts, intent.terms.on_expired) = (2, onceward::OnExpired::RetryFailed);
    let failed = |before: Option<&Record>| {
        let begun = start(before, &intent, owner, NOW_MS);
        finish(&begun, begun.attempt, Ending::failed(Evidence::NotStarted, "it was down"), NOW_MS)
    };
    let one = failed(None);
    let due_ms = one.due_ms.expect("it is kept for a time");
    let Ageing::Tombstone(tombstone) = age(&one, due_ms) else { panic!("it is due") };
    for stored in [&one, &tombstone] {
        let decision = decide::begin(Some(stored), &intent, Liveness::Gone, due_ms);
        assert_eq!(decision, Decision::Start { attempt: 2 }, "{:?}", stored.state);
        let two = failed(Some(stored));
        two.check().expect("a ledger may have it");
        assert_eq!((two.spent_attempts(), two.detail.history.len()), (2, 1), "the budget is the same");
        let spent = decide::begin(Some(&two), &intent, Liveness::Gone, two.due_ms.expect("it has one"));
        assert_eq!(spent, Decision::Refuse(Refusal::BudgetExhausted));
    }
}

//! A plan matches what the call then does, for generated records, intents and owners.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::common::{Bench, NOW_MS, terms};
use onceward::{
    Class, Decision, Dispatch, Downstream, Effect, Error, Evidence, Failure, Inherit, Intent, OnExpired,
    OnFailure, Operation, Outcome, Owner, Preview, ProbeAnswer, Receipt, Record, Refusal, State, Swap,
    WriteMode, transition,
};
use proptest::prelude::*;
use proptest::sample::select;

/// One generated case.
#[derive(Debug, Clone)]
struct Case {
    blind: bool,
    found: Option<State>,
    owner: OwnerKind,
    quarantined: bool,
    expired: bool,
    window: Option<bool>,
    late: bool,
    other_inputs: bool,
    class: Class,
    given_key: bool,
    explicit_scope: bool,
    on_failure: OnFailure,
    on_expired: OnExpired,
    max_attempts: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OwnerKind {
    None,
    Alive,
    Gone,
    Unsent,
}

fn cases() -> impl Strategy<Value = Case> {
    let found = prop_oneof![Just(None), select(State::ALL.to_vec()).prop_map(Some)];
    let owner = select(vec![OwnerKind::None, OwnerKind::Alive, OwnerKind::Gone, OwnerKind::Unsent]);
    let flags = (any::<[bool; 7]>(), any::<Option<bool>>());
    let rules = (
        select(vec![OnFailure::Retry, OnFailure::Replay]),
        select(vec![OnExpired::Auto, OnExpired::Refuse, OnExpired::Rerun]),
    );
    (found, owner, flags, select(Class::ALL.to_vec()), rules, 1_u32..4).prop_map(
        |(found, owner, (flags, window), class, (on_failure, on_expired), max_attempts)| {
            let [blind, quarantined, expired, late, other_inputs, given_key, explicit_scope] = flags;
            Case {
                blind,
                found,
                owner,
                quarantined,
                expired,
                window,
                late,
                other_inputs,
                class,
                given_key,
                explicit_scope,
                on_failure,
                on_expired,
                max_attempts,
            }
        },
    )
}

impl Case {
    fn operation(&self) -> Operation {
        let mut operation = Operation::new("pay")
            .key_fields(["customer"])
            .input(serde_json::json!({"customer": "c1", "amount": 1}));
        if self.given_key {
            operation = operation.key("order-17");
        }
        if self.explicit_scope {
            operation = operation.scope("run-7");
        }
        operation.terms(terms(|terms| {
            terms.class = self.class;
            (terms.on_failure, terms.on_expired) = (self.on_failure, self.on_expired);
            (terms.max_attempts, terms.wait_ms) = (self.max_attempts, 0);
        }))
    }

    fn intent(&self) -> Intent {
        self.operation().intent().expect("a valid operation")
    }

    /// The record that the call finds, and whether its owner is alive.
    fn record(&self, state: State, owner: Option<Owner>) -> Record {
        let mut first = self.operation();
        if self.other_inputs {
            first = first.input(serde_json::json!({"customer": "c1", "amount": 2}));
        }
        let first = first.intent().expect("a valid operation");
        let mut record = Record { state, attempt: 2, ..transition::stage(&first, NOW_MS - 10) };
        record.due_ms = state.is_settled().then_some(if self.expired { NOW_MS } else { NOW_MS + 1_000 });
        record.outcome = (state != State::Running && state != State::Staged)
            .then(|| Outcome { effect: Some(Effect::Created), ..Outcome::because(Some("so".to_owned())) });
        record.detail.owner = owner;
        record.detail.quarantine_until_ms = self.quarantined.then_some(NOW_MS + 1_000);
        record.detail.downstream = self.window.map(|open| Downstream {
            key: "k".to_owned(),
            safe_until_ms: if open { NOW_MS + 1_000 } else { NOW_MS },
        });
        record.detail.late = (self.late && state == State::Running).then(|| Outcome::because(None));
        record
    }
}

/// What the call did, expressed as a decision.
fn decided(result: &Result<Receipt, Error>, ran: u32, probed: bool) -> Result<Decision, String> {
    match result {
        _ if ran > 0 => Ok(Decision::Start { attempt: ran }),
        _ if probed => Ok(Decision::Probe),
        Ok(_) => Ok(Decision::Replay),
        Err(Error::Failed { .. }) => Ok(Decision::ReplayFailure),
        Err(Error::InProgress { .. }) => Ok(Decision::Wait),
        Err(Error::Held { record }) if record.version == 1 => Ok(Decision::Hold),
        Err(Error::Held { .. }) => Ok(Decision::Held),
        Err(Error::KeyReused { fields, .. }) => Ok(Decision::Refuse(Refusal::KeyReused(fields.clone()))),
        Err(Error::KeyExpired { .. }) => Ok(Decision::Refuse(Refusal::KeyExpired)),
        Err(Error::Cancelled { .. }) => Ok(Decision::Refuse(Refusal::Cancelled)),
        Err(Error::Undone { .. }) => Ok(Decision::Refuse(Refusal::Undone)),
        Err(Error::BudgetExhausted { .. }) => Ok(Decision::Refuse(Refusal::BudgetExhausted)),
        Err(Error::InDoubt { .. }) => Ok(Decision::Refuse(Refusal::InDoubt)),
        Err(error) => Err(error.to_string()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_plan_is_what_the_call_does(case in cases()) {
        let bench = if case.blind { Bench::blind() } else { Bench::new() };
        let hold = bench.store.hold(Inherit::No).expect("a lock");
        if case.owner == OwnerKind::Unsent {
            hold.note_dispatch(Dispatch::NotYet).expect("a note");
        }
        let lease_until_ms = if case.owner == OwnerKind::Alive { NOW_MS + 1_000 } else { NOW_MS };
        let owner = (case.owner != OwnerKind::None).then(|| Owner { token: hold.token(), lease_until_ms });
        let _alive = (case.owner == OwnerKind::Alive).then_some(hold);
        if let Some(state) = case.found {
            let written = bench.wait(bench.store.swap(None, case.record(state, owner), WriteMode::Blocking));
            prop_assert!(matches!(written, Ok(Swap::Written(_))));
        }
        let intent = case.intent();
        let before = bench.wait(bench.store.load(&intent.id)).expect("it can be read").map(|record| record.version);
        let plan = bench.wait(bench.ledger.ledger().plan(&intent)).expect("a plan");
        let after = bench.wait(bench.store.load(&intent.id)).expect("it can be read").map(|record| record.version);
        prop_assert_eq!(before, after, "a plan writes nothing");
        prop_assert_ne!(&plan.decision, &Decision::Doubt);

        let (ran, probed) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let asked = Arc::clone(&probed);
        let mut call = bench.ledger.call(intent.clone());
        if case.class == Class::Probed {
            call = call.probe(move |_| {
                asked.store(true, Ordering::SeqCst);
                std::future::ready(ProbeAnswer::CannotTell("offline".to_owned()))
            });
        }
        let result = bench.ledger.run_call(call, |attempt| {
            ran.store(attempt.number(), Ordering::SeqCst);
            Err(Failure::no_effect(Evidence::NotSent, "declined"))
        });
        let decided = decided(&result, ran.load(Ordering::SeqCst), probed.load(Ordering::SeqCst));
        prop_assert_eq!(Ok(plan.decision.clone()), decided);
        let preview = Preview::of(&plan, &intent, Effect::Created);
        if let (Some(foretold), Err(error)) = (&preview.refusal, &result) {
            prop_assert_eq!(foretold.to_string(), error.to_string());
            prop_assert_eq!((foretold.happened(), foretold.ran()), (error.happened(), error.ran()));
        }
    }
}

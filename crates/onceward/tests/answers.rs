//! What every surface says: each decision and each error has one meaning, and only its spelling differs.
#![allow(clippy::expect_used, reason = "a test may")]

mod common;

use std::sync::Arc;

use common::{NOW_MS, intent, record, surfaces};
use onceward::answer::ErrorView;
use onceward::record::{Downstream, Outcome};
use onceward::{
    Answer, Class, Code, Decision, Effect, Error, Happened, InvalidInput, KeyOrigin, Liveness, NextStep,
    Plan, Preview, Ran, Record, Refusal, State, StoreError, Surface, decide,
};

/// A record of that state, whose second attempt is the newest one.
fn found(state: State) -> Record {
    let mut found = Record { attempt: 2, ..record(state, &intent(KeyOrigin::Given)) };
    found.detail.attempts_before = 0;
    found.outcome = match state {
        State::Done => Some(Outcome::with_effect(Effect::Created)),
        State::Failed => Some(Outcome::because(Some("declined".to_owned()))),
        State::InDoubt => Some(Outcome::because(Some("no answer within 30 s".to_owned()))),
        State::Staged | State::Running | State::Cancelled | State::Expired => None,
    };
    found
}

fn shared(state: State) -> Arc<Record> {
    Arc::new(found(state))
}

fn tombstone(ended: Option<State>) -> Arc<Record> {
    let mut tombstone = found(State::Expired);
    tombstone.detail.ended = ended;
    Arc::new(tombstone)
}

fn doubt(class: Class, change: impl FnOnce(&mut Record)) -> Arc<Record> {
    let mut doubt = found(State::InDoubt);
    doubt.detail.class = class;
    if class == Class::Keyed {
        doubt.detail.downstream = Some(Downstream { key: "k".to_owned(), safe_until_ms: NOW_MS + 1 });
    }
    change(&mut doubt);
    Arc::new(doubt)
}

/// Every error, in each form that means something else.
fn errors() -> Vec<(String, Error)> {
    let fields = || vec!["/amount".to_owned()];
    let reason = || "declined".to_owned();
    let store = || StoreError::unavailable("the disk is full");
    let unrecorded = |ended| Error::Unrecorded { ended, record: shared(State::Running), source: store() };
    let spent = Arc::new(Record { attempt: 20, ..found(State::Failed) });
    let list: Vec<(&str, Error)> = vec![
        ("invalid input", InvalidInput::new("the name has 0 characters; it needs 1 to 255").into()),
        ("no key", Error::KeyMissing { name: "pay".to_owned() }),
        ("not found", Error::NotFound { id: "op_x".to_owned() }),
        ("wrong state, done", Error::WrongState { action: "settling", record: shared(State::Done) }),
        ("wrong state, in doubt", Error::WrongState { action: "cancelling", record: shared(State::InDoubt) }),
        ("another call runs it", Error::InProgress { record: shared(State::Running), ran: Ran::No }),
        ("overtaken", Error::InProgress { record: shared(State::Running), ran: Ran::Yes }),
        ("a process was left behind", Error::InProgress { record: shared(State::InDoubt), ran: Ran::No }),
        ("expired, not swept", Error::KeyExpired { record: shared(State::Done) }),
        ("expired, done", Error::KeyExpired { record: tombstone(Some(State::Done)) }),
        ("expired, failed", Error::KeyExpired { record: tombstone(Some(State::Failed)) }),
        ("expired, of an older version", Error::KeyExpired { record: tombstone(None) }),
        ("cancelled", Error::Cancelled { record: shared(State::Cancelled) }),
        ("budget spent", Error::BudgetExhausted { record: shared(State::Failed), limit: 2 }),
        ("key reused, done", Error::KeyReused { record: shared(State::Done), fields: fields() }),
        ("key reused, in doubt", Error::KeyReused { record: shared(State::InDoubt), fields: fields() }),
        ("failed", Error::Failed { record: shared(State::Failed), reason: reason(), ran: Ran::Yes }),
        ("failed for the last time", Error::Failed { record: spent, reason: reason(), ran: Ran::Yes }),
        ("failed, replayed", Error::Failed { record: shared(State::Failed), reason: reason(), ran: Ran::No }),
        ("timed out", Error::Timeout { record: shared(State::InDoubt), reason: "no answer".to_owned() }),
        ("refuted", Error::Unverified { record: shared(State::InDoubt), reason: reason(), ran: Ran::Yes }),
        (
            "refuted before",
            Error::Unverified { record: shared(State::InDoubt), reason: reason(), ran: Ran::No },
        ),
        ("ledger unavailable", store().into()),
        ("done, not recorded", unrecorded(Happened::Yes)),
        ("failed, not recorded", unrecorded(Happened::No)),
        ("in doubt, not recorded", unrecorded(Happened::Unknown)),
    ];
    let mut list: Vec<(String, Error)> =
        list.into_iter().map(|(what, error)| (what.to_owned(), error)).collect();
    for (ran, when) in [(Ran::Yes, "this call"), (Ran::No, "before")] {
        for class in Class::ALL {
            let record = doubt(class, |_| ());
            list.push((
                format!("in doubt, {class}, {when}"),
                Error::InDoubt { record, reason: reason(), ran },
            ));
        }
        let record = doubt(Class::Probed, |record| record.detail.probe = Some("look".to_owned()));
        let what = format!("in doubt, probed by a command, {when}");
        list.push((what, Error::InDoubt { record, reason: reason(), ran }));
        let record = doubt(Class::Idempotent, |record| record.attempt = 20);
        let what = format!("in doubt, no attempt left, {when}");
        list.push((what, Error::InDoubt { record, reason: reason(), ran }));
    }
    list
}

/// What an answer means, without its words.
fn meaning(answer: &Answer) -> String {
    let error = answer.error.as_ref();
    let flag = |flag: bool| if flag { "yes" } else { "no" };
    format!(
        "{:<18} {:<8} {:<4} {:<10} {:<12} {:<9}",
        error.map_or("-", |error| &error.code),
        answer.happened.map_or("-", Happened::as_str),
        answer.ran.map_or("-", flag),
        error.map_or("-", |error| flag(error.retryable)),
        answer.effect,
        answer.operation.as_ref().map_or("-", |operation| operation.state.as_str()),
    )
}

fn step(error: &Error) -> String {
    match error.next_step() {
        None => "-".to_owned(),
        Some(step) => format!("{step:?}").split(['(', ' ']).next().unwrap_or_default().to_owned(),
    }
}

#[test]
fn what_every_error_means_on_every_surface() {
    let mut lines = vec![format!(
        "{:<42}{:<18} {:<8} {:<4} {:<10} {:<12} {:<9} next",
        "error", "code", "happened", "ran", "retryable", "effect", "state"
    )];
    for (what, error) in errors() {
        let meanings: Vec<String> =
            surfaces().iter().map(|(_, surface)| meaning(&Answer::failed(&error, surface))).collect();
        assert!(meanings.iter().all(|one| *one == meanings[0]), "{what}: {meanings:#?}");
        lines.push(format!("{what:<42}{} {}", meanings[0], step(&error)));
    }
    insta::assert_snapshot!(lines.join("\n"), @r#"
    error                                     code               happened ran  retryable  effect       state     next
    invalid input                             INVALID_INPUT      -        no   no         noop         -         -
    no key                                    KEY_MISSING        -        no   no         noop         -         -
    not found                                 NOT_FOUND          -        no   no         noop         -         -
    wrong state, done                         WRONG_STATE        yes      no   no         noop         done      Show
    wrong state, in doubt                     WRONG_STATE        unknown  no   no         noop         in_doubt  Show
    another call runs it                      IN_PROGRESS        unknown  no   no         noop         running   Wait
    overtaken                                 IN_PROGRESS        unknown  yes  no         noop         running   Wait
    a process was left behind                 IN_PROGRESS        unknown  no   no         noop         running   Wait
    expired, not swept                        KEY_EXPIRED        yes      no   no         noop         expired   Repeat
    expired, done                             KEY_EXPIRED        yes      no   no         noop         expired   Repeat
    expired, failed                           KEY_EXPIRED        no       no   no         noop         expired   Repeat
    expired, of an older version              KEY_EXPIRED        unknown  no   no         noop         expired   Repeat
    cancelled                                 CANCELLED          no       no   no         noop         cancelled Repeat
    budget spent                              BUDGET_EXHAUSTED   no       no   no         noop         failed    RaiseAttempts
    key reused, done                          KEY_REUSED         yes      no   no         noop         done      OtherKey
    key reused, in doubt                      KEY_REUSED         unknown  no   no         noop         in_doubt  Show
    failed                                    FAILED             no       yes  yes        noop         failed    CallAgain
    failed for the last time                  FAILED             no       yes  no         noop         failed    Show
    failed, replayed                          FAILED             no       no   no         noop         failed    Show
    timed out                                 TIMEOUT            unknown  yes  no         unknown      in_doubt  Settle
    refuted                                   UNVERIFIED         unknown  yes  no         unknown      in_doubt  Settle
    refuted before                            UNVERIFIED         unknown  no   no         noop         in_doubt  Settle
    ledger unavailable                        LEDGER_UNAVAILABLE unknown  no   no         noop         -         CheckLedger
    done, not recorded                        IN_DOUBT           yes      yes  no         unknown      running   Record
    failed, not recorded                      IN_DOUBT           no       yes  no         noop         running   Record
    in doubt, not recorded                    IN_DOUBT           unknown  yes  no         unknown      running   Settle
    in doubt, read, this call                 IN_DOUBT           unknown  yes  no         unknown      in_doubt  CallAgain
    in doubt, idempotent, this call           IN_DOUBT           unknown  yes  no         unknown      in_doubt  CallAgain
    in doubt, keyed, this call                IN_DOUBT           unknown  yes  no         unknown      in_doubt  CallAgain
    in doubt, probed, this call               IN_DOUBT           unknown  yes  no         unknown      in_doubt  CallAgain
    in doubt, once, this call                 IN_DOUBT           unknown  yes  no         unknown      in_doubt  Settle
    in doubt, probed by a command, this call  IN_DOUBT           unknown  yes  no         unknown      in_doubt  Probe
    in doubt, no attempt left, this call      IN_DOUBT           unknown  yes  no         unknown      in_doubt  Settle
    in doubt, read, before                    IN_DOUBT           unknown  no   no         noop         in_doubt  Settle
    in doubt, idempotent, before              IN_DOUBT           unknown  no   no         noop         in_doubt  Settle
    in doubt, keyed, before                   IN_DOUBT           unknown  no   no         noop         in_doubt  Settle
    in doubt, probed, before                  IN_DOUBT           unknown  no   no         noop         in_doubt  Settle
    in doubt, once, before                    IN_DOUBT           unknown  no   no         noop         in_doubt  Settle
    in doubt, probed by a command, before     IN_DOUBT           unknown  no   no         noop         in_doubt  Probe
    in doubt, no attempt left, before         IN_DOUBT           unknown  no   no         noop         in_doubt  Settle
    "#);
}

#[test]
fn what_may_be_retried_has_certainly_not_happened() {
    for (what, error) in errors() {
        assert!(!error.retryable() || error.happened() == Some(Happened::No), "{what}");
        assert_eq!(
            error.retryable(),
            error.next_step() == Some(NextStep::CallAgain) && error.code() == Code::Failed,
            "{what}"
        );
    }
}

#[test]
fn every_code_has_an_error_a_title_and_a_problem_document() {
    for code in Code::ALL {
        let error = errors().into_iter().map(|(_, error)| error).find(|error| error.code() == code);
        let answer = Answer::failed(&error.expect("an error of every code"), &common::once());
        let problem = answer.problem(code.http()).expect("it is not a success");
        assert_eq!((problem.kind, problem.status), (format!("urn:onceward:{code}"), code.http()));
        assert!(!problem.title.is_empty() && problem.ran == answer.ran, "{code}");
        if code != Code::Failed {
            assert_ne!(problem.title, "The operation failed without effect", "{code}");
        }
    }
}

/// Every decision, with the record it is decided on.
fn plans() -> Vec<(&'static str, Plan)> {
    let plan = |decision, record: Option<State>| Plan { decision, record: record.map(shared) };
    let refuse = |refusal, state| plan(Decision::Refuse(refusal), Some(state));
    vec![
        ("first", plan(Decision::Start { attempt: 1 }, None)),
        ("staged", plan(Decision::Start { attempt: 3 }, Some(State::Staged))),
        ("failed before", plan(Decision::Start { attempt: 3 }, Some(State::Failed))),
        ("converges", plan(Decision::Start { attempt: 3 }, Some(State::InDoubt))),
        ("next occurrence", plan(Decision::Start { attempt: 3 }, Some(State::Done))),
        ("replay", plan(Decision::Replay, Some(State::Done))),
        ("replay of a failure", plan(Decision::ReplayFailure, Some(State::Failed))),
        ("wait", plan(Decision::Wait, Some(State::Running))),
        ("wait for a process", plan(Decision::Wait, Some(State::InDoubt))),
        ("probe", plan(Decision::Probe, Some(State::InDoubt))),
        ("reused", refuse(Refusal::KeyReused(vec!["/amount".to_owned()]), State::Done)),
        ("expired", refuse(Refusal::KeyExpired, State::Done)),
        ("cancelled", refuse(Refusal::Cancelled, State::Cancelled)),
        ("budget spent", refuse(Refusal::BudgetExhausted, State::Failed)),
        ("in doubt", refuse(Refusal::InDoubt, State::InDoubt)),
    ]
}

#[test]
fn what_every_decision_means_in_a_dry_run_on_every_surface() {
    let mut lines = Vec::new();
    for (what, plan) in plans() {
        let preview = Preview::of(&plan, &intent(KeyOrigin::Given), Effect::Created);
        let show = |surface: &Surface| {
            let answer = Answer::preview(&preview, vec!["one charge".to_owned()], surface);
            let changes = answer.changes.as_ref().map_or(0, Vec::len);
            let decision = answer.decision.unwrap_or("-");
            format!("{decision:<15}{} changes: {changes}\n    {}", meaning(&answer), preview.sentence)
        };
        let shown: Vec<String> = surfaces().iter().map(|(_, surface)| show(surface)).collect();
        assert!(shown.iter().all(|one| *one == shown[0]), "{what}: {shown:#?}");
        lines.push(format!("{what:<21}{}", shown[0]));
    }
    insta::assert_snapshot!(lines.join("\n"), @r#"
    first                run            -                  no       no   -          would_create staged    changes: 1
        would run attempt 1
    staged               run            -                  no       no   -          would_create staged    changes: 1
        would run attempt 3
    failed before        run            -                  no       no   -          would_create failed    changes: 1
        would run attempt 3
    converges            run            -                  unknown  no   -          would_create in_doubt  changes: 1
        would run attempt 3
    next occurrence      run            -                  no       no   -          would_create done      changes: 1
        would run attempt 3
    replay               replay         -                  yes      no   -          would_noop   done      changes: 0
        already done by attempt 2: would replay its result and run nothing
    replay of a failure  replay_failure FAILED             no       no   no         would_noop   failed    changes: 0
        would replay the failure of attempt 2
    wait                 wait           -                  unknown  no   -          would_noop   running   changes: 0
        would wait: attempt 2 is running
    wait for a process   wait           -                  unknown  no   -          would_noop   running   changes: 0
        would wait: attempt 2 is running
    probe                probe          -                  unknown  no   -          would_create in_doubt  changes: 1
        would ask the probe whether attempt 2 happened, and run only if it did not
    reused               refuse         KEY_REUSED         yes      no   no         would_noop   done      changes: 0
        would refuse: this key was already used for a different action (/amount differs); nothing was run
    expired              refuse         KEY_EXPIRED        yes      no   no         would_noop   expired   changes: 0
        would refuse: the stored result for this key has expired (the operation was done); nothing was run
    cancelled            refuse         CANCELLED          no       no   no         would_noop   cancelled changes: 0
        would refuse: this operation was cancelled before it had any effect; nothing was run
    budget spent         refuse         BUDGET_EXHAUSTED   no       no   no         would_noop   failed    changes: 0
        would refuse: gave up after 2 failed attempts (the limit is 20); nothing was run
    in doubt             refuse         IN_DOUBT           unknown  no   no         would_noop   in_doubt  changes: 0
        would refuse: attempt 2 is in doubt: no answer within 30 s. It may have taken effect; nothing was run
    "#);
}

/// A refusal that a dry run foretells is the refusal that the call gets.
#[test]
fn a_dry_run_foretells_the_refusal_word_for_word() {
    for state in State::ALL {
        let record = shared(state);
        let mut intent = intent(KeyOrigin::Given);
        intent.terms.max_attempts = 2;
        let decision = decide::begin(Some(&record), &intent, Liveness::Gone, NOW_MS);
        let Decision::Refuse(_) = decision else { continue };
        let plan = Plan { decision, record: Some(record) };
        let preview = Preview::of(&plan, &intent, Effect::Created);
        let error = preview.refusal.as_ref().expect("a refusal");
        let answer = Answer::preview(&preview, Vec::new(), &common::once());
        let real = Answer::failed(error, &common::once());
        let (told, met) = (answer.error.expect("an error"), real.error.expect("an error"));
        assert_eq!((told.code, told.message, told.next), (met.code, met.message, met.next), "{state}");
        assert_eq!((answer.happened, answer.ran), (real.happened, real.ran), "{state}");
    }
}

/// An agent pays for every word: a doubt costs at most 120 tokens, which is about 480 characters.
#[test]
fn a_doubt_is_told_in_few_words() {
    let long = "HTTPSConnectionPool(host='api.example.com', port=443): Read timed out.\n".repeat(20);
    for reason in ["no answer within 30 s", &long] {
        let mut record = found(State::InDoubt);
        record.outcome = Some(Outcome::because(Some(reason.to_owned())));
        let plan = Plan { decision: Decision::Refuse(Refusal::InDoubt), record: Some(Arc::new(record)) };
        let error =
            Preview::of(&plan, &intent(KeyOrigin::Given), Effect::Created).refusal.expect("a refusal");
        for (name, surface) in surfaces() {
            let answer = Answer::failed(&error, &surface);
            let text = answer.error.as_ref().expect("an error").lines(answer.ran).join("\n");
            let json = serde_json::to_string(&answer).expect("JSON");
            assert!(text.chars().count() <= 480, "{name}: {} characters:\n{text}", text.chars().count());
            assert!(json.chars().count() <= 810, "{name}: {} characters:\n{json}", json.chars().count());
        }
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "most of it is the snapshot")]
fn the_text_of_an_error_says_what_happened_and_what_to_do() {
    let id = intent(KeyOrigin::Given).id;
    let mut text = String::new();
    for (what, error) in errors() {
        let view = ErrorView::of(&error, &surfaces()[0].1);
        let lines = view.lines(Some(error.ran().as_bool())).join("\n  ");
        text.push_str(&format!("{what}\n  {}\n", lines.replace(id.as_str(), "ID")));
    }
    insta::assert_snapshot!(text, @r#"
    invalid input
      INVALID_INPUT the name has 0 characters; it needs 1 to 255
    no key
      KEY_MISSING pay requires an explicit key that identifies this action; nothing was run
    not found
      NOT_FOUND there is no operation op_x in this ledger
    wrong state, done
      WRONG_STATE settling is not possible: the operation is done
      happened: yes, ran: no, retryable: no
      next: once --ledger agent.db show ID
    wrong state, in doubt
      WRONG_STATE cancelling is not possible: the operation is in doubt
      happened: unknown, ran: no, retryable: no
      next: once --ledger agent.db show ID
    another call runs it
      IN_PROGRESS attempt 2 of this operation is still running for another caller
      happened: unknown, ran: no, retryable: no
      next: once --ledger agent.db wait ID
    overtaken
      IN_PROGRESS attempt 2 of this operation is still running for another caller
      happened: unknown, ran: yes, retryable: no
      next: once --ledger agent.db wait ID
    a process was left behind
      IN_PROGRESS attempt 2 of this operation ended in doubt, and a process that it started is still running
      happened: unknown, ran: no, retryable: no
      next: once --ledger agent.db wait ID
    expired, not swept
      KEY_EXPIRED the stored result for this key has expired (the operation was done); nothing was run
      happened: yes, ran: no, retryable: no
      next: to do it again on purpose, add --occurrence 2 or use another key
    expired, done
      KEY_EXPIRED the stored result for this key has expired (the operation was done); nothing was run
      happened: yes, ran: no, retryable: no
      next: to do it again on purpose, add --occurrence 2 or use another key
    expired, failed
      KEY_EXPIRED the stored result for this key has expired (the operation had no effect); nothing was run
      happened: no, ran: no, retryable: no
      next: to do it again on purpose, add --occurrence 2 or use another key
    expired, of an older version
      KEY_EXPIRED the stored result for this key has expired (how the operation ended is no longer known); nothing was run
      happened: unknown, ran: no, retryable: no
      next: to do it again on purpose, add --occurrence 2 or use another key
    cancelled
      CANCELLED this operation was cancelled before it had any effect; nothing was run
      happened: no, ran: no, retryable: no
      next: to do it again on purpose, add --occurrence 2 or use another key
    budget spent
      BUDGET_EXHAUSTED gave up after 2 failed attempts (the limit is 2); nothing was run
      happened: no, ran: no, retryable: no
      next: to allow more, raise --attempts above 2
    key reused, done
      KEY_REUSED this key was already used for a different action (/amount differs); nothing was run
      happened: yes, ran: no, retryable: no
      next: use another key for this action
    key reused, in doubt
      KEY_REUSED this key was already used for a different action (/amount differs), which is in doubt; nothing was run
      happened: unknown, ran: no, retryable: no
      next: once --ledger agent.db show ID
    failed
      FAILED declined
      happened: no, ran: yes, retryable: yes
      next: make the same call again; it is safe
    failed for the last time
      FAILED declined
      happened: no, ran: yes, retryable: no
      next: once --ledger agent.db show ID
    failed, replayed
      FAILED declined
      happened: no, ran: no, retryable: no
      next: once --ledger agent.db show ID
    timed out
      TIMEOUT no answer
      happened: unknown, ran: yes, retryable: no
      next: check first whether it happened, then record what you found:
        it happened: once --ledger agent.db settle ID --as done
        it did not: once --ledger agent.db settle ID --as failed
    refuted
      UNVERIFIED success was reported, but the check refuted it: declined
      happened: unknown, ran: yes, retryable: no
      next: check first whether it happened, then record what you found:
        it happened: once --ledger agent.db settle ID --as done
        it did not: once --ledger agent.db settle ID --as failed
    refuted before
      UNVERIFIED success was reported, but the check refuted it: declined
      happened: unknown, ran: no, retryable: no
      next: check first whether it happened, then record what you found:
        it happened: once --ledger agent.db settle ID --as done
        it did not: once --ledger agent.db settle ID --as failed
    ledger unavailable
      LEDGER_UNAVAILABLE the ledger cannot be used: the disk is full; nothing was run
      happened: unknown, ran: no, retryable: no
      next: once --ledger agent.db doctor
    done, not recorded
      IN_DOUBT it was done, but its outcome could not be written to the ledger: the disk is full
      happened: yes, ran: yes, retryable: no
      next: make the ledger writable, then record what is known:
        it happened: once --ledger agent.db settle ID --as done
    failed, not recorded
      IN_DOUBT it failed without effect, but its outcome could not be written to the ledger: the disk is full
      happened: no, ran: yes, retryable: no
      next: make the ledger writable, then record what is known:
        it did not: once --ledger agent.db settle ID --as failed
    in doubt, not recorded
      IN_DOUBT it may or may not have taken effect, but its outcome could not be written to the ledger: the disk is full
      happened: unknown, ran: yes, retryable: no
      next: check first whether it happened, then record what you found:
        it happened: once --ledger agent.db settle ID --as done
        it did not: once --ledger agent.db settle ID --as failed
    in doubt, read, this call
      IN_DOUBT declined
      happened: unknown, ran: yes, retryable: no
      next: make the same call again; it is safe
    in doubt, idempotent, this call
      IN_DOUBT declined
      happened: unknown, ran: yes, retryable: no
      next: make the same call again; it is safe
    in doubt, keyed, this call
      IN_DOUBT declined
      happened: unknown, ran: yes, retryable: no
      next: make the same call again; it is safe
    in doubt, probed, this call
      IN_DOUBT declined
      happened: unknown, ran: yes, retryable: no
      next: make the same call again; it is safe
    in doubt, once, this call
      IN_DOUBT declined
      happened: unknown, ran: yes, retryable: no
      next: check first whether it happened, then record what you found:
        it happened: once --ledger agent.db settle ID --as done
        it did not: once --ledger agent.db settle ID --as failed
    in doubt, probed by a command, this call
      IN_DOUBT declined
      happened: unknown, ran: yes, retryable: no
      next: once --ledger agent.db settle ID --probe
    in doubt, no attempt left, this call
      IN_DOUBT declined
      happened: unknown, ran: yes, retryable: no
      next: check first whether it happened, then record what you found:
        it happened: once --ledger agent.db settle ID --as done
        it did not: once --ledger agent.db settle ID --as failed
    in doubt, read, before
      IN_DOUBT declined
      happened: unknown, ran: no, retryable: no
      next: check first whether it happened, then record what you found:
        it happened: once --ledger agent.db settle ID --as done
        it did not: once --ledger agent.db settle ID --as failed
    in doubt, idempotent, before
      IN_DOUBT declined
      happened: unknown, ran: no, retryable: no
      next: check first whether it happened, then record what you found:
        it happened: once --ledger agent.db settle ID --as done
        it did not: once --ledger agent.db settle ID --as failed
    in doubt, keyed, before
      IN_DOUBT declined
      happened: unknown, ran: no, retryable: no
      next: check first whether it happened, then record what you found:
        it happened: once --ledger agent.db settle ID --as done
        it did not: once --ledger agent.db settle ID --as failed
    in doubt, probed, before
      IN_DOUBT declined
      happened: unknown, ran: no, retryable: no
      next: check first whether it happened, then record what you found:
        it happened: once --ledger agent.db settle ID --as done
        it did not: once --ledger agent.db settle ID --as failed
    in doubt, once, before
      IN_DOUBT declined
      happened: unknown, ran: no, retryable: no
      next: check first whether it happened, then record what you found:
        it happened: once --ledger agent.db settle ID --as done
        it did not: once --ledger agent.db settle ID --as failed
    in doubt, probed by a command, before
      IN_DOUBT declined
      happened: unknown, ran: no, retryable: no
      next: once --ledger agent.db settle ID --probe
    in doubt, no attempt left, before
      IN_DOUBT declined
      happened: unknown, ran: no, retryable: no
      next: check first whether it happened, then record what you found:
        it happened: once --ledger agent.db settle ID --as done
        it did not: once --ledger agent.db settle ID --as failed
    "#);
}

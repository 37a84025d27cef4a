//! The answers of every surface: each decision and each error has one meaning, and only the presentation differs.

use std::sync::Arc;

use crate::common::errors::{barrier, errors, found, held, shared, undone};
use crate::common::{NOW_MS, intent, surfaces};
use onceward::{
    Answer, Code, Decision, Effect, Error, ErrorView, Happened, Hold, KeyOrigin, Liveness, NextStep, Outcome,
    Plan, Preview, Refusal, State, Surface, UndoEvidence, decide,
};

/// The meaning of an answer, without its wording.
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
    held for a time                           -                  no       no   -          held         staged    Release
    held for a person                         -                  no       no   -          held         staged    Release
    cancelled                                 CANCELLED          no       no   no         noop         cancelled Cancelled
    taken back                                UNDONE             yes      no   no         noop         done      Repeat
    taken back and confirmed                  UNDONE             yes      no   no         noop         done      Repeat
    being taken back                          UNDONE             yes      no   no         noop         done      Undo
    wrong state, taken back                   WRONG_STATE        yes      no   no         noop         done      Show
    stopped, new                              STOPPED            no       no   no         noop         -         Resume
    stopped, failed before                    STOPPED            no       no   no         noop         failed    Resume
    budget spent                              BUDGET_EXHAUSTED   no       no   no         noop         failed    RaiseAttempts
    key reused, done                          KEY_REUSED         yes      no   no         noop         done      OtherKey
    key reused, in doubt                      KEY_REUSED         unknown  no   no         noop         in_doubt  Show
    failed                                    FAILED             no       yes  yes        noop         failed    CallAgain
    failed for the last time                  FAILED             no       yes  no         noop         failed    Show
    failed, replayed                          FAILED             no       no   no         noop         failed    Show
    timed out                                 TIMEOUT            unknown  yes  no         unknown      in_doubt  Lost
    refuted                                   UNVERIFIED         unknown  yes  no         unknown      in_doubt  Lost
    refuted before                            UNVERIFIED         unknown  no   no         noop         in_doubt  Lost
    sealed                                    RESULT_UNAVAILABLE yes      no   no         noop         done      Show
    result gone                               RESULT_UNAVAILABLE yes      no   no         noop         done      Show
    ledger unavailable                        LEDGER_UNAVAILABLE unknown  no   no         noop         -         CheckLedger
    ledger replaced                           LEDGER_REPLACED    unknown  no   no         noop         -         CheckLedger
    done, not recorded                        IN_DOUBT           yes      yes  no         unknown      running   Record
    failed, not recorded                      IN_DOUBT           no       yes  no         noop         running   Record
    in doubt, not recorded                    IN_DOUBT           unknown  yes  no         unknown      running   Lost
    in doubt, read, this call                 IN_DOUBT           unknown  yes  no         unknown      in_doubt  CallAgain
    in doubt, idempotent, this call           IN_DOUBT           unknown  yes  no         unknown      in_doubt  CallAgain
    in doubt, keyed, this call                IN_DOUBT           unknown  yes  no         unknown      in_doubt  CallAgain
    in doubt, probed, this call               IN_DOUBT           unknown  yes  no         unknown      in_doubt  CallAgain
    in doubt, once, this call                 IN_DOUBT           unknown  yes  no         unknown      in_doubt  Lost
    in doubt, probed by a command, this call  IN_DOUBT           unknown  yes  no         unknown      in_doubt  Probe
    in doubt, no attempt left, this call      IN_DOUBT           unknown  yes  no         unknown      in_doubt  Lost
    in doubt, read, before                    IN_DOUBT           unknown  no   no         noop         in_doubt  Lost
    in doubt, idempotent, before              IN_DOUBT           unknown  no   no         noop         in_doubt  Lost
    in doubt, keyed, before                   IN_DOUBT           unknown  no   no         noop         in_doubt  Lost
    in doubt, probed, before                  IN_DOUBT           unknown  no   no         noop         in_doubt  Lost
    in doubt, once, before                    IN_DOUBT           unknown  no   no         noop         in_doubt  Lost
    in doubt, probed by a command, before     IN_DOUBT           unknown  no   no         noop         in_doubt  Probe
    in doubt, no attempt left, before         IN_DOUBT           unknown  no   no         noop         in_doubt  Lost
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
        let answer = Answer::failed(&error.expect("an error of every code"), &crate::common::once());
        if code == Code::Held {
            assert!(answer.ok && answer.error.is_none(), "an answer that is held is not an error");
            continue;
        }
        let problem = answer.problem(code.http()).expect("it is not a success");
        assert_eq!((problem.kind, problem.status), (format!("urn:onceward:{code}"), code.http()));
        assert!(!problem.title.is_empty() && problem.ran == answer.ran, "{code}");
        if code != Code::Failed {
            assert_ne!(problem.title, "The operation failed without effect", "{code}");
        }
    }
}

/// Every decision, with the record it is based on.
fn plans() -> Vec<(&'static str, Plan)> {
    let plan = |decision, record: Option<State>| Plan { decision, record: record.map(shared) };
    let refuse = |refusal, state| plan(Decision::Refuse(refusal), Some(state));
    vec![
        ("first", plan(Decision::Start { attempt: 1 }, None)),
        ("staged", plan(Decision::Start { attempt: 3 }, Some(State::Staged))),
        ("failed before", plan(Decision::Start { attempt: 3 }, Some(State::Failed))),
        ("converges", plan(Decision::Start { attempt: 3 }, Some(State::InDoubt))),
        ("next occurrence", plan(Decision::Start { attempt: 3 }, Some(State::Done))),
        ("hold", plan(Decision::Hold, None)),
        ("held", Plan { decision: Decision::Held, record: Some(held(Some(NOW_MS))) }),
        ("replay", plan(Decision::Replay, Some(State::Done))),
        ("replay of a failure", plan(Decision::ReplayFailure, Some(State::Failed))),
        ("wait", plan(Decision::Wait, Some(State::Running))),
        ("wait for a process", plan(Decision::Wait, Some(State::InDoubt))),
        ("probe", plan(Decision::Probe, Some(State::InDoubt))),
        ("reused", refuse(Refusal::KeyReused(vec!["/amount".to_owned()]), State::Done)),
        ("expired", refuse(Refusal::KeyExpired, State::Done)),
        ("cancelled", refuse(Refusal::Cancelled, State::Cancelled)),
        (
            "taken back",
            Plan { record: Some(undone(UndoEvidence::Probe)), ..refuse(Refusal::Undone, State::Done) },
        ),
        ("stopped", plan(Decision::Refuse(Refusal::Stopped(barrier())), None)),
        ("budget spent", refuse(Refusal::BudgetExhausted, State::Failed)),
        ("in doubt", refuse(Refusal::InDoubt, State::InDoubt)),
    ]
}

#[test]
fn what_every_decision_means_in_a_dry_run_on_every_surface() {
    let mut lines = Vec::new();
    let mut intent = intent(KeyOrigin::Given);
    intent.terms.hold = Hold::For(600_000);
    for (what, plan) in plans() {
        let preview = Preview::of(&plan, &intent, Effect::Created);
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
    hold                 hold           -                  no       no   -          would_noop   staged    changes: 0
        would hold it for 10m, and run nothing
    held                 held           -                  no       no   -          would_noop   staged    changes: 0
        is held until 1970-01-01T00:16:40Z; nothing was sent
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
    taken back           refuse         UNDONE             yes      no   no         would_noop   done      changes: 0
        would refuse: this operation was done and then taken back by op_p7hvopj3gtcw5v5xwxeyauokm3qkf6xm; its probe confirms that the effect is gone; nothing was run
    stopped              refuse         STOPPED            no       no   no         would_noop   staged    changes: 0
        would refuse: the scope "run-7" was stopped at 1970-01-01T00:16:40.000Z by a person (ada) (wrong list); nothing was run
    budget spent         refuse         BUDGET_EXHAUSTED   no       no   no         would_noop   failed    changes: 0
        would refuse: gave up after 2 failed attempts (the limit is 20); nothing was run
    in doubt             refuse         IN_DOUBT           unknown  no   no         would_noop   in_doubt  changes: 0
        would refuse: attempt 2 is in doubt: no answer within 30 s. It may have taken effect; nothing was run
    "#);
}

/// The refusal in a dry run is the refusal of the real call.
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
        let answer = Answer::preview(&preview, Vec::new(), &crate::common::once());
        let real = Answer::failed(error, &crate::common::once());
        let (told, met) = (answer.error.expect("an error"), real.error.expect("an error"));
        assert_eq!((told.code, told.message, told.next), (met.code, met.message, met.next), "{state}");
        assert_eq!((answer.happened, answer.ran), (real.happened, real.ran), "{state}");
    }
}

/// Agents pay for every word: a doubt costs at most 120 tokens, which is about 480 characters.
#[test]
fn a_doubt_is_described_in_few_words() {
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
      INVALID_INPUT the name has 0 characters; it must have 1 to 255
    no key
      KEY_MISSING pay requires an explicit key that identifies this action; nothing was run
    not found
      NOT_FOUND there is no operation op_x in this ledger
    wrong state, done
      WRONG_STATE settling is not possible: the operation is done
      happened: yes, ran: no, retryable: no
      next: see what is recorded:
        once --ledger agent.db show ID
    wrong state, in doubt
      WRONG_STATE cancelling is not possible: the operation is in doubt
      happened: unknown, ran: no, retryable: no
      next: see what is recorded:
        once --ledger agent.db show ID
    another call runs it
      IN_PROGRESS attempt 2 of this operation is still running for another caller
      happened: unknown, ran: no, retryable: no
      next: wait for it, then make the same call:
        once --ledger agent.db wait ID
    overtaken
      IN_PROGRESS attempt 2 of this operation is still running for another caller
      happened: unknown, ran: yes, retryable: no
      next: wait for it, then make the same call:
        once --ledger agent.db wait ID
    a process was left behind
      IN_PROGRESS attempt 2 of this operation ended in doubt, and a process that it started is still running
      happened: unknown, ran: no, retryable: no
      next: wait for it, then make the same call:
        once --ledger agent.db wait ID
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
    held for a time
      HELD held until 1970-01-01T00:16:40Z; nothing was sent
      happened: no, ran: no, retryable: no
      next: do not repeat it before its time or its release. After that, make the same call again: it gives the result, and sends it if that was not done yet. A person can release or cancel it (ID in `once held`)
    held for a person
      HELD held until a person releases it; nothing was sent
      happened: no, ran: no, retryable: no
      next: do not repeat it before its time or its release. After that, make the same call again: it gives the result, and sends it if that was not done yet. A person can release or cancel it (ID in `once held`)
    cancelled
      CANCELLED this operation was cancelled before it had any effect; nothing was run
      happened: no, ran: no, retryable: no
      next: do not repeat it, unless a person asks for it
    taken back
      UNDONE this operation was done and then taken back by op_p7hvopj3gtcw5v5xwxeyauokm3qkf6xm, which reported success; nothing was run
      happened: yes, ran: no, retryable: no
      next: to do it again on purpose, add --occurrence 2 or use another key
    taken back and confirmed
      UNDONE this operation was done and then taken back by op_p7hvopj3gtcw5v5xwxeyauokm3qkf6xm; its probe confirms that the effect is gone; nothing was run
      happened: yes, ran: no, retryable: no
      next: to do it again on purpose, add --occurrence 2 or use another key
    being taken back
      UNDONE this operation was done, and op_p7hvopj3gtcw5v5xwxeyauokm3qkf6xm has begun to take it back; the effect may or may not be gone; nothing was run
      happened: yes, ran: no, retryable: no
      next: finish the undo:
        once --ledger agent.db undo ID
    wrong state, taken back
      WRONG_STATE verifying is not possible: the operation is done and was taken back by op_p7hvopj3gtcw5v5xwxeyauokm3qkf6xm
      happened: yes, ran: no, retryable: no
      next: see what is recorded:
        once --ledger agent.db show ID
    stopped, new
      STOPPED the scope "run-7" was stopped at 1970-01-01T00:16:40.000Z by a person (ada) (wrong list); nothing was run
      happened: no, ran: no, retryable: no
      next: do not repeat it: the scope was stopped on purpose; a person resumes it
    stopped, failed before
      STOPPED the scope "run-7" was stopped at 1970-01-01T00:16:40.000Z by a person (ada) (wrong list); nothing was run
      happened: no, ran: no, retryable: no
      next: do not repeat it: the scope was stopped on purpose; a person resumes it
    budget spent
      BUDGET_EXHAUSTED gave up after 2 failed attempts (the limit is 2); nothing was run
      happened: no, ran: no, retryable: no
      next: to allow more, raise --attempts above 2
    key reused, done
      KEY_REUSED this key was already used for a different action (/amount differs); nothing was run
      happened: yes, ran: no, retryable: no
      next: if this is the same action, it is done; only for a different action use another key:
        once --ledger agent.db show ID
    key reused, in doubt
      KEY_REUSED this key was already used for a different action (/amount differs), which is in doubt; nothing was run
      happened: unknown, ran: no, retryable: no
      next: see what is recorded:
        once --ledger agent.db show ID
    failed
      FAILED declined
      happened: no, ran: yes, retryable: yes
      next: make the same call again; it is safe
    failed for the last time
      FAILED declined
      happened: no, ran: yes, retryable: no
      next: see what is recorded:
        once --ledger agent.db show ID
    failed, replayed
      FAILED declined
      happened: no, ran: no, retryable: no
      next: see what is recorded:
        once --ledger agent.db show ID
    timed out
      TIMEOUT no answer
      happened: unknown, ran: yes, retryable: no
      next: check first whether it happened; do not repeat it. A person or a probe must record the finding:
        once --ledger agent.db show ID
    refuted
      UNVERIFIED success was reported, but the check refuted it: declined
      happened: unknown, ran: yes, retryable: no
      next: check first whether it happened; do not repeat it. A person or a probe must record the finding:
        once --ledger agent.db show ID
    refuted before
      UNVERIFIED success was reported, but the check refuted it: declined
      happened: unknown, ran: no, retryable: no
      next: check first whether it happened; do not repeat it. A person or a probe must record the finding:
        once --ledger agent.db show ID
    sealed
      RESULT_UNAVAILABLE the operation was done, but its result is sealed with the key k_abcd2345, and that key is not configured here or the stored value was changed; nothing was run. Set ONCE_ENCRYPTION_KEY_FILE to a file that holds the key
      happened: yes, ran: no, retryable: no
      next: see what is recorded:
        once --ledger agent.db show ID
    result gone
      RESULT_UNAVAILABLE the operation was done, but its stored result is missing from the ledger: another program deleted it, or the ledger is damaged; nothing was run
      happened: yes, ran: no, retryable: no
      next: see what is recorded:
        once --ledger agent.db show ID
    ledger unavailable
      LEDGER_UNAVAILABLE the ledger cannot be used: the disk is full; nothing was run
      happened: unknown, ran: no, retryable: no
      next: make the ledger reachable, then make the same call again:
        once --ledger agent.db doctor
    ledger replaced
      LEDGER_REPLACED the ledger cannot be used: this is not the ledger that was opened (it is empty); operations may be missing from it. Put the right one back; or, after a restore from a backup, run `once restored --at TIME` with the time of the backup and start this program again; nothing was run
      happened: unknown, ran: no, retryable: no
      next: make the ledger reachable, then make the same call again:
        once --ledger agent.db doctor
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
      next: check first whether it happened; do not repeat it. A person or a probe must record the finding:
        once --ledger agent.db show ID
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
      next: check first whether it happened; do not repeat it. A person or a probe must record the finding:
        once --ledger agent.db show ID
    in doubt, probed by a command, this call
      IN_DOUBT declined
      happened: unknown, ran: yes, retryable: no
      next: ask the probe whether it happened:
        once --ledger agent.db settle ID --probe look
    in doubt, no attempt left, this call
      IN_DOUBT declined
      happened: unknown, ran: yes, retryable: no
      next: check first whether it happened; do not repeat it. A person or a probe must record the finding:
        once --ledger agent.db show ID
    in doubt, read, before
      IN_DOUBT declined
      happened: unknown, ran: no, retryable: no
      next: check first whether it happened; do not repeat it. A person or a probe must record the finding:
        once --ledger agent.db show ID
    in doubt, idempotent, before
      IN_DOUBT declined
      happened: unknown, ran: no, retryable: no
      next: check first whether it happened; do not repeat it. A person or a probe must record the finding:
        once --ledger agent.db show ID
    in doubt, keyed, before
      IN_DOUBT declined
      happened: unknown, ran: no, retryable: no
      next: check first whether it happened; do not repeat it. A person or a probe must record the finding:
        once --ledger agent.db show ID
    in doubt, probed, before
      IN_DOUBT declined
      happened: unknown, ran: no, retryable: no
      next: check first whether it happened; do not repeat it. A person or a probe must record the finding:
        once --ledger agent.db show ID
    in doubt, once, before
      IN_DOUBT declined
      happened: unknown, ran: no, retryable: no
      next: check first whether it happened; do not repeat it. A person or a probe must record the finding:
        once --ledger agent.db show ID
    in doubt, probed by a command, before
      IN_DOUBT declined
      happened: unknown, ran: no, retryable: no
      next: ask the probe whether it happened:
        once --ledger agent.db settle ID --probe look
    in doubt, no attempt left, before
      IN_DOUBT declined
      happened: unknown, ran: no, retryable: no
      next: check first whether it happened; do not repeat it. A person or a probe must record the finding:
        once --ledger agent.db show ID
    "#);
}

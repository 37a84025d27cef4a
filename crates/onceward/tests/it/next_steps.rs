//! How every surface presents every next step.

use crate::common::surfaces;
use onceward::{Advice, NextStep, OperationId, State, Verdict};

#[test]
#[expect(clippy::too_many_lines, reason = "most of it is the snapshot")]
fn how_every_next_step_is_spelled() {
    let id = OperationId::of("default", "pay", "order-17");
    let steps = [
        NextStep::Settle(id.clone()),
        NextStep::Lost(id.clone()),
        NextStep::Record(id.clone(), Verdict::Done),
        NextStep::Probe { id: id.clone(), command: "./was-it paid".to_owned(), no: vec![3, 4] },
        NextStep::Wait(id.clone()),
        NextStep::Release(id.clone()),
        NextStep::Show(id.clone()),
        NextStep::CallAgain,
        NextStep::Repeat,
        NextStep::Cancelled,
        NextStep::OtherKey(id.clone(), State::Done),
        NextStep::OtherKey(id.clone(), State::Failed),
        NextStep::Resume { scope: "run 7".to_owned() },
        NextStep::RaiseAttempts { limit: 20 },
        NextStep::Undo(id.clone()),
        NextStep::CheckLedger,
    ];
    let mut lines = Vec::new();
    for step in steps {
        lines.push(format!("{step:?}").replace(&format!("OperationId({:?})", id.as_str()), "ID"));
        for (name, surface) in surfaces() {
            let Advice { say, command, options, .. } = surface.spell(&step);
            lines.push(format!("  {name}: {say}").replace(id.as_str(), "ID"));
            lines.extend(command.map(|command| format!("    $ {command}").replace(id.as_str(), "ID")));
            lines.extend(options.iter().map(|choice| {
                format!("    {}: {}", choice.found, choice.command).replace(id.as_str(), "ID")
            }));
        }
    }
    insta::assert_snapshot!(lines.join("\n"), @r#"
    Settle(ID)
      once: check first whether it happened, then record what you found
        it happened: once --ledger agent.db settle ID --as done
        it did not: once --ledger agent.db settle ID --as failed
      once, a person: check first whether it happened, then record what you found
        it happened: once --ledger agent.db settle ID --as done
        it did not: once --ledger agent.db settle ID --as failed
      shop: check first whether it happened, then record what you found
        it happened: shop settle ID --as done
        it did not: shop settle ID --as failed
      python: check first whether it happened, then record what you found
        it happened: ledger.settle("ID", "done")
        it did not: ledger.settle("ID", "failed")
      http: check first whether it happened, then record it
        it happened: POST /v1/operations/ID/settle {"verdict":"done","evidence":"…"}
        it did not: POST /v1/operations/ID/settle {"verdict":"failed","evidence":"…"}
      agent: check first whether it happened, then record what you found
        it happened: once_settle {"operation":"ID","verdict":"done","evidence":"…"}
        it did not: once_settle {"operation":"ID","verdict":"failed","evidence":"…"}
      person: check first whether it happened; do not repeat it. A person must record the finding
        it happened: once --ledger agent.db settle ID --as done
        it did not: once --ledger agent.db settle ID --as failed
    Lost(ID)
      once: check first whether it happened; do not repeat it. A person or a probe must record the finding
        $ once --ledger agent.db show ID
      once, a person: check first whether it happened, then record what you found
        it happened: once --ledger agent.db settle ID --as done
        it did not: once --ledger agent.db settle ID --as failed
      shop: check first whether it happened; do not repeat it. A person or a probe must record the finding
        $ shop show ID
      python: check first whether it happened; do not repeat it. A person or a probe must record the finding
        $ ledger.show("ID")
      http: check first whether it happened; do not repeat it. A person or a probe must record the finding
        $ GET /v1/operations/ID
      agent: check first whether it happened, then record what you found
        it happened: once_settle {"operation":"ID","verdict":"done","evidence":"…"}
        it did not: once_settle {"operation":"ID","verdict":"failed","evidence":"…"}
      person: check first whether it happened; do not repeat it. A person or a probe must record the finding
    Record(ID, Done)
      once: make the ledger writable, then record what is known
        it happened: once --ledger agent.db settle ID --as done
      once, a person: make the ledger writable, then record what is known
        it happened: once --ledger agent.db settle ID --as done
      shop: make the ledger writable, then record what is known
        it happened: shop settle ID --as done
      python: make the ledger writable, then record what is known
        it happened: ledger.settle("ID", "done")
      http: make the ledger writable, then record what is known
        it happened: POST /v1/operations/ID/settle {"verdict":"done","evidence":"…"}
      agent: make the ledger writable, then record what is known
        it happened: once_settle {"operation":"ID","verdict":"done","evidence":"…"}
      person: make the ledger writable, then record what is known
        it happened: once --ledger agent.db settle ID --as done
    Probe { id: ID, command: "./was-it paid", no: [3, 4] }
      once: ask the probe whether it happened
        $ once --ledger agent.db settle ID --probe './was-it paid' --probe-no 3,4
      once, a person: ask the probe whether it happened
        $ once --ledger agent.db settle ID --probe './was-it paid' --probe-no 3,4
      shop: make the same call again; it asks the probe whether it happened
      python: make the same call again; it asks the probe whether it happened
      http: make the same call again; it asks the probe whether it happened
      agent: make the same call again; it asks the probe whether it happened
      person: make the same call again; it asks the probe whether it happened
    Wait(ID)
      once: wait for it, then make the same call
        $ once --ledger agent.db wait ID
      once, a person: wait for it, then make the same call
        $ once --ledger agent.db wait ID
      shop: see whether it has ended, then make the same call
        $ shop show ID
      python: wait for it, then make the same call
        $ ledger.wait("ID")
      http: wait for it, then make the same call
        $ GET /v1/operations/ID/wait
      agent: wait for it, then make the same call
        $ once_status {"operation":"ID"}
      person: wait, then make the same call again; it is safe
    Release(ID)
      once: do not repeat it before its time or its release. After that, make the same call again: it gives the result, and sends it if that was not done yet. A person can release or cancel it (ID in `once held`)
      once, a person: wait, release it, or cancel it
        it should be sent now: once --ledger agent.db release ID
        it should not be sent: once --ledger agent.db cancel ID
      shop: do not repeat it before its time or its release. After that, make the same call again: it gives the result, and sends it if that was not done yet. A person can release or cancel it (ID in `once held`)
      python: do not repeat it before its time or its release. After that, make the same call again: it gives the result, and sends it if that was not done yet. A person can release or cancel it (ID in `once held`)
      http: do not repeat it before its time or its release. After that, make the same call again: it gives the result, and sends it if that was not done yet. A person can release or cancel it (ID in `once held`)
      agent: do not repeat it before its time or its release. After that, make the same call again: it gives the result, and sends it if that was not done yet. A person can release or cancel it (ID in `once held`)
      person: do not repeat it before its time or its release. After that, make the same call again: it gives the result, and sends it if that was not done yet. A person can release or cancel it (ID in `once held`)
    Show(ID)
      once: see what is recorded
        $ once --ledger agent.db show ID
      once, a person: see what is recorded
        $ once --ledger agent.db show ID
      shop: see what is recorded
        $ shop show ID
      python: see what is recorded
        $ ledger.show("ID")
      http: see what is recorded
        $ GET /v1/operations/ID
      agent: see what is recorded
        $ once_status {"operation":"ID"}
      person: ask a person to look at what is recorded
    CallAgain
      once: make the same call again; it is safe
      once, a person: make the same call again; it is safe
      shop: make the same call again; it is safe
      python: make the same call again; it is safe
      http: make the same call again; it is safe
      agent: make the same call again; it is safe
      person: make the same call again; it is safe
    Repeat
      once: to do it again on purpose, add --occurrence 2 or use another key
      once, a person: to do it again on purpose, add --occurrence 2 or use another key
      shop: to do it again on purpose, add --occurrence 2 or use another key
      python: to do it again on purpose, use another key or occurrence
      http: to do it again on purpose, use another key or occurrence
      agent: to do it again on purpose, use another key or occurrence
      person: to do it again on purpose, use another key or occurrence
    Cancelled
      once: do not repeat it, unless a person asks for it
      once, a person: do not repeat it, unless a person asks for it
      shop: do not repeat it, unless a person asks for it
      python: do not repeat it, unless a person asks for it
      http: do not repeat it, unless a person asks for it
      agent: do not repeat it, unless a person asks for it
      person: do not repeat it, unless a person asks for it
    OtherKey(ID, Done)
      once: if this is the same action, it is done; only for a different action use another key
        $ once --ledger agent.db show ID
      once, a person: if this is the same action, it is done; only for a different action use another key
        $ once --ledger agent.db show ID
      shop: if this is the same action, it is done; only for a different action use another key
        $ shop show ID
      python: if this is the same action, it is done; only for a different action use another key
        $ ledger.show("ID")
      http: if this is the same action, it is done; only for a different action use another key
        $ GET /v1/operations/ID
      agent: if this is the same action, it is done; only for a different action use another key
        $ once_status {"operation":"ID"}
      person: if this is the same action, it is done; only for a different action use another key
    OtherKey(ID, Failed)
      once: if this is the same action, see what became of it; only for a different action use another key
        $ once --ledger agent.db show ID
      once, a person: if this is the same action, see what became of it; only for a different action use another key
        $ once --ledger agent.db show ID
      shop: if this is the same action, see what became of it; only for a different action use another key
        $ shop show ID
      python: if this is the same action, see what became of it; only for a different action use another key
        $ ledger.show("ID")
      http: if this is the same action, see what became of it; only for a different action use another key
        $ GET /v1/operations/ID
      agent: if this is the same action, see what became of it; only for a different action use another key
        $ once_status {"operation":"ID"}
      person: if this is the same action, see what became of it; only for a different action use another key
    Resume { scope: "run 7" }
      once: do not repeat it: the scope was stopped on purpose; a person resumes it
      once, a person: the scope was stopped on purpose. To let it continue
        $ once --ledger agent.db resume 'run 7'
      shop: do not repeat it: the scope was stopped on purpose; a person resumes it
      python: do not repeat it: the scope was stopped on purpose; a person resumes it
      http: do not repeat it: the scope was stopped on purpose; a person resumes it
      agent: do not repeat it: the scope was stopped on purpose; a person resumes it
      person: do not repeat it: the scope was stopped on purpose; a person resumes it
    RaiseAttempts { limit: 20 }
      once: to allow more, raise --attempts above 20
      once, a person: to allow more, raise --attempts above 20
      shop: to allow more, raise `attempts` in the policy above 20, or use another key
      python: to allow more, raise the limit of attempts above 20
      http: to allow more, raise the limit of attempts above 20
      agent: to allow more, raise the limit of attempts above 20
      person: to allow more, raise the limit of attempts above 20
    Undo(ID)
      once: finish the undo
        $ once --ledger agent.db undo ID
      once, a person: finish the undo
        $ once --ledger agent.db undo ID
      shop: finish the undo
        $ shop undo ID
      python: finish the undo
        $ ledger.compensate("ID")
      http: ask a person to finish the undo
      agent: ask a person to finish the undo
      person: ask a person to finish the undo
    CheckLedger
      once: make the ledger reachable, then make the same call again
        $ once --ledger agent.db doctor
      once, a person: make the ledger reachable, then make the same call again
        $ once --ledger agent.db doctor
      shop: make the ledger reachable, then make the same call again
      python: make the ledger reachable, then make the same call again
      http: make the ledger reachable, then make the same call again
      agent: make the ledger reachable, then make the same call again
      person: make the ledger reachable, then make the same call again
    "#);
}

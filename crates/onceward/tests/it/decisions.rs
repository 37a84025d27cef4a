//! Every state and every event: what a call gets. The tables restate the contract without using the code's own rules.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, OnceLock};

use crate::common::table::Table;
use crate::common::{NOW_MS, combinations, intent, record};
use onceward::decide::{after_probe_no, begin, effective_state};
use onceward::{
    Class, Code, Decision, Downstream, Intent, KeyOrigin, Liveness, OnExpired, OnFailure, Outcome, Record,
    Refusal, ScopeOrigin, State,
};

/// The records that may be found. `…-over` is settled and past its retention, which has not been recorded yet.
const FOUND: &[&str] = &[
    "staged",
    "running",
    "done",
    "failed",
    "in_doubt",
    "cancelled",
    "expired",
    "done-over",
    "failed-over",
    "cancelled-over",
];
/// The kernel reports alive, gone, and unsent (gone before it dispatched anything). With leases, quiet is within the
/// lease and silent is beyond it.
const OWNERS: &[&str] = &["alive", "gone", "unsent", "quiet", "silent"];
const CLASSES: &[&str] = &["read", "idempotent", "keyed", "probed", "once"];

const STANDING: &str = "
    found           owner         => state
    running         alive|quiet   => running
    in_doubt        alive         => running
    running         gone|silent   => in_doubt
    running         unsent        => failed
    done-over       *             => expired
    failed-over     *             => expired
    cancelled-over  *             => expired
    staged          *             => staged
    done            *             => done
    failed          *             => failed
    in_doubt        *             => in_doubt
    cancelled       *             => cancelled
    expired         *             => expired
";

#[test]
fn where_an_operation_stands() {
    let mut table = Table::read(STANDING);
    for [found, owner] in combinations([FOUND, OWNERS]) {
        let record = found_record(found, owner, &intent(KeyOrigin::Given));
        let state = effective_state(&record, liveness(owner), NOW_MS);
        assert_eq!(state.as_str(), table.look_up(&[found, owner]), "{found}, owner {owner}");
    }
    table.assert_all_rows_fitted();
}

#[test]
fn a_running_record_without_an_owner_is_in_doubt() {
    let mut record = record(State::Running, &intent(KeyOrigin::Given));
    record.detail.owner = None;
    assert_eq!(effective_state(&record, Liveness::Unknown, NOW_MS), State::InDoubt);
}

const BEGIN: &str = "
    found     inputs owner        class            window    key      on_expired on_failure budget late scope => decision

    running   other  gone|unsent|silent *          *         *        *          *          *      *  *  => write the doubt down
    *         other  *            *                *         *        *          *          *      *  *  => refuse KEY_REUSED

    staged    same   *            *                *         *        *          *          *      *  *  => start
    running   same   alive|quiet  *                *         *        *          *          *      *  *  => wait
    done      same   *            *                *         *        *          *          *      *  *  => replay
    failed    same   *            *                *         *        *          replay     *      *  *  => replay the failure
    failed    same   *            *                *         *        *          retry      left   *  *  => start
    failed    same   *            *                *         *        *          retry      spent  *  *  => refuse BUDGET_EXHAUSTED
    cancelled same   *            *                *         *        *          *          *      *  *  => refuse CANCELLED

    failed-over same * *            *                *         retry-failed *        left   *  *  => start
    failed-over same * *            *                *         retry-failed *        spent  *  *  => refuse BUDGET_EXHAUSTED
    expired|done-over|cancelled-over same * * *  *            retry-failed *          *      *  *  => refuse KEY_EXPIRED
    expired|done-over|failed-over|cancelled-over same * * *  *        rerun      *          *      *  *  => start
    expired|done-over|failed-over|cancelled-over same * * *  *        refuse     *          *      *  *  => refuse KEY_EXPIRED
    expired|done-over|failed-over|cancelled-over same * * *  given    auto       *          *      *  *  => refuse KEY_EXPIRED
    expired|done-over|failed-over|cancelled-over same * * *  derived  auto       *          *      *  explicit  => refuse KEY_EXPIRED
    expired|done-over|failed-over|cancelled-over same * * *  derived  auto       *          *      *  default|host  => start

    running   same   unsent       *                *         *        *          *          *      *  *  => write the doubt down
    running   same   gone|silent  *                *         *        *          *          *      late  *  => write the doubt down
    running   same   gone|silent  read|idempotent  *         *        *          *          left   none  *  => start
    running   same   gone|silent  keyed            open      *        *          *          left   none  *  => start
    running   same   *            *                *         *        *          *          *      none  *  => write the doubt down
    in_doubt  same   alive        *                *         *        *          *          *      *  *  => wait
    in_doubt  same   *            read|idempotent  *         *        *          *          left   *  *  => start
    in_doubt  same   *            keyed            open      *        *          *          left   *  *  => start
    in_doubt  same   *            probed           *         *        *          *          *      *  *  => probe
    in_doubt  same   *            *                *         *        *          *          *      *  *  => refuse IN_DOUBT
";

#[test]
fn what_a_call_gets() {
    let mut table = Table::read(BEGIN);
    let mut count = 0;
    let lists: [&[&str]; 11] = [
        FOUND,
        &["same", "other"],
        OWNERS,
        CLASSES,
        &["open", "over", "none"],
        &["given", "derived"],
        &["auto", "refuse", "rerun", "retry-failed"],
        &["retry", "replay"],
        &["left", "spent"],
        &["none", "late"],
        &["default", "explicit", "host"],
    ];
    // A late answer is only kept while the next attempt is running.
    for words in combinations(lists).into_iter().filter(|words| words[9] == "none" || words[0] == "running") {
        let (record, intent) = case(words);
        let decision = begin(Some(&record), &intent, liveness(words[2]), NOW_MS);
        if let Decision::Start { attempt } = decision {
            assert_eq!(attempt, 5, "the attempt after four, for {words:?}");
        }
        assert_eq!(in_words(&decision), table.look_up(&words), "{words:?}");
        count += 1;
    }
    table.assert_all_rows_fitted();
    assert_eq!(count, 158_400, "combinations");
}

#[test]
fn nothing_found_is_attempt_one() {
    for (class, liveness) in
        Class::ALL.into_iter().zip([Liveness::Alive, Liveness::Gone, Liveness::Unknown].into_iter().cycle())
    {
        let mut intent = intent(KeyOrigin::Derived);
        intent.terms.class = class;
        assert_eq!(begin(None, &intent, liveness, NOW_MS), Decision::Start { attempt: 1 });
    }
}

#[test]
fn a_reused_key_names_the_fields_that_differ_and_no_values() {
    let (record, other) =
        case(["done", "other", "gone", "once", "none", "given", "auto", "retry", "left", "none", "default"]);
    let Decision::Refuse(Refusal::KeyReused(fields)) = begin(Some(&record), &other, Liveness::Gone, NOW_MS)
    else {
        panic!("it is not refused");
    };
    assert_eq!(fields, ["/amount", "/note"]);
}

const AFTER_PROBE_NO: &str = "
    found     quarantine  budget  => decision
    in_doubt  lasts       *       => refuse IN_DOUBT
    in_doubt  none|over   left    => start
    in_doubt  none|over   spent   => refuse IN_DOUBT
    running   lasts       *       => write the doubt down
    running   none|over   left    => start
    running   none|over   spent   => write the doubt down
";

#[test]
fn what_a_call_gets_after_a_probe_says_no() {
    let mut table = Table::read(AFTER_PROBE_NO);
    for [found, quarantine, budget] in
        combinations([&["in_doubt", "running"], &["none", "lasts", "over"], &["left", "spent"]])
    {
        let mut intent = intent(KeyOrigin::Given);
        intent.terms.max_attempts = if budget == "left" { 3 } else { 2 };
        let mut record = found_record(found, "gone", &intent);
        record.detail.quarantine_until_ms = match quarantine {
            "lasts" => Some(NOW_MS + 1),
            "over" => Some(NOW_MS),
            _ => None,
        };
        let decision = after_probe_no(&record, &intent, NOW_MS);
        assert_eq!(
            in_words(&decision),
            table.look_up(&[found, quarantine, budget]),
            "{found} {quarantine} {budget}"
        );
    }
    table.assert_all_rows_fitted();
}

/// The main promise, over every combination: unless someone settles the doubt, there is no second attempt while an
/// earlier one may have taken effect.
#[test]
fn what_may_have_happened_once_is_never_started_again() {
    for [found, owner, budget, key, on_expired, on_failure, scope] in combinations([
        &["running", "in_doubt"],
        OWNERS,
        &["left", "spent"],
        &["given", "derived"],
        &["auto", "refuse", "rerun", "retry-failed"],
        &["retry", "replay"],
        &["default", "explicit", "host"],
    ]) {
        let (record, intent) =
            case([found, "same", owner, "once", "open", key, on_expired, on_failure, budget, "none", scope]);
        let decision = begin(Some(&record), &intent, liveness(owner), NOW_MS);
        assert!(
            !matches!(decision, Decision::Start { .. } | Decision::Probe),
            "{found} {owner}: {decision:?}"
        );
        // A clock that is wrong by any amount can make a caller wait or be refused, never run.
        for now_ms in [0, NOW_MS * 2, i64::MAX] {
            let decision = begin(Some(&record), &intent, liveness(owner), now_ms);
            assert!(!matches!(decision, Decision::Start { .. }), "{found} {owner} at {now_ms}: {decision:?}");
        }
    }
}

const CODES: &str = "
    code                => exit http
    INVALID_INPUT       => 2    400
    KEY_MISSING         => 2    400
    NOT_FOUND           => 5    404
    WRONG_STATE         => 6    422
    IN_PROGRESS         => 4    409
    KEY_EXPIRED         => 4    410
    CANCELLED           => 4    410
    STOPPED             => 4    410
    UNDONE              => 4    410
    HELD                => 4    202
    BUDGET_EXHAUSTED    => 4    424
    KEY_REUSED          => 6    422
    FAILED              => 1    502
    TIMEOUT             => 10   424
    IN_DOUBT            => 79   424
    UNVERIFIED          => 79   424
    RESULT_UNAVAILABLE  => 4    410
    LEDGER_UNAVAILABLE  => 12   503
    LEDGER_REPLACED     => 12   503
";

#[test]
fn the_exit_code_and_the_http_status_of_every_code() {
    let mut table = Table::read(CODES);
    let mut names = HashSet::new();
    for code in Code::ALL {
        let name = code.to_string();
        assert_eq!(format!("{} {}", code.exit(), code.http()), table.look_up(&[&name]), "{name}");
        assert!(names.insert(name));
    }
    table.assert_all_rows_fitted();
}

/// The record and the intent of a combination of [`BEGIN`].
fn case(words: [&'static str; 11]) -> (Record, Intent) {
    let [found, inputs, owner, class, window, key, on_expired, on_failure, budget, late, scope] = words;
    let mut intent = intent(if key == "given" { KeyOrigin::Given } else { KeyOrigin::Derived });
    let mut record = found_record(found, owner, &intent);
    if inputs == "other" {
        let (other, fields) = OTHER.get_or_init(other_inputs);
        record.detail.fields = Arc::clone(fields);
        let origin = intent.key.origin;
        intent = other.clone();
        intent.key.origin = origin;
    }
    intent.terms.class = class.parse().expect("a class");
    intent.terms.on_expired = match on_expired {
        "auto" => OnExpired::Auto,
        "refuse" => OnExpired::Refuse,
        "retry-failed" => OnExpired::RetryFailed,
        _ => OnExpired::Rerun,
    };
    intent.terms.on_failure = if on_failure == "retry" { OnFailure::Retry } else { OnFailure::Replay };
    intent.scope_origin = match scope {
        "explicit" => ScopeOrigin::Explicit,
        "host" => ScopeOrigin::Host,
        _ => ScopeOrigin::Default,
    };
    // Four attempts were made, two of them in the previous occurrence.
    intent.terms.max_attempts = if budget == "left" { 3 } else { 2 };
    record.detail.downstream = match window {
        "open" => Some(NOW_MS + 1),
        "over" => Some(NOW_MS),
        _ => None,
    }
    .map(|safe_until_ms| Downstream { key: "downstream".to_owned(), safe_until_ms });
    record.detail.late = (late == "late").then(|| Outcome::because(None));
    (record, intent)
}

/// The intent with other inputs, and the digests of the fields that are on record. Made once: hashes take time.
static OTHER: OnceLock<(Intent, Arc<BTreeMap<String, String>>)> = OnceLock::new();

fn other_inputs() -> (Intent, Arc<BTreeMap<String, String>>) {
    let other = onceward::Operation::new("pay").key("order-17");
    let other = other.input(serde_json::json!({"customer": "c1", "amount": 200, "note": "secret"}));
    let other = other.intent().expect("a valid operation");
    let first = onceward::Json::from(serde_json::json!({"customer": "c1", "amount": 100}));
    let fields = onceward::field_digests(&other.id, &first, None);
    (other, Arc::new(fields))
}

fn found_record(found: &str, owner: &str, intent: &Intent) -> Record {
    let (state, over) = match found.strip_suffix("-over") {
        Some(state) => (state, true),
        None => (found, false),
    };
    let mut record = record(state.parse().expect("a state"), intent);
    if over {
        record.due_ms = Some(NOW_MS);
    }
    if owner == "silent" {
        record.detail.owner.as_mut().expect("an owner").lease_until_ms = NOW_MS;
    }
    record
}

fn liveness(owner: &str) -> Liveness {
    match owner {
        "alive" => Liveness::Alive,
        "gone" => Liveness::Gone,
        "unsent" => Liveness::NeverDispatched,
        _ => Liveness::Unknown,
    }
}

fn in_words(decision: &Decision) -> &'static str {
    match decision {
        Decision::Start { .. } => "start",
        Decision::Hold => "hold",
        Decision::Held => "say that it is held",
        Decision::Replay => "replay",
        Decision::ReplayFailure => "replay the failure",
        Decision::Wait => "wait",
        Decision::Probe => "probe",
        Decision::Doubt => "write the doubt down",
        Decision::Refuse(Refusal::KeyReused(_)) => "refuse KEY_REUSED",
        Decision::Refuse(Refusal::KeyExpired) => "refuse KEY_EXPIRED",
        Decision::Refuse(Refusal::Cancelled) => "refuse CANCELLED",
        Decision::Refuse(Refusal::Undone) => "refuse UNDONE",
        Decision::Refuse(Refusal::Stopped(_)) => "refuse STOPPED",
        Decision::Refuse(Refusal::BudgetExhausted) => "refuse BUDGET_EXHAUSTED",
        Decision::Refuse(Refusal::InDoubt) => "refuse IN_DOUBT",
    }
}

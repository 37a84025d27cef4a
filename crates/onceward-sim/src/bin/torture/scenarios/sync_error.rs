//! Each sync reports an error in turn, and then all syncs from each one on.

use crate::Trouble;
use crate::bench::{Bench, Case};
use crate::call::Call;
use crate::judge::{self, state_of};
use crate::report::{Rule, Tally};
use crate::scenarios::in_parallel;
use crate::trace::{Follow, Log, strace};

const KEY: &str = "synced";
/// No run makes more syncs than this.
const MOST: u64 = 60;
const THREADS: usize = 4;

/// Which syncs fail.
struct Failing {
    words: String,
    when: String,
    /// Whether the ledger exists already.
    warm: bool,
}

pub(super) fn run(bench: &Bench, tally: &Tally) -> Result<(), Trouble> {
    let warm = bench.case()?;
    Call::new("other").run(bench, &warm)?;
    let cold = bench.case()?;
    let mut jobs = Vec::new();
    for template in [&cold, &warm] {
        let is_warm = std::ptr::eq(template, &raw const warm);
        for sync in 1..=syncs(bench, template)? + 2 {
            let ledger = if is_warm { "warm" } else { "cold" };
            jobs.push(Failing {
                words: format!("{ledger}, sync {sync} fails"),
                when: sync.to_string(),
                warm: is_warm,
            });
            let words = format!("{ledger}, all syncs from {sync} on fail");
            jobs.push(Failing { words, when: format!("{sync}+"), warm: is_warm });
        }
    }
    in_parallel("sync-error", &jobs, THREADS, |job| {
        fail(bench, if job.warm { &warm } else { &cold }, job, tally)
    })
}

/// How many syncs a clean run makes.
fn syncs(bench: &Bench, template: &Case) -> Result<u64, Trouble> {
    let case = bench.copy(template)?;
    let log = case.folder.join("strace.log");
    Call::new(KEY).behind(strace(&log, Follow::All, None), bench, &case).output()?;
    let calls = Log::read(&log, Follow::All)?.calls();
    let syncs = ["fsync", "fdatasync"].iter().filter_map(|call| calls.get(*call)).sum::<u64>();
    if syncs == 0 || syncs > MOST { Err(format!("a clean run made {syncs} syncs").into()) } else { Ok(syncs) }
}

fn fail(bench: &Bench, template: &Case, failing: &Failing, tally: &Tally) -> Result<(), Trouble> {
    let case = bench.copy(template)?;
    let log = case.folder.join("strace.log");
    let inject = format!("fsync,fdatasync:error=EIO:when={}", failing.when);
    let output = Call::new(KEY).behind(strace(&log, Follow::All, Some(&inject)), bench, &case).output()?;
    let log = Log::read(&log, Follow::All)?;
    let what = &failing.words;
    let (seen, effects) = judge::judge(bench, &case, tally, what)?;
    let state = state_of(&seen, KEY);
    let count =
        seen.iter().find(|seen| seen.key == KEY).and_then(|seen| effects.get(&seen.id)).map_or(0, Vec::len);
    tally.case();
    tally.faults(u64::from(log.injected()));
    let code = output.status.code();
    tally.ended(&format!("exit {}, {state}", code.unwrap_or(-1)));
    match code {
        Some(0) if state != "done" => tally.violated(Rule::FalseDone, format!("{what}: exit 0 and {state}")),
        Some(12) if count > 0 => tally.violated(Rule::NoIntent, format!("{what}: exit 12 after an effect")),
        Some(0 | 12) => {}
        // The outcome may be in the log without a sync; then it is found there, and it is true.
        Some(79) if count == 1 && ["in_doubt", "done"].contains(&state.as_str()) => {}
        Some(_) | None => tally.expect(false, || format!("{what}: exit {code:?}, {state}")),
    }
    // A failed sync is no sync, whatever the file looks like afterwards: nothing may run based on it.
    if failing.when == "1+" && count > 0 {
        tally.violated(
            Rule::NoIntent,
            format!("{what}: it ran although nothing was ever synced, exit {code:?}"),
        );
    }
    let retry = Call::new(KEY).run(bench, &case)?;
    let (seen, effects) = judge::judge(bench, &case, tally, &format!("{what}, then a retry"))?;
    tally.effects(effects.values().map(Vec::len).sum());
    let now = state_of(&seen, KEY);
    let expected = if state == "in_doubt" { (Some(79), "in_doubt") } else { (Some(0), "done") };
    tally.expect((retry.code, now.as_str()) == expected, || {
        format!("{what}: a retry gave {now}, {}", retry.words())
    });
    Ok(())
}

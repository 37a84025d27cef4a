//! Compares what the ledger says with what happened.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::Trouble;
use crate::bench::{Bench, Case};
use crate::call::Class;
use crate::downstream::{self, Effects};
use crate::process::PATIENCE;
use crate::report::{Rule, Tally};

/// An operation as `once ls --json` reports it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Seen {
    pub(crate) id: String,
    pub(crate) key: String,
    pub(crate) state: String,
    pub(crate) attempt: u32,
    class: String,
    double_effect: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Listing {
    data: Vec<Seen>,
}

#[derive(Deserialize)]
struct Health {
    data: Vec<Finding>,
}

#[derive(Deserialize)]
struct Finding {
    what: String,
    verdict: String,
    found: String,
}

/// All operations of the ledger. A ledger that does not exist yet has none.
pub(crate) fn look(bench: &Bench, case: &Case) -> Result<Vec<Seen>, Trouble> {
    if !case.ledger.exists() {
        return Ok(Vec::new());
    }
    let output = once(bench, case).args(["ls", "--json", "-n", "100000"]).output()?;
    if !output.status.success() {
        let answer = String::from_utf8_lossy(&output.stdout).into_owned();
        // A process that was killed while it created the ledger leaves a file without one.
        if output.status.code() == Some(2) && answer.contains("there is no ledger") {
            return Ok(Vec::new());
        }
        return Err(format!("`once ls` ended with {}: {answer}", output.status).into());
    }
    Ok(serde_json::from_slice::<Listing>(&output.stdout)?.data)
}

/// The same, after the remaining processes have ended. An operation that stays running is stuck.
pub(crate) fn look_when_quiet(bench: &Bench, case: &Case) -> Result<Vec<Seen>, Trouble> {
    let begun = Instant::now();
    loop {
        let seen = look(bench, case)?;
        if seen.iter().all(|seen| seen.state != "running") || begun.elapsed() > PATIENCE {
            return Ok(seen);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Checks everything in the ledger after all work has ended.
pub(crate) fn judge(
    bench: &Bench,
    case: &Case,
    tally: &Tally,
    what: &str,
) -> Result<(Vec<Seen>, Effects), Trouble> {
    let seen = match look_when_quiet(bench, case) {
        Ok(seen) => seen,
        Err(trouble) => {
            tally.violated(Rule::Damaged, format!("{what}: {trouble}"));
            Vec::new()
        }
    };
    let effects = downstream::count(&case.effects)?;
    for seen in &seen {
        judge_one(seen, effects.get(&seen.id).map_or(&[], Vec::as_slice), tally, what);
    }
    for id in effects.keys().filter(|id| !seen.iter().any(|seen| seen.id == **id)) {
        tally.violated(Rule::NoIntent, format!("{what}: {id} had an effect and the ledger does not know it"));
    }
    if case.ledger.exists() {
        judge_health(bench, case, tally, what)?;
    }
    Ok((seen, effects))
}

fn judge_one(seen: &Seen, effects: &[u32], tally: &Tally, what: &str) {
    let told = format!(
        "{what}: {} ({}) is {} with effects of attempts {effects:?}",
        seen.id, seen.class, seen.state
    );
    let mut attempts = effects.to_vec();
    attempts.sort_unstable();
    attempts.dedup();
    let repeated = match Class::parse(&seen.class) {
        Some(Class::Idempotent) => attempts.len() < effects.len(),
        Some(Class::Once | Class::Probed) | None => effects.len() > 1 || seen.double_effect.is_some(),
    };
    if repeated {
        tally.violated(Rule::Duplicate, told.clone());
    }
    match seen.state.as_str() {
        "done" if effects.is_empty() => tally.violated(Rule::FalseDone, told),
        "failed" if !effects.is_empty() => tally.violated(Rule::FalseFailed, told),
        "running" => tally.violated(Rule::Stuck, told),
        _ => {}
    }
}

/// Checks that the file opens and is intact.
fn judge_health(bench: &Bench, case: &Case, tally: &Tally, what: &str) -> Result<(), Trouble> {
    let output = once(bench, case).args(["doctor", "--json"]).output()?;
    match serde_json::from_slice::<Health>(&output.stdout) {
        Ok(health) => {
            for bad in health.data.iter().filter(|finding| finding.verdict == "bad") {
                tally.violated(Rule::Damaged, format!("{what}: {}: {}", bad.what, bad.found));
            }
        }
        Err(error) => tally.violated(Rule::Damaged, format!("{what}: `once doctor` cannot be read: {error}")),
    }
    Ok(())
}

/// `once` on the ledger of this case.
pub(crate) fn once(bench: &Bench, case: &Case) -> Command {
    let mut command = Command::new(&bench.once);
    command.args(["--ledger", &case.url()]).current_dir(&case.folder);
    command.env_remove("ONCE_CONFIG").env("XDG_CONFIG_HOME", &case.folder);
    command
}

/// The state of the only operation with this key, or `absent`.
pub(crate) fn state_of(seen: &[Seen], key: &str) -> String {
    seen.iter().find(|seen| seen.key == key).map_or_else(|| "absent".to_owned(), |seen| seen.state.clone())
}

/// A policy file with these lines for all operations.
pub(crate) fn policy(case: &Case, lines: &str) -> Result<PathBuf, Trouble> {
    let file = case.folder.join("policy.toml");
    std::fs::write(&file, format!("[defaults]\n{lines}\n"))?;
    Ok(file)
}

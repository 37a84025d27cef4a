//! `once doctor`: is everything as it should be?

use std::os::unix::fs::PermissionsExt;
use std::process::ExitCode;
use std::sync::Arc;

use onceward::{Filter, State};
use onceward_store::sqlite::{Health, SCHEMA_VERSION};
use onceward_store::{SqliteStore, Sync};
use serde::Serialize;

use crate::answer::{self, GREEN, RED, YELLOW, styled};
use crate::cli::Global;
use crate::context::{Context, Missing};
use crate::exit::{CommandError, Ended};

/// A clock that is further off than this is worth a word.
const DRIFT_MS: i64 = 60_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Good,
    Look,
    Bad,
}

#[derive(Serialize)]
struct Finding {
    what: &'static str,
    verdict: Verdict,
    found: String,
}

pub(super) fn run(global: Global) -> Ended {
    let json = global.json;
    let mut findings = Vec::new();
    let mut find = |what, verdict, found: String| findings.push(Finding { what, verdict, found });
    match Context::new(global) {
        Err(error) => find("policy", Verdict::Bad, error.to_string()),
        Ok(context) => {
            let file = context.policy_file.as_ref().map(|file| file.display().to_string());
            find("policy", Verdict::Good, file.unwrap_or_else(|| "the built-in default".to_owned()));
            match context.store(Missing::Refuse) {
                Err(error) if error.exit() == 2 => find("ledger", Verdict::Look, error.to_string()),
                Err(error) => find("ledger", Verdict::Bad, error.to_string()),
                Ok(store) => findings.extend(look_over(&store)),
            }
        }
    }
    let text = || {
        let line = |finding: &Finding| {
            let mark = match finding.verdict {
                Verdict::Good => styled(GREEN, "ok  "),
                Verdict::Look => styled(YELLOW, "look"),
                Verdict::Bad => styled(RED.bold(), "BAD "),
            };
            format!("{mark} {:<12} {}", finding.what, finding.found)
        };
        findings.iter().map(line).collect::<Vec<_>>().join("\n")
    };
    let bad: Vec<&str> =
        findings.iter().filter(|found| found.verdict == Verdict::Bad).map(|found| found.what).collect();
    if bad.is_empty() {
        answer::success(json, "noop", &findings, text);
        return Ok(ExitCode::SUCCESS);
    }
    answer::unsound(json, format!("not as it should be: {}", bad.join(", ")), &findings, text);
    Ok(ExitCode::FAILURE)
}

impl Finding {
    fn new(what: &'static str, verdict: Verdict, found: impl Into<String>) -> Self {
        Self { what, verdict, found: found.into() }
    }

    /// Good where it is as it should be, else `otherwise`.
    fn judged(what: &'static str, good: bool, otherwise: Verdict, found: impl Into<String>) -> Self {
        Self::new(what, if good { Verdict::Good } else { otherwise }, found)
    }
}

fn look_over(store: &Arc<SqliteStore>) -> Vec<Finding> {
    let mut findings = vec![Finding::new("ledger", Verdict::Good, store.path().display().to_string())];
    let mode = std::fs::metadata(store.path()).map_or(0, |meta| meta.permissions().mode() & 0o777);
    let found = format!("{mode:04o} (0600: nobody else reads the results)");
    findings.push(Finding::judged("file mode", mode == 0o600, Verdict::Look, found));
    match store.health() {
        Err(error) => findings.push(Finding::new("health", Verdict::Bad, error.to_string())),
        Ok(health) => findings.extend(judge(&health)),
    }
    findings.push(match locks_hold(store) {
        Ok(()) => Finding::new("locks", Verdict::Good, "the kernel tells who lives"),
        Err(error) => Finding::new("locks", Verdict::Bad, error.to_string()),
    });
    let ledger = onceward::Ledger::new(store.clone()).blocking();
    let doubtful = Filter { states: vec![State::InDoubt], limit: 1_000, ..Filter::default() };
    findings.push(match ledger.wait_for(ledger.ledger().list(&doubtful)) {
        Ok(listed) => {
            let found = format!("{} operations; `once ls --state in_doubt`", listed.len());
            Finding::judged("in doubt", listed.is_empty(), Verdict::Look, found)
        }
        Err(error) => Finding::new("in doubt", Verdict::Bad, error.to_string()),
    });
    findings
}

fn judge(health: &Health) -> [Finding; 6] {
    let Health { schema_version, journal_mode, sync, integrity, clock_drift_ms, .. } = health;
    let current = *schema_version == SCHEMA_VERSION;
    let near = clock_drift_ms.abs() < DRIFT_MS;
    let durable = format!("{sync} (full: a power cut loses nothing)");
    let clock = format!("the machine's is {clock_drift_ms} ms off the ledger's");
    [
        Finding::new("sqlite", Verdict::Good, health.sqlite_version),
        Finding::judged("schema", current, Verdict::Bad, format!("version {schema_version}")),
        Finding::judged("journal", journal_mode == "wal", Verdict::Bad, format!("{journal_mode} (wal)")),
        Finding::judged("sync", *sync == Sync::Full, Verdict::Look, durable),
        Finding::judged("integrity", integrity == "ok", Verdict::Bad, integrity.as_str()),
        Finding::judged("clock", near, Verdict::Look, clock),
    ]
}

/// Takes a lock and looks at it from outside, as another process would.
fn locks_hold(store: &Arc<SqliteStore>) -> Result<(), CommandError> {
    use onceward::{Inherit, Liveness, Owner, Store};
    let ledger = onceward::Ledger::new(store.clone()).blocking();
    let hold = store.hold(Inherit::Children)?;
    let owner = Owner { token: hold.token(), lease_until_ms: 0 };
    let alive = ledger.wait_for(store.liveness(&owner))?;
    drop(hold);
    let gone = ledger.wait_for(store.liveness(&owner))?;
    if (alive, gone) == (Liveness::Alive, Liveness::Gone) {
        return Ok(());
    }
    Err(CommandError::Outside(
        "this file system does not keep locks; put the ledger on a local one".to_owned(),
    ))
}

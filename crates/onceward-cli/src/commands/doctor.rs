//! `once doctor`: is everything as it should be?

use std::os::unix::fs::PermissionsExt;
use std::process::ExitCode;

use onceward::{Filter, State};
use onceward_store::{Sync, sqlite::SCHEMA_VERSION};
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
            let file = context
                .policy_file
                .as_ref()
                .map(|file| file.display().to_string());
            find(
                "policy",
                Verdict::Good,
                file.unwrap_or_else(|| "the built-in default".to_owned()),
            );
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
    let bad: Vec<&str> = findings
        .iter()
        .filter(|found| found.verdict == Verdict::Bad)
        .map(|found| found.what)
        .collect();
    if bad.is_empty() {
        answer::success(json, "noop", &findings, text);
        return Ok(ExitCode::SUCCESS);
    }
    answer::unsound(
        json,
        format!("not as it should be: {}", bad.join(", ")),
        &findings,
        text,
    );
    Ok(ExitCode::FAILURE)
}

fn look_over(store: &std::sync::Arc<onceward_store::SqliteStore>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find = |what, good: bool, otherwise: Verdict, found: String| {
        findings.push(Finding {
            what,
            verdict: if good { Verdict::Good } else { otherwise },
            found,
        });
    };
    find("ledger", true, Verdict::Good, store.path().display().to_string());
    let mode = std::fs::metadata(store.path()).map_or(0, |meta| meta.permissions().mode() & 0o777);
    find(
        "file mode",
        mode == 0o600,
        Verdict::Look,
        format!("{mode:04o} (0600: nobody else reads the results)"),
    );
    match store.health() {
        Err(error) => find("health", false, Verdict::Bad, error.to_string()),
        Ok(health) => {
            find("sqlite", true, Verdict::Good, health.sqlite_version.to_owned());
            let schema = health.schema_version;
            find(
                "schema",
                schema == SCHEMA_VERSION,
                Verdict::Bad,
                format!("version {schema}"),
            );
            let wal = health.journal_mode == "wal";
            find(
                "journal",
                wal,
                Verdict::Bad,
                format!("{} (wal)", health.journal_mode),
            );
            let full = health.sync == Sync::Full;
            find(
                "sync",
                full,
                Verdict::Look,
                format!("{} (full: a power cut loses nothing)", health.sync),
            );
            find(
                "integrity",
                health.integrity == "ok",
                Verdict::Bad,
                health.integrity,
            );
            let drift = health.clock_drift_ms;
            let near = drift.abs() < DRIFT_MS;
            find(
                "clock",
                near,
                Verdict::Look,
                format!("the machine's is {drift} ms off the ledger's"),
            );
        }
    }
    match locks_hold(store) {
        Ok(()) => find(
            "locks",
            true,
            Verdict::Good,
            "the kernel tells who lives".to_owned(),
        ),
        Err(error) => find("locks", false, Verdict::Bad, error.to_string()),
    }
    let ledger = onceward::Ledger::new(store.clone()).blocking();
    let doubtful = Filter {
        states: vec![State::InDoubt],
        limit: 1_000,
        ..Filter::default()
    };
    match ledger.wait_for(ledger.ledger().list(&doubtful)) {
        Ok(listed) => {
            let found = format!("{} operations; `once ls --state in_doubt`", listed.len());
            find("in doubt", listed.is_empty(), Verdict::Look, found);
        }
        Err(error) => find("in doubt", false, Verdict::Bad, error.to_string()),
    }
    findings
}

/// Takes a lock and looks at it from outside, as another process would.
fn locks_hold(store: &std::sync::Arc<onceward_store::SqliteStore>) -> Result<(), CommandError> {
    use onceward::{Inherit, Liveness, Owner, Store};
    let ledger = onceward::Ledger::new(store.clone()).blocking();
    let hold = store.hold(Inherit::Children)?;
    let owner = Owner {
        token: hold.token(),
        lease_until_ms: 0,
    };
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

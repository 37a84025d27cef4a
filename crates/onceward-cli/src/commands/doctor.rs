//! `once doctor`: is everything as it should be?

use std::process::ExitCode;
use std::sync::Arc;

use onceward::{Filter, State};
use onceward_store::{Backend, Finding, Verdict};
use serde::Serialize;

use crate::answer::{self, GREEN, RED, YELLOW, styled};
use crate::cli::Global;
use crate::context::{Context, Missing};
use crate::exit::Ended;

/// A finding as it is answered.
#[derive(Serialize)]
struct Found<'a> {
    what: &'static str,
    verdict: &'static str,
    found: &'a str,
}

impl<'a> From<&'a Finding> for Found<'a> {
    fn from(finding: &'a Finding) -> Self {
        let verdict = match finding.verdict {
            Verdict::Good => "good",
            Verdict::Look => "look",
            Verdict::Bad => "bad",
        };
        Self { what: finding.what, verdict, found: &finding.found }
    }
}

pub(super) fn run(global: Global) -> Ended {
    let json = global.json;
    let mut findings = Vec::new();
    let mut find = |what, verdict, found| findings.push(Finding { what, verdict, found });
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
    let shown: Vec<Found<'_>> = findings.iter().map(Found::from).collect();
    if bad.is_empty() {
        answer::success(json, "noop", &shown, text);
        return Ok(ExitCode::SUCCESS);
    }
    answer::unsound(json, format!("not as it should be: {}", bad.join(", ")), &shown, text);
    Ok(ExitCode::FAILURE)
}

/// What the ledger says about itself, and whether something waits to be settled.
fn look_over(store: &Arc<dyn Backend>) -> Vec<Finding> {
    let mut findings = store.health().unwrap_or_else(|error| {
        vec![Finding { what: "health", verdict: Verdict::Bad, found: error.to_string() }]
    });
    let ledger = onceward::Ledger::new(store.clone()).blocking();
    let doubtful = Filter { states: vec![State::InDoubt], limit: 1_000, ..Filter::default() };
    let (verdict, found) = match ledger.wait_for(ledger.ledger().list(&doubtful)) {
        Ok(listed) => {
            let verdict = if listed.is_empty() { Verdict::Good } else { Verdict::Look };
            (verdict, format!("{} operations; `once ls --state in_doubt`", listed.len()))
        }
        Err(error) => (Verdict::Bad, error.to_string()),
    };
    findings.push(Finding { what: "in doubt", verdict, found });
    findings
}

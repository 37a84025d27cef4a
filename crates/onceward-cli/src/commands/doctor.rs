//! `once doctor`: checks the installation and the ledger.

use std::process::ExitCode;
use std::sync::Arc;

use onceward::{Code, Filter, State};
use onceward_store::{Backend, Finding, Verdict};
use serde::Serialize;

use crate::answer;
use crate::cli::Global;
use crate::context::{Context, IfMissing};
use crate::exit::Ended;
use crate::style::{GREEN, RED, YELLOW, styled};

/// A finding in an answer.
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
    let mut exit = Code::Failed;
    let mut find = |what, verdict, found| findings.push(Finding { what, verdict, found });
    match Context::new(global, onceward::Audience::Person) {
        Err(error) => find("policy", Verdict::Bad, error.to_string()),
        Ok(context) => {
            let file = context.policy_file.as_ref().map(|file| file.display().to_string());
            find("policy", Verdict::Good, file.unwrap_or_else(|| "the built-in default".to_owned()));
            let is_understood = context.check_ledger_url().is_ok();
            match context.store(IfMissing::Fail) {
                Err(error) if !is_understood => {
                    exit = Code::InvalidInput;
                    find("ledger", Verdict::Bad, error.to_string());
                }
                Err(error) if error.exit() == 2 => find("ledger", Verdict::Look, error.to_string()),
                Err(error) => find("ledger", Verdict::Bad, error.to_string()),
                Ok(store) => findings.extend(look_over(&store, &context.program())),
            }
        }
    }
    for finding in &mut findings {
        finding.found = onceward::text::masked_in(&finding.found).into_owned();
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
    answer::unsound(json, format!("problems found: {}", bad.join(", ")), &shown, text);
    Ok(ExitCode::from(exit.exit()))
}

/// The back end's own findings, and whether operations are in doubt.
fn look_over(store: &Arc<dyn Backend>, program: &str) -> Vec<Finding> {
    let mut findings = store.health().unwrap_or_else(|error| {
        vec![Finding { what: "health", verdict: Verdict::Bad, found: error.to_string() }]
    });
    let ledger = onceward::Ledger::new(store.clone()).blocking();
    let doubtful = Filter { states: vec![State::InDoubt], limit: 1_000, ..Filter::default() };
    let (verdict, found) = match ledger.list(&doubtful) {
        Ok(listed) => {
            let verdict = if listed.is_empty() { Verdict::Good } else { Verdict::Look };
            (verdict, format!("{} operations; `{program} ls --state in_doubt`", listed.len()))
        }
        Err(error) => (Verdict::Bad, error.to_string()),
    };
    findings.push(Finding { what: "in doubt", verdict, found });
    findings
}

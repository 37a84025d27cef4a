//! Compares the final state of the ledger with the callers' answers and the downstream's counts.

use std::collections::BTreeMap;
use std::path::Path;

use onceward::{Code, Error, Ledger, State};

use super::{CallerAnswer, CallerReply, id_of, result_of};
use crate::Trouble;
use crate::downstream;
use crate::report::{Rule, Tally};

/// The results of the operations.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Figures {
    pub(crate) operations: u64,
    pub(crate) calls: u64,
    pub(crate) effects: u64,
    /// Operations that were acknowledged to a caller as done.
    pub(crate) acknowledged: u64,
    pub(crate) lost: u64,
    pub(crate) second_effects: u64,
    pub(crate) in_doubt: u64,
    pub(crate) failed: u64,
    /// Calls that got `LEDGER_UNAVAILABLE`.
    pub(crate) unavailable: u64,
}

impl Figures {
    pub(crate) fn add(&mut self, more: Self) {
        self.operations += more.operations;
        self.calls += more.calls;
        self.effects += more.effects;
        self.acknowledged += more.acknowledged;
        self.lost += more.lost;
        self.second_effects += more.second_effects;
        self.in_doubt += more.in_doubt;
        self.failed += more.failed;
        self.unavailable += more.unavailable;
    }

    /// The header of a table of these figures.
    pub(crate) fn head() -> String {
        format!(
            "{:<24} {:>6} {:>7} {:>7} {:>6} {:>5} {:>7} {:>8} {:>11}",
            "", "ops", "calls", "effects", "acked", "lost", "second", "in doubt", "unavailable"
        )
    }

    /// A row of that table.
    pub(crate) fn row(&self, label: &str) -> String {
        format!(
            "{label:<24} {:>6} {:>7} {:>7} {:>6} {:>5} {:>7} {:>8} {:>11}",
            self.operations,
            self.calls,
            self.effects,
            self.acknowledged,
            self.lost,
            self.second_effects,
            self.in_doubt,
            self.unavailable
        )
    }
}

/// What the ledger knows about one operation.
struct Known {
    /// `None` if it knows nothing.
    state: Option<State>,
    result: String,
    alarm: bool,
}

/// The URL with a long time limit, for what must not fail because the machine is busy.
pub(crate) fn patient(url: &str) -> String {
    if url.starts_with("sqlite:") {
        return url.to_owned();
    }
    let (base, options) = url.split_once('?').unwrap_or((url, ""));
    let mut all = vec!["timeout=60s"];
    for option in options.split('&').filter(|option| !option.is_empty() && !option.starts_with("timeout=")) {
        all.push(if option.starts_with("wait_timeout=") { "wait_timeout=30s" } else { option });
    }
    format!("{base}?{}", all.join("&"))
}

/// Checks every operation after all calls have ended. `heard` is in the order of each caller.
pub(crate) fn judge(
    url: &str,
    effects: &Path,
    heard: &[CallerReply],
    what: &str,
    tally: &Tally,
) -> Result<Figures, Trouble> {
    let ledger = Ledger::new(onceward_store::open(&patient(url))?);
    let counted = downstream::lines(effects)?;
    let mut by_key: BTreeMap<&str, Vec<&CallerReply>> = BTreeMap::new();
    for one in heard {
        one.check(what, tally);
        by_key.entry(&one.key).or_default().push(one);
    }
    let mut figures = Figures { calls: heard.len() as u64, ..Figures::default() };
    figures.unavailable = heard.iter().filter(|one| one.is_unavailable()).count() as u64;
    for (key, heard) in by_key {
        let id = id_of(key)?;
        let known = look(&ledger, key)?;
        let lines = counted.get(id.as_str()).map_or(&[][..], Vec::as_slice);
        figures.operations += 1;
        figures.effects += lines.len() as u64;
        Case { key, heard: &heard, known: &known, lines, what, tally }.judge(&mut figures);
    }
    tally.cases(figures.operations);
    tally.effects(figures.effects as usize);
    Ok(figures)
}

fn look(ledger: &Ledger, key: &str) -> Result<Known, Trouble> {
    match ledger.blocking().wait_for(ledger.find(&id_of(key)?)) {
        Ok((record, state)) => {
            let data = record.outcome.as_ref().and_then(|outcome| outcome.data.as_ref());
            let result = result_of(data.map(|data| data.get()));
            Ok(Known { state: Some(state), result, alarm: record.detail.double_effect.is_some() })
        }
        Err(Error::NotFound { .. }) => Ok(Known { state: None, result: String::new(), alarm: false }),
        Err(error) => Err(error.into()),
    }
}

/// One operation, and everything known about it.
struct Case<'a> {
    key: &'a str,
    heard: &'a [&'a CallerReply],
    known: &'a Known,
    lines: &'a [String],
    what: &'a str,
    tally: &'a Tally,
}

impl Case<'_> {
    fn judge(&self, figures: &mut Figures) {
        self.tally.ended(self.state());
        self.judge_acknowledgements(figures);
        if self.lines.len() > 1 || self.known.alarm {
            figures.second_effects += 1;
            self.violated(Rule::Duplicate, "");
        }
        match self.known.state {
            Some(State::Done) if !self.lines.contains(&self.known.result) => {
                self.violated(Rule::FalseDone, &format!("with the result {:?}", self.known.result));
            }
            Some(State::Failed) => {
                figures.failed += 1;
                if !self.lines.is_empty() {
                    self.violated(Rule::FalseFailed, "");
                }
            }
            Some(State::InDoubt) => figures.in_doubt += 1,
            Some(State::Running | State::Staged) => self.violated(Rule::Stuck, ""),
            None if !self.lines.is_empty() => self.violated(Rule::NoIntent, ""),
            Some(State::Done | State::Cancelled | State::Expired) | None => {}
        }
        self.judge_last_words();
    }

    /// An acknowledged result must stay, unchanged.
    fn judge_acknowledgements(&self, figures: &mut Figures) {
        let told = self.heard.iter().filter_map(|heard| match &heard.answer {
            CallerAnswer::Done(result) => Some(result),
            CallerAnswer::Refused { .. } => None,
        });
        let told: Vec<&String> = told.collect();
        figures.acknowledged += u64::from(!told.is_empty());
        let kept = |result: &String| self.known.state == Some(State::Done) && *result == self.known.result;
        if let Some(result) = told.into_iter().find(|result| !kept(result)) {
            figures.lost += 1;
            self.violated(Rule::Lost, &format!("though {result:?} was acknowledged"));
        }
    }

    /// The last answer to each caller must match the final state.
    fn judge_last_words(&self) {
        let Some(last) = self.heard.last() else { return };
        let fits = match (&last.answer, self.known.state) {
            (CallerAnswer::Done(_), state) => state == Some(State::Done),
            (CallerAnswer::Refused { code: Code::InDoubt, .. }, state) => state == Some(State::InDoubt),
            (CallerAnswer::Refused { .. }, _) => false,
        };
        if !fits {
            self.violated(Rule::Unexpected, &format!("and the last answer was {:?}", last.answer));
        }
    }

    fn state(&self) -> &'static str {
        self.known.state.map_or("absent", State::as_str)
    }

    fn violated(&self, rule: Rule, more: &str) {
        let (what, key, state, lines) = (self.what, self.key, self.state(), self.lines);
        self.tally.violated(rule, format!("{what}: {key} is {state} with effects {lines:?} {more}"));
    }
}

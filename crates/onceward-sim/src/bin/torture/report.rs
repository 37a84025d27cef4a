//! The figures: what was done to the ledger, the results, and the violations.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

/// How many violations of a scenario are printed in full.
const TOLD: usize = 20;

/// What must never happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Rule {
    Duplicate,
    FalseDone,
    FalseFailed,
    NeedlessDoubt,
    Stuck,
    NoIntent,
    Lost,
    Damaged,
    Forged,
    Unexpected,
}

impl Rule {
    const ALL: [(Self, &'static str); 10] = [
        (Self::Duplicate, "an effect happened twice"),
        (Self::FalseDone, "reported as done, but it did not happen"),
        (Self::FalseFailed, "reported as failed, but it happened"),
        (Self::NeedlessDoubt, "in doubt, though nothing was dispatched"),
        (Self::Stuck, "reported as running, though its owner is dead"),
        (Self::NoIntent, "an effect without an intent on disk"),
        (Self::Lost, "acknowledged, and then gone"),
        (Self::Damaged, "the ledger did not open, or is damaged"),
        (Self::Forged, "a forged request was accepted"),
        (Self::Unexpected, "an answer that violates the contract"),
    ];
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Violation {
    rule: Rule,
    what: String,
}

/// The counts of a scenario, from all its threads.
#[derive(Default)]
pub(crate) struct Tally {
    inner: Mutex<Counted>,
}

#[derive(Debug, Default, Clone, Serialize)]
pub(crate) struct Counted {
    /// Ledgers or operations that were checked.
    pub(crate) cases: u64,
    /// Kills, suspensions, errors and cuts that really happened.
    pub(crate) faults: u64,
    /// Lines in the downstream's file.
    pub(crate) effects: u64,
    /// The final states of the operations.
    pub(crate) ended: BTreeMap<String, u64>,
    /// Figures that only this scenario has.
    pub(crate) figures: BTreeMap<String, u64>,
    pub(crate) notes: Vec<String>,
    pub(crate) violations: Vec<Violation>,
}

/// The report of a finished scenario.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) scenario: &'static str,
    pub(crate) seconds: f64,
    #[serde(flatten)]
    pub(crate) counted: Counted,
}

#[derive(Serialize)]
struct Document<'a> {
    ok: bool,
    seed: u64,
    scenarios: &'a [Report],
}

impl Tally {
    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn case(&self) {
        self.counted().cases += 1;
    }

    pub(crate) fn cases(&self, more: u64) {
        self.counted().cases += more;
    }

    pub(crate) fn faults(&self, more: u64) {
        self.counted().faults += more;
    }

    /// The counts so far.
    pub(crate) fn cases_and_faults(&self) -> (u64, u64) {
        let counted = self.counted();
        (counted.cases, counted.faults)
    }

    pub(crate) fn effects(&self, more: usize) {
        self.counted().effects += more as u64;
    }

    /// Counts an operation that ended in this state.
    pub(crate) fn ended(&self, state: &str) {
        *self.counted().ended.entry(state.to_owned()).or_default() += 1;
    }

    /// Adds to a figure of this scenario.
    pub(crate) fn figure(&self, name: &str, more: u64) {
        *self.counted().figures.entry(name.to_owned()).or_default() += more;
    }

    /// Keeps the largest value of a figure.
    pub(crate) fn most(&self, name: &str, value: u64) {
        let mut counted = self.counted();
        let figure = counted.figures.entry(name.to_owned()).or_default();
        *figure = value.max(*figure);
    }

    pub(crate) fn note(&self, note: impl Into<String>) {
        self.counted().notes.push(note.into());
    }

    pub(crate) fn violated(&self, rule: Rule, what: impl Into<String>) {
        self.counted().violations.push(Violation { rule, what: what.into() });
    }

    /// Records a violation unless `holds`.
    pub(crate) fn expect(&self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.violated(Rule::Unexpected, what());
        }
    }

    pub(crate) fn report(&self, scenario: &'static str, took: Duration) -> Report {
        Report { scenario, seconds: took.as_secs_f64(), counted: self.counted().clone() }
    }
}

/// The milliseconds since `begun`.
#[expect(clippy::expect_used, reason = "no run takes that long")]
pub(crate) fn elapsed_ms(begun: Instant) -> u64 {
    u64::try_from(begun.elapsed().as_millis()).expect("a run takes less than 500 million years")
}

/// Whether no rule was violated.
pub(crate) fn all_held(reports: &[Report]) -> bool {
    reports.iter().all(|report| report.counted.violations.is_empty())
}

/// Prints one JSON document.
pub(crate) fn print_json(reports: &[Report], seed: u64) -> std::io::Result<()> {
    let document = Document { ok: all_held(reports), seed, scenarios: reports };
    let text = serde_json::to_string(&document).map_err(std::io::Error::other)?;
    writeln!(std::io::stdout(), "{text}")
}

/// Prints the tables.
pub(crate) fn print_tables(reports: &[Report], seed: u64) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{:<15} {:>7} {:>7} {:>8} {:>8} {:>10} {:>8}",
        "scenario", "cases", "faults", "effects", "seconds", "violations", "verdict"
    )?;
    for Report { scenario, seconds, counted } in reports {
        let violations = counted.violations.len();
        let verdict = if violations == 0 { "held" } else { "VIOLATED" };
        let (cases, faults, effects) = (counted.cases, counted.faults, counted.effects);
        writeln!(
            out,
            "{scenario:<15} {cases:>7} {faults:>7} {effects:>8} {seconds:>8.1} {violations:>10} {verdict:>8}"
        )?;
    }
    writeln!(out, "\nwhat must never happen")?;
    for (rule, words) in Rule::ALL {
        let all = reports.iter().flat_map(|report| &report.counted.violations);
        writeln!(out, "{:>7}  {words}", all.filter(|violation| violation.rule == rule).count())?;
    }
    for Report { scenario, counted, .. } in reports {
        writeln!(out, "\n{scenario}")?;
        if !counted.ended.is_empty() {
            let ended: Vec<_> =
                counted.ended.iter().map(|(state, count)| format!("{count} {state}")).collect();
            writeln!(out, "  ended as: {}", ended.join(", "))?;
        }
        for (figure, value) in &counted.figures {
            writeln!(out, "  {figure}: {value}")?;
        }
        for note in &counted.notes {
            writeln!(out, "  {note}")?;
        }
        for Violation { rule, what } in counted.violations.iter().take(TOLD) {
            writeln!(out, "  VIOLATED {rule:?}: {what}")?;
        }
        let more = counted.violations.len().saturating_sub(TOLD);
        if more > 0 {
            writeln!(out, "  … and {more} more")?;
        }
    }
    writeln!(out, "\nseed {seed} (--seed {seed} repeats the choices; the machine schedules as it likes)")?;
    let held = reports.iter().filter(|report| report.counted.violations.is_empty()).count();
    let seconds: f64 = reports.iter().map(|report| report.seconds).sum();
    writeln!(out, "{held} of {} as expected in {seconds:.0} s of all scenarios", reports.len())
}

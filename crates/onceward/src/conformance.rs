//! The suite that every back end runs: what the ledger relies on, one small case each.
//!
//! ```
//! use std::sync::Arc;
//! use onceward::{MemoryStore, Store, conformance};
//! # use onceward::ManualClock;
//! # struct MyClock; impl MyClock { fn new() -> ManualClock { ManualClock::at(0) } }
//!
//! let make = || Arc::new(MemoryStore::new(MyClock::new())) as Arc<dyn Store>;
//! conformance::run_only(&make, "load and swap").assert_clean();
//! ```
//!
//! The store's clock must be a real one: some cases let threads wait for each other for a few milliseconds. Cases
//! drive the store without a runtime, as [`crate::Blocking`] does, so a store that needs one brings it along.
//!
//! # Layout
//! One module a group; a case is a function whose name says what holds. `bench` is what they share.

mod bench;
mod swap;
mod recall;
mod delete;
mod apply;
mod list;
mod due;
mod changed;
mod hold;
mod result;
mod concurrency;
mod ledger;
mod doors;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bench::{Bench, Verdict};

use crate::store::Store;

/// Makes a fresh and empty store, for each case another one.
pub type Make<'a> = dyn Fn() -> Arc<dyn Store> + 'a;

/// Makes two handles on one fresh and empty ledger: two connections, or better two that share nothing but the ledger.
pub type MakePair<'a> = dyn Fn() -> (Arc<dyn Store>, Arc<dyn Store>) + 'a;

/// What the suite found.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// The cases that hold, as `group: case`.
    pub passed: Vec<String>,
    /// The cases that do not.
    pub failed: Vec<Failed>,
}

/// A case that does not hold.
#[derive(Debug, Clone)]
pub struct Failed {
    /// The group it belongs to.
    pub group: &'static str,
    /// What should hold.
    pub case: String,
    /// What was seen instead.
    pub message: String,
}

/// Runs every case on stores of that maker.
#[must_use]
pub fn run(make: &Make<'_>) -> Report {
    let mut report = Report::default();
    for (group, cases) in GROUPS {
        run_group(make, group, cases, &mut report);
    }
    report
}

/// Runs one group of cases, by its name.
#[must_use]
pub fn run_only(make: &Make<'_>, only: &str) -> Report {
    let mut report = Report::default();
    for (group, cases) in GROUPS.iter().filter(|(group, _)| *group == only) {
        run_group(make, group, cases, &mut report);
    }
    report
}

/// Runs the cases that need two handles on one ledger.
#[must_use]
pub fn run_pair(make: &MakePair<'_>) -> Report {
    let mut report = Report::default();
    for case in doors::CASES {
        let outcome = guarded(|| {
            let (here, there) = make();
            (case.check)(&Bench::new(here), &Bench::new(there))
        });
        report.note(doors::GROUP, case.name, outcome);
    }
    report
}

/// The names of the groups that [`run`] runs.
pub fn groups() -> impl Iterator<Item = &'static str> {
    GROUPS.iter().map(|(group, _)| *group)
}

const GROUPS: &[(&str, &[Case])] = &[
    ("load and swap", swap::CASES),
    ("recall", recall::CASES),
    ("delete", delete::CASES),
    ("apply", apply::CASES),
    ("list", list::CASES),
    ("due and counts", due::CASES),
    ("changed", changed::CASES),
    ("hold and liveness", hold::CASES),
    ("results", result::CASES),
    ("concurrency", concurrency::CASES),
    ("ledger", ledger::CASES),
];

/// A case: what should hold, and the way to see it.
struct Case<F = fn(&Bench) -> Verdict> {
    name: &'static str,
    check: F,
}

macro_rules! cases {
    ($($check:ident),* $(,)?) => { &[$($crate::conformance::Case { name: stringify!($check), check: $check }),*] };
}
use cases;

fn run_group(make: &Make<'_>, group: &'static str, cases: &[Case], report: &mut Report) {
    for case in cases {
        report.note(group, case.name, guarded(|| (case.check)(&Bench::new(make()))));
    }
}

/// A case that panics, in the store or in the case, is one that does not hold; the others still run.
fn guarded(case: impl FnOnce() -> Verdict) -> Verdict {
    catch_unwind(AssertUnwindSafe(case)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(bench::Problem::new(format!("it panicked: {}", text.unwrap_or_default())))
    })
}

impl Report {
    fn note(&mut self, group: &'static str, name: &str, verdict: Verdict) {
        let case = name.replace('_', " ");
        match verdict {
            Ok(()) => self.passed.push(format!("{group}: {case}")),
            Err(problem) => self.failed.push(Failed { group, case, message: problem.to_string() }),
        }
    }

    /// Whether every case holds, and there was one.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.failed.is_empty() && !self.passed.is_empty()
    }

    /// Panics with the whole report unless every case holds.
    ///
    /// # Panics
    /// When a case does not hold, or none was run.
    pub fn assert_clean(&self) {
        assert!(self.is_clean(), "{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} cases hold, {} do not", self.passed.len(), self.failed.len())?;
        self.failed
            .iter()
            .try_for_each(|failed| writeln!(f, "  {}: {}\n    {}", failed.group, failed.case, failed.message))
    }
}

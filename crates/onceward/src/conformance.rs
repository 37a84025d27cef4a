//! The test suite for back ends: everything that the ledger relies on, one small case each.
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
//! The store's clock must be a real one: some cases make threads wait for each other for a few milliseconds. The
//! cases drive the store without a runtime, as [`crate::Blocking`] does, so a store that needs a runtime must bring
//! its own.
//!
//! # Layout
//! Each group of cases has its own module. A case is a function whose name states what must hold. `bench` holds the
//! shared helpers.

mod bench;
mod swap;
mod load_cached;
mod delete;
mod apply;
mod list;
mod due;
mod changed;
mod occurrences;
mod owner_lock;
mod result;
mod stop;
mod concurrency;
mod identity;
mod ledger;
mod two_handles;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bench::{Bench, Verdict};

use crate::store::Store;

/// Creates a new, empty store; called once per case.
pub type Make<'a> = dyn Fn() -> Arc<dyn Store> + 'a;

/// Opens two handles on one new, empty ledger. They should share only the ledger.
pub type MakePair<'a> = dyn Fn() -> (Arc<dyn Store>, Arc<dyn Store>) + 'a;

/// The result of the suite.
///
/// ```
/// use std::sync::Arc;
/// use onceward::{ManualClock, MemoryStore, Store, conformance};
///
/// let make = || Arc::new(MemoryStore::new(ManualClock::at(0))) as Arc<dyn Store>;
/// let report = conformance::run_only(&make, "delete");
/// assert!(report.is_clean() && !report.passed.is_empty(), "{report}");
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Report {
    /// The cases that passed, as `group: case`.
    pub passed: Vec<String>,
    /// The cases that failed.
    pub failed: Vec<Failed>,
}

/// A case that failed.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Failed {
    /// The group of the case.
    pub group: &'static str,
    /// What should hold.
    pub case: String,
    /// What was observed instead.
    pub message: String,
}

/// Runs every case, each on a new store.
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
    for case in two_handles::CASES {
        let outcome = catch_panic(|| {
            let (here, there) = make();
            (case.check)(&Bench::new(here), &Bench::new(there))
        });
        report.note(two_handles::GROUP, case.name, outcome);
    }
    report
}

/// The names of the groups that [`run`] runs.
pub fn groups() -> impl Iterator<Item = &'static str> {
    GROUPS.iter().map(|(group, _)| *group)
}

const GROUPS: &[(&str, &[Case])] = &[
    ("load and swap", swap::CASES),
    ("load_cached", load_cached::CASES),
    ("stop", stop::CASES),
    ("delete", delete::CASES),
    ("apply", apply::CASES),
    ("occurrences", occurrences::CASES),
    ("list", list::CASES),
    ("due and counts", due::CASES),
    ("changed", changed::CASES),
    ("hold and liveness", owner_lock::CASES),
    ("results", result::CASES),
    ("concurrency", concurrency::CASES),
    ("identity", identity::CASES),
    ("ledger", ledger::CASES),
];

/// A case: what must hold, and the function that checks it.
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
        report.note(group, case.name, catch_panic(|| (case.check)(&Bench::new(make()))));
    }
}

/// A panic in the store or in the case counts as a failure, and the other cases still run.
fn catch_panic(case: impl FnOnce() -> Verdict) -> Verdict {
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

    /// Whether every case passed, and at least one was run.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.failed.is_empty() && !self.passed.is_empty()
    }

    /// Panics with the complete report unless every case passed.
    ///
    /// # Panics
    /// When a case failed, or none was run.
    pub fn assert_clean(&self) {
        assert!(self.is_clean(), "{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} cases passed, {} failed", self.passed.len(), self.failed.len())?;
        self.failed
            .iter()
            .try_for_each(|failed| writeln!(f, "  {}: {}\n    {}", failed.group, failed.case, failed.message))
    }
}

//! The initial states for the swept call: no ledger, a ledger with other records, or what an earlier kill left
//! behind.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::Trouble;
use crate::bench::{Bench, Case};
use crate::call::{Call, Class};
use crate::judge::{look_when_quiet, state_of};
use crate::process;
use crate::process::PATIENCE;
use crate::trace::{Follow, Log, strace};

/// The key of the swept call.
pub(super) const KEY: &str = "swept";

/// How many other records an existing ledger has.
const OTHERS: u32 = 20;
/// Long enough to be killed during it.
const LONG_MS: u64 = 60_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// There is no ledger yet.
    Cold,
    /// There is a ledger with other records.
    Warm,
    /// An owner was killed before it dispatched anything.
    NeverDispatched,
    /// An owner was killed after the effect; there is a probe.
    HappenedProbed,
    /// An owner was killed before the effect; there is a probe.
    NotHappenedProbed,
    /// An owner was killed after the effect, and there is no probe.
    HappenedOnce,
}

impl Start {
    pub(super) const ALL: [Self; 6] = [
        Self::Cold,
        Self::Warm,
        Self::NeverDispatched,
        Self::HappenedProbed,
        Self::NotHappenedProbed,
        Self::HappenedOnce,
    ];

    pub(super) const fn words(self) -> &'static str {
        match self {
            Self::Cold => "no ledger yet",
            Self::Warm => "a ledger with other records",
            Self::NeverDispatched => "recovery of an undispatched attempt",
            Self::HappenedProbed => "recovery of an effect, by a probe",
            Self::NotHappenedProbed => "recovery without an effect, by a probe",
            Self::HappenedOnce => "a retry of an operation in doubt",
        }
    }

    /// The swept call, and its retry.
    pub(super) fn call(self) -> Call {
        super::call(match self {
            Self::Cold | Self::Warm | Self::NeverDispatched | Self::HappenedOnce => Class::Once,
            Self::HappenedProbed | Self::NotHappenedProbed => Class::Probed,
        })
    }

    /// Whether it was already in doubt.
    pub(super) fn in_doubt(self) -> bool {
        matches!(self, Self::HappenedProbed | Self::NotHappenedProbed | Self::HappenedOnce)
    }

    /// Whether the swept call is refused.
    pub(super) fn refused(self) -> bool {
        self == Self::HappenedOnce
    }

    /// Prepares a ledger in this state, to be copied.
    pub(super) fn prepare(self, bench: &Bench) -> Result<Case, Trouble> {
        let mut case = bench.case()?;
        if self == Self::Cold {
            return Ok(case);
        }
        for other in 0..OTHERS {
            Call::new(format!("other-{other}")).run(bench, &case)?;
        }
        let expected = match self {
            Self::Cold | Self::Warm => "absent",
            Self::NeverDispatched => {
                case = killed_at_its_note(bench, &case)?;
                "failed"
            }
            Self::HappenedProbed => killed(bench, &case, Class::Probed, Killed::AfterTheEffect)?,
            Self::NotHappenedProbed => killed(bench, &case, Class::Probed, Killed::BeforeTheEffect)?,
            Self::HappenedOnce => killed(bench, &case, Class::Once, Killed::AfterTheEffect)?,
        };
        let found = state_of(&look_when_quiet(bench, &case)?, KEY);
        if found == expected {
            return Ok(case);
        }
        Err(format!("{}: the start should be {expected} and is {found}", self.words()).into())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Killed {
    BeforeTheEffect,
    AfterTheEffect,
}

/// Kills the wrapper and its command, which leaves the operation in doubt.
fn killed(bench: &Bench, case: &Case, class: Class, when: Killed) -> Result<&'static str, Trouble> {
    let call = match when {
        Killed::BeforeTheEffect => super::call(class).takes(LONG_MS, 0),
        Killed::AfterTheEffect => super::call(class).takes(0, LONG_MS),
    };
    let effects_before = std::fs::metadata(&case.effects)?.len();
    let mut wrapper = call.start(bench, case)?;
    let command =
        process::wait_for_child(process::id(&wrapper), PATIENCE).ok_or("the command did not start")?;
    if when == Killed::AfterTheEffect {
        let begun = std::time::Instant::now();
        while std::fs::metadata(&case.effects)?.len() == effects_before && begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    process::send(process::id(&wrapper), Signal::SIGKILL);
    process::send(command, Signal::SIGKILL);
    wrapper.wait()?;
    process::wait_gone(command, PATIENCE)?;
    Ok("in_doubt")
}

/// Kills the wrapper just before it notes its dispatch. A copied ledger needs one more write, to record its new file,
/// so both the count and the kill use copies.
fn killed_at_its_note(bench: &Bench, case: &Case) -> Result<Case, Trouble> {
    let (clean, case) = (bench.copy(case)?, bench.copy(case)?);
    let log = clean.folder.join("strace.log");
    super::call(Class::Once).behind(strace(&log, Follow::MainThread, None), bench, &clean).output()?;
    let note = Log::read(&log, Follow::MainThread)?.dispatch_note().ok_or("no dispatch note was seen")?;
    let log = case.folder.join("strace.log");
    let inject = format!("pwrite64:signal=KILL:when={note}");
    super::call(Class::Once)
        .behind(strace(&log, Follow::MainThread, Some(&inject)), bench, &case)
        .output()?;
    Ok(case)
}

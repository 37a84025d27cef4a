//! What must hold when all is quiet: the history of effects against what the ledger says.

use std::fmt;

use onceward::{Class, DoubleEffect, Happened, Ledger, Record, State};

use super::Kind;
use super::executor::Executor;
use super::world::{OPERATIONS, World, class, operation};

/// Something that must not be, with the seed that shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    what: String,
    seed: Option<(u64, Kind)>,
}

impl Broken {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), seed: None }
    }

    pub(crate) fn of(self, seed: u64, kind: Kind) -> Self {
        Self { seed: Some((seed, kind)), ..self }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        match self.seed {
            Some((seed, kind)) => {
                write!(f, " (seed {seed}, {kind:?}: onceward_sim::sim::run({seed}, Kind::{kind:?}))")
            }
            None => Ok(()),
        }
    }
}

impl std::error::Error for Broken {}

/// What the operations came to.
#[derive(Debug, Clone, Copy, Default)]
pub struct Found {
    /// So many have expired.
    pub expired: u64,
    /// So many are in doubt.
    pub in_doubt: u64,
    /// So many happened more than once, where that was allowed and told.
    pub repeated: u64,
}

/// Checks every operation.
///
/// # Errors
/// The first that must not be.
pub fn all(executor: &mut Executor, ledger: &Ledger, world: &World, kind: Kind) -> Result<Found, Broken> {
    if let Some(caller) = world.lied_to().first() {
        return Err(Broken::new(format!("{caller} was told that it is done before it happened")));
    }
    let mut sum = Found::default();
    for number in 0..OPERATIONS {
        let intent = operation(number).intent().map_err(|error| Broken::new(error.to_string()))?;
        let found = executor.drive(ledger.find(&intent.id))?;
        let effects = world.effects(intent.id.as_str());
        match found {
            Ok((record, state)) => {
                one(&record, state, class(number), &effects, world.told(intent.id.as_str()), kind)?;
                sum.expired += u64::from(state == State::Expired);
                sum.in_doubt += u64::from(state == State::InDoubt);
                sum.repeated += u64::from(effects.len() > 1 && class(number) != Class::Idempotent);
            }
            Err(_) if effects.is_empty() => {}
            Err(error) => {
                return Err(Broken::new(format!("effects {effects:?} without an intent: {error}")));
            }
        }
    }
    Ok(sum)
}

fn one(
    record: &Record,
    state: State,
    class: Class,
    effects: &[u32],
    told: u64,
    kind: Kind,
) -> Result<(), Broken> {
    let alarm = record.detail.double_effect;
    let broken = |what: &str| {
        let history = &record.detail.history;
        Err(Broken::new(format!(
            "{what}: {class} is {state}, effects {effects:?}, alarm {alarm:?}, history {history:?}"
        )))
    };
    let may_repeat = match class {
        Class::Idempotent | Class::Read => true,
        // Within its window the downstream honours the key.
        Class::Keyed | Class::Probed => kind == Kind::LongSleep,
        Class::Once => false,
    };
    if effects.len() > 1 && !may_repeat {
        return broken("it happened twice");
    }
    let mut attempts = effects.to_vec();
    attempts.sort_unstable();
    attempts.dedup();
    if attempts.len() < effects.len() {
        return broken("one attempt had two effects");
    }
    if told > 1 && !matches!(class, Class::Idempotent | Class::Keyed) && alarm.is_none() {
        return broken("two attempts were told that they had done it, and nobody raised the alarm");
    }
    // Of a keyed operation two attempts may rightly report the one effect.
    if alarm == Some(DoubleEffect::Certain) && effects.len() < 2 && class != Class::Keyed {
        return broken("the alarm is certain, and it happened once");
    }
    match state {
        State::Running => return broken("it is called running, and nobody lives"),
        State::Done | State::Failed | State::InDoubt | State::Staged | State::Cancelled | State::Expired => {}
    }
    match record.happened() {
        Happened::Yes if effects.is_empty() => broken("it is called done, and did not happen"),
        Happened::No if !effects.is_empty() => broken("it is called failed, and happened"),
        Happened::Yes | Happened::No | Happened::Unknown => Ok(()),
    }
}

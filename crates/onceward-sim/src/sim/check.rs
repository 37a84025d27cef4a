//! What must hold at the end of a run: compares the real effects with what the ledger says.

use onceward::{Class, DEFAULT_SCOPE, DoubleEffect, Happened, Ledger, Record, State};

use super::Environment;
use super::executor::Executor;
use super::history::Broken;
use super::world::{OPERATIONS, World, class, compensation, operation};

/// Counts of operations at the end of a run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Found {
    /// How many have expired.
    pub expired: u64,
    /// How many were taken back.
    pub undone: u64,
    /// How many are in doubt.
    pub in_doubt: u64,
    /// How many happened more than once, where that is allowed and was reported.
    pub repeated: u64,
}

/// Checks every operation.
///
/// # Errors
/// The first violation.
pub fn all(
    executor: &mut Executor,
    ledger: &Ledger,
    world: &World,
    environment: Environment,
) -> Result<Found, Broken> {
    if let Some(caller) = world.misinformed().first() {
        return Err(Broken::new(format!("{caller} got `done` before it happened")));
    }
    if let Some(caller) = world.misled().first() {
        return Err(Broken::new(format!("{caller} got the result of an effect that was taken back")));
    }
    let settlement = executor.drive(ledger.scopes().settlement(DEFAULT_SCOPE))?;
    if !settlement.map_err(|error| Broken::new(error.to_string()))?.sums.adds_up() {
        return Err(Broken::new("the settlement does not add up"));
    }
    let mut sum = Found::default();
    for number in 0..OPERATIONS {
        let intent = operation(number).intent().map_err(|error| Broken::new(error.to_string()))?;
        let found = executor.drive(ledger.find(&intent.id))?;
        let effects = world.effects(intent.id.as_str());
        match found {
            Ok((record, state)) => {
                taken_back(&record, &effects, world)?;
                sum.undone += u64::from(record.is_undone());
                one(
                    &record,
                    state,
                    class(number),
                    &effects,
                    world.acknowledged(intent.id.as_str()),
                    environment,
                )?;
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

/// A compensation happens at most once, only for an effect that happened, and only after the mark.
fn taken_back(record: &Record, effects: &[u32], world: &World) -> Result<(), Broken> {
    let by = compensation(&record.id).map_err(|error| Broken::new(error.to_string()))?;
    let compensated = world.effects(by.as_str());
    let mark = &record.detail.undone;
    let broken = |what: &str| {
        let state = record.state;
        Err(Broken::new(format!(
            "{what}: {state}, effects {effects:?}, taken back {compensated:?}, mark {mark:?}"
        )))
    };
    if compensated.len() > 1 {
        return broken("it was taken back twice");
    }
    if !compensated.is_empty() && effects.is_empty() {
        return broken("it was taken back, but had not happened");
    }
    if !compensated.is_empty() && mark.is_none() {
        return broken("it was taken back, and its result would be replayed");
    }
    if compensated.is_empty() && record.is_undone() {
        return broken("it is reported as undone, but its effect stands");
    }
    Ok(())
}

fn one(
    record: &Record,
    state: State,
    class: Class,
    effects: &[u32],
    acknowledged: u64,
    environment: Environment,
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
        // The downstream honours the key within its window.
        Class::Keyed | Class::Probed => environment == Environment::LongSleep,
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
    if acknowledged > 1 && !matches!(class, Class::Idempotent | Class::Keyed) && alarm.is_none() {
        return broken("two attempts were reported as done, without an alarm");
    }
    // Two attempts of a keyed operation may both correctly report its one effect.
    if alarm == Some(DoubleEffect::Certain) && effects.len() < 2 && class != Class::Keyed {
        return broken("the alarm is certain, but it happened once");
    }
    match state {
        State::Running => return broken("it is reported as running, but no worker is alive"),
        State::Done | State::Failed | State::InDoubt | State::Staged | State::Cancelled | State::Expired => {}
    }
    match record.happened() {
        Happened::Yes if effects.is_empty() => broken("it is reported as done, but did not happen"),
        Happened::No if !effects.is_empty() => broken("it is reported as failed, but happened"),
        Happened::Yes | Happened::No | Happened::Unknown => Ok(()),
    }
}

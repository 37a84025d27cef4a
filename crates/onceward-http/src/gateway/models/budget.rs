//! The budget of attempts, which equal calls share: a new key, a new sample or a new client is no reason to pay again
//! for a provider that has just failed.

use std::sync::Arc;

use onceward::{Attempt, Done, Error, Failure, Filter, Intent, Ran, Receipt, Record, State};

use super::super::choose;
use super::super::delivery::FAILURE_GRACE_MS;
use super::super::readers::Readers;
use crate::tenant::Tenant;

/// The most failed calls that are counted. More than a budget has attempts are never needed.
const MOST: usize = 64;

/// Makes the call with what equal calls have left of the budget, `attempts`. A call has its whole budget again a minute
/// later: an outage, or a gateway that was killed, must not refuse a key or a step of a run for as long as it is kept.
///
/// # Errors
/// As of [`onceward::Call::run`]. A budget that was spent by attempts in doubt is spent: nothing about a model call can
/// be checked.
pub(crate) async fn within<F>(
    tenant: &Tenant,
    readers: &Readers,
    mut intent: Intent,
    attempts: u32,
    mut act: impl FnMut(Attempt) -> F,
) -> Result<Receipt, Error>
where
    F: Future<Output = Result<Done, Failure>>,
{
    let ledger = &tenant.ledger;
    let failed = failed_beside(tenant, readers, &intent).await?;
    let spent: u32 = failed.iter().map(|record| record.spent_attempts()).sum();
    intent.terms.max_attempts = attempts.saturating_sub(spent);
    if intent.terms.max_attempts == 0
        && let Some(last) = failed.into_iter().next()
        && begins(ledger.find(&intent.id).await)?
    {
        return Err(Error::BudgetExhausted { record: last, limit: attempts, ran: Ran::No });
    }
    let result = ledger.call(intent.clone()).run(&mut act).await;
    let (Err(Error::BudgetExhausted { record, ran, .. }) | Err(Error::InDoubt { record, ran, .. })) = &result
    else {
        return result;
    };
    if record.spent_attempts() < intent.terms.max_attempts {
        return result;
    }
    let refilled = choose::refilled(record, ledger.clock_ms());
    if refilled == 0 {
        return Err(Error::BudgetExhausted { record: Arc::clone(record), limit: attempts, ran: *ran });
    }
    intent.terms.max_attempts += refilled;
    ledger.call(intent).run(act).await
}

/// Whether the call would make the first attempt of its operation.
fn begins(found: Result<(Arc<Record>, State), Error>) -> Result<bool, Error> {
    match found {
        Ok((_, state)) => Ok(state == State::Expired),
        Err(Error::NotFound { .. }) => Ok(true),
        Err(error) => Err(error),
    }
}

/// The equal calls that failed less than a minute ago, the newest first. A refusal that would be repeated is an answer,
/// and is not counted once it was delivered.
async fn failed_beside(
    tenant: &Tenant,
    readers: &Readers,
    intent: &Intent,
) -> Result<Vec<Arc<Record>>, Error> {
    let intent = tenant.ledger.keyed(intent.clone());
    // Few operations have failed, so their index is better than the one of a scope.
    let filter = Filter {
        fingerprint: Some(intent.fingerprint.clone()),
        states: vec![State::Failed],
        limit: MOST,
        ..Filter::default()
    };
    let now_ms = tenant.ledger.clock_ms();
    let counts = |record: &Record| {
        let is_equal = (&record.scope, &record.name) == (&intent.scope, &intent.name);
        let place = tenant.place(&record.id);
        let until_ms = readers.delivered_ms(&place, record).unwrap_or(record.updated_ms + FAILURE_GRACE_MS);
        is_equal && record.id != intent.id && until_ms > now_ms
    };
    let all = tenant.store.list(&filter).await?;
    Ok(all.into_iter().map(|listed| Arc::new(listed.record)).filter(|record| counts(record)).collect())
}

//! Checks of reported successes, in the background and after a restart.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use hyper::HeaderMap;
use onceward::{Error, Filter, OperationId, Record, State, Verification};

use super::names::Named;
use super::reply::Reply;
use super::upstream::{Ruling, Upstream};
use super::{Gateway, probes};
use crate::locks::lock;
use crate::tenant::Tenant;
use crate::time;

/// How often a server looks for checks that another one left behind.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// How many records are read at once, and at most.
const PAGE: usize = 500;
const MOST: usize = 20_000;
/// How long before its end an operation may have begun.
const LONGEST_CALL_MS: i64 = 3_600_000;

/// A check of one operation's success.
pub(crate) struct Check {
    pub(crate) tenant: Tenant,
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) ruling: Ruling,
    /// The headers with the credentials of the check.
    pub(crate) headers: HeaderMap,
    pub(crate) id: OperationId,
    pub(crate) reply: Reply,
    /// When the success was reported.
    pub(crate) since_ms: i64,
}

impl Check {
    /// Checks until the success is confirmed, refuted or out of time, but at least once. Each operation is checked by
    /// one task.
    pub(crate) fn in_background(self, gateway: &Arc<Gateway>) {
        let place = self.tenant.place(&self.id);
        if !lock(&gateway.checking).insert(place.clone()) {
            return;
        }
        let gateway = Arc::clone(gateway);
        tokio::spawn(async move {
            self.run().await;
            lock(&gateway.checking).remove(&place);
        });
    }

    async fn run(self) {
        let Some(check) = &self.ruling.verify else { return };
        let ledger = &self.tenant.ledger;
        let deadline_ms = i64::try_from(check.deadline_ms).unwrap_or(i64::MAX);
        let until_ms = self.since_ms.saturating_add(deadline_ms);
        loop {
            let upstream = (&*self.upstream, ledger.clock());
            let asked = probes::check(upstream, &self.ruling, &self.headers, &check.verify, &self.reply);
            let (found, why) = asked.await;
            if found != Verification::Pending {
                // If the ledger cannot be written, a later check finds the same.
                drop(ledger.attempts().verified(&self.id, found, Some(why)).await);
                return;
            }
            if ledger.clock_ms() >= until_ms {
                return;
            }
            ledger.clock().sleep(check.every_ms).await;
        }
    }
}

/// Resumes the checks that a server did not finish, now and while this one runs.
pub(crate) async fn resume(gateway: Arc<Gateway>, tenants: Vec<Tenant>) {
    let longest_ms = gateway.upstreams.values().filter_map(|upstream| upstream.longest_check_ms()).max();
    let (Some(longest_ms), Some(first)) = (longest_ms, tenants.first()) else { return };
    loop {
        for tenant in &tenants {
            // If the ledger cannot be read now, the next round reads it.
            drop(resume_of(&gateway, tenant, longest_ms).await);
        }
        time::sleep(first.ledger.clock(), LOOK_AGAIN).await;
    }
}

async fn resume_of(gateway: &Arc<Gateway>, tenant: &Tenant, longest_ms: u64) -> Result<(), Error> {
    let longest_ms = i64::try_from(longest_ms).unwrap_or(i64::MAX).saturating_add(LONGEST_CALL_MS);
    let mut filter = Filter {
        states: vec![State::Done],
        since_ms: Some(tenant.ledger.clock_ms().saturating_sub(longest_ms)),
        limit: PAGE,
        ..Filter::default()
    };
    let mut seen = 0;
    while seen < MOST {
        let page = tenant.store.list(&filter).await?;
        let pending = page.iter().map(|listed| &listed.record).filter(|record| is_pending(record));
        let ids: BTreeSet<OperationId> = pending.map(|record| record.id.clone()).collect();
        for id in ids {
            let (record, _) = tenant.ledger.find(&id).await?;
            if let Some(check) = of_record(gateway, tenant, &record) {
                check.in_background(gateway);
            }
        }
        seen += page.len();
        match page.last() {
            Some(last) if page.len() == PAGE => filter.before = Some(last.cursor),
            Some(_) | None => break,
        }
    }
    Ok(())
}

fn is_pending(record: &Record) -> bool {
    let verified = record.outcome.as_ref().and_then(|outcome| outcome.verified);
    record.state == State::Done && verified == Some(Verification::Pending)
}

/// The check of a record, if its upstream and its rule are still configured.
fn of_record(gateway: &Gateway, tenant: &Tenant, record: &Record) -> Option<Check> {
    let named = Named::parse(&record.name)?;
    let upstream = Arc::clone(gateway.upstreams.get(named.upstream)?);
    let rule = named.rule(&gateway.policy)?;
    let ruling = upstream.ruling(&named.method, named.path, named.action, rule);
    ruling.verify.as_ref()?;
    let reply = Reply::decode(record.outcome.as_ref()?.body.as_deref()?)?;
    // The credentials of the caller were not stored.
    let headers = upstream.check_headers.clone();
    let (id, since_ms) = (record.id.clone(), record.updated_ms);
    Some(Check { tenant: tenant.clone(), upstream, ruling, headers, id, reply, since_ms })
}

//! Finding operations by id, id prefix or key, listing and counting them.

use std::sync::Arc;

use super::{Admin, Ledger};
use crate::barrier::is_in_scope;
use crate::decide;
use crate::error::Error;
use crate::key::OperationId;
use crate::kind::Kind;
use crate::record::{Record, State};
use crate::store::{Counts, Filter, Listed};
use crate::transition;

/// The stored states that may be outdated after a restore.
const OUTDATED: [State; 4] = [State::Staged, State::Running, State::Failed, State::Expired];

/// How many running records one step of a count reads.
const PAGE: usize = 500;

impl Admin<'_> {
    /// The operations that `word` can refer to: an id, the first digits of an id (`op_…`), or a key. Newest first, up
    /// to `limit`, only in `scope` if one is given. The records do not include the bodies of their results.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn lookup(self, word: &str, scope: Option<&str>, limit: usize) -> Result<Vec<Listed>, Error> {
        // Gateways and proxies separate the callers of a scope, and keep their keys elsewhere.
        let kinds = vec![Kind::Operation, Kind::Event, Kind::Alias];
        let all = Filter { scope_prefix: scope.map(str::to_owned), limit, kinds, ..Filter::default() };
        let mut found = Vec::new();
        if word.strip_prefix("op_").is_some_and(|digits| !digits.is_empty()) {
            let by_id = Filter { id_prefix: Some(word.to_owned()), ..all.clone() };
            found = self.0.store().list(&by_id).await?;
        }
        let by_key = Filter { key: Some(word.to_owned()), ..all };
        found.extend(self.0.store().list(&by_key).await?);
        if scope.is_some() {
            let aliases = Filter { scope_prefix: None, kinds: vec![Kind::Alias], ..by_key };
            found.extend(self.0.store().list(&aliases).await?);
        }
        let mut resolved: Vec<Listed> = Vec::new();
        for listed in found {
            let Some(listed) = self.0.resolved(listed).await? else { continue };
            let is_there = scope.is_none_or(|scope| is_in_scope(&listed.record.scope, scope));
            if is_there && resolved.iter().all(|known| known.record.id != listed.record.id) {
                resolved.push(Listed { record: self.0.through_fence(listed.record), ..listed });
            }
        }
        let mut found = resolved;
        found.sort_by_key(|listed| std::cmp::Reverse(listed.cursor));
        found.truncate(limit);
        Ok(found)
    }

    /// The number of operations that match the filter, by effective state: an attempt whose owner is gone counts as
    /// in doubt or failed. An expired result counts under its stored state until a sweep. The filter's states, limit
    /// and cursor are ignored.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn totals(self, filter: &Filter) -> Result<Counts, Error> {
        let kinds = Kind::LISTED.to_vec();
        let all = Filter { states: Vec::new(), before: None, kinds, ..filter.clone() };
        let mut counts = self.0.store().counts(&all).await?;
        let mut states = vec![State::Running];
        if self.0.identity().fence.is_some() {
            states.extend(OUTDATED.into_iter().filter(|state| *state != State::Running));
        }
        let mut running = Filter { states, limit: PAGE, ..all };
        loop {
            let page = self.0.store().list(&running).await?;
            let full = page.len() == PAGE;
            running.before = page.last().map(|listed| listed.cursor);
            for Listed { record, .. } in page {
                let stored = record.state;
                let seen = self.0.through_fence(record);
                let liveness = self.0.liveness(Some(&seen)).await?;
                let state = decide::effective_state(&seen, liveness, self.0.now_ms());
                // An expired result counts under its stored state.
                if state != stored && (stored == State::Running || state == State::InDoubt) {
                    let left = counts.get(&stored).copied().unwrap_or(0);
                    counts.insert(stored, left.saturating_sub(1));
                    *counts.entry(state).or_default() += 1;
                }
            }
            if !full {
                counts.retain(|_, count| *count > 0);
                return Ok(counts);
            }
        }
    }
}

impl Ledger {
    /// The record with this id, and its effective state.
    ///
    /// # Errors
    /// [`Error::NotFound`], or the ledger cannot be read.
    pub async fn find(&self, id: &OperationId) -> Result<(Arc<Record>, State), Error> {
        let load = async || self.store.load(id).await?.ok_or_else(|| Error::NotFound { id: id.to_string() });
        let mut stored = load().await?;
        loop {
            let record = if self.identity().fence.is_some() {
                Arc::new(self.through_fence(Record::clone(&stored)))
            } else {
                Arc::clone(&stored)
            };
            let liveness = self.liveness(Some(&record)).await?;
            let state = decide::effective_state(&record, liveness, self.now_ms());
            if state == State::Running || record.state != State::Running {
                return Ok((record, state));
            }
            // An owner that ended between the two looks has written how, before it freed its lock.
            let newer = load().await?;
            if newer.version == stored.version {
                return Ok((record, state));
            }
            stored = newer;
        }
    }

    /// The records that match the filter, newest first, each with its effective state.
    ///
    /// The filter's states are effective states: a running record whose owner is gone is in doubt. A key finds every
    /// operation that it is a key of.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn list(&self, filter: &Filter) -> Result<Vec<(Listed, State)>, Error> {
        let mut written = filter.clone();
        // The stored state may lag behind the effective one: running for in doubt or failed, in doubt for
        // running (a process that the attempt left behind holds the lock), and settled for expired.
        if filter.states.contains(&State::Running) {
            written.states.push(State::InDoubt);
        }
        if filter.states.contains(&State::InDoubt) || filter.states.contains(&State::Failed) {
            written.states.push(State::Running);
        }
        if filter.states.contains(&State::InDoubt) && self.identity().fence.is_some() {
            written.states.extend(OUTDATED);
            // Those whose retention was over when the ledger was restored.
            written.states.extend([State::Done, State::Cancelled]);
        }
        if filter.states.contains(&State::Expired) {
            written.states.extend([State::Done, State::Failed, State::Cancelled]);
        }
        written.kinds = Kind::LISTED.to_vec();
        // The record of a further key has a name and state of its own.
        if filter.key.is_some() {
            (written.name, written.states) = (None, Vec::new());
            written.kinds.push(Kind::Alias);
        }
        let mut seen: Vec<(Listed, State)> = Vec::new();
        loop {
            let page = self.store.list(&written).await?;
            let full = page.len() == written.limit;
            for listed in page {
                written.before = Some(listed.cursor);
                let Some(listed) = self.resolved(listed).await? else { continue };
                let is_known = seen.iter().any(|(known, _)| known.record.id == listed.record.id);
                if is_known || filter.name.as_ref().is_some_and(|name| *name != listed.record.name) {
                    continue;
                }
                let listed = Listed { record: self.through_fence(listed.record), ..listed };
                let liveness = self.liveness(Some(&listed.record)).await?;
                let state = decide::effective_state(&listed.record, liveness, self.now_ms());
                if filter.states.is_empty() || filter.states.contains(&state) {
                    seen.push((listed, state));
                }
            }
            if !full || seen.len() >= filter.limit {
                seen.truncate(filter.limit);
                return Ok(seen);
            }
        }
    }

    /// Waits until the operation is neither staged nor running, or until `timeout_ms` have passed. Returns its
    /// effective state.
    ///
    /// # Errors
    /// [`Error::NotFound`], or the ledger cannot be read.
    pub async fn wait(&self, id: &OperationId, timeout_ms: u64) -> Result<(Arc<Record>, State), Error> {
        let until_ms = transition::later(self.now_ms(), timeout_ms);
        let mut poll_ms = *super::POLL_MS.start();
        loop {
            let (record, state) = self.find(id).await?;
            let now_ms = self.now_ms();
            let open = matches!(state, State::Staged | State::Running);
            if !open || now_ms >= until_ms {
                return Ok((record, state));
            }
            let left_ms = u64::try_from(until_ms - now_ms).unwrap_or(0);
            let slice_ms = self.slice_ms(&record, now_ms, &mut poll_ms);
            self.store().changed(id, record.version, slice_ms.min(left_ms)).await;
        }
    }

    /// The operation that a listed record is about: itself, or the one that it is another key of. `None` if that one
    /// was forgotten.
    pub(super) async fn resolved(&self, listed: Listed) -> Result<Option<Listed>, Error> {
        if listed.record.kind != Kind::Alias {
            return Ok(Some(listed));
        }
        let Some(id) = listed.record.alias_of() else { return Ok(None) };
        let found = self.store().load(&id).await?;
        Ok(found.map(|record| {
            let mut record = Arc::unwrap_or_clone(record);
            if let Some(outcome) = &mut record.outcome {
                outcome.body = None;
            }
            Listed { cursor: listed.cursor, record }
        }))
    }
}

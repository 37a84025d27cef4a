//! Stores that violate one rule of the contract each.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use onceward::{
    Applied, Barrier, Begin, Change, Clock, Counts, Cursor, Dispatch, Filter, Identity, Inherit, Listed,
    Liveness, LivenessSource, MemoryStore, OperationId, Owner, OwnerLock, Record, State, Store, StoreError,
    Swap, WriteMode,
};

use super::GoingClock;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    IgnoresVersions,
    OverwritesOnFirstWrite,
    CreatesOnSwap,
    ConflictBringsNothing,
    ConflictBringsWhatWasTried,
    LosesTheLateAnswer,
    LosesDueTimes,
    CachesStaleRecords,
    ForgetsDeletes,
    DeletesAnyVersion,
    SaysNoToEveryDelete,
    OccurrencesForgetTheNewest,
    OccurrencesForgetTheOpen,
    OccurrencesOfEveryAction,
    ListsOldestFirst,
    ListsByLastChange,
    ListIgnoresScope,
    ListIgnoresScopePrefix,
    ListIgnoresName,
    ListIgnoresStates,
    ListIgnoresCursor,
    ListRepeatsTheCursor,
    ListIgnoresLimit,
    ListBringsBodies,
    ListIgnoresKey,
    ListIgnoresIdPrefix,
    ListIgnoresSince,
    ListIgnoresUntil,
    CountsIgnoreTheFilter,
    AppliesOnlyTheFirst,
    AppliesAnyVersion,
    AnswersBatchesBackwards,
    DueIgnoresTime,
    DueTellsItsOwnTime,
    DueIsLateByOne,
    DueComesNewestFirst,
    DueIgnoresLimit,
    CountsOnlyDone,
    SleepsThroughChanges,
    NeverLooksBeforeWaiting,
    SeesAllOwnersAlive,
    SeesAllOwnersGone,
    KillsWhoseLeaseIsOver,
    UsesOneToken,
    LosesDispatches,
    TallyWrites,
    LosesBodies,
    LosesEmptyBodies,
    ReformatsResults,
    SwapsInTwoSteps,
    WritesInAnyEpoch,
    BeginsInStoppedScopes,
    StopsOnlyTheScopeItself,
    ReplaysNothingWhenStopped,
    ChecksBarriersInTwoSteps,
    StopsAnew,
    NeverResumes,
    HidesBarriers,
    Panics,
}

/// The store in memory with one fault.
pub(crate) struct Broken {
    inner: MemoryStore<GoingClock>,
    fault: Fault,
    /// The first record that was loaded, for a store whose cache goes stale.
    remembered: Mutex<HashMap<OperationId, Arc<Record>>>,
}

impl Broken {
    pub(crate) fn new(fault: Fault) -> Self {
        // A fast clock, so that a store that misses a change does not delay the test. Real pauses are not shortened.
        let slow = matches!(
            fault,
            Fault::SleepsThroughChanges | Fault::NeverLooksBeforeWaiting | Fault::SeesAllOwnersAlive
        );
        let clock = GoingClock::times(if slow { 300 } else { 1 });
        Self { inner: MemoryStore::new(clock), fault, remembered: Mutex::default() }
    }

    fn is(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    fn spoil(&self, record: &mut Record) {
        if self.is(Fault::LosesTheLateAnswer) {
            record.detail.late = None;
        }
        if self.is(Fault::LosesDueTimes) && record.due_ms == Some(i64::MAX) {
            record.due_ms = None;
        }
        let Some(outcome) = &mut record.outcome else {
            return;
        };
        if self.is(Fault::LosesBodies)
            || (self.is(Fault::LosesEmptyBodies) && outcome.body.as_ref().is_some_and(|body| body.is_empty()))
        {
            outcome.body = None;
        }
        if self.is(Fault::ReformatsResults) {
            let value = outcome
                .data
                .take()
                .and_then(|data| serde_json::from_str::<serde_json::Value>(data.get()).ok());
            outcome.data =
                value.and_then(|value| serde_json::value::to_raw_value(&value).ok()).map(Into::into);
        }
    }

    /// The version that is passed to the inner store.
    async fn expected(&self, expected: Option<u64>, id: &OperationId) -> Result<Option<u64>, StoreError> {
        let found = self.inner.load(id).await?.map(|found| found.version);
        Ok(match self.fault {
            Fault::IgnoresVersions => found,
            Fault::OverwritesOnFirstWrite if expected.is_none() => found,
            Fault::CreatesOnSwap if found.is_none() => None,
            Fault::SwapsInTwoSteps if found == expected => {
                // Let other threads read between the read and the write.
                self.inner.clock().sleep(2).await;
                self.inner.load(id).await?.map(|found| found.version)
            }
            _ => expected,
        })
    }
}

#[async_trait]
impl Store for Broken {
    fn clock(&self) -> &dyn Clock {
        self.inner.clock()
    }

    fn watch(&self) -> LivenessSource {
        self.inner.watch()
    }

    fn identity(&self) -> &Identity {
        self.inner.identity()
    }

    async fn set_identity(&self, next: &Identity) -> Result<(), StoreError> {
        if self.is(Fault::WritesInAnyEpoch) { Ok(()) } else { self.inner.set_identity(next).await }
    }

    async fn load_cached(&self, id: &OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        if self.is(Fault::CachesStaleRecords) {
            return Ok(self.remembered.lock().expect("no thread panicked").get(id).cloned());
        }
        self.load(id).await
    }

    async fn load(&self, id: &OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        assert!(!self.is(Fault::Panics), "out of order");
        let found = self.inner.load(id).await?;
        if let Some(record) = &found {
            let mut remembered = self.remembered.lock().expect("no thread panicked");
            remembered.entry(id.clone()).or_insert_with(|| Arc::clone(record));
        }
        Ok(found)
    }

    async fn swap(
        &self,
        expected: Option<u64>,
        mut record: Record,
        mode: WriteMode,
    ) -> Result<Swap, StoreError> {
        let tried = Arc::new(record.clone());
        let expected = self.expected(expected, &record.id).await?;
        self.spoil(&mut record);
        if self.is(Fault::ListsByLastChange)
            && let (Some(expected), Some(found)) = (expected, self.inner.load(&record.id).await?)
            && found.version == expected
        {
            self.inner.delete(&record.id, expected, mode).await?;
            return self.inner.swap(None, record, mode).await;
        }
        Ok(match self.inner.swap(expected, record, mode).await? {
            Swap::Written(_) => Swap::Written(tried),
            Swap::Conflict(_) if self.is(Fault::ConflictBringsNothing) => Swap::Conflict(None),
            Swap::Conflict(_) if self.is(Fault::ConflictBringsWhatWasTried) => Swap::Conflict(Some(tried)),
            Swap::Conflict(found) => Swap::Conflict(found),
        })
    }

    async fn begin(
        &self,
        expected: Option<u64>,
        mut record: Record,
        mode: WriteMode,
    ) -> Result<Begin, StoreError> {
        match self.fault {
            Fault::BeginsInStoppedScopes => {
                return self.swap(expected, record, mode).await.map(Begin::Swapped);
            }
            Fault::StopsOnlyTheScopeItself if record.scope.contains('~') => {
                return self.swap(expected, record, mode).await.map(Begin::Swapped);
            }
            Fault::ReplaysNothingWhenStopped => {
                let barriers = self.inner.barriers().await?;
                if let Some(barrier) = barriers.into_iter().find(|barrier| barrier.covers(&record.scope)) {
                    return Ok(Begin::Stopped(barrier));
                }
            }
            Fault::ChecksBarriersInTwoSteps => {
                let barriers = self.inner.barriers().await?;
                if let Some(barrier) = barriers.into_iter().find(|barrier| barrier.covers(&record.scope)) {
                    return Ok(Begin::Stopped(barrier));
                }
                // Let other threads stop the scope between the check and the write.
                self.inner.clock().sleep(2).await;
                return self.swap(expected, record, mode).await.map(Begin::Swapped);
            }
            _ => {}
        }
        let tried = Arc::new(record.clone());
        let expected = self.expected(expected, &record.id).await?;
        self.spoil(&mut record);
        Ok(match self.inner.begin(expected, record, mode).await? {
            Begin::Swapped(Swap::Written(_)) => Begin::Swapped(Swap::Written(tried)),
            begun => begun,
        })
    }

    async fn stop(&self, barrier: &Barrier) -> Result<Barrier, StoreError> {
        if self.is(Fault::StopsAnew) {
            self.inner.resume(&barrier.scope).await?;
        }
        self.inner.stop(barrier).await
    }

    async fn resume(&self, scope: &str) -> Result<Option<Barrier>, StoreError> {
        if self.is(Fault::NeverResumes) { Ok(None) } else { self.inner.resume(scope).await }
    }

    async fn barriers(&self) -> Result<Vec<Barrier>, StoreError> {
        if self.is(Fault::HidesBarriers) { Ok(Vec::new()) } else { self.inner.barriers().await }
    }

    async fn delete(&self, id: &OperationId, expected: u64, mode: WriteMode) -> Result<bool, StoreError> {
        let found = self.inner.load(id).await?.map(|found| found.version);
        match self.fault {
            Fault::ForgetsDeletes => Ok(found == Some(expected)),
            Fault::DeletesAnyVersion => self.inner.delete(id, found.unwrap_or(expected), mode).await,
            Fault::SaysNoToEveryDelete => self.inner.delete(id, expected, mode).await.map(|_| false),
            _ => self.inner.delete(id, expected, mode).await,
        }
    }

    async fn occurrences(&self, action: &OperationId, now_ms: i64) -> Result<Vec<Record>, StoreError> {
        let mut found = self.inner.occurrences(action, now_ms).await?;
        let newest = found.iter().filter_map(|record| record.number).max();
        let is_open = |record: &Record| record.open_until_ms().is_some_and(|until_ms| until_ms > now_ms);
        match self.fault {
            Fault::OccurrencesForgetTheNewest => found.retain(is_open),
            Fault::OccurrencesForgetTheOpen => found.retain(|record| record.number == newest),
            Fault::OccurrencesOfEveryAction => {
                let all = self.inner.list(&Filter { limit: 100, ..Filter::default() }).await?;
                found.extend(all.into_iter().map(|listed| listed.record).filter(is_open));
            }
            _ => {}
        }
        Ok(found)
    }

    async fn list(&self, filter: &Filter) -> Result<Vec<Listed>, StoreError> {
        let mut filter = filter.clone();
        match self.fault {
            Fault::ListIgnoresScope => filter.scope = None,
            Fault::ListIgnoresScopePrefix => filter.scope_prefix = None,
            Fault::ListIgnoresName => filter.name = None,
            Fault::ListIgnoresStates => filter.states.clear(),
            Fault::ListIgnoresCursor => filter.before = None,
            Fault::ListRepeatsTheCursor => filter.before = filter.before.map(|cursor| Cursor(cursor.0 + 1)),
            Fault::ListIgnoresLimit => filter.limit = 1_000,
            Fault::ListIgnoresKey => filter.key = None,
            Fault::ListIgnoresIdPrefix => filter.id_prefix = None,
            Fault::ListIgnoresSince => filter.since_ms = None,
            Fault::ListIgnoresUntil => filter.until_ms = None,
            _ => {}
        }
        let mut page = self.inner.list(&filter).await?;
        if self.is(Fault::ListsOldestFirst) {
            page.reverse();
        }
        if self.is(Fault::ListBringsBodies) {
            for listed in &mut page {
                if let Some(found) = self.inner.load(&listed.record.id).await? {
                    listed.record = Record::clone(&found);
                }
            }
        }
        Ok(page)
    }

    async fn due(&self, now_ms: i64, limit: usize) -> Result<Vec<Record>, StoreError> {
        let mut due = match self.fault {
            Fault::DueIgnoresTime => self.inner.due(i64::MAX, limit).await,
            Fault::DueTellsItsOwnTime => self.inner.due(self.clock().now_ms(), limit).await,
            Fault::DueIsLateByOne => self.inner.due(now_ms - 1, limit).await,
            Fault::DueIgnoresLimit => self.inner.due(now_ms, 1_000).await,
            _ => self.inner.due(now_ms, limit).await,
        }?;
        if self.is(Fault::DueComesNewestFirst) {
            due.reverse();
        }
        Ok(due)
    }

    async fn apply(&self, mut changes: Vec<Change>, mode: WriteMode) -> Result<Vec<Applied>, StoreError> {
        let many = changes.len();
        if self.is(Fault::AppliesOnlyTheFirst) {
            changes.truncate(1);
        }
        for change in &mut changes {
            if let (Fault::AppliesAnyVersion, Change::Swap { expected: Some(expected), record }) =
                (self.fault, change)
                && let Some(found) = self.inner.load(&record.id).await?
            {
                *expected = found.version;
            }
        }
        let mut applied = self.inner.apply(changes, mode).await?;
        applied.resize(many, Applied::Written);
        if self.is(Fault::AnswersBatchesBackwards) {
            applied.reverse();
        }
        Ok(applied)
    }

    async fn counts(&self, filter: &Filter) -> Result<Counts, StoreError> {
        let everything = Filter::default();
        let filter = if self.is(Fault::CountsIgnoreTheFilter) { &everything } else { filter };
        let mut counts = self.inner.counts(filter).await?;
        if self.is(Fault::CountsOnlyDone) {
            counts.retain(|state, _| *state == State::Done);
        }
        Ok(counts)
    }

    async fn changed(&self, id: &OperationId, seen: u64, timeout_ms: u64) {
        match self.fault {
            Fault::SleepsThroughChanges => self.clock().sleep(timeout_ms).await,
            Fault::NeverLooksBeforeWaiting => {
                let now = self.inner.load(id).await.ok().flatten().map_or(0, |found| found.version);
                if now == seen {
                    self.inner.changed(id, seen, timeout_ms).await
                } else {
                    self.clock().sleep(timeout_ms).await
                }
            }
            _ => self.inner.changed(id, seen, timeout_ms).await,
        }
    }

    fn hold(&self, inherit: Inherit) -> Result<Box<dyn OwnerLock>, StoreError> {
        let hold = self.inner.hold(inherit)?;
        Ok(match self.fault {
            Fault::UsesOneToken => Box::new(OneToken),
            Fault::LosesDispatches => Box::new(DeafToDispatch(hold)),
            _ => hold,
        })
    }

    async fn liveness(&self, owner: &Owner) -> Result<Liveness, StoreError> {
        match self.fault {
            Fault::SeesAllOwnersAlive => Ok(Liveness::Alive),
            Fault::SeesAllOwnersGone => Ok(Liveness::Gone),
            Fault::KillsWhoseLeaseIsOver if owner.lease_until_ms < self.clock().now_ms() => {
                Ok(Liveness::Gone)
            }
            _ => self.inner.liveness(owner).await,
        }
    }

    fn tally_replay(&self, id: &OperationId) {
        if self.is(Fault::TallyWrites)
            && let Ok(Some(found)) = pollster::block_on(self.inner.load(id))
        {
            let next = Record { version: found.version + 1, ..Record::clone(&found) };
            drop(pollster::block_on(self.inner.swap(Some(found.version), next, WriteMode::Blocking)));
        }
        self.inner.tally_replay(id);
    }
}

struct OneToken;

impl OwnerLock for OneToken {
    fn token(&self) -> u64 {
        7
    }

    fn note_dispatch(&self, _dispatch: Dispatch) -> Result<(), StoreError> {
        Ok(())
    }
}

/// A lock that loses the note of its dispatch.
struct DeafToDispatch(Box<dyn OwnerLock>);

impl OwnerLock for DeafToDispatch {
    fn token(&self) -> u64 {
        self.0.token()
    }

    fn note_dispatch(&self, dispatch: Dispatch) -> Result<(), StoreError> {
        if dispatch == Dispatch::NotYet { self.0.note_dispatch(dispatch) } else { Ok(()) }
    }
}

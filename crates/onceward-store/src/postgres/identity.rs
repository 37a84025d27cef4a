//! Which ledger this is, and whether it was replaced. Checked when a store is opened, on every new connection, and at
//! every periodic check.
//!
//! Every write checks the row `ledger` of `meta`: its text, and the table and the transaction that wrote it. So a
//! write itself detects a ledger that was emptied, dropped and restored, or loaded from a dump under an open store.
//! This module detects what a write cannot see: another server, an older timeline, a sequence that went backwards,
//! missing records of this store.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};

use onceward::{Identity, StoreError};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, GenericClient, Row};

use super::check::Server;
use super::fault::explain;
use super::options::PostgresOptions;
use super::rows::cell;
use super::schema::{self, SCHEMA_VERSION};
use crate::clock::since_boot_ms;
use crate::remote::recent::{RecentWrites, Stored, Written, lost};
use crate::remote::{LedgerClock, Mark};

/// How often a store that writes also advances the ledger's time.
const CLOCK_MS: i64 = 30_000;
/// A newly opened store does not advance the ledger's time if its mark is younger than this.
const FRESH_MS: i64 = 5_000;

/// The ledger's tables, partitions and sequence that are not in the write-ahead log. A crash of the server empties
/// them.
const UNLOGGED: &str = "SELECT string_agg(c.oid::regclass::text, ', ' ORDER BY c.relname) \
    FROM pg_catalog.pg_class AS c WHERE c.relpersistence <> 'p' AND c.oid IN (\
    VALUES ('\"{schema}\".meta'::regclass::oid), ('\"{schema}\".operation'::regclass::oid), \
    ('\"{schema}\".operation_place'::regclass::oid) UNION ALL SELECT i.inhrelid FROM pg_catalog.pg_inherits AS i \
    WHERE i.inhparent = '\"{schema}\".operation'::regclass)";

/// The ledger's tables and partitions whose TRUNCATE would not be noticed, because the trigger is disabled or missing.
const UNGUARDED: &str = "SELECT string_agg(c.oid::regclass::text, ', ' ORDER BY c.relname) \
    FROM pg_catalog.pg_class AS c WHERE c.oid IN (VALUES ('\"{schema}\".operation'::regclass::oid) \
    UNION ALL SELECT i.inhrelid FROM pg_catalog.pg_inherits AS i \
    WHERE i.inhparent = '\"{schema}\".operation'::regclass) AND NOT EXISTS (\
    SELECT FROM pg_catalog.pg_trigger AS t \
    WHERE t.tgrelid = c.oid AND t.tgname = 'emptied' AND t.tgenabled IN ('O', 'A'))";

/// What the ledger's tables say about it.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) schema: i64,
    pub(super) identity: Identity,
    /// The name and the epoch that writes compare, possibly with a note that the table was emptied.
    ledger: String,
    /// The table and the transaction of that row.
    place: String,
    /// The table and the transaction when the row was written.
    birth: String,
    pub(super) clock: Option<Mark>,
    /// The server's system identifier and timeline, as recorded in the ledger.
    server: Option<(i64, i64)>,
    /// The highest position assigned to an operation.
    newest: i64,
    /// The tables that a crash of the server empties, where there are any.
    unlogged: Option<String>,
    /// The tables that could be emptied unnoticed, where there are any.
    unguarded: Option<String>,
}

impl Found {
    /// Creates the ledger if there is none, and reads what its tables say.
    pub(super) async fn open(client: &mut Client, options: &PostgresOptions) -> Result<Self, StoreError> {
        schema::prepare(client, options).await?;
        let found = Self::read(client, &options.schema).await?;
        found.refuse_unlogged()?;
        found.refuse_unguarded()?;
        Ok(found)
    }

    /// Reads the tables of a ledger of the current version.
    pub(super) async fn read(client: &impl GenericClient, schema: &str) -> Result<Self, StoreError> {
        let question = format!(
            "SELECT m.name, m.value, m.tableoid::text || ' ' || m.xmin::text, coalesce(pg_catalog.\
             pg_sequence_last_value('\"{schema}\".operation_place'::regclass), 0), ({UNLOGGED}), ({UNGUARDED}) \
             FROM \"{schema}\".meta AS m",
            UNLOGGED = UNLOGGED.replace("{schema}", schema),
            UNGUARDED = UNGUARDED.replace("{schema}", schema)
        );
        let rows = client.query_typed(&question, &[]).await.map_err(explain)?;
        Self::from_rows(&rows).map_err(explain)?
    }

    fn from_rows(rows: &[Row]) -> Result<Result<Self, StoreError>, tokio_postgres::Error> {
        let (mut notes, mut place) = (std::collections::HashMap::new(), String::new());
        let (mut newest, mut unlogged, mut unguarded) = (0, None, None);
        for row in rows {
            let (name, value): (String, String) = (row.try_get(0)?, row.try_get(1)?);
            if name == "ledger" {
                place = row.try_get(2)?;
            }
            newest = row.try_get(3)?;
            unlogged = row.try_get(4)?;
            unguarded = row.try_get(5)?;
            notes.insert(name, value);
        }
        let mut note = |name: &str| notes.remove(name).unwrap_or_default();
        let identity = match serde_json::from_str(&note("identity")) {
            Ok(identity) => identity,
            Err(_) => return Ok(Err(StoreError::replaced("it has no identity"))),
        };
        let server = note("server");
        let server =
            server.split_once(' ').and_then(|(id, line)| Some((id.parse().ok()?, line.parse().ok()?)));
        Ok(Ok(Self {
            schema: note("schema").parse().unwrap_or(0),
            identity,
            ledger: note("ledger"),
            place,
            birth: note("birth"),
            clock: Mark::parse(&note("clock")),
            server,
            newest,
            unlogged,
            unguarded,
        }))
    }

    /// The text that a write compares.
    pub(super) fn check(&self) -> String {
        format!("{} {}", self.ledger, self.place)
    }

    /// Refuses a ledger that another version has created in place of the one that was opened.
    pub(super) fn refuse_another_version(&self, options: &PostgresOptions) -> Result<(), StoreError> {
        if self.schema == SCHEMA_VERSION {
            return Ok(());
        }
        Err(schema::another_version(&options.schema, self.schema))
    }

    /// Refuses a ledger with tables that a crash of the server empties.
    fn refuse_unlogged(&self) -> Result<(), StoreError> {
        let Some(tables) = &self.unlogged else { return Ok(()) };
        Err(StoreError::Unusable {
            what: format!(
                "the ledger has unlogged relations ({tables}): a crash of the server empties them, and then \
                 everything runs again. Run ALTER TABLE ... SET LOGGED on each table, and ALTER SEQUENCE ... SET \
                 LOGGED on a sequence; if the server has crashed since they were set UNLOGGED, also run `once \
                 restored --at TIME` with the time of that change"
            ),
        })
    }

    /// Refuses a ledger with tables that could be emptied unnoticed.
    fn refuse_unguarded(&self) -> Result<(), StoreError> {
        let Some(tables) = &self.unguarded else { return Ok(()) };
        Err(StoreError::Unusable {
            what: format!(
                "the ledger's trigger \"emptied\" is disabled or missing on {tables}, so a TRUNCATE would not be \
                 noticed and everything would run again. Run ALTER TABLE ... ENABLE ALWAYS TRIGGER emptied on each \
                 table; if it was emptied since, also run `once restored --at TIME` with the time before that"
            ),
        })
    }

    /// What is wrong with the ledger for every program that has it open: it was emptied, or it is a copy.
    fn fault(&self) -> Option<String> {
        let mark = self.identity.mark();
        match () {
            () if self.ledger == format!("{mark} emptied") => {
                Some("its operations were removed by TRUNCATE".to_owned())
            }
            () if self.ledger != mark => {
                Some(format!("its identity is {mark}, but its tables belong to another ledger"))
            }
            () if self.birth != self.place => {
                Some(format!("it is a copy of {mark}, for example from a dump"))
            }
            () => None,
        }
    }
}

/// What a store knows about its ledger, and whether it may write to it.
#[derive(Debug)]
pub(super) struct LedgerStatus {
    pub(super) identity: Identity,
    /// The text that every write compares.
    pub(super) check: String,
    system: Option<i64>,
    timeline: AtomicI64,
    newest: AtomicI64,
    /// When the server was started that last had all of `recent`.
    started_us: AtomicI64,
    /// The newest records that this store wrote.
    pub(super) recent: RecentWrites,
    refusal: Mutex<Option<Refusal>>,
    /// When the ledger's time must be advanced, in milliseconds since boot.
    clock_due_ms: AtomicI64,
}

/// Why a store begins no attempts.
#[derive(Debug, Clone)]
enum Refusal {
    /// The server's settings are unsafe at the moment. Attempts in progress may still finish: an outcome that may be
    /// lost is better than none.
    UnsafeSettings(String),
    /// The ledger is not the one that was opened. This store never writes again.
    Replaced(String),
}

impl LedgerStatus {
    /// The status of a newly opened store.
    pub(super) fn new(found: &Found, server: Option<&Server>, clock: &LedgerClock) -> Self {
        let system = server.and_then(|server| server.system);
        let timeline = server.and_then(|server| server.timeline);
        let older =
            found.server.filter(|(of, line)| system == Some(*of) && timeline.is_some_and(|now| now < *line));
        let fault = found.fault().or_else(|| older.map(|_| old_primary()));
        let fresh = found.clock.as_ref().is_some_and(|mark| clock.mark().at_ms() - mark.at_ms() < FRESH_MS);
        Self {
            identity: found.identity.clone(),
            check: found.check(),
            system,
            timeline: AtomicI64::new(timeline.unwrap_or(0)),
            newest: AtomicI64::new(found.newest),
            started_us: AtomicI64::new(server.map_or(0, |server| server.started_us)),
            recent: RecentWrites::default(),
            refusal: Mutex::new(fault.map(|seen| Refusal::Replaced(replaced(&seen)))),
            clock_due_ms: AtomicI64::new(if fresh { since_boot_ms() + CLOCK_MS } else { 0 }),
        }
    }

    /// Evaluates a new reading of the ledger and its server. `seen` is the highest position seen before the query. If
    /// they are older than what this store has seen, it never writes again. If the server's settings are unsafe, it
    /// begins no attempts until they are fixed.
    pub(super) fn look(
        &self,
        found: &Found,
        server: &Server,
        options: &PostgresOptions,
        seen: i64,
    ) -> Result<(), StoreError> {
        if let Some(seen) = self.find_regression(found, server, seen) {
            return Err(self.mark_replaced(&seen));
        }
        server.refuse_read_only()?;
        let fit = server.refuse(options).and_then(|()| found.refuse_another_version(options));
        match fit.and_then(|()| found.refuse_unlogged()).and_then(|()| found.refuse_unguarded()) {
            Ok(()) => self.clear_unsafe(),
            Err(unfit) => self.refuse(Refusal::UnsafeSettings(unfit.to_string())),
        }
        self.newest.fetch_max(found.newest, Ordering::Relaxed);
        self.timeline.fetch_max(server.timeline.unwrap_or(0), Ordering::Relaxed);
        Ok(())
    }

    /// Evidence that the ledger or its server is in an older state than this store has seen.
    fn find_regression(&self, found: &Found, server: &Server, seen: i64) -> Option<String> {
        if let (Some(opened), Some(now)) = (self.system, server.system)
            && opened != now
        {
            return Some(format!("the server is {now}, not {opened}"));
        }
        if self.is_behind(server.timeline) {
            return Some(old_primary());
        }
        if found.check() != self.check {
            return Some(found.fault().unwrap_or_else(|| format!("it is now {}", found.check())));
        }
        (found.newest < seen).then(|| {
            format!("its newest operation is number {}, but number {seen} was seen before", found.newest)
        })
    }

    /// Whether a server is on an older timeline than one already seen: a former primary.
    pub(super) fn is_behind(&self, timeline: Option<i64>) -> bool {
        timeline.is_some_and(|timeline| timeline < self.timeline.load(Ordering::Relaxed))
    }

    /// The highest position that this store has seen.
    pub(super) fn newest(&self) -> i64 {
        self.newest.load(Ordering::Relaxed)
    }

    /// Records the position that a write assigned to a new operation.
    pub(super) fn note_position(&self, place: Option<i64>) {
        self.newest.fetch_max(place.unwrap_or(0), Ordering::Relaxed);
    }

    /// Marks the ledger as replaced: this store never writes again.
    pub(super) fn mark_replaced(&self, seen: &str) -> StoreError {
        let error = StoreError::replaced(seen);
        self.refuse(Refusal::Replaced(error.to_string()));
        error
    }

    /// Records an error that concerns the ledger as a whole.
    pub(super) fn note(&self, error: &StoreError) {
        if let StoreError::Replaced { what } = error {
            self.refuse(Refusal::Replaced(what.clone()));
        }
    }

    fn refuse(&self, refusal: Refusal) {
        let mut now = self.refusal.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*now, Some(Refusal::Replaced(_))) {
            *now = Some(refusal);
        }
    }

    fn clear_unsafe(&self) {
        let mut now = self.refusal.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*now, Some(Refusal::UnsafeSettings(_))) {
            *now = None;
        }
    }

    /// Why this store must not begin an attempt, if so.
    pub(super) fn refusal(&self) -> Option<StoreError> {
        let now = self.refusal.lock().unwrap_or_else(PoisonError::into_inner).clone();
        now.map(|refusal| match refusal {
            Refusal::UnsafeSettings(what) => StoreError::Unusable { what },
            Refusal::Replaced(what) => StoreError::Replaced { what },
        })
    }

    /// Why this store must not write at all, if so.
    pub(super) fn replacement(&self) -> Option<StoreError> {
        self.refusal().filter(|refusal| matches!(refusal, StoreError::Replaced { .. }))
    }

    /// The mark that the next write must store, if it is due.
    pub(super) fn clock_mark(&self, clock: &LedgerClock) -> Option<String> {
        let due = since_boot_ms() >= self.clock_due_ms.load(Ordering::Relaxed);
        due.then(|| clock.mark().to_string())
    }

    /// Schedules the next advance of the ledger's time.
    pub(super) fn schedule_clock_mark(&self) {
        self.clock_due_ms.store(since_boot_ms() + CLOCK_MS, Ordering::Relaxed);
    }
}

fn replaced(seen: &str) -> String {
    StoreError::replaced(seen).to_string()
}

fn old_primary() -> String {
    "the server is on an older timeline: another server was promoted to primary after it".to_owned()
}

/// Records the server in the ledger if it is a different one or on a later timeline.
pub(super) async fn note_server(
    client: &Client,
    name: &str,
    found: &Found,
    server: &Server,
) -> Result<(), StoreError> {
    let (Some(system), Some(timeline)) = (server.system, server.timeline) else { return Ok(()) };
    let known = found.server.is_some_and(|(of, line)| of == system && line >= timeline);
    if known {
        return Ok(());
    }
    schema::note(client, name, "server", &format!("{system} {timeline}")).await
}

/// Checks that the newest records that this store wrote are still there. A server that was restarted may be in an older
/// state, and a crash empties unlogged tables. Otherwise a missing record was deleted.
pub(super) async fn check_recent(
    client: &Client,
    schema: &str,
    status: &LedgerStatus,
    (found, server): (&Found, &Server),
) -> Result<(), StoreError> {
    let restarted = status.started_us.load(Ordering::Relaxed) != server.started_us;
    let written: Vec<Written> = status.recent.all().into_iter().flat_map(|(_, written)| written).collect();
    if !written.is_empty() {
        let ids: Vec<&str> = written.iter().map(|written| written.id.as_str()).collect();
        let query = format!(
            "SELECT id, version, created_ms, updated_ms FROM \"{schema}\".operation WHERE id = ANY ($1)"
        );
        let rows = client.query_typed(&query, &[(&ids, Type::TEXT_ARRAY)]).await.map_err(explain)?;
        let mut stored = std::collections::HashMap::new();
        for row in &rows {
            let (id, version): (String, i64) = (cell(row, 0)?, cell(row, 1)?);
            stored.insert(id, (version.unsigned_abs(), cell(row, 2)?, cell(row, 3)?));
        }
        let compare = |written: Written| {
            let stored: Stored = stored.get(written.id.as_str()).copied();
            (written, stored)
        };
        let compared: Vec<_> = written.into_iter().map(compare).collect();
        if (restarted || found.unlogged.is_some())
            && let Some(seen) = lost(&compared)
        {
            return Err(status.mark_replaced(&seen));
        }
        status.recent.settle(0, &compared);
    }
    status.started_us.store(server.started_us, Ordering::Relaxed);
    Ok(())
}

/// Writes a new identity if the ledger still has the one that was opened. Writers wait for it, so no write of an
/// earlier epoch is in progress when the new identity is in place.
pub(super) async fn write(
    client: &mut Client,
    options: &PostgresOptions,
    opened: &Identity,
    next: &Identity,
) -> Result<(), StoreError> {
    let name = &options.schema;
    let transaction = client.transaction().await.map_err(explain)?;
    let lock = format!(
        "SET LOCAL lock_timeout = '{}ms'; SET LOCAL synchronous_commit = on; \
         LOCK TABLE \"{name}\".operation IN SHARE ROW EXCLUSIVE MODE",
        options.timeout.as_millis()
    );
    transaction.batch_execute(&lock).await.map_err(explain)?;
    let found = Found::read(&transaction, name).await?;
    if found.identity.mark() != opened.mark() {
        return Err(StoreError::replaced(&format!("it is now {}", found.identity.mark())));
    }
    let text = serde_json::to_string(next)
        .map_err(|error| StoreError::because("an identity cannot be written as JSON", error))?;
    schema::note(&transaction, name, "identity", &text).await?;
    // Only a new epoch rewrites the row that writes compare, because its transaction id is part of the comparison.
    if next.mark() != opened.mark() {
        schema::note(&transaction, name, "ledger", &next.mark()).await?;
        schema::note_birth(&transaction, name).await?;
    }
    transaction.commit().await.map_err(explain)
}

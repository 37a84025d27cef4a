//! Whether the server keeps what it acknowledges. Looked at on every connection: after a failover it is another
//! server.

use onceward::StoreError;
use tokio_postgres::Row;

use super::options::{PostgresOptions, Standby};
use crate::health::Finding;

/// The oldest version with all that is used here.
const OLDEST: i32 = 130_000;

/// One question, so that it costs one way. Who lacks the right to see standbys sees how many there are.
pub(super) const QUESTION: &str = "SELECT current_setting('server_version_num')::int4, \
    current_setting('server_version'), pg_is_in_recovery() OR current_setting('transaction_read_only')::bool, \
    current_setting('fsync')::bool, current_setting('full_page_writes')::bool, current_setting('synchronous_commit'), \
    current_setting('synchronous_standby_names'), current_setting('server_encoding'), \
    (SELECT count(*) FROM pg_stat_replication r WHERE r.state IS DISTINCT FROM 'backup' AND r.pid NOT IN \
      (SELECT s.active_pid FROM pg_replication_slots s WHERE s.slot_type = 'logical' AND s.active_pid IS NOT NULL)), \
    (SELECT count(*) FROM pg_stat_replication r WHERE r.sync_state IN ('sync', 'quorum')), \
    pg_has_role(current_user, 'pg_read_all_stats', 'member'), \
    floor(extract(epoch FROM clock_timestamp()) * 1000)::int8";

/// What a server says of itself.
#[derive(Debug, Clone)]
pub(super) struct Server {
    version_number: i32,
    version: String,
    read_only: bool,
    fsync: bool,
    full_page_writes: bool,
    synchronous_commit: String,
    standby_names: String,
    encoding: String,
    standbys: i64,
    confirming: i64,
    sees_standbys: bool,
    /// Its clock, when it answered.
    pub(super) now_ms: i64,
}

impl Server {
    pub(super) fn from_row(row: &Row) -> Result<Self, tokio_postgres::Error> {
        Ok(Self {
            version_number: row.try_get(0)?,
            version: row.try_get(1)?,
            read_only: row.try_get(2)?,
            fsync: row.try_get(3)?,
            full_page_writes: row.try_get(4)?,
            synchronous_commit: row.try_get(5)?,
            standby_names: row.try_get(6)?,
            encoding: row.try_get(7)?,
            standbys: row.try_get(8)?,
            confirming: row.try_get(9)?,
            sees_standbys: row.try_get(10)?,
            now_ms: row.try_get(11)?,
        })
    }

    /// Refuses a server that does not keep what it acknowledges.
    pub(super) fn refuse(&self, options: &PostgresOptions) -> Result<(), StoreError> {
        let unusable = |what: String| Err(StoreError::Unusable { what });
        if self.version_number < OLDEST {
            return unusable(format!(
                "the server is PostgreSQL {}; the ledger needs 13 or newer",
                self.version
            ));
        }
        if self.read_only {
            // Not for ever: it may be promoted, or another host of the URL may take over.
            return Err(StoreError::unavailable(
                "the server is a standby or read-only; name the primary, or all hosts with \
                 target_session_attrs=read-write",
            ));
        }
        if !self.fsync || !self.full_page_writes {
            return unusable(
                "the server runs with fsync or full_page_writes off, so a power cut loses intents and something \
                 runs twice; set both to on"
                    .to_owned(),
            );
        }
        if self.encoding != "UTF8" {
            return unusable(format!("the database is encoded in {}; the ledger needs UTF8", self.encoding));
        }
        if self.asynchronous() && options.standby == Standby::Synchronous {
            return unusable(
                "a standby is connected that confirms nothing: promoting it loses what was acknowledged, and then \
                 something runs twice. Set synchronous_standby_names, or say standby=async in the URL to accept that"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// A standby could be promoted that lacks what was acknowledged.
    fn asynchronous(&self) -> bool {
        self.standbys > 0 && self.standby_names.trim().is_empty()
    }

    pub(super) fn findings(&self, wall_ms: i64) -> Vec<Finding> {
        let on_off = |on: bool| if on { "on" } else { "off" };
        let mut findings = vec![Finding::good("server", format!("PostgreSQL {}", self.version))];
        let disk =
            format!("fsync {}, full_page_writes {}", on_off(self.fsync), on_off(self.full_page_writes));
        findings.push(match (self.fsync, self.full_page_writes) {
            (true, true) => Finding::good("disk", disk),
            (_, _) => Finding::bad("disk", format!("{disk}: a power cut loses intents")),
        });
        let commit = &self.synchronous_commit;
        findings.push(match commit.as_str() {
            "on" | "remote_apply" => Finding::good("synchronous_commit", commit.clone()),
            weaker => Finding::good(
                "synchronous_commit",
                format!("{weaker} on the server, on for every write of the ledger"),
            ),
        });
        findings.push(self.on_standbys());
        let apart_ms = (self.now_ms - wall_ms).abs();
        let apart = format!("{apart_ms} ms apart from this machine's; the ledger goes by the server's");
        findings.push(if apart_ms < 1_000 {
            Finding::good("clock", apart)
        } else {
            Finding::look("clock", apart)
        });
        findings
    }

    fn on_standbys(&self) -> Finding {
        const WHAT: &str = "standbys";
        let (all, names) = (self.standbys, &self.standby_names);
        if self.asynchronous() {
            return Finding::bad(
                WHAT,
                format!("{all} connected, none confirms: promoting one loses what was acknowledged"),
            );
        }
        match (all, self.sees_standbys) {
            (0, _) if names.is_empty() => Finding::good(WHAT, "none"),
            (0, _) => Finding::look(WHAT, format!("none is connected, and writes wait for {names:?}")),
            (_, false) => Finding::look(
                WHAT,
                format!(
                    "{all} connected; the role may not see which confirm (grant it pg_monitor); {names:?} is set"
                ),
            ),
            (_, true) if self.confirming < all => Finding::look(
                WHAT,
                format!("{} of {all} confirm each write; promote none of the others", self.confirming),
            ),
            (_, true) => Finding::good(WHAT, format!("{all} connected, all confirm each write")),
        }
    }
}

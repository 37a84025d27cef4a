//! Checks that the server keeps what it acknowledges. Done on every connection, because a failover leads to another
//! server, and periodically, because settings change.

use onceward::StoreError;
use tokio_postgres::Row;

use super::options::{PostgresOptions, Standby};
use crate::health::Finding;

/// The oldest supported version.
const OLDEST: i32 = 130_000;

/// One query, for a single round trip. A role that may not see details of standbys can still count them.
pub(super) const QUERY: &str = "SELECT current_setting('server_version_num')::int4, \
    current_setting('server_version'), pg_is_in_recovery() OR current_setting('transaction_read_only')::bool, \
    current_setting('fsync')::bool, current_setting('full_page_writes')::bool, current_setting('synchronous_commit'), \
    current_setting('synchronous_standby_names'), current_setting('server_encoding'), \
    (SELECT count(*) FROM pg_stat_replication r WHERE r.state IS DISTINCT FROM 'backup' AND r.pid NOT IN \
      (SELECT s.active_pid FROM pg_replication_slots s WHERE s.slot_type = 'logical' AND s.active_pid IS NOT NULL)), \
    (SELECT count(*) FROM pg_stat_replication r WHERE r.sync_state IN ('sync', 'quorum')), \
    pg_has_role(current_user, 'pg_read_all_stats', 'member'), \
    floor(extract(epoch FROM clock_timestamp()) * 1000)::int8, \
    (SELECT s.version FROM pg_stat_ssl s WHERE s.pid = pg_backend_pid() AND s.ssl), \
    coalesce(inet_client_addr() <<= '127.0.0.0/8' OR inet_client_addr() = '::1', true), \
    floor(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::int8";

/// The system identifier and the timeline. Each promotion of a standby begins a new timeline. Not every service that
/// speaks the PostgreSQL protocol supports these functions, so they are queried separately, with a fallback without
/// the timeline.
pub(super) const IDENTIFY: [&str; 2] = [
    "SELECT system_identifier, CASE WHEN NOT pg_is_in_recovery() THEN \
     ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int8 END FROM pg_control_system()",
    "SELECT system_identifier, NULL::int8 FROM pg_control_system()",
];

/// What a server reports about itself.
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
    /// The TLS version, if the connection is encrypted.
    encrypted: Option<String>,
    /// Whether the connection stays on this machine.
    local: bool,
    /// The system identifier, if reported.
    pub(super) system: Option<i64>,
    /// The timeline, if reported.
    pub(super) timeline: Option<i64>,
    /// When the server was started, in microseconds.
    pub(super) started_us: i64,
    /// The server's clock when it answered.
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
            encrypted: row.try_get(12)?,
            local: row.try_get(13)?,
            started_us: row.try_get(14)?,
            system: None,
            timeline: None,
        })
    }

    /// Whether the server is a standby or read-only.
    pub(super) fn read_only(&self) -> bool {
        self.read_only
    }

    /// Refuses a server that accepts no writes. This is temporary: it may be promoted, or another host of the URL may
    /// take over.
    pub(super) fn refuse_read_only(&self) -> Result<(), StoreError> {
        if !self.read_only {
            return Ok(());
        }
        Err(StoreError::unavailable(
            "the server is a standby or read-only; name the primary, or all hosts with \
             target_session_attrs=read-write",
        ))
    }

    /// Refuses a server that may lose what it acknowledges.
    pub(super) fn refuse(&self, options: &PostgresOptions) -> Result<(), StoreError> {
        let unusable = |what: String| Err(StoreError::Unusable { what });
        if self.version_number < OLDEST {
            return unusable(format!(
                "the server is PostgreSQL {}; the ledger needs 13 or newer",
                self.version
            ));
        }
        if !self.fsync || !self.full_page_writes {
            return unusable(
                "the server runs with fsync or full_page_writes off, so a power failure loses intents and an \
                 effect can happen twice; set both to on"
                    .to_owned(),
            );
        }
        if self.encoding != "UTF8" {
            return unusable(format!("the database is encoded in {}; the ledger needs UTF8", self.encoding));
        }
        if self.has_asynchronous() && options.standby == Standby::Synchronous {
            return unusable(
                "an asynchronous standby is connected: promoting it loses acknowledged writes, and then an effect can \
                 happen twice. Set synchronous_standby_names, or add standby=async to the URL to accept that"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// Whether a standby could be promoted that lacks acknowledged writes.
    fn has_asynchronous(&self) -> bool {
        self.standbys > 0 && self.standby_names.trim().is_empty()
    }

    /// The findings for `once doctor`. `ahead_ms` is how far the server's clock is ahead of the ledger's time.
    pub(super) fn findings(&self, ahead_ms: i64) -> Vec<Finding> {
        let on_off = |on: bool| if on { "on" } else { "off" };
        let mut findings = vec![Finding::good("server", format!("PostgreSQL {}", self.version))];
        let disk =
            format!("fsync {}, full_page_writes {}", on_off(self.fsync), on_off(self.full_page_writes));
        findings.push(match (self.fsync, self.full_page_writes) {
            (true, true) => Finding::good("disk", disk),
            (_, _) => Finding::bad("disk", format!("{disk}: a power failure loses intents")),
        });
        let commit = &self.synchronous_commit;
        findings.push(match commit.as_str() {
            "on" | "remote_apply" => Finding::good("synchronous_commit", commit.clone()),
            weaker => Finding::good(
                "synchronous_commit",
                format!("{weaker} on the server; the ledger sets it to on for its writes"),
            ),
        });
        findings.push(self.check_standbys());
        findings.push(self.check_encryption());
        findings.push(check_clock(ahead_ms));
        findings
    }

    fn check_encryption(&self) -> Finding {
        const WHAT: &str = "encryption";
        match (&self.encrypted, self.local) {
            (Some(version), _) => Finding::good(WHAT, format!("{version} to the server")),
            (None, true) => Finding::good(WHAT, "none; the connection does not leave this machine"),
            (None, false) => {
                Finding::look(WHAT, "none; set sslmode=verify-full, and sslrootcert= for a private authority")
            }
        }
    }

    fn check_standbys(&self) -> Finding {
        const WHAT: &str = "standbys";
        let (all, names) = (self.standbys, &self.standby_names);
        if self.has_asynchronous() {
            return Finding::bad(
                WHAT,
                format!("{all} connected, all asynchronous: promoting one loses acknowledged writes"),
            );
        }
        match (all, self.sees_standbys) {
            (0, _) if names.is_empty() => Finding::good(WHAT, "none"),
            (0, _) => Finding::look(WHAT, format!("none connected; writes wait for {names:?}")),
            (_, false) => Finding::look(
                WHAT,
                format!(
                    "{all} connected; the role may not see which are synchronous (grant it pg_monitor); \
                     {names:?} is set"
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

fn check_clock(ahead_ms: i64) -> Finding {
    const WHAT: &str = "clock";
    const GO_BY: &str = "leases and retention go by the ledger's time, so nothing runs or expires early";
    match ahead_ms {
        -1_000..=1_000 => {
            Finding::good(WHAT, format!("the server's is {ahead_ms} ms ahead of the ledger's time"))
        }
        ahead if ahead > 0 => Finding::look(
            WHAT,
            format!("the server's is {ahead} ms ahead of the ledger's time; set it right. {GO_BY}"),
        ),
        behind => Finding::look(
            WHAT,
            format!("the server's is {} ms behind the ledger's time; set it right. {GO_BY}", -behind),
        ),
    }
}

//! Periodic work of a store: reading the clocks, and checking that the servers' settings are still safe.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Instant;

use onceward::StoreError;
use redis::Value;

use super::cluster::{self, Member, Topology};
use super::identity::{self, Found};
use super::node::{Command, NodeReply, NotRun, recent};
use super::settings::{QUERIES, Role, Settings, text};
use crate::remote::LedgerClock;
use crate::remote::recent::Written;

/// The maximum age of the clock mark in the ledger while a store writes.
const MARK_EVERY_MS: i64 = 30_000;

/// Runs the periodic work for as long as the ledger is open.
pub(super) async fn run(topology: Weak<Topology>, clock: Arc<LedgerClock>) {
    let mut losses = 0;
    loop {
        let Some((invalidations, interval)) = topology
            .upgrade()
            .map(|topology| (Arc::clone(&topology.invalidations), topology.options.check_interval))
        else {
            return;
        };
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            () = invalidations.missed.notified() => {}
        }
        let Some(topology) = topology.upgrade() else { return };
        check_servers(&topology).await;
        let lost = invalidations.losses();
        // Another server may have taken over. If it does not answer yet, it is asked again.
        if lost != losses && check_writes(&topology).await.is_ok() {
            losses = lost;
        }
        // If this fails, the next check settles it.
        drop(settle_announced(&topology).await);
        // If a reading fails, the next one replaces it.
        drop(read_clocks(&topology, &clock).await);
    }
}

/// Checks that every shard has had at least the acknowledged number of writes, before other stores write to it and
/// catch up.
async fn check_writes(topology: &Arc<Topology>) -> Result<(), StoreError> {
    let known = topology.terms.acknowledged_writes();
    let query = |(shard, _): &(u16, u64)| {
        Command::plain(*shard, ["HGET", &topology.keys.ledger(*shard), topology.terms.mark()])
    };
    let answers = topology.read_all(known.iter().map(query).collect()).await?;
    for ((shard, writes), answer) in known.into_iter().zip(answers) {
        // A shard without a mark is detected by the next write, and may be recovered.
        let found = text(&answer).and_then(|found| found.parse::<u64>().ok());
        if let Some(found) = found.filter(|found| *found < writes) {
            let root = topology.keys.root(shard);
            topology.terms.older.get_or_init(|| {
                format!(
                    "{root} is older than it was: it has had {found} writes, but {writes} were acknowledged"
                )
            });
        }
    }
    Ok(())
}

/// Looks at the records of this handle whose change was announced: one that was deleted says nothing about a restart.
async fn settle_announced(topology: &Arc<Topology>) -> Result<(), StoreError> {
    let announced = topology.terms.recent.all().into_iter().filter_map(|(shard, mut written)| {
        written.retain(|written| written.changed);
        (!written.is_empty()).then_some((shard, written))
    });
    let announced: Vec<_> = announced.collect();
    let query = |(shard, written): &(u16, Vec<Written>)| {
        let names = recent::names(&topology.keys, written);
        Command::plain(*shard, std::iter::once("MGET").chain(names.iter().map(String::as_str)))
    };
    let answers = topology.read_all(announced.iter().map(query).collect()).await?;
    for ((shard, written), answer) in announced.into_iter().zip(answers) {
        topology.terms.recent.settle(shard, &recent::compared(written, &answer));
    }
    Ok(())
}

/// Checks the settings of every server. One with unsafe settings is not used until they are fixed.
async fn check_servers(topology: &Arc<Topology>) {
    for member in &topology.map().nodes {
        if let Some(found) = check(topology, member).await {
            member.node.record_check(found);
        }
    }
}

/// Checks the settings of a server; `None` if it does not answer.
async fn check(topology: &Topology, member: &Member) -> Option<Result<(), String>> {
    let until = topology.until();
    let sent: Vec<_> = QUERIES
        .into_iter()
        .map(|words| member.node.send(&Arc::new(Command::plain(0, words.iter().copied())), until))
        .collect();
    let mut answers = Vec::with_capacity(sent.len());
    for answer in sent {
        match answer.await {
            Ok(NodeReply::Reply(value)) => answers.push(value),
            Ok(NodeReply::NotRun(NotRun::Unusable(what))) => return Some(Err(what)),
            // If the server forbids the query, the setting counts as not reported.
            Ok(NodeReply::Refused(_)) => answers.push(Value::Nil),
            Ok(_) | Err(_) => return None,
        }
    }
    let settings = Settings::of(&answers);
    // A server that has become a replica rejects writes itself.
    let name =
        member.node.hosts.iter().map(|(host, port)| format!("{host}:{port}")).collect::<Vec<_>>().join(",");
    (settings.role == Role::Primary).then(|| settings.check(&topology.options, &name))
}

/// Reads the servers' clocks, and the time and the replicas in the ledger's own key.
async fn read_clocks(topology: &Arc<Topology>, clock: &LedgerClock) -> Result<(), StoreError> {
    let found = identity::parse(&topology.read(identity::query(topology), topology.until()).await?);
    if let Some(server_ms) = server_time(topology).await? {
        clock.read(server_ms, found.as_ref().and_then(Found::clock).as_ref());
    }
    let Some(found) = found else {
        let meta = topology.keys.meta();
        topology
            .terms
            .older
            .get_or_init(|| format!("{meta} is missing: it was deleted, or a server was emptied"));
        return Ok(());
    };
    if found.format != identity::FORMAT {
        let what = "the ledger was migrated to a newer format; update this program";
        topology.map().nodes.iter().for_each(|member| member.node.record_check(Err(what.to_owned())));
        return Ok(());
    }
    agree_on_replicas(topology, &found).await?;
    if topology.terms.wrote.swap(false, Ordering::Relaxed) {
        mark_time(topology, clock, &found).await?;
    }
    Ok(())
}

/// Writes the ledger's time into the ledger, unless that was done recently.
pub(super) async fn mark_time(
    topology: &Arc<Topology>,
    clock: &LedgerClock,
    found: &Found,
) -> Result<(), StoreError> {
    let mark = clock.mark();
    if found.clock().is_some_and(|last| mark.at_ms() < last.at_ms() + MARK_EVERY_MS) {
        return Ok(());
    }
    // If another store was faster, its mark is just as good.
    identity::amend(topology, ("clock", &found.clock), &[("clock", &mark.to_string())]).await.map(drop)
}

/// Determines how many replicas must confirm a write: all that there are, and no fewer than there were, unless the
/// URL sets the number. The highest number is stored in the ledger, so that a store that finds fewer replicas later,
/// after a failover or on the wrong side of a partition, knows about them.
pub(super) async fn agree_on_replicas(topology: &Arc<Topology>, found: &Found) -> Result<(), StoreError> {
    if topology.options.wait.is_some() {
        return Ok(());
    }
    let fewest = replicas(topology).await?;
    topology.terms.wait.fetch_max(fewest.max(found.wait), Ordering::Relaxed);
    if fewest > found.wait {
        let (before, now) = (found.wait.to_string(), fewest.to_string());
        // If another store was faster, the next check reads its number.
        identity::amend(topology, ("wait", &before), &[("wait", &now)]).await?;
    }
    Ok(())
}

/// The minimum number of replicas over all servers.
pub(super) async fn replicas(topology: &Topology) -> Result<u32, StoreError> {
    let follow = ask_each(topology, &["INFO", "replication"]).await?;
    let settings = follow.iter().map(|info| Settings::read(&text(info).unwrap_or_default()));
    Ok(settings.map(|settings| settings.replicas.online).min().unwrap_or_default())
}

/// The earliest of all servers' clocks.
pub(super) async fn server_time(topology: &Topology) -> Result<Option<i64>, StoreError> {
    let times = ask_each(topology, &["TIME"]).await?;
    Ok(times.iter().filter_map(time_ms).min())
}

fn time_ms(answer: &Value) -> Option<i64> {
    let Value::Array(parts) = answer else { return None };
    let number = |index: usize| -> Option<i64> { text(parts.get(index)?)?.parse().ok() };
    Some(number(0)? * 1_000 + number(1)? / 1_000)
}

/// Sends a command to the server of a shard, once.
pub(super) async fn ask(topology: &Topology, command: Command) -> Result<Value, StoreError> {
    value_of(topology.send(&Arc::new(command), topology.until()).await)
}

/// Sends a command to every server, concurrently.
async fn ask_each(topology: &Topology, words: &[&str]) -> Result<Vec<Value>, StoreError> {
    let until = Instant::now() + topology.options.timeout;
    let command = Arc::new(Command::plain(0, words.iter().copied()));
    let sent: Vec<_> = topology.map().nodes.iter().map(|member| member.node.send(&command, until)).collect();
    let mut values = Vec::with_capacity(sent.len());
    for answer in sent {
        values.push(value_of(answer.await)?);
    }
    Ok(values)
}

/// The value of an answer that is not retried.
fn value_of(answer: Result<NodeReply, tokio::sync::oneshot::error::RecvError>) -> Result<Value, StoreError> {
    let cannot = |why: &str| StoreError::unavailable(format!("the ledger's server cannot be used: {why}"));
    match answer {
        Ok(NodeReply::Reply(value)) => Ok(value),
        Ok(NodeReply::NotRun(NotRun::Unusable(what))) => Err(StoreError::Unusable { what }),
        Ok(NodeReply::NotRun(NotRun::Later(why) | NotRun::Elsewhere(why)) | NodeReply::Lost(why)) => {
            Err(cannot(&why))
        }
        Ok(NodeReply::Refused(words)) => Err(cannot(&words)),
        Ok(NodeReply::Replaced(seen) | NodeReply::Older(seen)) => Err(StoreError::replaced(&seen)),
        Ok(NodeReply::Unconfirmed { have, need }) => Err(cluster::unconfirmed(have, need)),
        Err(_) => Err(cannot("no answer")),
    }
}

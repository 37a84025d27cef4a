//! Stopped scopes. A barrier is in every shard, because the script that begins an attempt runs on one shard.
//!
//! The first shard decides between two barriers for one scope. A stop that is interrupted may leave the barrier in some
//! of the shards only; it has not returned then, and stopping or resuming again completes it.

use std::collections::BTreeMap;
use std::sync::Arc;

use onceward::{Barrier, StoreError};
use redis::Value;

use super::cluster::Topology;
use super::node::{Command, Confirm};
use super::scripts::Script;
use super::settings::text;

/// What the script does.
#[derive(Debug, Clone, Copy)]
enum How {
    /// Sets the barrier, unless there is one.
    First,
    /// Sets the barrier.
    Set,
    /// Lifts the barrier.
    Lift,
}

/// Sets the barrier in every shard, unless the scope has one.
pub(super) async fn set(topology: &Arc<Topology>, barrier: &Barrier) -> Result<Barrier, StoreError> {
    let ours = encode(barrier)?;
    let first = change(topology, 0..1, How::First, &barrier.scope, &ours).await?;
    let winner = first.into_iter().next().flatten().unwrap_or(ours);
    change(topology, 0..topology.keys.shards(), How::Set, &barrier.scope, &winner).await?;
    decode(&winner)
}

/// Lifts the barrier of exactly this scope in every shard, and returns it.
pub(super) async fn lift(topology: &Arc<Topology>, scope: &str) -> Result<Option<Barrier>, StoreError> {
    let lifted = change(topology, 0..topology.keys.shards(), How::Lift, scope, "").await?;
    lifted.into_iter().flatten().next().map(|text| decode(&text)).transpose()
}

/// All barriers, also those that are not in all shards.
pub(super) async fn all(topology: &Arc<Topology>) -> Result<Vec<Barrier>, StoreError> {
    let queries = (0..topology.keys.shards()).map(|shard| {
        Command::plain(shard, ["HVALS", &topology.keys.stopped(shard)]).confirm(Confirm::Required)
    });
    let mut barriers = BTreeMap::new();
    for answer in topology.read_all(queries.collect()).await? {
        let Value::Array(values) = answer else { continue };
        for value in values.iter().filter_map(text) {
            let barrier = decode(&value)?;
            barriers.entry(barrier.scope.clone()).or_insert(barrier);
        }
    }
    Ok(barriers.into_values().collect())
}

/// The barrier that refused a write, if the reply to the swap has one.
pub(super) fn refused(answer: &Value) -> Result<Option<Barrier>, StoreError> {
    let Value::Array(parts) = answer else { return Ok(None) };
    parts.get(2).and_then(text).map(|text| decode(&text)).transpose()
}

/// Runs the script on these shards, and returns the barriers that it returned. It is idempotent, so it may be sent
/// again if the reply was lost.
async fn change(
    topology: &Arc<Topology>,
    shards: std::ops::Range<u16>,
    how: How,
    scope: &str,
    barrier: &str,
) -> Result<Vec<Option<String>>, StoreError> {
    let how = match how {
        How::First => "first",
        How::Set => "set",
        How::Lift => "lift",
    };
    let commands = shards.clone().map(|shard| {
        Command::script(shard, Script::Stop)
            .keys([topology.keys.root(shard)])
            .arguments([topology.terms.mark(), scope, how, barrier].map(|word| word.as_bytes().to_vec()))
    });
    let answers = topology.read_all(commands.collect()).await?;
    let mut found = Vec::with_capacity(answers.len());
    for (shard, answer) in shards.zip(answers) {
        let Value::Array(parts) = answer else {
            return Err(StoreError::unavailable("the server gave no answer to a stop"));
        };
        if let Some(Value::Int(writes)) = parts.first() {
            topology.terms.acknowledge(shard, *writes);
        }
        found.push(parts.get(1).and_then(text));
    }
    Ok(found)
}

fn encode(barrier: &Barrier) -> Result<String, StoreError> {
    serde_json::to_string(barrier)
        .map_err(|error| StoreError::because("a barrier cannot be written as JSON", error))
}

fn decode(text: &str) -> Result<Barrier, StoreError> {
    serde_json::from_str(text).map_err(|error| StoreError::Unusable {
        what: format!("the server contains a barrier that this version cannot read: {error}"),
    })
}

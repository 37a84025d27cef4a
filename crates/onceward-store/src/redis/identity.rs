//! Which ledger this is, stored in the ledger's own key and in every shard.
//!
//! Each shard stores the ledger's mark (name and epoch) and counts its writes, and every write compares both. So the
//! next write detects a shard that was emptied, restored from a backup, or taken over by a replica that lacks writes,
//! whichever server it is on. Creating a ledger and raising its epoch take several steps. They begin
//! with a note in the ledger's own key, and any store that opens a ledger with such a note completes them.

use std::sync::Arc;

use onceward::{Identity, RANDOM_BYTES, StoreError};
use redis::Value;

use super::cluster::{Topology, Unanswered};
use super::node::{Command, Confirm};
use super::options::{Emptied, MAX_SHARDS};
use super::scripts::Script;
use super::settings::text;
use crate::remote::Mark;
use crate::{IfMissing, no_ledger};

/// The version of the data format.
pub(super) const FORMAT: &str = "3";
/// How often to retry while another process creates the ledger.
const TRIES: usize = 8;

/// The note in a ledger that is being created. While the epoch is raised, the note is the previous mark of the shards.
const NEW: &str = "new";

/// The content of the ledger's own key.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) format: String,
    shards: String,
    identity: String,
    pub(super) wait: u32,
    /// The stored text, for comparison.
    pub(super) clock: String,
    making: String,
}

const FIELDS: [&str; 6] = ["format", "shards", "identity", "wait", "clock", "making"];

impl Found {
    /// The time that has certainly passed.
    pub(super) fn clock(&self) -> Option<Mark> {
        Mark::parse(&self.clock)
    }

    fn identity(&self) -> Result<Identity, StoreError> {
        serde_json::from_str(&self.identity).map_err(|_| foreign("the ledger has no readable identity"))
    }
}

/// The command that reads the ledger's own key.
pub(super) fn query(topology: &Topology) -> Command {
    let meta = topology.keys.meta();
    Command::plain(0, ["HMGET", &meta].into_iter().chain(FIELDS))
}

/// Parses the reply to [`query`]; `None` if there is no ledger.
pub(super) fn parse(value: &Value) -> Option<Found> {
    let Value::Array(values) = value else { return None };
    let field = |at: usize| values.get(at).and_then(text).unwrap_or_default();
    let found = Found {
        format: field(0),
        shards: field(1),
        identity: field(2),
        wait: field(3).parse().unwrap_or_default(),
        clock: field(4),
        making: field(5),
    };
    (!found.format.is_empty()).then_some(found)
}

/// Changes the ledger's own key if one of its fields is as expected. Returns whether it was.
pub(super) async fn amend(
    topology: &Arc<Topology>,
    (field, expected): (&str, &str),
    changes: &[(&str, &str)],
) -> Result<bool, StoreError> {
    let words = [field, expected].into_iter().chain(changes.iter().flat_map(|(name, value)| [*name, *value]));
    let command = Command::script(0, Script::Amend)
        .keys([topology.keys.meta()])
        .arguments(words.map(|word| word.as_bytes().to_vec()));
    match topology.write(&Arc::new(command), topology.until()).await {
        Ok(value) => Ok(matches!(value, Value::Int(1))),
        Err(Unanswered::Error(error)) => Err(error),
        Err(Unanswered::Lost(why)) => Err(StoreError::unavailable(format!(
            "it is unknown whether the ledger's own key was changed: {why}"
        ))),
    }
}

/// Finds the ledger. Creates it if there is none, and completes what another process has begun but not finished.
pub(super) async fn open(
    topology: &Arc<Topology>,
    mut found: Option<Found>,
) -> Result<(Identity, Found), StoreError> {
    for _ in 0..TRIES {
        match &found {
            None => make(topology).await?,
            Some(ledger) if ledger.format != FORMAT => {
                let format = &ledger.format;
                return Err(foreign(&format!(
                    "the ledger has the format {format:?} of another version of Onceward (this version has \
                     {FORMAT:?}). Use that version; or take its records over: `once export` there, `once import` here \
                     into a new ledger (prefix=NAME)"
                )));
            }
            Some(ledger) => {
                let identity = join(topology, ledger).await?;
                return Ok((identity, ledger.clone()));
            }
        }
        found = parse(&topology.read(query(topology), topology.until()).await?);
    }
    Err(StoreError::unavailable("other processes are creating or changing the ledger; try again"))
}

/// Replaces the identity `current` by `next`.
pub(super) async fn set(
    topology: &Arc<Topology>,
    current: &Identity,
    next: &Identity,
) -> Result<(), StoreError> {
    let (from, to) = (current.mark(), next.mark());
    let written = serde_json::to_string(next)
        .map_err(|error| StoreError::because("the ledger's identity cannot be written", error))?;
    let changes =
        [("identity", written.as_str()), ("mark", &to), ("making", if from == to { "" } else { &from })];
    if !amend(topology, ("mark", &from), &changes).await? {
        return Err(StoreError::replaced("it has another identity now"));
    }
    if from == to {
        return Ok(());
    }
    adopt_all(topology, &to, &from).await?;
    amend(topology, ("mark", &to), &[("making", "")]).await.map(drop)
}

/// Begins to create a ledger. If a shard already belongs to one, the ledger's own key was lost, and nothing is
/// created.
async fn make(topology: &Arc<Topology>) -> Result<(), StoreError> {
    let marks = marks(topology, topology.options.shards).await?;
    if let Some(shard) = marks.iter().position(Option::is_some) {
        // Another process may have created it meanwhile.
        if parse(&topology.read(query(topology), topology.until()).await?).is_some() {
            return Ok(());
        }
        let seen = format!(
            "{} is missing, but shard {shard} is part of a ledger: a server was emptied",
            topology.keys.meta()
        );
        return Err(StoreError::replaced(&seen));
    }
    if topology.options.missing == IfMissing::Fail {
        return Err(no_ledger(&format!("under the prefix {:?}", topology.options.prefix)));
    }
    if topology.options.create == IfMissing::Fail {
        return Err(StoreError::Missing {
            what: format!(
                "there is no ledger under the prefix {:?}, and the URL says create=no: is it the right server, and \
                 has it kept its data?",
                topology.options.prefix
            ),
        });
    }
    let identity = Identity::fresh(&random()?);
    begin(topology, &identity).await
}

/// Writes the ledger's own key, unless another process has.
async fn begin(topology: &Arc<Topology>, identity: &Identity) -> Result<(), StoreError> {
    let written = serde_json::to_string(identity)
        .map_err(|error| StoreError::because("the ledger's identity cannot be written", error))?;
    let (mark, shards) = (identity.mark(), topology.options.shards.to_string());
    let changes = [
        ("format", FORMAT),
        ("identity", &written),
        ("mark", &mark),
        ("shards", &shards),
        ("wait", "0"),
        ("making", NEW),
    ];
    amend(topology, ("format", ""), &changes).await.map(drop)
}

/// Checks that all shards are part of the ledger, and completes what was begun.
async fn join(topology: &Arc<Topology>, found: &Found) -> Result<Identity, StoreError> {
    let shards = found.shards.parse().ok().filter(|shards| (1..=MAX_SHARDS).contains(shards));
    let unknown = "the ledger does not state its number of shards; is another program using its keys?";
    topology.keys.set_shards(shards.ok_or_else(|| foreign(unknown))?);
    let identity = found.identity()?;
    let mark = identity.mark();
    match found.making.as_str() {
        "" => check_all(topology, &mark).await?,
        making => {
            adopt_all(topology, &mark, if making == NEW { "" } else { making }).await?;
            amend(topology, ("mark", &mark), &[("making", "")]).await?;
        }
    }
    topology.terms.mark.get_or_init(|| mark);
    Ok(identity)
}

/// Checks the mark of every shard. A shard without the ledger's mark was lost. It is not filled in, because
/// operations recorded in it would run again.
async fn check_all(topology: &Arc<Topology>, mark: &str) -> Result<(), StoreError> {
    let marks = marks(topology, topology.keys.shards()).await?;
    let (mut emptied, mut others) = (Vec::new(), Vec::new());
    for (shard, found) in marks.iter().enumerate() {
        match found {
            Some(found) if found == mark => {}
            Some(_) => others.push(shard.to_string()),
            None if topology.options.emptied == Emptied::Accept => {}
            None => emptied.push(shard.to_string()),
        }
    }
    match (emptied.is_empty(), others.is_empty()) {
        (true, true) => Ok(()),
        (_, false) => Err(StoreError::replaced(&format!(
            "the shards {} belong to another ledger or epoch",
            others.join(", ")
        ))),
        (false, true) => Err(StoreError::replaced(&format!(
            "the shards {} of {} are empty; if they cannot be recovered, add emptied=accept to the URL of `once \
             restored`",
            emptied.join(", "),
            marks.len()
        ))),
    }
}

/// The ledger that each shard is part of.
async fn marks(topology: &Arc<Topology>, shards: u16) -> Result<Vec<Option<String>>, StoreError> {
    let queries = (0..shards).map(|shard| Command::plain(shard, ["HKEYS", &topology.keys.ledger(shard)]));
    let answers = topology.read_all(queries.collect()).await?;
    let first =
        |answer: &Value| if let Value::Array(fields) = answer { fields.first().and_then(text) } else { None };
    Ok(answers.iter().map(first).collect())
}

/// Sets the mark of every shard that has `from`.
async fn adopt_all(topology: &Arc<Topology>, mark: &str, from: &str) -> Result<(), StoreError> {
    let empty = match topology.options.emptied {
        Emptied::Accept => marks(topology, topology.keys.shards()).await?,
        Emptied::Refuse => Vec::new(),
    };
    let commands = (0..topology.keys.shards()).map(|shard| {
        let is_empty = empty.get(usize::from(shard)).is_some_and(Option::is_none);
        let words = [mark.to_owned(), if is_empty { String::new() } else { from.to_owned() }];
        Command::script(shard, Script::Adopt)
            .keys([topology.keys.root(shard)])
            .arguments(words.into_iter().map(String::into_bytes))
            .confirm(Confirm::Required)
    });
    // The script is idempotent, so it may be sent again if the reply was lost.
    topology.read_all(commands.collect()).await.map(drop)
}

fn random() -> Result<[u8; RANDOM_BYTES], StoreError> {
    let mut random = [0; RANDOM_BYTES];
    getrandom::fill(&mut random).map_err(|error| StoreError::because("no random numbers", error))?;
    Ok(random)
}

fn foreign(what: &str) -> StoreError {
    StoreError::Unusable { what: what.to_owned() }
}

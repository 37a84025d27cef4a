//! Whether a server still has the newest records that this handle wrote to it.

use std::sync::PoisonError;
use std::time::Instant;

use redis::{Pipeline, Value};

use super::{NotRun, Shared, error_text};
use crate::redis::entry::{self, Keys};
use crate::redis::link::Link;
use crate::remote::recent::{Stored, Written, lost};

impl Shared {
    /// Compares before a new connection is used, if the server has restarted or is another one. A shard that is not on
    /// this server, or that does not have the ledger's mark, is left to the next write, which notices that.
    pub(super) async fn verify(&self, link: &mut Link, until: Instant) -> Result<(), NotRun> {
        let run = link.settings.run.clone();
        let verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // A server that does not say which start it is may have restarted.
        if verified.is_some_and(|verified| verified == run && !run.trim().is_empty()) {
            return Ok(());
        }
        let known = self.terms.recent.all();
        let mut pipeline = Pipeline::with_capacity(2 * known.len());
        for (shard, written) in &known {
            pipeline.cmd("HEXISTS").arg(self.keys.ledger(*shard)).arg(self.terms.mark());
            pipeline.cmd("MGET").arg(names(&self.keys, written));
        }
        let answers = match known.is_empty() {
            true => Vec::new(),
            false => link.send(&pipeline, until).await.map_err(NotRun::Later)?,
        };
        for ((_, written), answer) in known.into_iter().zip(answers.chunks(2)) {
            match answer {
                [Value::Int(1), values @ Value::Array(_)] => {
                    if let Some(seen) = lost(&compared(written, values)) {
                        self.terms.older.get_or_init(|| seen);
                        return Ok(());
                    }
                }
                [Value::ServerError(error), _] | [_, Value::ServerError(error)]
                    if !["MOVED", "ASK", "TRYAGAIN"].contains(&error.code()) =>
                {
                    return Err(NotRun::Later(error_text(error)));
                }
                _ => {}
            }
        }
        *self.verified.lock().unwrap_or_else(PoisonError::into_inner) = Some(run);
        Ok(())
    }
}

/// The keys of records.
pub(in crate::redis) fn names(keys: &Keys, written: &[Written]) -> Vec<String> {
    written.iter().map(|written| keys.record(&written.id)).collect()
}

/// What was written and what an answer to `MGET` says is stored. A record that cannot be read is there.
pub(in crate::redis) fn compared(written: Vec<Written>, answer: &Value) -> Vec<(Written, Stored)> {
    let values = if let Value::Array(values) = answer { values.as_slice() } else { &[] };
    let stored = |value: &Value| {
        let Value::BulkString(bytes) = value else { return None };
        let record = entry::decode_bare(bytes);
        Some(record.map_or((u64::MAX, 0, 0), |record| (record.version, record.created_ms, record.updated_ms)))
    };
    written.into_iter().zip(values).map(|(written, value)| (written, stored(value))).collect()
}

//! Finding operations by what people have at hand, and counting them.

use super::Ledger;
use crate::decide;
use crate::error::Error;
use crate::record::State;
use crate::store::{Counts, Filter, Listed};

/// How many running records one step of a count looks at.
const PAGE: usize = 500;

impl Ledger {
    /// The operations that `word` can mean: an id, the first digits of an id (`op_…`), or a key. Newest first, up to
    /// `limit`; `scope` narrows it where one is given. Records come without the bodies of their results.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn lookup(&self, word: &str, scope: Option<&str>, limit: usize) -> Result<Vec<Listed>, Error> {
        let all = Filter { scope: scope.map(str::to_owned), limit, ..Filter::default() };
        let mut found = Vec::new();
        if word.strip_prefix("op_").is_some_and(|digits| !digits.is_empty()) {
            let by_id = Filter { id_prefix: Some(word.to_owned()), ..all.clone() };
            found = self.store().list(&by_id).await?;
        }
        let by_key = Filter { key: Some(word.to_owned()), ..all };
        let with_key = self.store().list(&by_key).await?;
        let new = |listed: &Listed| found.iter().all(|known: &Listed| known.record.id != listed.record.id);
        let with_key: Vec<Listed> = with_key.into_iter().filter(new).collect();
        found.extend(with_key);
        found.sort_by_key(|listed| std::cmp::Reverse(listed.cursor));
        found.truncate(limit);
        Ok(found)
    }

    /// How many of the operations that the filter lets through there are in each state. An attempt whose owner is gone
    /// counts as what it really is; a result that has expired counts as it is written until a sweep. The filter's own
    /// states, limit and cursor do not count.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn totals(&self, filter: &Filter) -> Result<Counts, Error> {
        let all = Filter { states: Vec::new(), before: None, ..filter.clone() };
        let mut counts = self.store().counts(&all).await?;
        let mut running = Filter { states: vec![State::Running], limit: PAGE, ..all };
        loop {
            let page = self.store().list(&running).await?;
            let full = page.len() == PAGE;
            running.before = page.last().map(|listed| listed.cursor);
            for listed in page {
                let liveness = self.liveness(Some(&listed.record)).await?;
                let state = decide::standing(&listed.record, liveness, self.now_ms());
                if state != State::Running {
                    let left = counts.get(&State::Running).copied().unwrap_or(0);
                    counts.insert(State::Running, left.saturating_sub(1));
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

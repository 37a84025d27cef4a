//! Generations without clients: how long they continue, and how many there may be.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onceward::{InvalidInput, span_ms};

use crate::locks::lock;
use crate::tenant::Tenant;
use crate::time;

/// How often it is checked whether a generation has readers.
pub(crate) const LOOK: Duration = Duration::from_millis(200);
/// The most generations of a tenant at one upstream that continue without a client.
const MOST: usize = 1_000;

/// What happens to a generation whose clients have all left.
#[derive(Debug, Clone)]
pub(crate) struct Unattended {
    policy: Policy,
    most: usize,
    running: Running,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Policy {
    /// It continues to its end, for a retry.
    Finish,
    /// It is cancelled if no client returns within this time.
    CancelAfter(Duration),
}

/// How many generations of each tenant have no client.
type Running = Arc<Mutex<HashMap<Option<Arc<str>>, usize>>>;

/// One generation without a client. Dropping this ends the count.
struct Counted {
    running: Running,
    tenant: Option<Arc<str>>,
}

impl Unattended {
    pub(crate) fn new(policy: Option<&str>, most: Option<usize>) -> Result<Self, InvalidInput> {
        let policy = match policy {
            None | Some("finish") => Policy::Finish,
            Some("cancel") => Policy::CancelAfter(Duration::ZERO),
            Some(grace) => Policy::CancelAfter(Duration::from_millis(span_ms(grace).map_err(|_| {
                InvalidInput::new(format!("unattended is `finish`, `cancel` or a time, not {grace:?}"))
            })?)),
        };
        Ok(Self { policy, most: most.unwrap_or(MOST), running: Running::default() })
    }

    /// Watches over one attempt of a tenant's generation.
    pub(crate) fn watch<'a>(&'a self, tenant: &'a Tenant) -> Watch<'a> {
        Watch { unattended: self, tenant, looked_ms: tenant.ledger.clock_ms(), alone: None }
    }

    /// Counts one more generation without a client, if there may be one.
    fn count(&self, tenant: &Option<Arc<str>>) -> Option<Counted> {
        let mut running = lock(&self.running);
        let count = running.entry(tenant.clone()).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        drop(running);
        Some(Counted { running: Arc::clone(&self.running), tenant: tenant.clone() })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut running = lock(&self.running);
        if let Some(count) = running.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                running.remove(&self.tenant);
            }
        }
    }
}

/// Looks from time to time whether a generation has clients.
pub(crate) struct Watch<'a> {
    unattended: &'a Unattended,
    tenant: &'a Tenant,
    looked_ms: i64,
    /// Since when the generation has had no client.
    alone: Option<(i64, Counted)>,
}

impl Watch<'_> {
    /// Whether the generation continues. It may be asked at any time, and looks only now and then whether the
    /// generation has no client.
    ///
    /// # Errors
    /// Why the generation is cancelled.
    pub(crate) fn look(&mut self, is_unattended: impl FnOnce() -> bool) -> Result<(), String> {
        let clock = self.tenant.ledger.clock();
        if time::is_within(clock, LOOK, self.looked_ms) {
            return Ok(());
        }
        self.looked_ms = clock.now_ms();
        if !is_unattended() {
            self.alone = None;
            return Ok(());
        }
        let since_ms = match &self.alone {
            Some((since_ms, _)) => *since_ms,
            None => match self.unattended.count(&self.tenant.name) {
                Some(counted) => self.alone.insert((clock.now_ms(), counted)).0,
                None => {
                    return Err(format!(
                        "all clients left, and {} generations without a client are running already \
                         (max_unattended), so this one was cancelled",
                        self.unattended.most
                    ));
                }
            },
        };
        match self.unattended.policy {
            Policy::CancelAfter(grace) if !time::is_within(clock, grace, since_ms) => {
                Err("all clients left, so the generation was cancelled".to_owned())
            }
            Policy::CancelAfter(_) | Policy::Finish => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_without_clients_are_counted_for_each_tenant() {
        let unattended = Unattended::new(None, Some(2)).unwrap();
        let (one, other) = (Some(Arc::from("one")), None);
        let counted: Vec<_> = (0..3).map(|_| unattended.count(&one)).collect();
        assert_eq!(counted.iter().flatten().count(), 2);
        assert!(unattended.count(&other).is_some());
        drop(counted);
        assert!(lock(&unattended.running).is_empty());
        assert!(unattended.count(&one).is_some());
        assert!(Unattended::new(None, Some(0)).unwrap().count(&one).is_none());
        assert!(Unattended::new(Some("later"), None).is_err());
    }
}

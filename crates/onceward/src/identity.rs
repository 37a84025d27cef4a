//! The identity of a ledger: its name, its epoch, the secret that keys its hashes, and whether it was restored.
//!
//! A store reads the identity when it is opened, and every write checks that the ledger still has it. If the ledger
//! was emptied, restored from a backup or replaced by another one, the next write fails and writes nothing.

use data_encoding::BASE32_NOPAD;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::invalid::InvalidInput;
use crate::key::OperationId;
use crate::record::{Record, State};
use crate::secret::Secret;

/// How many random bytes a new identity needs.
pub const RANDOM_BYTES: usize = 48;
/// The largest epoch. Every reader of JSON can represent it exactly.
pub const MAX_EPOCH: u64 = 1 << 53;

/// The identity of a ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// `l_…`: a random name, assigned when the ledger was created.
    pub name: String,
    /// Starts at 1 and increases with every restore. A handle from an earlier epoch cannot write.
    pub epoch: u64,
    /// Keys the hashes that the ledger stores. Ledgers of the first schema have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Secret>,
    /// What is unknown since the ledger was restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<Fence>,
}

impl Identity {
    /// The identity of a new ledger, from random bytes.
    #[must_use]
    pub fn fresh(random: &[u8; RANDOM_BYTES]) -> Self {
        let (name, secret) = random.split_at(RANDOM_BYTES - Secret::BYTES);
        let mut key = [0; Secret::BYTES];
        key.copy_from_slice(secret);
        Self { secret: Some(Secret::new(key)), ..Self::unkeyed(name) }
    }

    /// The identity of a ledger that was created before ledgers had a secret: its hashes stay as they are.
    #[must_use]
    pub fn unkeyed(name: &[u8]) -> Self {
        let name = format!("l_{}", BASE32_NOPAD.encode(name).to_ascii_lowercase());
        Self { name, epoch: 1, secret: None, fence: None }
    }

    /// The text that a write compares: name and epoch.
    #[must_use]
    pub fn mark(&self) -> String {
        format!("{} {}", self.name, self.epoch)
    }

    /// The epoch after this one and after `at_least`.
    ///
    /// # Errors
    /// When it is beyond [`MAX_EPOCH`]: then no further restore could raise it.
    pub fn next_epoch(&self, at_least: u64) -> Result<u64, InvalidInput> {
        let epoch = self.epoch.max(at_least);
        if epoch < MAX_EPOCH {
            return Ok(epoch + 1);
        }
        Err(InvalidInput::new(format!(
            "the epoch {epoch} is too large; it is the number of restores plus one, and must be less than {MAX_EPOCH}"
        )))
    }

    /// The identity that a tenant of the ledger sees. It has a secret of its own, so the hashes of one tenant say
    /// nothing about those of another.
    #[must_use]
    pub fn for_tenant(&self, tenant: &str) -> Self {
        let secret = self.secret.as_ref().map(|secret| secret.derive("tenant secret", tenant));
        Self { secret, ..self.clone() }
    }

    /// What a tenant's operation ids are combined with before they are stored: see
    /// [`OperationId::masked`](crate::OperationId::masked). Without the ledger's secret it cannot be computed.
    #[must_use]
    pub fn tenant_mask(&self, tenant: &str) -> [u8; OperationId::BYTES] {
        let hash = match &self.secret {
            Some(secret) => secret.hash("tenant id", &[tenant.as_bytes()]),
            None => Sha256::digest(format!("onceward tenant id {tenant}")).into(),
        };
        let mut mask = [0; OperationId::BYTES];
        mask.copy_from_slice(&hash[..OperationId::BYTES]);
        mask
    }

    /// The same ledger after a restore. Handles from earlier epochs can no longer write. [`Identity::next_epoch`] says
    /// whether there is such an epoch. What an earlier restore lost stays in doubt for as long as that one said.
    #[must_use]
    pub fn restored(&self, fence: Fence, epoch_at_least: u64) -> Self {
        let epoch = self.epoch.max(epoch_at_least).saturating_add(1);
        let fence = match self.fence {
            Some(before) if fence.restored_ms < before.until_ms => Fence {
                lost_from_ms: fence.lost_from_ms.min(before.lost_from_ms),
                until_ms: fence.until_ms.max(before.until_ms),
                ..fence
            },
            Some(_) | None => fence,
        };
        Self { epoch, fence: Some(fence), ..self.clone() }
    }
}

/// A restore, and the period that it lost: what happened after the backup was made is not in the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fence {
    /// The time of the backup. Later writes are lost.
    pub lost_from_ms: i64,
    /// When the ledger was restored.
    pub restored_ms: i64,
    /// Until when a call without a record may be the retry of a lost one.
    pub until_ms: i64,
}

impl Fence {
    /// Whether the call may have happened in the lost period: it has no record, or its record may be outdated.
    #[must_use]
    pub fn covers(&self, found: Option<&Record>, now_ms: i64) -> bool {
        let Some(record) = found else { return now_ms < self.until_ms };
        match record.state {
            State::Staged | State::Running | State::Failed => record.updated_ms <= self.restored_ms,
            State::Expired => record.updated_ms <= self.restored_ms && now_ms < self.until_ms,
            // It may have begun again in the lost time, if its retention was over.
            State::Done | State::Cancelled => {
                let was_over = record.due_ms.is_some_and(|due_ms| due_ms <= self.restored_ms);
                was_over && record.updated_ms <= self.restored_ms && now_ms < self.until_ms
            }
            State::InDoubt => false,
        }
    }
}

//! The token of an attempt: proves that a caller began it. It needs no memory of the server, so it is still valid
//! after a restart and on another server of the same ledger.

use data_encoding::BASE32_NOPAD;
use onceward::{Identity, InvalidInput, OperationId};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

const MARK: &str = "at_";
const MAC: usize = 16;

/// The token of this attempt. It holds the number of its lock, and a keyed hash.
pub(in crate::api) fn of(identity: &Identity, id: &OperationId, attempt: u32, owner: u64) -> String {
    let mut bytes = owner.to_be_bytes().to_vec();
    bytes.extend_from_slice(&mac(identity, id, attempt, owner));
    format!("{MARK}{}", BASE32_NOPAD.encode(&bytes).to_ascii_lowercase())
}

/// The number of the attempt's lock, if the token is that of this attempt.
pub(in crate::api) fn check(
    identity: &Identity,
    id: &OperationId,
    attempt: u32,
    token: &str,
) -> Result<u64, InvalidInput> {
    let wrong = || {
        InvalidInput::new(format!(
            "the token is not that of attempt {attempt} of this operation; nothing was recorded"
        ))
    };
    let digits = token.strip_prefix(MARK).ok_or_else(wrong)?.to_ascii_uppercase();
    let bytes = BASE32_NOPAD.decode(digits.as_bytes()).map_err(|_| wrong())?;
    let (owner, shown) = bytes.split_first_chunk::<8>().ok_or_else(wrong)?;
    let owner = u64::from_be_bytes(*owner);
    let is_right: bool = mac(identity, id, attempt, owner).ct_eq(shown).into();
    if is_right { Ok(owner) } else { Err(wrong()) }
}

fn mac(identity: &Identity, id: &OperationId, attempt: u32, owner: u64) -> [u8; MAC] {
    let parts: [&[u8]; 3] = [id.as_str().as_bytes(), &attempt.to_be_bytes(), &owner.to_be_bytes()];
    let hash: [u8; 32] = match &identity.secret {
        Some(secret) => secret.hash("attempt token", &parts),
        // The first ledgers had no secret. The lock's number is what only its owner knows there.
        None => Sha256::digest([identity.name.as_bytes(), &parts.concat()].concat()).into(),
    };
    let mut mac = [0; MAC];
    mac.copy_from_slice(&hash[..MAC]);
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_valid_for_one_attempt_of_one_operation_in_one_ledger() {
        let here = Identity::fresh(&[7; onceward::RANDOM_BYTES]);
        let (one, other) = (OperationId::of("s", "n", "1"), OperationId::of("s", "n", "2"));
        let token = of(&here, &one, 3, 99);
        assert_eq!(check(&here, &one, 3, &token).unwrap(), 99);
        assert!(check(&here, &one, 2, &token).is_err());
        assert!(check(&here, &other, 3, &token).is_err());
        assert!(check(&here.for_tenant("acme"), &one, 3, &token).is_err());
        for broken in ["", "at_", "at_!", &token[..token.len() - 1], &format!("{token}a")] {
            assert!(check(&here, &one, 3, broken).is_err(), "{broken}");
        }
        for at in 3..token.len() {
            let mut changed = token.clone().into_bytes();
            changed[at] = if changed[at] == b'a' { b'b' } else { b'a' };
            assert!(check(&here, &one, 3, std::str::from_utf8(&changed).unwrap()).is_err(), "digit {at}");
        }
    }
}

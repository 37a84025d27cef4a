//! The exit codes, which every command shares.

use serde_json::{Value, json};

/// What each exit code says of the effect, and whether the same call may simply be made again.
pub(super) fn table() -> Value {
    json!({
        "0": exit("SUCCESS", "done, or replayed: it was done before and nothing was run", Retry::No, "complete", &[]),
        "1": exit("GENERAL_ERROR", "it failed, and nothing was changed", Retry::Yes, "none", &["FAILED"]),
        "2": exit("ARG_ERROR", "invalid input, or something destructive was not confirmed; nothing was run",
                  Retry::No, "none", &["INVALID_INPUT", "KEY_MISSING"]),
        "3": exit("PARTIAL_FAILURE", "some items of a batch failed; the same command again does what is left",
                  Retry::No, "partial", &["PARTIAL_FAILURE"]),
        "4": exit("PRECONDITION",
                  "refused: running elsewhere, held back, expired, cancelled, stopped, taken back, or out of attempts; \
                   see error.happened",
                  Retry::No, "partial",
                  &["IN_PROGRESS", "HELD", "KEY_EXPIRED", "CANCELLED", "STOPPED", "UNDONE", "BUDGET_EXHAUSTED",
                    "RESULT_UNAVAILABLE", "PRECONDITION"]),
        "5": exit("NOT_FOUND", "not found; nothing was changed", Retry::No, "none",
                  &["NOT_FOUND"]),
        "6": exit("CONFLICT", "the key was used for another action, or there is a conflict; nothing was run",
                  Retry::No, "none",
                  &["KEY_REUSED", "WRONG_STATE", "CONFLICT", "ALREADY_EXISTS"]),
        "7": exit("PERMISSION_DENIED", "permission denied; nothing was changed", Retry::No, "none",
                  &["PERMISSION_DENIED"]),
        "8": exit("AUTH_REQUIRED", "authentication required; nothing was changed", Retry::No, "none",
                  &["AUTH_REQUIRED"]),
        "10": exit("TIMEOUT", "timed out; error.happened says whether it may have taken effect", Retry::No,
                   "partial", &["TIMEOUT"]),
        "11": exit("RATE_LIMITED", "too many calls; nothing was changed", Retry::Yes, "none", &["RATE_LIMITED"]),
        "12": exit("UNAVAILABLE", "the ledger or the service cannot be reached; this call changed nothing",
                   Retry::Yes, "none", &["LEDGER_UNAVAILABLE", "LEDGER_REPLACED", "UNAVAILABLE"]),
        "79": exit("IN_DOUBT", "it may or may not have taken effect; check, then run one of error.options",
                   Retry::No, "partial",
                   &["IN_DOUBT", "UNVERIFIED"]),
        "130": exit("SIGINT", "interrupted; error.happened says whether it took effect", Retry::No, "partial",
                    &["CANCELLED", "IN_DOUBT"]),
        "143": exit("SIGTERM", "terminated; error.happened says whether it took effect", Retry::No, "partial",
                    &["CANCELLED", "IN_DOUBT"]),
    })
}

#[derive(PartialEq, Eq)]
enum Retry {
    Yes,
    No,
}

fn exit(name: &str, description: &str, retry: Retry, side_effects: &str, error_codes: &[&str]) -> Value {
    json!({
        "name": name,
        "description": description,
        "retryable": retry == Retry::Yes,
        "side_effects": side_effects,
        "error_codes": error_codes,
    })
}

#[cfg(test)]
mod tests {
    use onceward::Code;

    use super::*;
    use crate::fault::FaultKind;

    #[test]
    fn every_code_is_declared_under_its_exit() {
        let table = table();
        let codes = Code::ALL.iter().map(|code| (code.exit(), code.to_string()));
        let faults = FaultKind::ALL.iter().map(|kind| (kind.exit(), kind.as_str().to_owned()));
        for (exit, code) in codes.chain(faults) {
            let declared = table[exit.to_string()]["error_codes"].as_array().cloned().unwrap_or_default();
            assert!(declared.contains(&code.clone().into()), "{exit} does not declare {code}");
        }
    }

    #[test]
    fn a_fault_is_kept_under_its_code() {
        for kind in FaultKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
    }
}

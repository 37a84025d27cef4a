//! `once restored`: after a restore from a backup, puts in doubt what may have happened since.

use std::process::ExitCode;

use onceward::{Fence, Identity, Ledger, rfc3339};
use serde::Serialize;

use crate::answer;
use crate::cli::RestoredArgs;
use crate::context::Context;
use crate::exit::{CommandError, Ended};

#[derive(Serialize)]
struct Fenced {
    ledger: String,
    epoch: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    lost_from: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    doubted_until: Option<String>,
}

impl Fenced {
    fn of(identity: &Identity) -> Self {
        Self {
            ledger: identity.name.clone(),
            epoch: identity.epoch,
            lost_from: identity.fence.map(|fence| rfc3339(fence.lost_from_ms)),
            doubted_until: identity.fence.map(|fence| rfc3339(fence.until_ms)),
        }
    }
}

pub(super) fn run(context: &Context, args: &RestoredArgs) -> Ended {
    let store = context.restored_store()?;
    let ledger = Ledger::new(store.clone()).blocking();
    let now_ms = ledger.clock_ms();
    let found = store.identity();
    if args.lift && found.fence.is_none() {
        let effect = if args.dry.dry_run { "would_noop" } else { "noop" };
        let reason = "no restore was recorded, so there is nothing to lift";
        answer::nothing_to_do(context.global.json, effect, None::<&Fenced>, reason, Vec::new());
        return Ok(ExitCode::SUCCESS);
    }
    let next = if args.lift {
        Identity { fence: None, ..found.clone() }
    } else {
        let lost_from_ms = args.at_ms(now_ms);
        if lost_from_ms > now_ms {
            return Err(CommandError::invalid(format!(
                "{} is in the future; give the time at which the backup was made",
                rfc3339(lost_from_ms)
            )));
        }
        found.next_epoch(args.epoch.unwrap_or(0))?;
        let until_ms = now_ms.saturating_add_unsigned(args.window_ms);
        found.restored(Fence { lost_from_ms, restored_ms: now_ms, until_ms }, args.epoch.unwrap_or(0))
    };
    if !args.dry.dry_run {
        ledger.wait_for(store.set_identity(&next)).map_err(onceward::Error::from)?;
    }
    let effect = if args.dry.dry_run { "would_update" } else { "updated" };
    answer::success(context.global.json, effect, &Fenced::of(&next), || in_words(&next, args));
    Ok(ExitCode::SUCCESS)
}

fn in_words(next: &Identity, args: &RestoredArgs) -> String {
    let would = if args.dry.dry_run { "would_update: " } else { "" };
    let Some(fence) = next.fence else {
        return format!(
            "{would}calls that the ledger does not know run again, in programs started from now on"
        );
    };
    format!(
        "{would}the ledger is in epoch {}: programs that have it open stop with LEDGER_REPLACED; start them again.\n\
         What was under way or had failed at {}, and until {} each call that the ledger does not know, is in doubt: \
         its class decides, and `once ls --state in_doubt` shows it.\n\
         When all of it is accounted for: once restored --lift",
        next.epoch,
        rfc3339(fence.lost_from_ms),
        rfc3339(fence.until_ms)
    )
}

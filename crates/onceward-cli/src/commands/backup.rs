//! `once backup`: a consistent copy of the ledger, even while it is in use.

use std::process::ExitCode;

use onceward::StoreError;
use onceward_store::Overwrite;
use serde::Serialize;

use crate::answer;
use crate::cli::BackupArgs;
use crate::context::{Context, IfMissing};
use crate::exit::{CommandError, Ended};

#[derive(Serialize)]
struct Copied {
    file: String,
    /// How large the copy is; not known in a dry run.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
}

pub(super) fn run(context: &Context, args: &BackupArgs) -> Ended {
    let store = context.store(IfMissing::Fail)?;
    let overwrite = if args.force { Overwrite::Yes } else { Overwrite::No };
    let replaces = args.file.exists();
    let file = args.file.display().to_string();
    let json = context.global.json;
    if args.dry.dry_run {
        store.check_backup(&args.file, overwrite).map_err(refused)?;
        let effect = if replaces { "would_update" } else { "would_create" };
        answer::success(json, effect, &Copied { file, bytes: None }, || {
            format!("{effect}: the ledger would be copied to {}", args.file.display())
        });
        return Ok(ExitCode::SUCCESS);
    }
    let bytes = store.backup(&args.file, overwrite).map_err(refused)?;
    let effect = if replaces { "updated" } else { "created" };
    answer::success(json, effect, &Copied { file, bytes: Some(bytes) }, || {
        format!("the ledger was copied to {}: {bytes} bytes", args.file.display())
    });
    Ok(ExitCode::SUCCESS)
}

/// A target that must not be written is the caller's mistake; anything else is a problem outside the ledger.
fn refused(error: StoreError) -> CommandError {
    match error {
        StoreError::Unusable { .. } | StoreError::Missing { .. } => CommandError::invalid(error.to_string()),
        StoreError::Unavailable { .. } | StoreError::Replaced { .. } | _ => {
            CommandError::Outside(format!("{error}; the backup was not written"))
        }
    }
}

//! `once config new-key`: writes a key file for encryption at rest.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::ExitCode;

use onceward_store::seal::Keys;
use onceward_store::seal::new_key;
use serde::Serialize;

use crate::answer;
use crate::cli::DryRunArgs;
use crate::exit::{CommandError, Ended};

#[derive(Serialize)]
struct Made {
    file: String,
    /// The id of the key, not the key itself; not known in a dry run.
    #[serde(skip_serializing_if = "Option::is_none")]
    key_id: Option<String>,
}

pub(super) fn run(file: &Path, dry: DryRunArgs, json: bool) -> Ended {
    let shown = file.display().to_string();
    let exists = || {
        CommandError::invalid(format!(
            "{shown} already exists, and results may be sealed with its keys; it was not changed"
        ))
    };
    if dry.dry_run {
        if file.exists() {
            return Err(exists());
        }
        let made = Made { file: shown.clone(), key_id: None };
        answer::success(json, "would_create", &made, || format!("would_create: {shown}"));
        return Ok(ExitCode::SUCCESS);
    }
    let cannot = |error: std::io::Error| {
        if error.kind() == std::io::ErrorKind::AlreadyExists {
            exists()
        } else {
            CommandError::invalid(format!("cannot write {shown}: {error}"))
        }
    };
    let key = new_key()?;
    let key_id = Keys::parse(&key)?.ids().next().map(str::to_owned);
    let id = key_id.clone().unwrap_or_default();
    let mut opened =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(file).map_err(cannot)?;
    writeln!(opened, "{key}  # {id}").and_then(|()| opened.sync_all()).map_err(cannot)?;
    let made = Made { file: shown.clone(), key_id };
    answer::success(json, "created", &made, || {
        format!(
            "{shown} was written; its key is {id}. Keep a copy: results sealed with a lost key cannot be read"
        )
    });
    Ok(ExitCode::SUCCESS)
}

//! `once config`: the policy in force, and one to begin with.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use onceward::policy::DEFAULT_POLICY;
use serde::Serialize;

use crate::answer;
use crate::cli::DryRunArgs;
use crate::context::Context;
use crate::exit::{CommandError, Ended};

#[derive(Serialize)]
struct Shown {
    name: String,
    policy_file: Option<String>,
    ledger: String,
    settings: onceward::Settings,
}

pub(super) fn show(context: &Context, name: &str) -> Ended {
    let shown = Shown {
        name: name.to_owned(),
        policy_file: context.policy_file.as_ref().map(|file| file.display().to_string()),
        ledger: context.ledger_url()?,
        settings: context.policy.settings(name)?,
    };
    answer::success(context.global.json, "noop", &shown, || {
        let settings = serde_json::to_string_pretty(&shown.settings).unwrap_or_default();
        let file = shown.policy_file.as_deref().unwrap_or("none; the built-in default holds");
        format!("policy file: {file}\nledger: {}\noperation {name}: {settings}", shown.ledger)
    });
    Ok(ExitCode::SUCCESS)
}

pub(super) fn init(file: &Path, dry: DryRunArgs, json: bool) -> Ended {
    let exists = || CommandError::invalid(format!("{} exists already; it was not touched", file.display()));
    if dry.dry_run {
        if file.exists() {
            return Err(exists());
        }
        answer::success(json, "would_create", &file.display().to_string(), || {
            format!("would_create: {}", file.display())
        });
        return Ok(ExitCode::SUCCESS);
    }
    let cannot = |error: std::io::Error| {
        if error.kind() == std::io::ErrorKind::AlreadyExists {
            exists()
        } else {
            CommandError::invalid(format!("cannot write {}: {error}", file.display()))
        }
    };
    let mut opened = OpenOptions::new().write(true).create_new(true).open(file).map_err(cannot)?;
    opened.write_all(DEFAULT_POLICY.as_bytes()).map_err(cannot)?;
    answer::success(json, "created", &file.display().to_string(), || {
        format!("{} is written", file.display())
    });
    Ok(ExitCode::SUCCESS)
}

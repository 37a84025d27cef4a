//! `once config`: shows, checks and creates policies.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use onceward::{DEFAULT_POLICY, Origin, Setting};
use serde::Serialize;

use crate::answer;
use crate::cli::{DryRunArgs, Global};
use crate::context::Context;
use crate::exit::{CommandError, Ended};
use crate::private::create_private;
use crate::style::{BOLD, DIM, styled};

/// The settings of an operation, in the names and units of the file.
#[derive(Serialize)]
struct ShownSettings {
    name: String,
    policy_file: Option<String>,
    ledger: String,
    ledger_from: &'static str,
    settings: BTreeMap<&'static str, serde_json::Value>,
    from: BTreeMap<&'static str, String>,
}

pub(super) fn show(context: &Context, name: &str) -> Ended {
    context.check_ledger_url()?;
    context.policy.settings(name)?;
    let settings = context.policy.explain(name);
    let file = context.policy_file.as_ref().map(|file| file.display().to_string());
    let shown = ShownSettings {
        name: name.to_owned(),
        policy_file: file.clone(),
        ledger: context.shown_ledger_url()?,
        ledger_from: context.ledger_origin(),
        settings: settings.iter().map(|setting| (setting.name, setting.json.clone())).collect(),
        from: settings.iter().map(|setting| (setting.name, setting.origin.to_string())).collect(),
    };
    answer::success(context.global.json, "noop", &shown, || {
        let file = file.as_deref().unwrap_or("none; the built-in policy is used");
        let exits = context.policy.exit_rule(name).map(|rule| {
            let codes: Vec<String> = rule.no_effect.iter().map(i32::to_string).collect();
            let title = format!("# Exit codes with which {name} says that it did nothing:");
            format!("\n\n{title}\n[exits.{name}]\nno_effect = [{}]", codes.join(", "))
        });
        format!(
            "# policy file: {file}\n# ledger: {} ({})\n\
             # Settings of operations with the name {name:?}, and where each comes from:\n{}{}",
            shown.ledger,
            shown.ledger_from,
            in_columns(&settings),
            exits.unwrap_or_default()
        )
    });
    Ok(ExitCode::SUCCESS)
}

/// One setting per line, with its origin as a comment.
fn in_columns(settings: &[Setting]) -> String {
    let line = |setting: &Setting| format!("{} = {}", setting.name, setting.value);
    // A long value must not push all comments to the right.
    let widest =
        settings.iter().map(|setting| line(setting).chars().count()).filter(|width| *width <= 40).max();
    let widest = widest.unwrap_or(0);
    let lines = settings.iter().map(|setting| {
        let text = line(setting);
        format!(
            "{}  # {}",
            styled(if setting.origin == Origin::BuiltIn { DIM } else { BOLD }, format!("{text:<widest$}")),
            setting.origin
        )
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[derive(Serialize)]
struct Checked {
    policy_file: Option<String>,
    problems: Vec<String>,
}

/// Reads the policy and lists its problems.
pub(super) fn check(global: Global, file: Option<PathBuf>) -> Ended {
    let json = global.json;
    let global = Global { config: file.or(global.config.clone()), ..global };
    let context = Context::new(global, onceward::Audience::Person)?;
    context.check_ledger_url()?;
    super::cost::check(&context)?;
    context.check_server_sections()?;
    super::serve::check_addresses(&context)?;
    let file = context.policy_file.as_ref().map(|file| file.display().to_string());
    let checked = Checked { policy_file: file.clone(), problems: Vec::new() };
    answer::success(json, "noop", &checked, || match file {
        Some(file) => format!("{file}: no problems"),
        None => "there is no policy file; the built-in policy is used".to_owned(),
    });
    Ok(ExitCode::SUCCESS)
}

pub(super) fn init(file: &Path, dry: DryRunArgs, json: bool) -> Ended {
    let exists = || CommandError::invalid(format!("{} already exists; it was not changed", file.display()));
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
    let mut opened = create_private(file).map_err(cannot)?;
    opened.write_all(DEFAULT_POLICY.as_bytes()).map_err(cannot)?;
    answer::success(json, "created", &file.display().to_string(), || {
        format!("{} was written", file.display())
    });
    Ok(ExitCode::SUCCESS)
}

//! `once config allow` and `deny`: whether the policy file of a project is trusted.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::answer;
use crate::cli::DryRunArgs;
use crate::context::belongs_to_another;
use crate::exit::{CommandError, Ended};
use crate::trust::Mark;

/// What the user wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    Allow,
    Deny,
}

pub(super) fn run(named: Option<&Path>, wish: Wish, dry: DryRunArgs, json: bool) -> Ended {
    let file = match named {
        Some(file) => file.to_owned(),
        None => nearest().ok_or_else(|| {
            CommandError::invalid("there is no onceward.toml in this folder or above it; name the file")
        })?,
    };
    if wish == Wish::Allow && belongs_to_another(&file) {
        return Err(CommandError::invalid(format!(
            "{} belongs to another user, who could change it, so it cannot be allowed; copy it, or give --config FILE",
            file.display()
        )));
    }
    let place = Mark::of_place(&file);
    if wish == Wish::Deny && !file.exists() && place.as_ref().is_some_and(Mark::is_set) {
        if !dry.dry_run {
            place.map_or(Ok(false), |place| place.clear()).map_err(cannot_remember)?;
        }
        let (effect, done) =
            if dry.dry_run { ("would_delete", "would_delete") } else { ("deleted", "no longer allowed:") };
        answer::success(json, effect, &file.display().to_string(), || format!("{done} {}", file.display()));
        return Ok(ExitCode::SUCCESS);
    }
    let unreadable =
        |error: std::io::Error| CommandError::invalid(format!("cannot read {}: {error}", file.display()));
    let text = std::fs::read_to_string(&file).map_err(unreadable)?;
    let policy = onceward::Policy::parse(&text)
        .and_then(|policy| policy.check().map(|()| policy))
        .map_err(|invalid| CommandError::invalid(format!("{}: {invalid}", file.display())))?;
    let mark = Mark::of(&file, &text).ok_or_else(|| {
        CommandError::invalid("there is no home folder to remember it in; give --config FILE instead")
    })?;
    let wanted = wish == Wish::Allow;
    let (effect, done) = match (wish, mark.is_set() == wanted) {
        (_, true) => ("noop", "nothing to do:"),
        (Wish::Allow, false) => ("created", "allowed, until it changes:"),
        (Wish::Deny, false) => ("deleted", "no longer allowed:"),
    };
    let would = match effect {
        "created" => "would_create",
        "deleted" => "would_delete",
        _ => "would_noop",
    };
    if !dry.dry_run {
        let written = if wanted { mark.set() } else { mark.clear() };
        written.map_err(cannot_remember)?;
        // Denied, or without settings that need trust, nothing depends on it any more.
        let depends = wanted && !policy.without_trust().1.is_empty();
        let noted = place.map_or(Ok(false), |place| if depends { place.set() } else { place.clear() });
        noted.map_err(cannot_remember)?;
    }
    let (effect, done) = if dry.dry_run { (would, would) } else { (effect, done) };
    answer::success(json, effect, &file.display().to_string(), || format!("{done} {}", file.display()));
    Ok(ExitCode::SUCCESS)
}

#[expect(clippy::needless_pass_by_value, reason = "map_err passes it on")]
fn cannot_remember(error: std::io::Error) -> CommandError {
    CommandError::Outside(format!("cannot remember it: {error}"))
}

fn nearest() -> Option<PathBuf> {
    let here = std::env::current_dir().ok()?;
    here.ancestors().map(|folder| folder.join("onceward.toml")).find(|file| file.is_file())
}

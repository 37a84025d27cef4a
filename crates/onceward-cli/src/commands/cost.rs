//! `once cost`: what model calls used, and what of it was wasted.
//!
//! - `prices`: what tokens cost. `tally`: the sums.

mod prices;
mod tally;

use std::collections::BTreeSet;
use std::process::ExitCode;

use anstyle::Style;
use onceward::{Blocking, Filter};
use serde::Serialize;

use super::usage::grouped;
use crate::answer;
use crate::cli::CostArgs;
use crate::context::{Context, IfMissing};
use crate::exit::{CommandError, Ended};
use crate::style::{BOLD, CYAN, DIM, GREEN, RED, YELLOW, styled};
use crate::table::{cut, one_line};
use prices::Prices;
use tally::{LAYERS, Sum, Tally};

/// How many operations are read at a time.
const PAGE: usize = 1_000;
/// How much of a model's name is shown beside others.
const NAME: usize = 40;
/// The length of the longest bar.
const BAR: u128 = 20;

#[derive(Serialize)]
struct Cost<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    scope: Option<&'a str>,
    #[serde(flatten)]
    tally: &'a Tally,
}

pub(super) fn run(context: &Context, args: &CostArgs) -> Ended {
    let prices = prices(context, args)?;
    let ledger = context.ledger(IfMissing::Fail)?;
    let filter =
        Filter { scope_prefix: args.scope.clone(), limit: PAGE, ..args.when.filter(ledger.clock_ms()) };
    let tally = count(&ledger, filter, args.scope.as_deref(), &prices);
    answer::progress_over();
    let tally = tally?;
    let cost = Cost { scope: args.scope.as_deref(), tally: &tally };
    let warnings = notes(&tally);
    answer::success_with(context.global.json, "noop", &cost, warnings.clone(), || text(&cost, &warnings));
    Ok(ExitCode::SUCCESS)
}

/// Whether the policy's prices can be read.
///
/// # Errors
/// Says what is wrong with them.
pub(super) fn check(context: &Context) -> Result<(), CommandError> {
    policy_prices(context).map(drop)
}

fn policy_prices(context: &Context) -> Result<Prices, CommandError> {
    let file = context.policy_file.as_ref().map(|file| file.display().to_string());
    let source = file.as_deref().unwrap_or("the policy");
    Ok(Prices::built_in().overridden(context.policy.prices().clone(), source)?)
}

/// The prices: those of the file, then those of the policy, then those that are built in.
fn prices(context: &Context, args: &CostArgs) -> Result<Prices, CommandError> {
    let prices = policy_prices(context)?;
    let Some(file) = &args.prices else { return Ok(prices) };
    let name = file.display().to_string();
    let unread = |why: String| CommandError::invalid(format!("cannot read the prices in {name}: {why}"));
    let text = std::fs::read_to_string(file).map_err(|error| unread(error.to_string()))?;
    let table = toml::from_str(&text).map_err(|error| unread(error.message().to_owned()))?;
    Ok(prices.overridden(table, &name)?)
}

/// Reads every operation that the filter lets through, a page at a time.
fn count(
    ledger: &Blocking,
    mut filter: Filter,
    scope: Option<&str>,
    prices: &Prices,
) -> Result<Tally, CommandError> {
    let mut tally = Tally::default();
    let mut read = 0;
    loop {
        let page = ledger.list(&filter)?;
        filter.before = page.last().map(|(listed, _)| listed.cursor);
        for (listed, state) in &page {
            if scope.is_none_or(|scope| onceward::is_in_scope(&listed.record.scope, scope)) {
                tally.add(&listed.record, *state, prices);
            }
        }
        if page.len() < PAGE {
            return Ok(tally);
        }
        read += page.len();
        answer::progress(&format!("{read} operations read"));
    }
}

/// What limits the numbers.
fn notes(tally: &Tally) -> Vec<String> {
    let mut notes = Vec::new();
    let mut note = |count: u64, one: &str, many: &str| match count {
        0 => {}
        1 => notes.push(format!("1 {one}")),
        count => notes.push(format!("{} {many}", grouped(count))),
    };
    note(
        tally.unknown_attempts,
        "attempt ended without saying what it used: it was refused, failed early or was interrupted",
        "attempts ended without saying what they used: they were refused, failed early or were interrupted",
    );
    note(tally.running_attempts, "attempt is running", "attempts are running");
    note(
        tally.total.estimated_attempts,
        "attempt has estimated numbers (~): the provider reported none",
        "attempts have estimated numbers (~): the provider reported none",
    );
    note(tally.total.unpriced_tokens, "token has no price", "tokens have no price");
    if tally.total.unpriced_tokens > 0 {
        let without = tally.by_model.iter().filter(|(_, model)| model.sum.unpriced_tokens > 0);
        let names: Vec<String> = without.map(|(name, _)| cut(&one_line(name), NAME)).take(5).collect();
        if let Some(last) = notes.last_mut() {
            last.push_str(&format!(" ({}): set one with [prices] or --prices", names.join(", ")));
        }
    }
    notes
}

fn text(cost: &Cost<'_>, notes: &[String]) -> String {
    let tally = cost.tally;
    let whose = cost.scope.map_or_else(String::new, |scope| format!("scope {}: ", styled(BOLD, scope)));
    if tally.calls == 0 {
        return format!("{whose}no model calls");
    }
    let scale = Scale::of(tally);
    let head = format!(
        "{whose}{}, {}, {} tokens, {}",
        counted(tally.calls, "call"),
        counted(tally.attempts, "attempt"),
        grouped(tally.total.tokens()),
        styled(BOLD, money(&tally.total)),
    );
    let paid = [("answers", &tally.answers, GREEN), ("wasted", &tally.wasted, RED)];
    let layers = LAYERS.iter().filter_map(|layer| Some((*layer, tally.by_layer.get(*layer)?, CYAN)));
    let mut models: Vec<_> =
        tally.by_model.iter().map(|(name, model)| (name.as_str(), &model.sum, CYAN)).collect();
    models.sort_by_key(|(_, sum, _)| std::cmp::Reverse(scale.weight(sum)));
    let mut parts = vec![
        head,
        scale.table("PAID FOR", paid.into_iter()),
        scale.table("ASKED BY", layers),
        scale.table("MODEL", models.into_iter()),
    ];
    let mut about: Vec<String> = notes.iter().map(|note| styled(YELLOW, format!("({note})"))).collect();
    let sources: BTreeSet<String> =
        tally.by_model.values().filter_map(|model| source(model.price.as_ref()?)).collect();
    about.extend(sources.iter().map(|source| styled(DIM, format!("(prices: {source})"))));
    if !about.is_empty() {
        parts.push(about.join("\n"));
    }
    parts.join("\n\n")
}

fn source(price: &prices::Price) -> Option<String> {
    let origin = &price.origin;
    Some(match &origin.date {
        Some(date) => format!("{} of {date}", origin.source),
        None => origin.source.clone(),
    })
}

/// What the bars show: money, or tokens if some of them have no price.
#[derive(Clone, Copy)]
struct Scale {
    by_money: bool,
    whole: u128,
}

impl Scale {
    fn of(tally: &Tally) -> Self {
        let by_money = tally.total.unpriced_tokens == 0 && tally.total.money.weight() > 0;
        let whole = if by_money { tally.total.money.weight() } else { u128::from(tally.total.tokens()) };
        Self { by_money, whole }
    }

    fn weight(self, sum: &Sum) -> u128 {
        if self.by_money { sum.money.weight() } else { u128::from(sum.tokens()) }
    }

    fn table<'a>(self, title: &'static str, rows: impl Iterator<Item = (&'a str, &'a Sum, Style)>) -> String {
        let share = if self.by_money { "SHARE OF COST" } else { "SHARE OF TOKENS" };
        let heading = [title, "ATTEMPTS", "INPUT", "CACHED", "OUTPUT", "COST", share];
        let rows: Vec<_> = rows
            .map(|(name, sum, colour)| {
                let plain = |text: String| (text, Style::new());
                let about = if sum.estimated_attempts > 0 { "~" } else { "" };
                let tokens = |count: u64| plain(format!("{about}{}", grouped(count)));
                vec![
                    plain(name.to_owned()),
                    plain(grouped(sum.attempts)),
                    tokens(sum.input),
                    tokens(sum.cached),
                    tokens(sum.output),
                    plain(money(sum)),
                    (self.bar(self.weight(sum)), colour),
                ]
            })
            .collect();
        answer::table(&heading, &rows)
    }

    /// A bar and its percentage.
    fn bar(self, weight: u128) -> String {
        let whole = self.whole.max(1);
        let percent = weight.saturating_mul(100).saturating_add(whole / 2) / whole;
        let eighths = weight.saturating_mul(BAR * 8) / whole;
        let full = usize::try_from(eighths / 8).unwrap_or_default();
        let rest = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][usize::try_from(eighths % 8).unwrap_or_default()];
        let bar = format!("{}{rest}", "█".repeat(full));
        if bar.is_empty() { format!("{percent}%") } else { format!("{bar} {percent}%") }
    }
}

/// What tokens cost, as far as they have a price.
fn money(sum: &Sum) -> String {
    let shown = sum.money.shown();
    let about = if sum.estimated_attempts > 0 { "~" } else { "" };
    match sum.unpriced_tokens {
        0 => format!("{about}{shown}"),
        tokens if tokens == sum.tokens() => "no price".to_owned(),
        _ => format!("{about}{shown} + unpriced"),
    }
}

fn counted(count: u64, thing: &str) -> String {
    format!("{} {thing}{}", grouped(count), if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_its_share() {
        let scale = Scale { by_money: false, whole: 1_000 };
        let bars = [0, 1, 25, 500, 1_000].map(|weight| scale.bar(weight));
        assert_eq!(bars, ["0%", "0%", "▌ 3%", "██████████ 50%", "████████████████████ 100%"]);
        assert_eq!(Scale { by_money: true, whole: 0 }.bar(0), "0%");
    }
}

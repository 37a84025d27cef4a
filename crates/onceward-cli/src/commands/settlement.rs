//! The settlement of a scope as text, Markdown and HTML.

use onceward::text::one_line;
use onceward::{Fate, Part, Settlement, SettlementLine};

/// The width of the timeline in a terminal, in characters, and in the picture.
const COLUMNS: usize = 24;
const PICTURE: usize = 640;
/// How many lines a terminal gets; the other forms have all of them.
const SHOWN: usize = 50;

/// The sum, and a table with a timeline.
pub(super) fn text(settlement: &Settlement) -> String {
    let mut lines: Vec<String> = settlement.part.iter().map(Part::in_words).collect();
    lines.extend([settlement.sums.in_words(), totals(settlement)]);
    lines.extend(settlement.events_in_words());
    let span = Span::of(settlement);
    for line in settlement.lines.iter().take(SHOWN) {
        let (from, to) = span.cells(line, COLUMNS);
        let bar: String = (0..COLUMNS).map(|at| if (from..=to).contains(&at) { '█' } else { '·' }).collect();
        lines.push(format!(
            "{:<9} {bar}  {}  {}  {}",
            line.fate.as_str(),
            line.operation,
            one_line(&line.name),
            one_line(&line.evidence)
        ));
    }
    let more = settlement.lines.len().saturating_sub(SHOWN);
    if more > 0 {
        lines.push(format!("(and {more} more; --json and --html have all)"));
    }
    lines.join("\n")
}

/// A section for a ticket.
pub(super) fn markdown(settlement: &Settlement) -> String {
    let mut out = format!("## Settlement of `{}`\n\n", cell(&settlement.scope).replace('`', "'"));
    if let Some(barrier) = &settlement.stopped {
        out.push_str(&format!("Stopped {}\n\n", cell(&barrier.in_words())));
    }
    if let Some(part) = &settlement.part {
        out.push_str(&format!("This is {}.\n\n", part.in_words()));
    }
    out.push_str(&format!("**{}**\n\n{}\n\n", settlement.sums.in_words(), totals(settlement)));
    out.extend(settlement.events_in_words().map(|events| format!("{events}\n\n")));
    table(&mut out, &settlement.lines);
    out
}

/// Operations as a table in Markdown.
fn table(out: &mut String, lines: &[SettlementLine]) {
    if lines.is_empty() {
        return;
    }
    out.push_str("| fate | operation | name | attempts | duplicates prevented | evidence | from | to |\n");
    out.push_str("|---|---|---|---|---|---|---|---|\n");
    for line in lines {
        out.push_str(&format!(
            "| {} | {} | {} | {} | {} | {} | {} | {} |\n",
            line.fate.as_str(),
            line.operation,
            cell(&line.name),
            line.attempts,
            line.duplicates_prevented,
            cell(&line.evidence),
            line.created_at,
            line.updated_at
        ));
    }
}

/// One self-contained page with a picture of the timeline.
pub(super) fn html(settlement: &Settlement) -> String {
    let title = format!("Settlement of {}", escaped(&settlement.scope));
    let stopped = settlement
        .stopped
        .as_ref()
        .map_or_else(String::new, |barrier| format!("<p>Stopped {}</p>", escaped(&barrier.in_words())));
    let part = settlement
        .part
        .as_ref()
        .map_or_else(String::new, |part| format!("<p>This is {}.</p>\n", escaped(&part.in_words())));
    let events = settlement.events_in_words().map(|events| format!("<p>{events}</p>\n")).unwrap_or_default();
    format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title>\n<style>body{{font:14px \
         system-ui,sans-serif;margin:2em}}table{{border-collapse:collapse}}td,th{{border-bottom:1px solid \
         #ccc;padding:.3em .6em;text-align:left;vertical-align:top}}</style>\n<h1>{title}</h1>\n{stopped}\n{part}<p>\
         <strong>{}</strong></p>\n<p>{}</p>\n{events}{}\n{}\n</html>\n",
        settlement.sums.in_words(),
        totals(settlement),
        picture(settlement),
        html_table(&settlement.lines)
    )
}

fn html_table(lines: &[SettlementLine]) -> String {
    let rows: String = lines.iter().map(html_row).collect();
    format!(
        "<table><tr><th>fate<th>operation<th>name<th>attempts<th>duplicates prevented<th>evidence<th>from<th>to</tr>\n\
         {rows}</table>"
    )
}

fn html_row(line: &SettlementLine) -> String {
    format!(
        "<tr><td>{}<td><code>{}</code><td>{}<td>{}<td>{}<td>{}<td>{}<td>{}</tr>\n",
        line.fate.as_str(),
        escaped(&line.operation),
        escaped(&line.name),
        line.attempts,
        line.duplicates_prevented,
        escaped(&line.evidence),
        line.created_at,
        line.updated_at
    )
}

fn picture(settlement: &Settlement) -> String {
    const HEIGHT: usize = 16;
    let span = Span::of(settlement);
    let bars: String = settlement
        .lines
        .iter()
        .enumerate()
        .map(|(row, line)| {
            let (from, to) = span.cells(line, PICTURE);
            format!(
                "<rect x=\"{from}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"><title>{} {}: {}</title></rect>",
                row * HEIGHT + 2,
                (to - from).max(3),
                HEIGHT - 4,
                color(line.fate),
                escaped(&line.operation),
                escaped(&line.name),
                line.fate.as_str()
            )
        })
        .collect();
    let height = settlement.lines.len().max(1) * HEIGHT;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{PICTURE}\" height=\"{height}\" role=\"img\" \
         aria-label=\"timeline\">{bars}</svg>"
    )
}

const fn color(fate: Fate) -> &'static str {
    match fate {
        Fate::Standing => "#2a7",
        Fate::Undone => "#79c",
        Fate::Unchanged => "#9b9",
        Fate::Failed => "#999",
        Fate::Cancelled => "#bbb",
        Fate::InDoubt => "#e90",
        Fate::Held => "#97c",
        Fate::Running => "#39d",
    }
}

fn totals(settlement: &Settlement) -> String {
    let tokens = settlement.tokens.map_or_else(String::new, |tokens| {
        format!("; model calls used {} tokens of input and {} of output", tokens.input, tokens.output)
    });
    format!(
        "{} attempts, {} duplicates prevented{tokens}",
        settlement.attempts, settlement.duplicates_prevented
    )
}

/// The time from the first request to the last change. RFC 3339 times in UTC sort as text.
struct Span<'a> {
    times: Vec<&'a str>,
}

impl<'a> Span<'a> {
    fn of(settlement: &'a Settlement) -> Self {
        let all =
            settlement.lines.iter().flat_map(|line| [line.created_at.as_str(), line.updated_at.as_str()]);
        let mut times: Vec<&str> = all.collect();
        times.sort_unstable();
        times.dedup();
        Self { times }
    }

    /// The first and the last cell of an operation, by the order of events.
    fn cells(&self, line: &SettlementLine, width: usize) -> (usize, usize) {
        let last = self.times.len().saturating_sub(1).max(1);
        let cell = |time: &str| self.times.partition_point(|at| *at < time) * (width - 1) / last;
        (cell(&line.created_at), cell(&line.updated_at))
    }
}

/// Text for a cell of a Markdown table.
fn cell(text: &str) -> String {
    escaped(&one_line(text)).replace('|', "\\|")
}

/// Text for HTML.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other if other.is_control() => out.push('\u{fffd}'),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use onceward::{Ledger, ManualClock, MemoryStore, Operation};

    use super::*;

    #[test]
    fn nothing_in_a_ledger_becomes_markup() {
        let store = MemoryStore::new(ManualClock::at(1_763_251_200_000));
        let ledger = Ledger::new(Arc::new(store)).blocking();
        let hostile = Operation::new("<script>alert(1)</script>|x").scope("<b>&\"run'").key("k");
        ledger.run(hostile, |attempt| Ok(attempt.dispatch()?.created(&()))).unwrap();
        ledger
            .scopes()
            .stop("<b>&\"run'", &onceward::Word::person("ada").note("<img src=x>|`".to_owned()))
            .unwrap();
        let settlement = ledger.scopes().settlement("<b>&\"run'").unwrap();
        let page = html(&settlement);
        for markup in ["<script>", "<b>", "<img"] {
            assert!(!page.contains(markup), "{markup} in {page}");
            assert!(!markdown(&settlement).contains(markup), "{markup}");
        }
        assert!(page.contains("1 intended = 1 done") && page.contains("<svg"), "{page}");
        assert!(markdown(&settlement).contains(r"&lt;/script&gt;\|x"), "{}", markdown(&settlement));
    }
}

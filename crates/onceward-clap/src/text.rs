//! The answer as a person reads it: the effect, a table, what to do next.

use anstyle::{AnsiColor, Style};
use onceward::ErrorView;
use serde_json::Value;

use crate::envelope::Envelope;

const DIM: Style = Style::new().dimmed();
const GREEN: Style = AnsiColor::Green.on_default().bold();
const YELLOW: Style = AnsiColor::Yellow.on_default().bold();
const RED: Style = AnsiColor::Red.on_default().bold();
const CYAN: Style = AnsiColor::Cyan.on_default().bold();

/// Text in a style. Where colour is not wanted the stream takes it away.
pub(crate) fn styled(style: Style, text: impl std::fmt::Display) -> String {
    format!("{style}{text}{style:#}")
}

/// A success, or what would change, in lines.
pub(crate) fn answer(envelope: &Envelope) -> String {
    let mut lines = Vec::new();
    let answer = &envelope.answer;
    if answer.ok && !envelope.reads {
        let effect = styled(effect_style(answer.effect), answer.effect);
        lines.push(match &answer.reason {
            Some(reason) => format!("{effect}: {reason}"),
            None => effect,
        });
    }
    lines.extend(envelope.changes().iter().map(|change| format!("  {change}")));
    if let Some(own) = &envelope.lines {
        lines.extend(own.iter().cloned());
    } else if let Some(data) = answer.data.as_ref().and_then(|data| serde_json::from_str(data.get()).ok()) {
        lines.extend(table(&data));
    }
    if let Some(operation) = answer.operation.as_ref().filter(|_| answer.ok) {
        lines.push(styled(DIM, format!("{} key {}", operation.id, operation.key)));
    }
    lines.join("\n")
}

/// An error in words: what happened, what did not, and what to do next.
pub(crate) fn error(tool: &str, error: &ErrorView, ran: Option<bool>) -> String {
    let red = styled(RED, &error.code);
    let lines = error.lines(ran).into_iter().enumerate().map(|(index, line)| {
        let line = if index == 0 { line.replacen(&*error.code, &red, 1) } else { line };
        format!("{tool}: {line}")
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The colour of an effect: green changed something, cyan changed nothing, yellow would or may have.
pub(crate) fn effect_style(effect: &str) -> Style {
    match effect {
        "created" | "updated" | "deleted" => GREEN,
        "noop" => CYAN,
        _ => YELLOW,
    }
}

/// Data as a table: an object has a line for each field, a list of objects a line for each and a heading.
fn table(data: &Value) -> Vec<String> {
    match data {
        Value::Null => Vec::new(),
        Value::Object(fields) => {
            let width = fields.keys().map(|name| name.chars().count()).max().unwrap_or(0);
            let line = |(name, value): (&String, &Value)| {
                format!("  {}{} {}", styled(DIM, name), " ".repeat(width - name.chars().count()), cell(value))
            };
            fields.iter().map(line).collect()
        }
        Value::Array(rows) if rows.iter().all(Value::is_object) && !rows.is_empty() => rows_of(rows),
        Value::Array(items) => items.iter().map(|item| format!("  {}", cell(item))).collect(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => vec![format!("  {}", cell(data))],
    }
}

fn rows_of(rows: &[Value]) -> Vec<String> {
    let mut heading: Vec<&String> = Vec::new();
    for name in rows.iter().filter_map(Value::as_object).flat_map(serde_json::Map::keys) {
        if !heading.contains(&name) {
            heading.push(name);
        }
    }
    let cells = |row: &Value| heading.iter().map(|name| cell(&row[name.as_str()])).collect::<Vec<_>>();
    let rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
    let width = |index: usize, name: &String| {
        let widest = rows.iter().map(|row| row[index].chars().count()).max().unwrap_or(0);
        widest.max(name.chars().count())
    };
    let widths: Vec<usize> = heading.iter().enumerate().map(|(index, name)| width(index, name)).collect();
    let line = |cells: Vec<String>| {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        format!("  {}", padded.collect::<Vec<_>>().join("  ").trim_end())
    };
    let head = line(heading.iter().map(|name| name.to_uppercase()).collect());
    std::iter::once(styled(DIM, head)).chain(rows.into_iter().map(line)).collect()
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_a_table_with_a_heading() {
        let list = serde_json::json!([{"id": 1, "customer": "ada"}, {"id": 20, "paid": true}]);
        let plain: Vec<String> = table(&list).iter().map(|line| strip(line)).collect();
        assert_eq!(plain, ["  CUSTOMER  ID  PAID", "  ada       1   -", "  -         20  true"]);
    }

    fn strip(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }
}

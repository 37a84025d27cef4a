//! Parsing a policy: reports all mistakes together, each with its line.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Policy;
use super::fields::{EXITS, LEDGER, RULE, ValueType, problem, suggestion};
use crate::invalid::InvalidInput;

const SECTIONS: [&str; 9] =
    ["ledger", "defaults", "operation", "exits", "serve", "tenant", "upstream", "hook", "prices"];

/// Parses a policy, or reports everything that is wrong with it.
pub(super) fn read(text: &str) -> Result<Policy, InvalidInput> {
    // The line itself is not repeated: it may contain a password.
    let not_toml = |error: toml::de::Error| {
        let line = line_at(text, error.span().map_or(0, |span| span.start));
        InvalidInput::new(format!("line {line}: this is not TOML: {}", error.message()))
    };
    let table = DeTable::parse(text).map_err(not_toml)?;
    let mut reader = Reader { text, problems: Vec::new() };
    reader.policy(table.get_ref());
    reader.problems.sort_by_key(|(line, _)| *line);
    let problems = reader.problems.into_iter().map(|(line, problem)| format!("line {line}: {problem}"));
    if let Some(invalid) = InvalidInput::all(problems.collect()) {
        return Err(invalid);
    }
    let mut policy: Policy = toml::from_str(text).map_err(not_toml)?;
    policy.source = toml::from_str(text).map_err(not_toml)?;
    policy.text = text.into();
    Ok(policy)
}

impl Policy {
    /// The line of a setting or section: `["upstream", "stripe", "rule", "0", "class"]`. If it is not in the file,
    /// that of the nearest section above it.
    #[must_use]
    pub fn line(&self, path: &[&str]) -> Option<usize> {
        let parsed = DeTable::parse(&self.text).ok()?;
        let (first, rest) = path.split_first()?;
        let (name, mut value) = parsed.get_ref().get_key_value(*first)?;
        let mut place = name.span();
        for step in rest {
            let below = match value.get_ref() {
                DeValue::Table(table) => table.get_key_value(*step).map(|(name, value)| (name.span(), value)),
                DeValue::Array(items) => {
                    step.parse().ok().and_then(|at: usize| items.get(at)).map(|item| (item.span(), item))
                }
                DeValue::String(_)
                | DeValue::Integer(_)
                | DeValue::Float(_)
                | DeValue::Boolean(_)
                | DeValue::Datetime(_) => None,
            };
            let Some((span, found)) = below else { break };
            (place, value) = (span, found);
        }
        Some(line_at(&self.text, place.start))
    }
}

fn line_at(text: &str, start: usize) -> usize {
    text.get(..start).unwrap_or_default().matches('\n').count() + 1
}

struct Reader<'a> {
    text: &'a str,
    problems: Vec<(usize, String)>,
}

impl Reader<'_> {
    fn policy(&mut self, policy: &DeTable<'_>) {
        for (section, value) in policy {
            let name: &str = section.get_ref();
            match name {
                "ledger" => self.settings("[ledger]", value, &LEDGER),
                "defaults" => self.settings("[defaults]", value, &RULE),
                "operation" => self.tables(name, value, &RULE),
                "exits" => self.tables(name, value, &EXITS),
                // The server and `once cost` read their own sections.
                "serve" | "tenant" | "upstream" | "hook" | "prices" => {}
                _ => {
                    // A setting before the first section belongs in a section.
                    let place = if RULE.iter().any(|(known, _)| *known == name) {
                        "; settings belong below [defaults] or [operation.NAME]".to_owned()
                    } else {
                        suggestion(name, SECTIONS.into_iter())
                    };
                    self.wrong(section.span(), format!("`{name}` is not a section of a policy{place}"));
                }
            }
        }
    }

    /// A section with one table per name.
    fn tables(&mut self, section: &str, value: &Spanned<DeValue<'_>>, known: &[(&str, ValueType)]) {
        let Some(tables) = value.get_ref().as_table() else {
            let problem = format!("{section} is not a section; write [{section}.NAME]");
            return self.wrong(value.span(), problem);
        };
        for (name, table) in tables {
            let title = title(section, name.get_ref());
            if section == "operation"
                && let Some(sign) = name.get_ref().chars().find(|c| "?[]{}".contains(*c))
            {
                let problem =
                    format!("{title}: `{sign}` has no special meaning in a name; only * matches any text");
                self.wrong(name.span(), problem);
            }
            self.settings(&title, table, known);
        }
    }

    fn settings(&mut self, title: &str, value: &Spanned<DeValue<'_>>, known: &[(&str, ValueType)]) {
        let Some(table) = value.get_ref().as_table() else {
            return self
                .wrong(value.span(), format!("{title} is not a section; write {title} on its own line"));
        };
        for (name, value) in table {
            let written: &str = name.get_ref();
            match known.iter().find(|(known, _)| *known == written) {
                Some((_, kind)) => {
                    if let Some(problem) = problem(written, *kind, value.get_ref()) {
                        self.wrong(value.span(), problem);
                    }
                }
                None => {
                    let meant = suggestion(written, known.iter().map(|(known, _)| *known));
                    self.wrong(name.span(), format!("{title} has no setting `{written}`{meant}"));
                }
            }
        }
    }

    fn wrong(&mut self, place: std::ops::Range<usize>, problem: String) {
        self.problems.push((line_at(self.text, place.start), problem));
    }
}

/// The heading of a table as written in the file.
pub(super) fn title(section: &str, name: &str) -> String {
    let bare = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
    if bare { format!("[{section}.{name}]") } else { format!("[{section}.{name:?}]") }
}

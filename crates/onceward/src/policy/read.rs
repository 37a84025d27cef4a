//! Reading a policy: every mistake is found in one go, each with its line.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Policy;
use super::fields::{EXITS, Kind, LEDGER, RULE, meant, problem};
use crate::error::InvalidInput;

const SECTIONS: [&str; 4] = ["ledger", "defaults", "operation", "exits"];

/// Reads a policy, or says everything that is wrong with it.
pub(super) fn read(text: &str) -> Result<Policy, InvalidInput> {
    let not_toml = |error: toml::de::Error| InvalidInput::new(error.to_string().trim_end().to_owned());
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
    Ok(policy)
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
                _ => {
                    // A setting that stands before the first section belongs into one.
                    let place = if RULE.iter().any(|(known, _)| *known == name) {
                        "; settings belong below [defaults] or [operation.NAME]".to_owned()
                    } else {
                        meant(name, SECTIONS.into_iter())
                    };
                    self.wrong(section.span(), format!("`{name}` is not a section of a policy{place}"));
                }
            }
        }
    }

    /// A section that holds one table for each name.
    fn tables(&mut self, section: &str, value: &Spanned<DeValue<'_>>, known: &[(&str, Kind)]) {
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
                    format!("{title}: `{sign}` has no meaning in a name; only * stands for any text");
                self.wrong(name.span(), problem);
            }
            self.settings(&title, table, known);
        }
    }

    fn settings(&mut self, title: &str, value: &Spanned<DeValue<'_>>, known: &[(&str, Kind)]) {
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
                    let meant = meant(written, known.iter().map(|(known, _)| *known));
                    self.wrong(name.span(), format!("{title} has no setting `{written}`{meant}"));
                }
            }
        }
    }

    fn wrong(&mut self, place: std::ops::Range<usize>, problem: String) {
        let before = self.text.get(..place.start).unwrap_or_default();
        self.problems.push((before.matches('\n').count() + 1, problem));
    }
}

/// The heading of a table as it is written in the file.
pub(super) fn title(section: &str, name: &str) -> String {
    let bare = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
    if bare { format!("[{section}.{name}]") } else { format!("[{section}.{name:?}]") }
}

//! Mistakes in the sections of `onceward.toml`, each with its place.

use onceward::InvalidInput;

/// A mistake in a section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mistake {
    /// The place: section, name, setting.
    path: Vec<String>,
    what: String,
}

impl Mistake {
    pub(crate) fn at<const STEPS: usize>(path: [&str; STEPS], what: impl Into<String>) -> Self {
        Self::of(&path, what)
    }

    /// The same for a place whose length is not fixed.
    pub(crate) fn of(path: &[&str], what: impl Into<String>) -> Self {
        Self { path: path.iter().map(|step| (*step).to_owned()).collect(), what: what.into() }
    }

    /// All mistakes in the order of the file, each with its line if that is known.
    pub(crate) fn all(mistakes: Vec<Self>, line: impl Fn(&[&str]) -> Option<usize>) -> Option<InvalidInput> {
        let mut placed: Vec<(Option<usize>, String)> = mistakes
            .into_iter()
            .map(|mistake| {
                let path: Vec<&str> = mistake.path.iter().map(String::as_str).collect();
                let line = line(&path);
                let place = line.map(|line| format!("line {line}: ")).unwrap_or_default();
                (line, format!("{place}{}", mistake.what))
            })
            .collect();
        placed.sort_by_key(|(line, _)| *line);
        InvalidInput::all(placed.into_iter().map(|(_, problem)| problem).collect())
    }
}

//! Readable tables: a row applies to every combination that matches it, and the first matching row wins.

/// A table of words: the cells of a row up to `=>`, and the expected result after it.
pub(crate) struct Table {
    columns: Vec<&'static str>,
    rows: Vec<Row>,
}

struct Row {
    line: &'static str,
    /// The words that fit each cell; none for a `*`, which any word fits.
    cells: Vec<Vec<&'static str>>,
    leads_to: String,
    fitted: u64,
}

impl Table {
    /// Parses a table whose first line names its columns. A cell is a word, several words between bars, or `*`.
    pub(crate) fn read(text: &'static str) -> Self {
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let columns: Vec<&str> =
            before_arrow(lines.next().unwrap_or_default()).0.split_whitespace().collect();
        let rows = lines.map(|line| {
            let (cells, leads_to) = before_arrow(line);
            let cells: Vec<&str> = cells.split_whitespace().collect();
            assert_eq!(cells.len(), columns.len(), "the row {line:?} has not one cell for each column");
            let cells = cells.into_iter().map(|cell| match cell {
                "*" => Vec::new(),
                words => words.split('|').collect(),
            });
            let cells = cells.collect();
            let leads_to = leads_to.split_whitespace().collect::<Vec<_>>().join(" ");
            Row { line, cells, leads_to, fitted: 0 }
        });
        Self { rows: rows.collect(), columns }
    }

    /// The expected result of this combination.
    pub(crate) fn look_up(&mut self, words: &[&str]) -> String {
        assert_eq!(
            words.len(),
            self.columns.len(),
            "{words:?} has not one word for each of {:?}",
            self.columns
        );
        let fits = |row: &&mut Row| {
            row.cells.iter().zip(words).all(|(cell, word)| cell.is_empty() || cell.contains(word))
        };
        match self.rows.iter_mut().find(fits) {
            Some(row) => {
                row.fitted += 1;
                row.leads_to.clone()
            }
            None => panic!("no row for {words:?} under {:?}", self.columns),
        }
    }

    /// A row that matches nothing is a mistake in the table.
    pub(crate) fn assert_all_rows_fitted(&self) {
        for row in &self.rows {
            assert!(row.fitted > 0, "no combination fits the row {:?}", row.line);
        }
    }
}

fn before_arrow(line: &str) -> (&str, &str) {
    line.split_once("=>").unwrap_or_else(|| panic!("the row {line:?} leads nowhere"))
}

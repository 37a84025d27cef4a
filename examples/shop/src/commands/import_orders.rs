//! `shop import-orders`: each line is an order, and an operation of its own.

use std::path::PathBuf;

use clap::Args;
use onceward_clap::{Batch, Fault};
use serde::Serialize;

use super::CreateOrder;
use crate::shop::Shop;

/// The largest file that is read.
const MAX_BYTES: u64 = 64 * 1024 * 1024;

/// Create an order for each line of a file: {"customer": "ada", "amount": 100}
#[derive(Args, Serialize)]
pub(crate) struct ImportOrders {
    /// The file
    #[arg(long, value_name = "FILE")]
    file: PathBuf,
}

impl Batch for ImportOrders {
    const NAME: &'static str = "import-orders";
    const EXAMPLE: &'static [&'static str] = &["--file", "orders.jsonl"];
    type Item = CreateOrder;

    fn items(&self, _shop: &Shop) -> Result<Vec<CreateOrder>, Fault> {
        let unreadable = |error: std::io::Error| Fault::invalid(format!("{}: {error}", self.file.display()));
        if std::fs::metadata(&self.file).map_err(unreadable)?.len() > MAX_BYTES {
            return Err(Fault::invalid(format!("{} is larger than 64 MiB; split it", self.file.display())));
        }
        let text = std::fs::read_to_string(&self.file).map_err(unreadable)?;
        let wrong = |index: usize, error| Fault::invalid(format!("line {}: {error}", index + 1));
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        lines.map(|(index, line)| serde_json::from_str(line).map_err(|error| wrong(index, error))).collect()
    }
}

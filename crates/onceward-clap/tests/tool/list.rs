//! The tools under test: a list in a file, in several versions.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use onceward_clap::{Applied, Class, Destructive, Fault, Mutating, Op, Plan, Tool, World};
use serde::Serialize;

use crate::{nested, noise, tickets};

/// Which list.
#[derive(Debug, Clone, Args)]
pub(crate) struct ListOptions {
    /// The file of the list
    #[arg(long, env = "LIST_FILE", default_value = "list.txt")]
    pub(crate) file: PathBuf,
}

/// A file with one line for each entry.
pub(crate) struct List {
    pub(crate) file: PathBuf,
}

impl List {
    pub(crate) fn text(&self) -> String {
        std::fs::read_to_string(&self.file).unwrap_or_default()
    }

    pub(crate) fn write(&mut self, text: &str) -> std::io::Result<()> {
        std::fs::write(&self.file, text)
    }
}

impl World for List {
    type Options = ListOptions;

    fn identity(options: &ListOptions) -> String {
        options.file.display().to_string()
    }

    fn open(options: &ListOptions) -> Result<Self, Fault> {
        Ok(Self { file: options.file.clone() })
    }

    fn open_read_only(options: &ListOptions) -> Result<Self, Fault> {
        Self::open(options)
    }
}

/// Add an entry
#[derive(Args, Serialize)]
struct Add {
    entry: String,
}

impl Mutating for Add {
    const NAME: &'static str = "add";
    const EXAMPLE: &'static [&'static str] = &["milk"];
    type World = List;
    type Data = String;

    fn plan(&self, _list: &List) -> Result<Plan, Fault> {
        Ok(Plan::create(&self.entry))
    }

    fn apply(&self, op: Op<'_, List>) -> Result<Applied<String>, Fault> {
        let text = format!("{}{}\n", op.world().text(), self.entry);
        let (list, dispatched) = op.dispatch()?;
        assert!(self.entry != "panic", "the author made a mistake");
        list.write(&text)?;
        Ok(dispatched.created(self.entry.clone()))
    }
}

/// Clear the list
#[derive(Args, Serialize)]
struct Clear {}

impl Mutating<Destructive> for Clear {
    const NAME: &'static str = "clear";
    const EXAMPLE: &'static [&'static str] = &[];
    type World = List;
    type Data = ();

    fn plan(&self, _list: &List) -> Result<Plan, Fault> {
        Ok(Plan::delete("all entries"))
    }

    fn apply(&self, op: Op<'_, List>) -> Result<Applied<()>, Fault> {
        if op.world().text().is_empty() {
            return Ok(Applied::noop("the list is empty", ()));
        }
        let (list, dispatched) = op.dispatch()?;
        list.write("")?;
        Ok(dispatched.deleted(()))
    }
}

/// What no type can prevent: a plan that writes behind the world's back, and an effect that is a lie
#[derive(Args, Serialize)]
struct Careless {}

impl Mutating for Careless {
    const NAME: &'static str = "careless";
    const EXAMPLE: &'static [&'static str] = &[];
    type World = List;
    type Data = ();

    fn plan(&self, list: &List) -> Result<Plan, Fault> {
        std::fs::write(&list.file, "planned\n")?;
        Ok(Plan::noop("nothing"))
    }

    fn apply(&self, op: Op<'_, List>) -> Result<Applied<()>, Fault> {
        std::fs::write(&op.world().file, format!("{}applied\n", op.world().text()))?;
        Ok(Applied::noop("nothing at all", ()))
    }
}

/// Takes what is taken
#[derive(Args, Serialize)]
struct Clash {
    #[arg(long)]
    scope: Option<String>,
    #[arg(long, visible_alias = "dry-run")]
    pretend: bool,
    #[arg(short = 'h')]
    height: Option<u8>,
    #[arg(long)]
    file: Option<String>,
}

impl Mutating for Clash {
    const NAME: &'static str = "settle";
    const EXAMPLE: &'static [&'static str] = &[];
    const CLASS: Class = Class::Probed;
    type World = List;
    type Data = ();

    fn plan(&self, _list: &List) -> Result<Plan, Fault> {
        Ok(Plan::noop("nothing"))
    }

    fn apply(&self, _op: Op<'_, List>) -> Result<Applied<()>, Fault> {
        Ok(Applied::noop("nothing", ()))
    }
}

pub(crate) fn tool(version: &str) -> Tool<List> {
    let tool = Tool::new("list", "1.0.0", "A list");
    match version {
        "plain" => tool.mutating::<Add>(),
        "later" => tool.mutating::<Add>().destructive::<Clear>(),
        "careless" => tool.mutating::<Careless>(),
        "clash" => tool.mutating::<Clash>(),
        "twice" => tool.mutating::<Add>().mutating::<Add>(),
        "nested" => nested::tool(tool),
        "misnested" => nested::wrong(tool),
        "open" => nested::open(tool),
        "noisy" => noise::tool(tool),
        "tickets" => tickets::tool(tool),
        other => panic!("there is no version {other}"),
    }
}

pub(crate) fn act_as(version: &str) -> ExitCode {
    tool(version).run(onceward_store::ledger)
}

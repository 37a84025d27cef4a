//! A command of class `probed` that brings something into a state: closed, open, closed again.

use clap::Args;
use onceward_clap::{Applied, Doubt, Fault, Mutating, Op, Plan, Probe, Probed, Tool};
use serde::Serialize;

use crate::list::List;
use crate::runs::{command, json, run};

tests![a_state_that_is_wanted_again_is_brought_about, a_stored_answer_says_that_the_state_has_changed];

/// Set the ticket's status
#[derive(Args, Serialize)]
pub(crate) struct Update {
    /// What it should be
    #[arg(long)]
    status: String,
}

impl Mutating for Update {
    const NAME: &'static str = "update";
    const EXAMPLE: &'static [&'static str] = &["--status", "closed"];
    const PROBE: Option<Probe<Self, List, String>> = Some(was_updated);
    type World = List;
    type Data = String;

    fn plan(&self, list: &List) -> Result<Plan, Fault> {
        Ok(match list.text() == self.status {
            true => Plan::noop("it is so already"),
            false => Plan::update(format_args!("the ticket to {}", self.status)),
        })
    }

    fn apply(&self, op: Op<'_, List>) -> Result<Applied<String>, Fault> {
        let (list, dispatched) = op.dispatch()?;
        list.write(&self.status)?;
        Ok(dispatched.updated(self.status.clone()))
    }
}

fn was_updated(update: &Update, list: &List, _doubt: &Doubt<'_>) -> Result<Probed<String>, Fault> {
    Ok(if list.text() == update.status { Probed::Updated(list.text()) } else { Probed::No })
}

pub(crate) fn tool(tool: Tool<List>) -> Tool<List> {
    tool.mutating::<Update>()
}

fn a_state_that_is_wanted_again_is_brought_about() {
    let folder = tempfile::tempdir().unwrap();
    for status in ["closed", "open", "closed"] {
        let answer = json(&run("tickets", folder.path(), &["update", "--status", status]));
        assert_eq!((&answer["effect"], &answer["ran"]), (&"updated".into(), &true.into()), "{answer}");
        assert_eq!(std::fs::read_to_string(folder.path().join("list.txt")).unwrap(), status);
    }
}

fn a_stored_answer_says_that_the_state_has_changed() {
    let folder = tempfile::tempdir().unwrap();
    let unheard = |status: &str, more: &[&str]| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = command("tickets", folder.path(), &["update", "--status", status]);
        assert!(command.args(more).stdout(writer).status().unwrap().success());
    };
    for more in [&[][..], &["--scope", "s"], &["--idempotency-key", "k"]] {
        let heard = |status: &str, last: &[&str]| {
            let words = [&["update", "--status", status], more, last].concat();
            json(&run("tickets", folder.path(), &words))
        };
        unheard("closed", more);
        std::fs::write(folder.path().join("list.txt"), "open").unwrap();
        for dry in [&["--dry-run"][..], &[]] {
            let stored = heard("closed", dry);
            assert_eq!((&stored["ok"], &stored["ran"]), (&true.into(), &false.into()), "{stored}");
            let warning = stored["warnings"][0].as_str().unwrap_or_default();
            assert!(warning.ends_with("running it now would update the ticket to closed"), "{stored}");
        }
    }
}

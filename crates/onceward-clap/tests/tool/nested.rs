//! Commands with subcommands of their own.

use clap::{Args, Subcommand};
use onceward_clap::{Applied, Fault, Mutating, Op, Plan, Safe, Tool};
use serde::Serialize;
use serde_json::{Value, json};

use crate::list::{List, tool as tool_of};
use crate::runs::{call, json as answer, mcp, run};

tests![
    flags_are_accepted_after_every_level,
    help_and_mistakes_are_told_at_every_level,
    programs_see_every_subcommand,
    each_subcommand_is_a_tool_with_a_complete_schema,
    a_flag_that_is_not_a_boolean_is_refused_and_nothing_runs,
    what_cannot_be_described_is_refused,
];

/// Work with orders
#[derive(Args, Serialize)]
pub(crate) struct Order {
    /// Which branch
    #[arg(long, default_value = "main")]
    branch: String,
    #[command(subcommand)]
    what: OrderCommand,
}

#[derive(Subcommand, Serialize)]
enum OrderCommand {
    /// Create an order
    Create {
        /// For whom
        name: String,
        /// As a gift
        #[arg(long)]
        gift: bool,
        /// How urgent
        #[arg(short, long, action = clap::ArgAction::Count)]
        urgent: u8,
    },
    /// Change the items of an order
    Item {
        /// Which order
        order: u32,
        #[command(subcommand)]
        change: ItemCommand,
    },
}

#[derive(Subcommand, Serialize)]
enum ItemCommand {
    /// Add an item
    Add {
        /// Which
        #[arg(long)]
        item: String,
    },
}

impl Order {
    fn line(&self) -> String {
        let Self { branch, what } = self;
        match what {
            OrderCommand::Create { name, gift, urgent } => format!("{branch}: {name} {gift} {urgent}"),
            OrderCommand::Item { order, change: ItemCommand::Add { item } } => {
                format!("{branch}: {order} {item}")
            }
        }
    }
}

impl Mutating for Order {
    const NAME: &'static str = "order";
    const EXAMPLE: &'static [&'static str] = &["create", "ada"];
    type World = List;
    type Data = String;

    fn plan(&self, _list: &List) -> Result<Plan, Fault> {
        Ok(Plan::create(self.line()))
    }

    fn apply(&self, op: Op<'_, List>) -> Result<Applied<String>, Fault> {
        let text = format!("{}{}\n", op.world().text(), self.line());
        let (list, dispatched) = op.dispatch()?;
        list.write(&text)?;
        Ok(dispatched.created(self.line()))
    }
}

/// Look at the list, or at its end
#[derive(Args, Serialize)]
pub(crate) struct Look {
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(Subcommand, Serialize)]
enum Part {
    /// The last line
    Last,
}

impl Safe for Look {
    const NAME: &'static str = "look";
    const EXAMPLE: &'static [&'static str] = &[];
    type World = List;
    type Data = String;

    fn read(&self, list: &List) -> Result<String, Fault> {
        let text = list.text();
        Ok(match self.part {
            Some(Part::Last) => text.lines().last().unwrap_or_default().to_owned(),
            None => text,
        })
    }
}

pub(crate) fn tool(tool: Tool<List>) -> Tool<List> {
    tool.mutating::<Order>().safe::<Look>()
}

/// Subcommands that clash
#[derive(Args, Serialize)]
pub(crate) struct Wrong {
    /// Its name
    #[arg(long)]
    name: Option<String>,
    #[command(subcommand)]
    what: WrongCommand,
}

#[derive(Subcommand, Serialize)]
enum WrongCommand {
    /// Takes names that are taken
    Take {
        #[arg(long)]
        dry_run: bool,
        #[arg(long)]
        name: Option<String>,
    },
}

/// Subcommands that cannot be known
#[derive(Args, Serialize)]
pub(crate) struct Open {
    #[command(subcommand)]
    what: Anything,
}

#[derive(Subcommand, Serialize)]
enum Anything {
    /// Whatever is typed
    #[command(external_subcommand)]
    Other(Vec<String>),
}

macro_rules! changes_nothing {
    ($command:ty, $name:literal) => {
        impl Mutating for $command {
            const NAME: &'static str = $name;
            const EXAMPLE: &'static [&'static str] = &[];
            type World = List;
            type Data = ();

            fn plan(&self, _list: &List) -> Result<Plan, Fault> {
                Ok(Plan::noop("nothing"))
            }

            fn apply(&self, _op: Op<'_, List>) -> Result<Applied<()>, Fault> {
                Ok(Applied::noop("nothing", ()))
            }
        }
    };
}

/// Has the name that a subcommand has as an MCP tool
#[derive(Args, Serialize)]
pub(crate) struct WrongTake {}

changes_nothing!(Wrong, "wrong");
changes_nothing!(WrongTake, "wrong-take");
changes_nothing!(Open, "open");

pub(crate) fn wrong(tool: Tool<List>) -> Tool<List> {
    tool.mutating::<Wrong>().mutating::<WrongTake>()
}

pub(crate) fn open(tool: Tool<List>) -> Tool<List> {
    tool.mutating::<Open>()
}

fn flags_are_accepted_after_every_level() {
    let folder = tempfile::tempdir().unwrap();
    let effect = |line: &str| {
        let output = run("nested", folder.path(), &line.split(' ').collect::<Vec<_>>());
        (answer(&output)["effect"].as_str().unwrap().to_owned(), output.status.code().unwrap())
    };
    let told = |effect: &str| (effect.to_owned(), 0);
    assert_eq!(tool_of("nested").problems(), [""; 0]);
    for line in
        ["order create ada --dry-run", "order --dry-run create ada", "order item 7 add --item a --dry-run"]
    {
        assert_eq!(effect(line), told("would_create"), "{line}");
    }
    assert_eq!(effect("order create ada --idempotency-key k"), told("created"));
    assert_eq!(
        effect("order --idempotency-key k create ada"),
        told("noop"),
        "the same key, the same operation"
    );
    assert_eq!(
        effect("order create ada --idempotency-key k --branch main").1,
        2,
        "that flag is the outer level's"
    );
    assert_eq!(effect("order create ada --scope s --timeout 5s --wait 1s"), told("created"));
    assert_eq!(effect("order create --gift ada --scope s"), told("created"), "other arguments");
    assert_eq!(effect("order --branch b item 7 add --item a --idempotency-key i"), told("created"));
    assert_eq!(effect("order --branch b item 7 add --item a --idempotency-key i"), told("noop"));
    let list = std::fs::read_to_string(folder.path().join("list.txt")).unwrap();
    assert_eq!(list, "main: ada false 0\nmain: ada false 0\nmain: ada true 0\nb: 7 a\n");
    let last = run("nested", folder.path(), &["look", "last"]);
    assert_eq!(answer(&last)["data"], "b: 7 a");
}

fn help_and_mistakes_are_told_at_every_level() {
    let folder = tempfile::tempdir().unwrap();
    for line in ["--help", "order --help", "order create --help", "order item 7 add -h", "look last --help"] {
        let output = run("nested", folder.path(), &line.split(' ').collect::<Vec<_>>());
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.contains("Usage: "), "{line}: {text}");
        assert!(output.stderr.is_empty(), "{line}");
        assert_eq!(text.contains("--dry-run"), line.starts_with("order"), "{line}: {text}");
        assert!(!text.contains("once-connection"), "{line}");
    }
    for (words, names) in [(&["order"][..], "create, item"), (&["order", "item", "7"], "add")] {
        let missing = run("nested", folder.path(), words);
        let message = answer(&missing)["error"]["message"].as_str().unwrap().to_owned();
        assert_eq!(missing.status.code(), Some(2));
        assert!(message.ends_with(&format!("needs a subcommand: {names}")), "{message}");
    }
}

fn programs_see_every_subcommand() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = answer(&run("nested", folder.path(), &["manifest"]))["data"].clone();
    let order = &manifest["commands"]["order"];
    assert!(order["flags"]["dry-run"].is_object() && order["flags"]["branch"].is_object(), "{order}");
    let create = &order["subcommands"]["create"];
    assert_eq!(create["positionals"][0]["name"], "name");
    assert_eq!(create["flags"].as_object().unwrap().keys().collect::<Vec<_>>(), ["gift", "urgent"]);
    assert!(order["subcommands"]["item"]["subcommands"]["add"]["flags"]["item"].is_object());
    let schema = answer(&run("nested", folder.path(), &["schema", "order", "create"]))["data"].clone();
    assert_eq!((&schema["command"], &schema["danger_level"]), (&"order create".into(), &"mutating".into()));
    assert_eq!(schema["input_schema"]["required"], json!(["name"]));
    assert_eq!(run("nested", folder.path(), &["schema", "order", "nothing"]).status.code(), Some(2));
}

fn each_subcommand_is_a_tool_with_a_complete_schema() {
    let folder = tempfile::tempdir().unwrap();
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    let create =
        json!({"name": "--dry-run", "gift": true, "urgent": 2, "branch": "b", "idempotency_key": "k"});
    let dry = json!({"order": 7, "item": "a", "dry_run": true});
    let answers = mcp(
        "nested",
        folder.path(),
        &[
            list,
            call("order-create", &create),
            call("order-item-add", &dry),
            call("look-last", &json!({})),
            call("look", &json!({})),
            call("order", &json!({})),
        ],
    );
    let tools = answers[0]["result"]["tools"].as_array().unwrap();
    let named = |name: &str| tools.iter().find(|tool| tool["name"] == name).unwrap();
    let names: Vec<&str> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["order-create", "order-item-add", "look", "look-last", "once_settle", "once_status"]);
    let properties = |name: &str| named(name)["inputSchema"]["properties"].as_object().unwrap().clone();
    for name in ["name", "gift", "urgent", "branch", "dry_run", "idempotency_key", "scope", "occurrence"] {
        assert!(properties("order-create").contains_key(name), "{name}");
    }
    assert_eq!(named("order-item-add")["inputSchema"]["required"], json!(["order", "item"]));
    assert!(!properties("look-last").contains_key("dry_run"));
    let result = |at: usize| answers[at]["result"]["structuredContent"].clone();
    assert_eq!(
        (&result(1)["effect"], &result(1)["data"]),
        (&"created".into(), &"b: --dry-run true 2".into())
    );
    assert_eq!(result(2)["effect"], "would_create");
    assert_eq!(result(3)["data"], "b: --dry-run true 2");
    assert_eq!(result(4)["data"], "b: --dry-run true 2\n");
    assert_eq!(answers[5]["error"]["code"], -32602, "alone it cannot be called");
}

fn a_flag_that_is_not_a_boolean_is_refused_and_nothing_runs() {
    let folder = tempfile::tempdir().unwrap();
    let create = |dry_run: Value| call("order-create", &json!({"name": "n", "dry_run": dry_run}));
    for odd in [
        json!(1),
        json!(1.0),
        json!("1"),
        json!("yes"),
        json!("on"),
        json!("True"),
        json!("true"),
        json!([1]),
    ] {
        let answers = mcp("nested", folder.path(), &[create(odd.clone()), call("look-last", &json!({}))]);
        assert_eq!(answers[0]["error"]["code"], -32602, "{odd}: {}", answers[0]);
        assert_eq!(answers[1]["result"]["structuredContent"]["data"], "", "{odd}: {}", answers[1]);
    }
    let listed = call("order-create", &json!({"name": ["n"]}));
    assert_eq!(mcp("nested", folder.path(), &[listed])[0]["error"]["code"], -32602);
    let real = mcp("nested", folder.path(), &[create(json!(null))]);
    assert_eq!(real[0]["result"]["structuredContent"]["effect"], "created");
}

fn what_cannot_be_described_is_refused() {
    let problems = tool_of("misnested").problems().join("\n");
    for part in [
        "`wrong take` and another command are both the MCP tool wrong-take",
        "`wrong take` has two arguments called name",
        "command `wrong take` defines --dry-run, which onceward-clap",
    ] {
        assert!(problems.contains(part), "{part}: {problems}");
    }
    assert_eq!(
        tool_of("open").problems(),
        ["command `open` accepts subcommands that it does not list; list them"]
    );
    let folder = tempfile::tempdir().unwrap();
    let started = run("misnested", folder.path(), &["wrong", "take"]);
    let message: Value = answer(&started)["error"]["message"].clone();
    assert_eq!(started.status.code(), Some(1));
    assert!(message.as_str().unwrap().starts_with("invalid tool: "), "{message}");
}

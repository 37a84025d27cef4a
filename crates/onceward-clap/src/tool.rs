//! The tool: its commands, what can be typed, and the way from there to an exit code.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use clap::error::ErrorKind;
use clap::{ArgMatches, Args, Command, FromArgMatches, Subcommand};
use onceward::{Error, IfMissing, Ledger};

use crate::builtin::{self, Builtin};
use crate::check;
use crate::command::{Batch, Destructive, Mutating, Ordinary, Safe, World};
use crate::entry::{BatchEntry, Entry, MutatingEntry, SafeEntry, with};
use crate::envelope::Envelope;
use crate::facts::{Facts, Undoable};
use crate::flags::{self, Globals};
use crate::output::{Audience, CalledBy, EnvelopeFormat, Output};
use crate::session::{Opener, Session, read_policy, surface};
use crate::stdout::Stdout;
use crate::supervisor::Supervisor;

const EXIT_CODES: &str = "Exit codes: 0 done or replayed, 1 failed without effect, 2 invalid input or not confirmed, \
3 part of a batch failed, 4 refused (in progress, expired, cancelled, no attempts left), 5 not found, \
6 conflict or key reused, 7 permission denied, 8 authentication required, 10 timeout, 11 rate limited, \
12 unavailable, 79 in doubt, 130 \
and 143 stopped by a signal.";

/// A command-line tool.
pub struct Tool<W: World> {
    name: &'static str,
    version: &'static str,
    about: &'static str,
    entries: Vec<Box<dyn Entry<W>>>,
}

impl<W: World> Tool<W> {
    /// A tool without commands. The version is usually `env!("CARGO_PKG_VERSION")`.
    #[must_use]
    pub fn new(name: &'static str, version: &'static str, about: &'static str) -> Self {
        Self { name, version, about, entries: Vec::new() }
    }

    /// Adds a command that only reads.
    #[must_use]
    pub fn safe<C: Safe<World = W>>(self) -> Self {
        self.with(Box::new(SafeEntry::<C>::NEW))
    }

    /// Adds a command that changes something.
    #[must_use]
    pub fn mutating<C: Mutating<Ordinary, World = W>>(self) -> Self {
        self.with(Box::new(MutatingEntry::<C, Ordinary>::NEW))
    }

    /// Adds a command that destroys something: it needs `--confirm`.
    #[must_use]
    pub fn destructive<C: Mutating<Destructive, World = W>>(self) -> Self {
        self.with(Box::new(MutatingEntry::<C, Destructive>::NEW))
    }

    /// Adds a command that does one thing for many items.
    #[must_use]
    pub fn batch<C>(self) -> Self
    where
        C: Batch,
        C::Item: Mutating<Ordinary, World = W>,
    {
        self.with(Box::new(BatchEntry::<C>::NEW))
    }

    fn with(mut self, entry: Box<dyn Entry<W>>) -> Self {
        self.entries.push(entry);
        self
    }

    /// Everything that is wrong with the tool's definition: reserved names, examples that do not parse. Assert in a
    /// test that it is empty; a tool with a reserved name does not start.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems = self.clashes();
        // With clashes clap itself gives up.
        if problems.is_empty() {
            problems.extend(check::examples(&self.definition(), &self.facts()));
        }
        problems
    }

    /// The command line: help, completions and manual are generated from it.
    #[must_use]
    pub fn definition(&self) -> Command {
        let mut root = with::<W::Options>(Command::new(self.name).about(self.about));
        root = root.mut_args(|argument| argument.global(true).help_heading("Everywhere"));
        root = flags::with_environment(with::<Globals>(root), self.name)
            .version(self.version)
            .subcommand_required(true)
            .disable_help_subcommand(true)
            .max_term_width(110)
            .after_help(EXIT_CODES);
        for entry in &self.entries {
            root = root.subcommand(flags::with_environment(entry.define(), self.name));
        }
        Builtin::augment_subcommands(root).about(self.about)
    }

    /// Reads the command line, runs the command and answers. `open` opens the ledger at a URL: with the crate of back
    /// ends it is `onceward_store::ledger`.
    #[must_use]
    pub fn run<O>(self, open: O) -> ExitCode
    where
        O: Fn(&str, IfMissing) -> Result<Ledger, Error> + Send + Sync + 'static,
    {
        let typed: Vec<OsString> = std::env::args_os().collect();
        match Stdout::take() {
            Ok(stdout) => ExitCode::from(self.run_typed(&typed, Arc::new(open), Arc::new(stdout))),
            Err(error) => {
                // A stderr that cannot be written to leaves only the exit code.
                drop(writeln!(std::io::stderr(), "{}: stdout cannot be used: {error}", self.name));
                ExitCode::FAILURE
            }
        }
    }

    fn run_typed(&self, typed: &[OsString], open: Opener, stdout: Arc<Stdout>) -> u8 {
        let mut output = self.output(typed, stdout);
        let problems = self.clashes();
        if !problems.is_empty() {
            let mut envelope = Envelope::broken(format!("invalid tool: {}", problems.join("; ")));
            envelope.answer.error.iter_mut().for_each(|error| error.problems.clone_from(&problems));
            return answer(&output, &envelope);
        }
        let definition = self.definition();
        if let Some(problem) = check::contradiction(&definition, typed) {
            return answer(&output, &Envelope::invalid(problem));
        }
        let matches = match definition.clone().try_get_matches_from(typed) {
            Ok(matches) => matches,
            Err(error) => return self.not_understood(&output, &error, typed),
        };
        let Some((name, own)) = matches.subcommand() else {
            return answer(&output, &Envelope::invalid("no command was given"));
        };
        output.command = Some(name.to_owned());
        let mut session = match self.session(own, open, &output) {
            Ok(session) => session,
            Err(envelope) => return answer(&output, &envelope),
        };
        match self.entries.iter().find(|entry| entry.facts().name == name) {
            Some(entry) => match listen(&session.supervisor, &output) {
                Ok(()) => entry.run(&mut session, own),
                Err(deaf) => answer(&output, &deaf),
            },
            None => match Builtin::from_arg_matches(&matches) {
                Ok(command) => {
                    let changes_the_world = matches!(command, Builtin::Undo(_));
                    if changes_the_world && let Err(deaf) = listen(&session.supervisor, &output) {
                        return answer(&output, &deaf);
                    }
                    let undoables = self.undoables();
                    builtin::run(&session, &command, definition, (&self.facts(), &undoables), own)
                }
                Err(error) => self.not_understood(&output, &error, typed),
            },
        }
    }

    fn session(&self, own: &ArgMatches, open: Opener, output: &Output) -> Result<Session<W>, Box<Envelope>> {
        let refuse = |problem: String| Box::new(Envelope::invalid(problem));
        let globals = Globals::from_arg_matches(own).map_err(|error| refuse(error.to_string()))?;
        let options = W::Options::from_arg_matches(own).map_err(|error| refuse(error.to_string()))?;
        let policy = read_policy(globals.policy.as_deref()).map_err(|invalid| refuse(invalid.to_string()))?;
        Ok(Session {
            tool: self.name,
            surface: surface(self.name, &globals, &policy),
            place: W::identity(&options),
            globals,
            options,
            open,
            policy,
            supervisor: Supervisor::default(),
            output: output.clone(),
            world: Arc::default(),
        })
    }

    /// The output format, as far as it is known before the command line is parsed.
    fn output(&self, typed: &[OsString], stdout: Arc<Stdout>) -> Output {
        let words: Vec<&str> =
            typed.iter().map_while(|word| word.to_str()).take_while(|word| *word != "--").collect();
        let json = words.contains(&"--json") || !stdout.is_terminal();
        let by_environment = std::env::var(crate::output::variable(self.name, "ENVELOPE")).ok();
        let named =
            check::values_of("envelope", &words).last().map(|value| (*value).to_owned()).or(by_environment);
        let format = if named.as_deref() == Some("strict") {
            EnvelopeFormat::Strict
        } else {
            EnvelopeFormat::Contract
        };
        let audience = if json { Audience::Program } else { Audience::Person };
        let by_mcp = !check::values_of("once-connection", &words).is_empty();
        let called_by = if by_mcp { CalledBy::Mcp } else { CalledBy::Shell };
        Output::new((self.name, self.version), stdout, audience, format, called_by)
    }

    /// Help and version were asked for; everything else is a mistake, which has changed nothing.
    fn not_understood(&self, output: &Output, error: &clap::Error, typed: &[OsString]) -> u8 {
        if error.kind() == ErrorKind::DisplayHelp {
            output.help(&error.render().ansi().to_string());
            return 0;
        }
        if error.kind() == ErrorKind::DisplayVersion {
            let version = serde_json::json!({"name": self.name, "version": self.version});
            return answer(output, &Envelope::info(&version));
        }
        let missing = [ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand, ErrorKind::MissingSubcommand];
        if missing.contains(&error.kind()) {
            return answer(output, &Envelope::invalid(check::missing_subcommand(&self.definition(), typed)));
        }
        answer(output, &Envelope::invalid(check::problem(error, output.called_by)))
    }

    fn facts(&self) -> Vec<Facts> {
        self.entries.iter().map(|entry| entry.facts()).collect()
    }

    fn undoables(&self) -> Vec<Undoable<W>> {
        self.entries.iter().filter_map(|entry| entry.undoable(self.name)).collect()
    }

    fn clashes(&self) -> Vec<String> {
        let options = W::Options::augment_args(Command::new(self.name));
        let commands: Vec<(Facts, Command)> =
            self.entries.iter().map(|entry| (entry.facts(), entry.own())).collect();
        check::clashes(&options, &commands)
    }
}

fn answer(output: &Output, envelope: &Envelope) -> u8 {
    output.answer(envelope);
    envelope.exit
}

/// A signal that comes while nothing is under way ends the process with an answer.
fn listen(supervisor: &Supervisor, output: &Output) -> Result<(), Box<Envelope>> {
    let output = output.clone();
    supervisor.on_idle_signal(move |stop| {
        let envelope = Envelope::stopped(stop);
        output.answer(&envelope);
        std::process::exit(i32::from(envelope.exit));
    });
    supervisor
        .listen()
        .map_err(|error| Box::new(Envelope::broken(format!("signals cannot be listened for: {error}"))))
}

//! The flags that say how a command is run and what its end proves.

use clap::Args;
use onceward::{Class, Compensation, CompensationKind, Effect, Settings};

use crate::cli::{self, IfKilled};
use crate::environment::PassLedger;
use crate::exit::CommandError;

#[derive(Debug, Clone, Args)]
pub(crate) struct RuleArgs {
    /// What a call may do about a doubt
    #[arg(long, value_parser = cli::class(), help_heading = "Safety")]
    pub(super) class: Option<Class>,
    /// Command that checks whether an operation in doubt happened (run with `sh -c`): exit 0 yes, exit 10 no,
    /// anything else cannot tell
    #[arg(long, value_name = "COMMAND", help_heading = "Safety")]
    pub(super) probe: Option<String>,
    /// More exit codes of the probe that mean "no", for probes like grep (comma-separated)
    #[arg(long, value_name = "CODES", value_delimiter = ',', help_heading = "Safety",
          value_parser = cli::exit_code)]
    pub(super) probe_no: Vec<i32>,
    /// How long a request may still be in flight after a doubt: a probe's "no" counts only after that
    #[arg(long, value_name = "TIME", value_parser = cli::span, help_heading = "Safety")]
    pub(super) quarantine: Option<u64>,
    /// Command that checks a reported success (run with `sh -c`): exit 0 confirmed, exit 10 refuted, anything else
    /// not yet
    #[arg(long, value_name = "COMMAND", help_heading = "Safety")]
    pub(super) verify: Option<String>,
    /// Command that takes the effect back (`once undo` runs it with `sh -c`). {data.id} is replaced by that field of
    /// the command's JSON output, {stdout} by its only line
    #[arg(long, value_name = "COMMAND", help_heading = "Safety")]
    pub(super) undo: Option<String>,
    /// How long to repeat the check before the answer is "pending"
    #[arg(long, value_name = "TIME", value_parser = cli::span, help_heading = "Safety")]
    pub(super) verify_deadline: Option<u64>,
    /// Exit codes with which the command says that it did nothing (comma-separated)
    #[arg(long, value_name = "CODES", value_delimiter = ',', help_heading = "Safety",
          value_parser = cli::exit_code)]
    pub(super) fail_exit: Vec<i32>,
    /// Exit codes that leave the effect in doubt, even if the table of known programs says otherwise (comma-separated)
    #[arg(long, value_name = "CODES", value_delimiter = ',', help_heading = "Safety",
          value_parser = cli::exit_code)]
    pub(super) doubt_exit: Vec<i32>,
    /// Effect of a success [default: from the command's JSON answer, otherwise updated]
    #[arg(long, value_parser = cli::effect(), help_heading = "Safety")]
    pub(super) effect: Option<Effect>,
    /// If `once run` itself is killed and the ledger is on a server: let the command continue, or end it
    #[arg(long, value_name = "WHAT", value_enum, default_value = "keep", help_heading = "Safety")]
    pub(super) if_killed: IfKilled,
    /// Time limit for the command
    #[arg(long, value_name = "TIME", value_parser = cli::span, help_heading = "Time and tries")]
    pub(super) timeout: Option<u64>,
    /// How long to replay the result
    #[arg(long, value_name = "TIME", value_parser = cli::span, help_heading = "Time and tries")]
    pub(super) ttl: Option<u64>,
    /// Retry up to N times when the command definitely had no effect, with exponential back-off
    #[arg(long, value_name = "N", value_parser = cli::count, help_heading = "Time and tries")]
    pub(super) retries: Option<u32>,
    /// Maximum number of attempts over the operation's lifetime
    #[arg(long, value_name = "N", value_parser = cli::count, help_heading = "Time and tries")]
    pub(super) attempts: Option<u32>,
    /// Maximum size of the output stored for replay, in bytes
    #[arg(long, value_name = "BYTES", value_parser = cli::bytes, help_heading = "Output")]
    pub(super) max_output: Option<u64>,
    /// Store the command line with the operation and show it in lists (it may contain secrets)
    #[arg(long, help_heading = "Output")]
    pub(super) store_command: bool,
    /// Pass the ledger's URL with its password to the command, in ONCE_LEDGER
    #[arg(long, help_heading = "Safety")]
    pub(super) pass_ledger: bool,
}

impl RuleArgs {
    pub(super) const fn pass_ledger(&self) -> PassLedger {
        if self.pass_ledger { PassLedger::Yes } else { PassLedger::No }
    }

    /// Replaces the settings of the policy by those of the flags.
    pub(crate) fn override_settings(&self, settings: &mut Settings) -> Result<(), CommandError> {
        let terms = &mut settings.terms;
        terms.class = self.class.unwrap_or(terms.class);
        if let Some(ttl) = self.ttl {
            terms.keep_results_for(ttl);
        }
        terms.retries = self.retries.unwrap_or(terms.retries);
        terms.max_attempts = self.attempts.unwrap_or(terms.max_attempts);
        terms.quarantine_ms = self.quarantine.unwrap_or(terms.quarantine_ms);
        terms.verify_deadline_ms = self.verify_deadline.unwrap_or(terms.verify_deadline_ms);
        settings.timeout_ms = self.timeout.unwrap_or(settings.timeout_ms);
        settings.effect = self.effect.unwrap_or(settings.effect);
        settings.max_output = self.max_output.unwrap_or(settings.max_output);
        settings.probe = self.probe.clone().or_else(|| settings.probe.take());
        settings.verify = self.verify.clone().or_else(|| settings.verify.take());
        if let Some(text) = self.undo.clone() {
            settings.undo = Some(Compensation { runs: CompensationKind::Command, text });
        }
        settings.store_command |= self.store_command;
        for (said, setting) in [
            (&self.fail_exit, &mut settings.no_effect_exits),
            (&self.doubt_exit, &mut settings.doubt_exit),
            (&self.probe_no, &mut settings.probe_no),
        ] {
            if !said.is_empty() {
                setting.clone_from(said);
            }
        }
        if settings.terms.class == Class::Probed && settings.probe.is_none() {
            return Err(CommandError::invalid(
                "the class is probed, but there is no probe; give --probe COMMAND",
            ));
        }
        Ok(())
    }
}

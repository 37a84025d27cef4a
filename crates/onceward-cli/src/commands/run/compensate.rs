//! Running the command that takes an operation back. It is an ordinary operation, with its own record and doubt.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use onceward::{
    Blocking, Error, Evidence, Failure, Inherit, LivenessSource, ProbeAnswer, Receipt, Settings, Undoing,
};

use super::child::{Child, Keeping, Relay};
use super::delivery::Delivery;
use super::evidence::Judge;
use crate::cli::IfKilled;
use crate::commands::ask::{self, Question};
use crate::context::Context;
use crate::environment::PassLedger;

/// The variable with the whole result of the operation that is taken back.
pub(in crate::commands) const RESULT: &str = "ONCE_RESULT";

/// A compensation that may run.
pub(in crate::commands) struct Compensate<'a> {
    pub(in crate::commands) context: &'a Context,
    pub(in crate::commands) ledger: &'a Blocking,
    /// The policy's settings for the compensation.
    pub(in crate::commands) settings: &'a Settings,
    /// The command, or `None` if only an earlier run of the compensation counts.
    pub(in crate::commands) command: Option<&'a str>,
    /// The probe of the operation that is taken back.
    pub(in crate::commands) probe: Option<&'a Question>,
    /// Called when the command is about to start.
    pub(in crate::commands) begins: &'a (dyn Fn() + Sync),
}

/// Whether the person stopped the command, so that nothing else should begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::commands) enum Interrupted {
    Yes,
    No,
}

impl Compensate<'_> {
    pub(in crate::commands) fn run(&self, undoing: &Undoing) -> (Result<Receipt, Error>, Interrupted) {
        let environment = &self.context.environment(PassLedger::No);
        let mut call = self.ledger.call(undoing.intent.clone()).inherit(Inherit::Children);
        // The compensation has happened if the effect of the operation is gone.
        let original = &undoing.record;
        let of_original = self.probe.cloned();
        match (&self.settings.probe, of_original) {
            (Some(own), _) => {
                let question = Question { command: own.clone(), no: self.settings.probe_no.clone() };
                call =
                    call.probe(move |record| std::future::ready(ask::probe(&question, &record, environment)));
            }
            (None, Some(question)) => {
                call = call.probe(move |_| {
                    std::future::ready(the_other_way(ask::probe(&question, original, environment)))
                });
            }
            (None, None) => {}
        }
        let words: Vec<OsString> =
            self.command.map(|text| ["sh", "-c", text].map(OsString::from).into()).unwrap_or_default();
        let judge = Judge::new(&self.context.policy, self.settings, &words).of_compensation();
        let delivery = Delivery::watch();
        let folder = original.detail.folder.as_deref().map(Path::new);
        let variables = about(undoing);
        let nothing: Arc<[u8]> = Arc::new([]);
        let result = self.ledger.run_call(call, |attempt| {
            if words.is_empty() {
                let reason = "the command of this compensation may not be run";
                return Err(Failure::no_effect(Evidence::NotStarted, reason).stopped());
            }
            if let Some(why) = folder.and_then(ask::unsuitable) {
                let reason = format!("it could not be run: {why}");
                return Err(Failure::no_effect(Evidence::NotStarted, reason).stopped());
            }
            let child = Child {
                command: &words,
                stdin: Some(&nothing),
                timeout_ms: self.settings.timeout_ms,
                max_output: self.settings.max_output,
                relay: Relay::ErrOnly,
                keeper: self.keeping(),
                environment,
                folder,
                variables: &variables,
                witness: super::new_witness(),
            };
            let sent = attempt.dispatch()?;
            (self.begins)();
            judge.ending(child.run(&attempt, self.ledger, &delivery), sent, child.witness.as_ref())
        });
        delivery.finish_output(None);
        (result, if delivery.is_broken() { Interrupted::Yes } else { Interrupted::No })
    }

    fn keeping(&self) -> Option<Keeping> {
        let leased = self.ledger.watch() == LivenessSource::Lease;
        let ledger = self.context.ledger_url().ok().filter(|_| leased)?;
        Some(Keeping { ledger, lease_ms: self.settings.terms.lease_ms, if_killed: IfKilled::Keep })
    }
}

/// What the command learns about the operation that it takes back. What it cannot learn is not inherited either: that
/// would be about the operation of another compensation.
fn about(undoing: &Undoing) -> [(&'static str, Option<String>); 3] {
    let record = &undoing.record;
    [
        ("ONCE_UNDOES", Some(record.id.to_string())),
        ("ONCE_UNDOES_KEY", Some(record.key.text.clone())),
        (RESULT, crate::commands::output::in_variable(record).ok()),
    ]
}

/// What the probe of an operation says about its compensation: the effect is gone if and only if that has happened.
fn the_other_way(answer: ProbeAnswer) -> ProbeAnswer {
    match answer {
        ProbeAnswer::Yes(_) => ProbeAnswer::No,
        ProbeAnswer::No => ProbeAnswer::Yes(onceward::Outcome {
            reason: Some(
                "the probe no longer finds the effect of the operation that it takes back".to_owned(),
            ),
            ..onceward::Outcome::with_effect(onceward::Effect::Updated)
        }),
        ProbeAnswer::CannotTell(why) => ProbeAnswer::CannotTell(why),
    }
}

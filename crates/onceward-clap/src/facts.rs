//! What is known of a registered command before it runs.

use onceward::Class;

use crate::command::DangerLevel;
use crate::undo::Undo;

/// What is known of a command before it runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts {
    pub(crate) name: &'static str,
    pub(crate) example: &'static [&'static str],
    pub(crate) danger: DangerLevel,
    /// Of one that changes something.
    pub(crate) class: Option<Class>,
    pub(crate) has_probe: bool,
    /// The class of its compensation, if it has one.
    pub(crate) undo: Option<Class>,
    pub(crate) streams: bool,
    pub(crate) timeout_ms: u64,
}

/// How the operations of one command are taken back.
pub(crate) struct Undoable<W> {
    /// The command.
    pub(crate) command: &'static str,
    /// The name of its operations.
    pub(crate) operation: String,
    pub(crate) undo: Undo<W>,
    pub(crate) timeout_ms: u64,
}

impl<W> Clone for Undoable<W> {
    fn clone(&self) -> Self {
        Self { operation: self.operation.clone(), ..*self }
    }
}

impl<W> Undoable<W> {
    pub(crate) fn new(
        tool: &str,
        command: &'static str,
        undo: Option<Undo<W>>,
        timeout_ms: u64,
    ) -> Option<Self> {
        Some(Self { command, operation: operation_name(tool, command), undo: undo?, timeout_ms })
    }
}

/// The name of a command's operations in the ledger.
pub(crate) fn operation_name(tool: &str, command: &str) -> String {
    format!("{tool} {command}")
}

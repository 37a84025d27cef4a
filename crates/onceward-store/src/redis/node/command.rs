//! Building and encoding commands.

use redis::Cmd;

use super::{Command, Confirm, Safety, What};
use crate::redis::link::Link;
use crate::redis::scripts::Script;

impl Command {
    /// A script on a shard. Its result is reported only after the replicas have it.
    pub(in crate::redis) fn script(shard: u16, script: Script) -> Self {
        let what = What::Script { script, keys: Vec::new(), arguments: Vec::new() };
        Self { what, confirm: Confirm::Required, safety: Safety::Required, shard }
    }

    /// A plain server command on a shard.
    pub(in crate::redis) fn plain<'a>(shard: u16, words: impl IntoIterator<Item = &'a str>) -> Self {
        let words = words.into_iter().map(|word| word.as_bytes().to_vec()).collect();
        Self { what: What::Plain(words), confirm: Confirm::NotRequired, safety: Safety::Required, shard }
    }

    pub(in crate::redis) fn keys(mut self, names: impl IntoIterator<Item = String>) -> Self {
        if let What::Script { keys, .. } = &mut self.what {
            keys.extend(names);
        }
        self
    }

    pub(in crate::redis) fn arguments(mut self, values: impl IntoIterator<Item = Vec<u8>>) -> Self {
        if let What::Script { arguments, .. } = &mut self.what {
            arguments.extend(values);
        }
        self
    }

    pub(in crate::redis) fn confirm(self, confirm: Confirm) -> Self {
        Self { confirm, ..self }
    }

    pub(in crate::redis) fn safety(self, safety: Safety) -> Self {
        Self { safety, ..self }
    }

    /// The reply may be used before the replicas have what it is based on.
    pub(in crate::redis) fn unconfirmed(self) -> Self {
        self.confirm(Confirm::NotRequired)
    }

    pub(super) fn bytes(&self) -> usize {
        match &self.what {
            What::Script { arguments, .. } => 128 + arguments.iter().map(Vec::len).sum::<usize>(),
            What::Plain(words) => words.iter().map(Vec::len).sum(),
        }
    }

    pub(super) fn on(&self, link: &Link) -> Cmd {
        match &self.what {
            What::Plain(words) => {
                let mut command = Cmd::new();
                for word in words {
                    command.arg(word.as_slice());
                }
                command
            }
            What::Script { script, keys, arguments } => {
                let mut command = Cmd::with_capacity(3 + keys.len() + arguments.len(), self.bytes() + 128);
                command.arg("EVALSHA").arg(link.hash(*script)).arg(keys.len());
                for key in keys {
                    command.arg(key.as_str());
                }
                for argument in arguments {
                    command.arg(argument.as_slice());
                }
                command
            }
        }
    }
}

//! Taking a call back with another tool of the same server. The compensation is a guarded call like any other.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use onceward::{Class, Error, Hold, Intent, InvalidInput, Receipt, Settings};

use crate::call::attempt::GuardedCall;
use crate::proxy_state::ProxyState;
use crate::sync::lock;
use crate::tools::rules::ToolRules;
use crate::transport::call_transport::CallTransport;
use crate::wire::message::Head;
use crate::wire::raw;
use crate::wire::tool_call::ToolCall;

/// The id of a request that takes a call back.
pub(crate) const UNDO_ID: &str = "\"once-undo\"";

/// A call that takes another one back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UndoCall {
    /// The tool.
    pub tool: String,
    /// Its arguments, as JSON.
    pub arguments: String,
}

impl ProxyState {
    /// The rules of the tool that takes a call back. It is judged like any tool, but it is never held: a person has
    /// asked for it.
    ///
    /// # Errors
    /// If the server does not list the tool, or the tool only reads: nothing must be marked then.
    pub(crate) async fn undo_rules(
        &self,
        tool: &str,
        era: &str,
        transport: &Arc<dyn CallTransport>,
    ) -> Result<ToolRules, InvalidInput> {
        self.know_tools(tool, era, transport).await;
        let mut rules = self.tool_rules(tool)?;
        if rules.class == Class::Read {
            return Err(InvalidInput::new(format!("the tool {tool} only reads, so it takes nothing back")));
        }
        self.check_listed(tool)?;
        if rules.guessed {
            // A name is not enough to run a compensation twice.
            (rules.class, rules.guessed, rules.settings.terms.class) = (Class::Once, false, Class::Once);
        }
        rules.settings.terms.hold = Hold::No;
        Ok(rules)
    }

    /// A server that was asked for its tools has to name the tool. No answer is no proof that it has it.
    fn check_listed(&self, tool: &str) -> Result<(), InvalidInput> {
        let catalogue = lock(&self.catalogue);
        if catalogue.get(tool).is_some() {
            return Ok(());
        }
        Err(InvalidInput::new(if catalogue.all().is_empty() {
            "the server does not list its tools, so nothing was called; look at what it says to tools/list, and over \
             HTTP at the headers that it needs"
                .to_owned()
        } else {
            format!("the server has no tool {tool}")
        }))
    }

    /// Makes the call of a compensation, whose operation is `intent`.
    pub(crate) async fn compensate(
        self: &Arc<Self>,
        intent: Intent,
        call: &UndoCall,
        era: &str,
        transport: &Arc<dyn CallTransport>,
    ) -> Result<Receipt, Error> {
        let rules = self.undo_rules(&call.tool, era, transport).await?;
        let Some(call) = call.request(era) else {
            return Err(InvalidInput::new("the compensation is not a call").into());
        };
        let job = Arc::new(GuardedCall {
            era: era.to_owned(),
            call,
            rules,
            transport: Arc::clone(transport),
            sent: AtomicBool::new(false),
            server_answer: Mutex::default(),
            denied: AtomicBool::new(false),
        });
        let active = self.begin_activity();
        let result = self.run(&job, intent).await;
        drop(active);
        result
    }
}

/// What holds for a compensation, as far as its caller must know it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct UndoRules {
    /// The settings of the tool.
    pub settings: Settings,
}

impl UndoCall {
    /// The request that is sent to the server.
    fn request(&self, era: &str) -> Option<ToolCall> {
        let (name, arguments) = (raw::quoted(&self.tool), &self.arguments);
        let line = Arc::new(format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{UNDO_ID},\"method\":\"tools/call\",\"params\":{{\"name\":{name},\
             \"arguments\":{arguments},\"_meta\":{era}}}}}"
        ));
        ToolCall::parse_in(&Head::parse(&line)?, &line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compensation_is_a_call_of_its_tool() {
        let call = UndoCall { tool: "cancel \"it\"".to_owned(), arguments: r#"{"id":7.10}"#.to_owned() };
        let request = call.request("{}").unwrap();
        assert_eq!((request.tool.as_str(), request.arguments()), ("cancel \"it\"", r#"{"id":7.10}"#));
    }
}

//! Calls that are held back: what is stored of them, and how they are sent when their time has come.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onceward::{Action, HeldBy, Hold, Operation, Record, Settings, ToolAction};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::call::attempt::GuardedCall;
use crate::proxy_state::ProxyState;
use crate::transport::call_transport::CallTransport;
use crate::wire::message::Head;
use crate::wire::raw;
use crate::wire::tool_call::ToolCall;

/// The name of this surface in a record.
const SURFACE: &str = "mcp";
/// The id of a request whose caller no longer waits.
pub(crate) const RELEASED_ID: &str = "\"once-released\"";
/// How often to look for held calls whose time has come.
pub(crate) const INTERVAL: Duration = Duration::from_secs(1);

/// How a held call is sent.
#[derive(Serialize, Deserialize)]
struct How {
    /// The `_meta` members that the protocol revision requires in every request.
    meta: Box<RawValue>,
}

/// A held call.
struct HeldCall {
    action: ToolAction,
    how: How,
}

impl ProxyState {
    /// The operation with what is stored of it, if its terms say that it is held.
    pub(crate) fn with_request(
        &self,
        operation: Operation,
        call: &ToolCall,
        settings: &Settings,
    ) -> Operation {
        if settings.terms.hold == Hold::No {
            return operation;
        }
        let meta = RawValue::from_string(crate::call::guard::era(call)).ok();
        let action = call.action(&self.options.identity);
        let request = action.zip(meta).map(|(action, meta)| Action::ToolCall(action).stored(&How { meta }));
        operation.held(SURFACE, HeldBy::Policy, request)
    }

    /// Sends the held calls of this server whose time has come, or that a person released. Their callers no longer
    /// wait: the same call gets the result.
    pub(crate) async fn release_due(self: &Arc<Self>, transport: &Arc<dyn CallTransport>) {
        // A ledger that cannot be read now is read again later.
        let Ok(held) = self.ledger.admin().held(None).await else { return };
        for record in held {
            let due = record.held().filter(|held| held.may_start(self.ledger.clock_ms()));
            let Some(held) = due.filter(|held| held.surface == SURFACE) else { continue };
            let stored = held.request.as_deref().and_then(HeldCall::read);
            let Some(stored) = stored.filter(|stored| stored.action.server == self.options.identity) else {
                continue;
            };
            self.release(&record, &stored, transport).await;
        }
    }

    async fn release(self: &Arc<Self>, record: &Record, held: &HeldCall, transport: &Arc<dyn CallTransport>) {
        let Some(call) = held.call() else { return };
        self.know_tools(&call.tool, held.how.meta.get(), transport).await;
        let Ok(rules) = self.tool_rules(&call.tool) else { return };
        let intent = self.ledger.admin().held_intent(record, rules.settings.terms.clone());
        let job = Arc::new(GuardedCall {
            era: held.how.meta.get().to_owned(),
            call,
            rules,
            transport: Arc::clone(transport),
            sent: AtomicBool::new(false),
            server_answer: Mutex::default(),
            denied: AtomicBool::new(false),
        });
        let active = self.begin_activity();
        if let Err(error) = self.run(&job, intent).await {
            self.notice(&format!("{}, which was held: {error} [{}]", held.action.tool, record.id));
        }
        drop(active);
    }
}

impl HeldCall {
    /// The call of a record. `None` if it is sealed with a key that is missing here, or is no tool call.
    fn read(request: &str) -> Option<Self> {
        match Action::read(request) {
            Ok((Action::ToolCall(action), how)) => Some(Self { action, how }),
            Ok(_) | Err(_) => None,
        }
    }

    /// The request that is sent to the server.
    fn call(&self) -> Option<ToolCall> {
        let ToolAction { tool, arguments, members, .. } = &self.action;
        let (name, arguments, meta) = (raw::quoted(tool), arguments.get(), self.how.meta.get());
        let members = members.iter().map(|(name, value)| format!("{}:{},", raw::quoted(name), value.get()));
        let members: String = members.collect();
        let line = Arc::new(format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{RELEASED_ID},\"method\":\"tools/call\",\"params\":{{\"name\":{name},\
             \"arguments\":{arguments},{members}\"_meta\":{meta}}}}}"
        ));
        ToolCall::parse_in(&Head::parse(&line)?, &line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_call_becomes_the_same_request() {
        let line = concat!(
            r#"{"id":1,"params":{"name":"pay \"now\"","arguments":{"amount":12345678901234567890123},"#,
            r#""requestState":"s"}}"#
        );
        let head = Head::parse(line).unwrap();
        let asked = ToolCall::parse_in(&head, &Arc::new(line.to_owned())).unwrap();
        let how = How { meta: RawValue::from_string("{}".to_owned()).unwrap() };
        let stored = Action::ToolCall(asked.action("npx shop").unwrap()).stored(&how);
        let held = HeldCall::read(&stored).unwrap();
        let call = held.call().unwrap();
        assert_eq!(call.id(), RELEASED_ID);
        assert_eq!(
            (call.tool.as_str(), call.arguments()),
            ("pay \"now\"", r#"{"amount":12345678901234567890123}"#)
        );
        assert_eq!(call.input("npx shop"), asked.input("npx shop"), "nothing that identifies it is lost");
        assert!(HeldCall::read("sealed:1:k_abcd2345:AAAA").is_none());
    }
}

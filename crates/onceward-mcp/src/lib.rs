//! The MCP proxy: between any client and any server, so that a tool is called once.
//!
//! Everything passes through as the bytes it came as, except what must be seen: calls of tools that change something,
//! their cancellation, and the list of tools. A call that the ledger knows has its intent on disk before it is
//! forwarded; a retry gets the first answer; what nobody can know is said to be in doubt.
//!
//! # Layout
//! - `desk`: what all calls of a server share. `ends`: who waits for a call's answer and who gives it, whatever
//!   carries the messages. `stdio`: the two pumps between the streams of processes, and who sees which message.
//!   `supervisor`: a server that ended and is started again. `errand`: on which thread a call goes on. `http`: the
//!   proxy by a listener.
//! - `guard`: one call that the ledger knows, from its intent to its answer. `attempt`: one try, within the limits of
//!   its tool. `ending`: what the server's answer says about the effect. `rejections`: the texts by which SDKs say so.
//!   `deliver`: how the answer leaves.
//! - `delivery`: is it a retry or a wanted repeat? `waiters`: who waits, and who has given up. `progress`: for all who
//!   wait. `orphans`: calls of sessions that were lost.
//! - `call`: what a `tools/call` says. `condense`: very long arguments. `scope`: who shares keys. `tools`: what each
//!   tool is, and why. `guess`: tools that only read, by their names. `mirrored`: arguments that requests by HTTP say
//!   twice.
//! - `answer`: what the agent reads. `closest`: a result that keeps to a schema. `doubts`: our own tools. `question`:
//!   probes and checks by other tools. `lock`: calls that must not overlap.
//! - `elicit`: the human is asked about a doubt. `inquiry`: requests of ours to the client. `seal`: what only we can
//!   have made.
//! - `upstream`: requests on a stream and their answers. `message`, `raw`, `frame`: messages as text.
//! - `explain`: the tools of a server, for people and for a policy file.
//!
//! This crate sees a [`Ledger`](onceward::Ledger) and streams. It starts no process, prints nothing and reads no
//! environment.

mod desk;
mod ends;
mod stdio;
mod supervisor;
pub mod http;
mod errand;
mod guard;
mod attempt;
mod ending;
mod rejections;
mod deliver;
mod delivery;
mod waiters;
mod orphans;
mod progress;
mod call;
mod condense;
mod scope;
mod tools;
mod guess;
mod mirrored;
mod answer;
mod closest;
mod doubts;
mod question;
mod elicit;
mod seal;
mod inquiry;
mod lock;
mod upstream;
mod message;
mod raw;
mod frame;
mod explain;

pub use desk::{Options, Slow};
pub use elicit::Asking;
pub use explain::{Explained, Ruling, explain, policy_text};
pub use scope::HostScope;
pub use stdio::{Next, Proxy, Streams};
pub use tools::{Annotations, Exposure, Guess, Trust};

/// How a message is read, for those who try to break it.
pub mod fuzz {
    pub use crate::call::look as look_at_call;
    pub use crate::http::look_at_events;
    pub use crate::message::look;
    pub use crate::tools::look as look_at_tools;
}

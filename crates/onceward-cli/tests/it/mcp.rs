//! What `once mcp` does, with a real server behind it: a tool is called once, and everything else passes by.

mod calls;
mod crashes;
mod entry;
mod elicitation;
mod fleet;
mod hold;
mod hostile;
mod http;
mod http_failures;
mod judge;
mod kills;
mod limits;
mod policies;
mod principals;
mod progress;
mod sealing;
mod secrets;
mod session;
mod stop;
mod traces;
mod undo;
mod undo_http;
mod web;

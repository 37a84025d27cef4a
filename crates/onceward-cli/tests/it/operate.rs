//! What operators look at: `once top`, `once watch`, and the health, metrics and logs of `once serve`.

mod serve;
mod top;
mod watch;

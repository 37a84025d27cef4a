//! What `once run` does: a command happens once, and every caller gets its outcome.

mod action;
mod advice;
mod answers;
mod dry_run;
mod evidence;
mod guide;
mod hold;
mod identity;
mod nested;
mod outcomes;
mod pairs;
mod locations;
mod probes;
mod processes;
mod property;
mod repeats;
mod replay;
mod stdin;
mod stopping;
mod synced;
mod times;

//! The commands around `once run`: looking, settling, cleaning up, and asking for help.

mod settle;
mod settlements;
mod undo;
mod dry_runs;
mod fleet;
mod help;
mod hostile;
mod kinds;
mod show;
mod stop;
mod export;
mod one_ledger;
mod sealing;
mod secrets;

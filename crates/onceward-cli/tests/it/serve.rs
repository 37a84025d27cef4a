//! What `once serve` does as a process: its start, its end, its sockets, and the samples of its guide.

mod guide;
mod inbox;
mod isolation;
mod models;
mod process;
mod recorder;
mod rig;
mod secrets;

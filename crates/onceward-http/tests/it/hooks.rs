//! The webhook inbox: each event once, nothing lost, nothing forged.

mod accepting;
mod delivering;
mod pulling;
mod rig;
mod slow;
mod stopped;
mod tenants;

//! `thresh straw`: looks into a store, and mends it. All of it may be used while the run lives: `compact --yes` asks its conductor then.

mod compact;
mod du;
mod inspect;
pub mod journaled;
mod look;
mod owners;
mod pool;
mod repair;
mod top;

use anyhow::Result;

use crate::args::Straw;

/// Does what was asked of a store.
pub fn straw(command: Straw) -> Result<u8> {
    match command {
        Straw::Inspect(args) => inspect::inspect(&args),
        Straw::Verify(args) => inspect::verify(&args),
        Straw::Owners(args) => owners::owners(&args),
        Straw::Du(args) => du::du(&args),
        Straw::Repair(args) => repair::repair(&args),
        Straw::Compact(args) => compact::compact(&args),
        Straw::Top(args) => top::top(&args),
    }
}

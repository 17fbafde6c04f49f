//! Turns knobs of a live host in turns A, B, A, B, and takes them back whatever happens.
//!
//! [`resolve`] finds the files and threads of a knob, or the reason why it cannot be turned. A [`Session`]
//! writes the former values to a file, starts a watchdog process, and only then turns anything. The
//! watchdog ([`watch`]) restores when the session's process ends without doing so. [`recover`] restores
//! what both left behind. What to do next is decided by [`Turns`], without I/O.
//!
//! | module | does |
//! |---|---|
//! | `target` | a file, a word of a file or an attribute of a thread: read, written, compared |
//! | `scheduler` | the scheduler of sched_ext: loaded, ended |
//! | `resolve` | from settings and a snapshot to targets |
//! | `ledger` | former values on disk, and the lock that a single trial holds |
//! | `restore` | from a ledger to the former values |
//! | `session`, `watchdog` | one trial, and the process that outlives it |
//! | `turns` | the order of turns and slices |

mod ledger;
mod resolve;
mod restore;
mod scheduler;
mod session;
mod target;
mod turns;
mod watchdog;

pub use ledger::{Entry, Ledger, RunFolder, StoreError};
pub use resolve::{Refusal, Resolved, Wanted, resolve};
pub use restore::{Fate, Outcome, recover, restore};
pub use session::{Session, TrialError, prepare};
pub use target::{AccessError, Host, NoProgram, Target};
pub use turns::{Action, Side, Turns};
pub use watchdog::watch;

//! Why the question for a capacity has no answer.

use crate::capacity::limit::{Limit, LimitError};
use crate::error::Error;

/// Why the question for a capacity has no answer.
#[derive(Debug, thiserror::Error)]
pub enum FitError {
    /// The recording cannot be replayed, or not so many VMs.
    #[error(transparent)]
    Replay(#[from] Error),
    /// A limit is wrong.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// An option names a VM that the recording lacks.
    #[error("{option}: no VM {name:?} in the recording: {help}")]
    NoVm {
        /// The option with its value.
        option: String,
        /// The VM.
        name: String,
        /// The nearest name, or all.
        help: String,
    },
    /// Two VMs have one name, so that options cannot name one of them.
    #[error(
        "the recording has two VMs named {0:?}: name their threads by --vm-of NAME=TID,TID…, each \
         VM by a name of its own"
    )]
    TwoVms(String),
    /// The same on a host of several.
    #[error(
        "{host} has two VMs named {name:?}, and --rebalance cannot say which of them to move: record it \
         when each VM has a name of its own"
    )]
    TwoVmsOn {
        /// The host.
        host: String,
        /// The name.
        name: String,
    },
    /// More VMs are to be taken away than there are.
    #[error("--move {moves}: the recording has {vms} VMs, and one of them stays")]
    TooManyMoves {
        /// How many.
        moves: usize,
        /// VMs of the recording.
        vms: usize,
    },
    /// Nothing bounds the answer: elastic VMs are judged only by name.
    #[error(
        "every VM of the recording is elastic: it takes what CPU time it gets, and a limit is for such a VM \
         only by its name: give --limit '{0}'"
    )]
    AllElastic(Limit),
    /// No VM has what a limit is of, so that it would hold for any count.
    #[error("--limit {limit}: {lack} in the recording, so that the limit bounds nothing")]
    NoFigure {
        /// The limit.
        limit: Limit,
        /// `VM "a" never wakes up`.
        lack: String,
    },
    /// Ctrl-C.
    #[error("stopped before the answer was known")]
    Stopped,
}

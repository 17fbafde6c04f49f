//! Why a question has no answer.

use stealtime_lab::knobs::KnobError;
use stealtime_simulator::Fault;

use crate::added::AddError;
use crate::count::CountError;
use crate::coverage::Unreplayable;
use crate::host_file::HostFileError;
use crate::pin::PinError;
use crate::question::QuestionError;

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The recording cannot be replayed.
    #[error(transparent)]
    Unreplayable(#[from] Unreplayable),
    /// The options do not say what to change.
    #[error(transparent)]
    Question(#[from] QuestionError),
    /// A pin names what is not there.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// A file about the host is wrong.
    #[error(transparent)]
    HostFile(#[from] HostFileError),
    /// A host cannot have so many VMs or CPUs.
    #[error(transparent)]
    Count(#[from] CountError),
    /// A VM of another recording cannot be added.
    #[error(transparent)]
    Added(#[from] AddError),
    /// A knob does not take its value on this host.
    #[error(transparent)]
    Knob(#[from] KnobError),
    /// The simulator refused a host or found an invariant broken.
    #[error(transparent)]
    Replay(#[from] Fault),
    /// None of the variants can be answered: why, each reason once.
    #[error("not answerable: {0}")]
    NotAnswerable(String),
    /// A recording with the change lacks a VM of the one without.
    #[error(
        "has no VM {0}, neither by its vCPUs' threads nor by name: --seen and --again are for \
         recordings of the same guests (name their threads by --vm-of)"
    )]
    NoSuchVm(String),
}

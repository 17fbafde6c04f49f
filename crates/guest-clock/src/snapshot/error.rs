//! Why a file is no snapshot that can be read.

use super::MadeBy;
use crate::error::LoadError;

/// A snapshot was not read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// It begins as no known snapshot does.
    #[error(
        "this is no snapshot: it begins as none of guest-clock, Firecracker (vmstate), Cloud Hypervisor \
         (state.json) and QEMU (migration stream) does"
    )]
    Unknown,
    /// Of a version with another layout.
    #[error("made by {made_by}'s {found}, this one reads {known}: {remedy}")]
    Version {
        /// By which program.
        made_by: MadeBy,
        /// The version found.
        found: String,
        /// The versions that are read.
        known: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// Of another architecture or hypervisor.
    #[error("{made_by}'s snapshot of {found}: only x86-64 guests of KVM are read")]
    Guest {
        /// By which program.
        made_by: MadeBy,
        /// What the guest is.
        found: &'static str,
    },
    /// Larger than such files are.
    #[error(
        "{bytes} bytes, at most {most} are read: this is no snapshot of clocks, or a damaged one"
    )]
    TooLarge {
        /// How many.
        bytes: u64,
        /// The most.
        most: u64,
    },
    /// It ends too early.
    #[error("{made_by}'s snapshot ends at byte {at}, within {field}: copy the file once more")]
    Truncated {
        /// By which program.
        made_by: MadeBy,
        /// Where.
        at: usize,
        /// What is read there.
        field: &'static str,
    },
    /// A part is not where the format has it.
    #[error("{made_by}'s snapshot has no {part}: {remedy}")]
    NotThere {
        /// By which program.
        made_by: MadeBy,
        /// What.
        part: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// A value that cannot be.
    #[error(
        "{made_by}'s snapshot, byte {at}: {field} is {value}, but must be {expected}; damaged or forged"
    )]
    Value {
        /// By which program.
        made_by: MadeBy,
        /// Where.
        at: usize,
        /// Which.
        field: &'static str,
        /// What it is.
        value: u64,
        /// What it must be.
        expected: &'static str,
    },
    /// The checksum is wrong.
    #[error(
        "{made_by}'s snapshot has a wrong checksum: damaged or changed, copy the file once more"
    )]
    Checksum {
        /// By which program.
        made_by: MadeBy,
    },
    /// Not the JSON expected.
    #[error("{made_by}'s {part} is not as expected: {message}")]
    Json {
        /// By which program.
        made_by: MadeBy,
        /// Which.
        part: &'static str,
        /// The parser's message, with line and column.
        message: String,
    },
    /// A state of this library.
    #[error(transparent)]
    Own(#[from] LoadError),
    /// The file cannot be read.
    #[error("{0}")]
    Read(std::io::Error),
}

//! The event stream's format: its header, the kinds of its frames, and the host's vectors in it.
//!
//! `bare/src/record.rs` compiles this file too, so that writer and reader have one table. It therefore uses
//! `core` alone. docs/bare.md describes the stream.

/// First bytes. A transfer in text mode changes the end of line.
pub(crate) const MAGIC: &[u8; 8] = b"STBARE\r\n";
/// Version that is written and read.
pub(crate) const VERSION: u16 = 1;
/// Bytes of the header of version 1.
pub(crate) const HEADER_LEN: u16 = 32;

/// Host vector of timers (LAPIC).
pub(crate) const TIMER_VECTOR: u8 = 0xec;
/// Host vector that makes a CPU look at its run queue and at requests.
pub(crate) const RESCHEDULE_VECTOR: u8 = 0xfd;

/// Host vector of a notification for a blocked vCPU (`POSTED_INTR_WAKEUP_VECTOR`).
pub(crate) const WAKEUP_VECTOR: u8 = 0xf1;

/// Declares the kinds of frames with their numbers.
macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// Kinds of frames. Their numbers are part of the format.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum Kind {
            $($(#[$doc])* $name = $number,)*
        }

        impl Kind {
            /// The kind with a number; `None` for one of a later version.
            pub(crate) const fn from_number(number: u8) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }
        }
    };
}

kinds! {
    /// Text: a phase begins, with this name.
    Phase = 1,
    /// Text: the VM of a thread; `first` is the thread's id, `second` the vCPU.
    Vcpu = 2,
    /// A VM exit.
    Exit = 3,
    /// A VM entry.
    Entry = 4,
    /// An interrupt was accepted.
    Accept = 5,
    /// A switch of threads, 0 being the idle one.
    Switch = 6,
    /// A wakeup.
    Waking = 7,
    /// The preemption timer was armed or switched off.
    HvTimer = 8,
    /// A handler of a host interrupt begins.
    VectorEntry = 9,
    /// It ends.
    VectorExit = 10,
    /// An hrtimer was started.
    TimerStart = 11,
    /// An hrtimer was cancelled.
    TimerCancel = 12,
    /// An hrtimer has expired.
    TimerExpire = 13,
    /// An access to an MSR.
    Msr = 14,
    /// A halt has ended.
    Wakeup = 15,
    /// The host sent an IPI.
    Ipi = 16,
    /// Text: `first` events in all, of which `second` were lost.
    End = 255,
}

/// The checksum of a frame after one more byte.
pub(crate) const fn add_to_checksum(sum: u16, byte: u8) -> u16 {
    sum.wrapping_mul(31).wrapping_add(byte as u16)
}

//! Why a run could not be finished.

use core::fmt;

use stealtime_hypervisor::{fair, posted_interrupt};

use crate::config::ConfigError;

/// Why a run ended before its time.
#[derive(Debug)]
#[non_exhaustive]
pub enum Fault {
    /// The configuration cannot be run.
    Config(ConfigError),
    /// Threads of a guest wait for each other in a circle, or for a count that no thread will give.
    Deadlock {
        /// Name of the VM.
        vm: String,
        /// What each thread waits for, a line each.
        waits: Vec<String>,
    },
    /// A program did what no kernel allows.
    Workload {
        /// Name of the VM.
        vm: String,
        /// What, and what to do.
        what: String,
    },
    /// Something goes on for ever without time passing.
    NoProgress {
        /// Simulated time, in ns.
        at_ns: u64,
        /// What turns in a circle.
        what: String,
    },
    /// What must always hold does not: a defect of the simulator or of a mechanism.
    Broken {
        /// Simulated time, in ns.
        at_ns: u64,
        /// What does not hold.
        what: String,
    },
    /// The caller asked to stop.
    Stopped,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(error) => error.fmt(f),
            Self::Deadlock { vm, waits } => {
                write!(f, "the workload of VM {vm} is deadlocked:")?;
                waits.iter().try_for_each(|wait| write!(f, "\n  {wait}"))
            }
            Self::Workload { vm, what } => write!(f, "the workload of VM {vm}: {what}"),
            Self::NoProgress { at_ns, what } => {
                write!(f, "no time passes any more at {at_ns} ns: {what}")
            }
            Self::Broken { at_ns, what } => {
                write!(
                    f,
                    "an invariant is broken at {at_ns} ns: {what}; please report this"
                )
            }
            Self::Stopped => f.write_str("stopped"),
        }
    }
}

impl core::error::Error for Fault {}

impl From<ConfigError> for Fault {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

impl From<fair::Error> for Fault {
    fn from(error: fair::Error) -> Self {
        Self::Broken {
            at_ns: 0,
            what: format!("scheduler: {error}"),
        }
    }
}

impl From<posted_interrupt::NotOnACpu> for Fault {
    fn from(error: posted_interrupt::NotOnACpu) -> Self {
        Self::Broken {
            at_ns: 0,
            what: format!("posted interrupts: {error}"),
        }
    }
}

impl From<Box<Self>> for Fault {
    fn from(fault: Box<Self>) -> Self {
        *fault
    }
}

macro_rules! boxed {
    ($($error:ty,)*) => {$(
        impl From<$error> for Box<Fault> {
            fn from(error: $error) -> Self {
                Self::new(error.into())
            }
        }
    )*};
}

boxed! {
    ConfigError,
    fair::Error,
    posted_interrupt::NotOnACpu,
}

/// What the simulator's own functions return: the fault in a box, so that a result fits into
/// registers. There are dozens for each event.
pub type Sim<T = ()> = Result<T, Box<Fault>>;

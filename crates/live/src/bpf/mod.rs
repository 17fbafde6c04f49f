//! Events of this host by BPF programs: the same events as [`Follower`](crate::Follower) gives, at a lower
//! cost.
//!
//! The programs are made when they are loaded, instruction by instruction. So the command carries no object
//! file and needs neither clang nor libbpf. Offsets of fields come from the kernel's own type information
//! (BTF).
//!
//! ```text
//!  tracepoint ─▶ program: filter, record ─▶ ring of the CPU ─▶ decode, order ─▶ events
//! ```
//!
//! | module | does |
//! |---|---|
//! | `btf` | offsets of kernel types |
//! | `assembler` | instructions and their jumps |
//! | `programs` | the program of each tracepoint |
//! | `sys` | the system calls: maps, programs, attachment |
//! | `load` | all programs of a host, loaded and attached |
//! | `ring` | a CPU's records, shared with the kernel |
//! | `record` | records to events |
//! | `due` | what is not given yet, in the order of time |
//! | `follow` | rings of all CPUs to events in the order of time |
//! | `error` | why a host cannot be followed by BPF |

mod assembler;
mod btf;
mod due;
mod error;
mod follow;
mod load;
mod programs;
mod record;
mod ring;
mod sys;

pub use error::BpfError;
pub use follow::{BpfFollower, KernelCost};

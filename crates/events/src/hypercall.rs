//! Numbers of hypercalls (include/uapi/linux/kvm_para.h).
//!
//! ```
//! use stealtime_events::hypercall::{KVM_HC_KICK_CPU, KVM_HC_SCHED_YIELD, KVM_HC_SEND_IPI};
//!
//! // A guest with paravirtual spinlocks asks for a kick (5), IPIs (10) and yields (11).
//! assert_eq!([KVM_HC_KICK_CPU, KVM_HC_SEND_IPI, KVM_HC_SCHED_YIELD], [5, 10, 11]);
//! ```

/// A halted vCPU is to go on, the one with the APIC id in the second argument; KVM then does as for
/// [`KVM_HC_SCHED_YIELD`].
pub const KVM_HC_KICK_CPU: u64 = 5;
/// IPIs to the vCPUs of a bitmap.
pub const KVM_HC_SEND_IPI: u64 = 10;
/// The CPU is to be given to the vCPU with the APIC id in the first argument.
pub const KVM_HC_SCHED_YIELD: u64 = 11;

//! Names of numbers.

/// `enum` of softirqs, include/linux/interrupt.h.
const SOFTIRQS: [&str; 10] = [
    "HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU",
];

/// `softirq NAME`.
pub(super) fn softirq(vec: u32) -> String {
    match SOFTIRQS.get(vec as usize) {
        Some(name) => format!("softirq {name}"),
        None => format!("softirq {vec}"),
    }
}

/// What `KVM_RUN` returned to the VMM for: `KVM_EXIT_*`, include/uapi/linux/kvm.h, without the prefix.
pub(super) fn userspace(reason: u32, errno: i32) -> String {
    if errno < 0 {
        return format!("VMM: errno {}", errno.unsigned_abs());
    }
    let name = match reason {
        0 => "UNKNOWN",
        1 => "EXCEPTION",
        2 => "IO",
        3 => "HYPERCALL",
        4 => "DEBUG",
        5 => "HLT",
        6 => "MMIO",
        7 => "IRQ_WINDOW_OPEN",
        8 => "SHUTDOWN",
        9 => "FAIL_ENTRY",
        10 => "INTR",
        11 => "SET_TPR",
        12 => "TPR_ACCESS",
        16 => "NMI",
        17 => "INTERNAL_ERROR",
        24 => "SYSTEM_EVENT",
        26 => "IOAPIC_EOI",
        27 => "HYPERV",
        29 => "X86_RDMSR",
        30 => "X86_WRMSR",
        31 => "DIRTY_RING_FULL",
        37 => "NOTIFY",
        39 => "MEMORY_FAULT",
        _ => return format!("VMM: exit {reason}"),
    };
    format!("VMM: {name}")
}

//! In which context an event happened: the trace entry's `common_flags`.

/// Interrupt context of the CPU at an event (`enum trace_flag_type`, include/linux/trace_events.h).
///
/// Matters because an event in a hard interrupt is not the doing of the task that was current: a
/// timer that wakes a vCPU while another vCPU's thread is current is not an IPI between the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Context(u8);

impl Context {
    /// `TRACE_FLAG_IRQS_OFF`.
    pub const IRQS_OFF: u8 = 0x01;
    /// `TRACE_FLAG_NEED_RESCHED_LAZY`: the current task is to give way on its way to user mode or into a
    /// guest (kernels from 6.13 on, preempting lazily).
    pub const NEED_RESCHED_LAZY: u8 = 0x02;
    /// `TRACE_FLAG_NEED_RESCHED`: the current task is to give way at once.
    pub const NEED_RESCHED: u8 = 0x04;
    /// `TRACE_FLAG_HARDIRQ`.
    pub const HARDIRQ: u8 = 0x08;
    /// `TRACE_FLAG_SOFTIRQ`.
    pub const SOFTIRQ: u8 = 0x10;
    /// `TRACE_FLAG_PREEMPT_RESCHED`: the same, as the preemption counter says it.
    pub const PREEMPT_RESCHED: u8 = 0x20;
    /// `TRACE_FLAG_NMI`.
    pub const NMI: u8 = 0x40;

    /// From the raw byte of a trace entry.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// The raw byte.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// In task context: neither in a hard or soft interrupt nor in an NMI.
    #[must_use]
    pub const fn in_task(self) -> bool {
        self.0 & (Self::HARDIRQ | Self::SOFTIRQ | Self::NMI) == 0
    }
}

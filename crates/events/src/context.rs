//! The context of an event: the trace entry's `common_flags`.

/// Interrupt context of the CPU at an event (`enum trace_flag_type`, include/linux/trace_events.h).
///
/// The current task does not cause an event in a hard interrupt. A timer may wake a vCPU while the thread
/// of another vCPU is current: that is no IPI between the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Context {
    bits: u8,
    /// Bits that the source does not have.
    unknown: u8,
}

impl Context {
    /// `TRACE_FLAG_IRQS_OFF`.
    pub const IRQS_OFF: u8 = 0x01;
    /// `TRACE_FLAG_NEED_RESCHED_LAZY`: the current task is to reschedule before it enters user mode or a
    /// guest, or at the next tick (Linux 6.13, lazy preemption).
    pub const NEED_RESCHED_LAZY: u8 = 0x02;
    /// `TRACE_FLAG_NEED_RESCHED`: the current task is to reschedule at once.
    pub const NEED_RESCHED: u8 = 0x04;
    /// `TRACE_FLAG_HARDIRQ`.
    pub const HARDIRQ: u8 = 0x08;
    /// `TRACE_FLAG_SOFTIRQ`.
    pub const SOFTIRQ: u8 = 0x10;
    /// `TRACE_FLAG_PREEMPT_RESCHED`: the same, as the preemption counter says it.
    pub const PREEMPT_RESCHED: u8 = 0x20;
    /// `TRACE_FLAG_NMI`.
    pub const NMI: u8 = 0x40;

    const INTERRUPTS: u8 = Self::HARDIRQ | Self::SOFTIRQ | Self::NMI;

    /// Of a source without flags: known neither as task nor as interrupt context.
    pub const UNKNOWN: Self = Self {
        bits: 0,
        unknown: u8::MAX,
    };

    /// From the raw byte of a trace entry.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        Self { bits, unknown: 0 }
    }

    /// Of a source without flags, where other events show the interrupts that the CPU handles.
    #[must_use]
    pub const fn of_interrupts(bits: u8) -> Self {
        Self {
            bits: bits & Self::INTERRUPTS,
            unknown: !Self::INTERRUPTS,
        }
    }

    /// The raw byte, with 0 for unknown bits.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.bits
    }

    /// Known to be in task context: neither in a hard or soft interrupt nor in an NMI.
    #[must_use]
    pub const fn in_task(self) -> bool {
        (self.bits | self.unknown) & Self::INTERRUPTS == 0
    }

    /// Known to be in a hard or soft interrupt or in an NMI.
    #[must_use]
    pub const fn in_interrupt(self) -> bool {
        self.bits & Self::INTERRUPTS != 0
    }

    /// Whether the source has the flags that request a reschedule.
    #[must_use]
    pub const fn tells_resched(self) -> bool {
        self.unknown & (Self::NEED_RESCHED | Self::NEED_RESCHED_LAZY) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::Context;

    #[test]
    fn what_is_not_known_is_neither_a_task_nor_an_interrupt() {
        let unknown = Context::UNKNOWN;
        assert!(!unknown.in_task() && !unknown.in_interrupt() && !unknown.tells_resched());
        let task = Context::default();
        assert!(task.in_task() && !task.in_interrupt() && task.tells_resched());
        let softirq = Context::of_interrupts(Context::SOFTIRQ | Context::NEED_RESCHED);
        assert!(!softirq.in_task() && softirq.in_interrupt() && !softirq.tells_resched());
        assert_eq!(softirq.bits(), Context::SOFTIRQ);
        assert!(Context::of_interrupts(0).in_task());
    }
}

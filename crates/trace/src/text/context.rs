//! Contexts of events in a text without flags (`trace-cmd report` without `-l`): from the begins and
//! ends of interrupts.

use std::collections::BTreeMap;

use stealtime_events::{Context, CpuId, Kind};

/// A pair of events around interrupt work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Vector,
    Handler,
    Timer,
    Softirq,
}

impl Work {
    /// The work that begins (`true`) or ends with an event of this kind.
    const fn of(kind: Kind) -> Option<(Self, bool)> {
        Some(match kind {
            Kind::VectorEntry { .. } => (Self::Vector, true),
            Kind::VectorExit { .. } => (Self::Vector, false),
            Kind::IrqHandlerEntry { .. } => (Self::Handler, true),
            Kind::IrqHandlerExit { .. } => (Self::Handler, false),
            Kind::HrtimerExpireEntry { .. } => (Self::Timer, true),
            Kind::HrtimerExpireExit { .. } => (Self::Timer, false),
            Kind::SoftirqEntry { .. } => (Self::Softirq, true),
            Kind::SoftirqExit { .. } => (Self::Softirq, false),
            _ => return None,
        })
    }

    const fn flag(self) -> u8 {
        match self {
            Self::Softirq => Context::SOFTIRQ,
            _ => Context::HARDIRQ,
        }
    }
}

/// Interrupts of all CPUs.
#[derive(Debug, Default)]
pub(super) struct Interrupts {
    /// Work that has begun on each CPU and not ended, the last one innermost, of each kind.
    open: BTreeMap<CpuId, [u32; 4]>,
    /// By kind: whether a begin, and whether an end is recorded.
    begun: [bool; 4],
    ended: [bool; 4],
    /// Lines without flags.
    pub(super) lines: u64,
    unknown: u64,
}

impl Interrupts {
    /// The context of an event on a CPU.
    pub(super) fn context(&mut self, cpu: CpuId, kind: Kind) -> Context {
        self.lines += 1;
        let open = self.open.entry(cpu).or_default();
        if let Some((work, begins)) = Work::of(kind) {
            let place = work as usize;
            if begins {
                self.begun[place] = true;
                open[place] = open[place].saturating_add(1);
            } else {
                self.ended[place] = true;
                open[place] = open[place].saturating_sub(1);
            }
            return Context::of_interrupts(work.flag());
        }
        if matches!(
            kind,
            Kind::SchedSwitch { .. } | Kind::KvmEntry { .. } | Kind::KvmExit { .. }
        ) {
            // None of these happens in an interrupt.
            *open = [0; 4];
            return Context::of_interrupts(0);
        }
        let mut flags = 0;
        for work in [Work::Vector, Work::Handler, Work::Timer, Work::Softirq] {
            // A text with begins alone does not tell what is between.
            if open[work as usize] > 0 && self.ended[work as usize] {
                flags |= work.flag();
            }
        }
        if flags != 0 {
            return Context::of_interrupts(flags);
        }
        let tells = |work: Work| self.begun[work as usize] && self.ended[work as usize];
        // System vectors and softirqs surround all that wakes tasks but devices' own handlers, which
        // come with softirqs (the tracing system `irq`).
        if tells(Work::Vector) && tells(Work::Softirq) {
            return Context::of_interrupts(0);
        }
        self.unknown += 1;
        Context::UNKNOWN
    }

    /// Forgets the open work of a CPU, because events of it are lost.
    pub(super) fn lost(&mut self, cpu: CpuId) {
        self.open.remove(&cpu);
    }

    /// The note for a text without flags.
    pub(super) fn note(&self) -> String {
        let known = self.lines - self.unknown;
        format!(
            "the text has no context flags: whether an event happened in an interrupt is known of {known} \
             of {} from others (irq_vectors, irq, hrtimer_expire); elsewhere the waker of a vCPU and the \
             task of an event may be unknown; `trace-cmd report -l` prints the flags",
            self.lines
        )
    }
}

#[cfg(test)]
mod tests {
    use stealtime_events::{NameId, Tid};

    use super::*;

    const WAKING: Kind = Kind::SchedWaking {
        tid: Tid(7),
        prio: 120,
        target_cpu: 0,
    };
    const EXPIRES: Kind = Kind::HrtimerExpireEntry {
        hrtimer: 1,
        now_ns: 0,
        function: NameId::NONE,
    };
    const EXPIRED: Kind = Kind::HrtimerExpireExit { hrtimer: 1 };

    #[test]
    fn what_is_inside_of_a_pair_is_known() {
        let mut interrupts = Interrupts::default();
        let cpu = CpuId(0);
        let mut of = |kind| interrupts.context(cpu, kind);
        assert!(of(EXPIRES).in_interrupt());
        // No end was seen yet: it may not have been recorded.
        assert_eq!(of(WAKING), Context::UNKNOWN);
        of(EXPIRED);
        of(EXPIRES);
        assert!(of(WAKING).in_interrupt());
        of(EXPIRED);
        assert_eq!(of(WAKING), Context::UNKNOWN);
        // With vectors and softirqs all is known.
        of(Kind::SoftirqEntry { vec: 1 });
        of(Kind::SoftirqExit { vec: 1 });
        let vector = stealtime_events::HostVector::LocalTimer;
        let (begin, end) = (
            Kind::VectorEntry {
                class: vector,
                vector: 236,
            },
            Kind::VectorExit {
                class: vector,
                vector: 236,
            },
        );
        of(begin);
        of(end);
        of(begin);
        assert!(of(WAKING).in_interrupt());
        of(end);
        assert!(of(WAKING).in_task());
    }
}

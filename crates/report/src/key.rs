//! The parts of an answer that a user can ask for.

/// One table of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[rustfmt::skip]
pub enum Key {
    /// What to look at.
    Findings,
    /// The longest waits for a CPU.
    Stalls,
    /// The VMs, and the evidence for their vCPUs.
    Vms,
    /// Whole VMs: all, some or none of their vCPUs run.
    States,
    /// What the host's CPUs run.
    Host,
    /// Steal and use of CPUs over time.
    OverTime,
    /// CPU time of VMM threads.
    Vmm,
    /// The time split of each vCPU.
    Time,
    /// On-CPU time outside the guest, by exit reason.
    Handling,
    /// What a CPU runs while a vCPU is ready.
    Ready,
    /// Single waits by their length.
    Waits,
    /// Exits by VM and reason.
    Exits,
    /// Exits by reason over all VMs: `perf kvm stat report`.
    ExitTotals,
    /// MSR accesses.
    Msr,
    /// Port I/O.
    Ioport,
    /// MMIO.
    Mmio,
    /// Latencies.
    Latency,
    /// Spinning and directed yield.
    Yield,
    /// What `scx_stealtime` decided.
    Scheduler,
    /// Halt polling.
    Poll,
    /// Host interrupts that hit a running guest.
    Interrupts,
    /// Events of each tracepoint.
    Events,
}

impl Key {
    /// Every key, in the order in which tables are printed.
    pub const ALL: [Self; 22] = [
        Self::Findings,
        Self::Stalls,
        Self::Vms,
        Self::States,
        Self::Host,
        Self::OverTime,
        Self::Vmm,
        Self::Time,
        Self::Handling,
        Self::Ready,
        Self::Waits,
        Self::Exits,
        Self::ExitTotals,
        Self::Msr,
        Self::Ioport,
        Self::Mmio,
        Self::Latency,
        Self::Yield,
        Self::Scheduler,
        Self::Poll,
        Self::Interrupts,
        Self::Events,
    ];

    /// What is printed when nothing particular is asked for.
    pub const DEFAULT: [Self; 8] = [
        Self::Findings,
        Self::Stalls,
        Self::States,
        Self::Time,
        Self::Ready,
        Self::Exits,
        Self::Latency,
        Self::Poll,
    ];

    /// The name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.describe().0
    }

    /// The key of the JSON object that holds it (`time` and `handling` share one).
    #[must_use]
    pub const fn json(self) -> &'static str {
        self.describe().1
    }

    /// What it is, for help.
    #[must_use]
    pub const fn help(self) -> &'static str {
        self.describe().2
    }

    #[rustfmt::skip]
    const fn describe(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Findings => ("findings", "findings", "What to look at, most costly first"),
            Self::Stalls => ("stalls", "stalls", "The longest waits for a CPU"),
            Self::Vms => ("vms", "vms", "The VMs, and the evidence for their vCPUs"),
            Self::States => ("vm-states", "vm_states", "Whole VMs: all, some or none of their vCPUs run"),
            Self::Host => ("host", "host", "What the host's CPUs run"),
            Self::OverTime => ("over-time", "over_time", "Steal and use of CPUs over time"),
            Self::Vmm => ("vmm", "vmm_threads", "CPU time of emulators, iothreads and vhost"),
            Self::Time => ("time", "vcpus", "Where each vCPU's time goes"),
            Self::Handling => ("handling", "vcpus", "On-CPU time outside the guest by exit reason"),
            Self::Ready => ("ready", "ready", "What a CPU runs while a vCPU is ready"),
            Self::Waits => ("waits", "waits", "Single waits for a CPU by their length"),
            Self::Exits => ("exits", "exits", "Exits by VM and reason"),
            Self::ExitTotals => ("exit-totals", "exit_totals", "Exits over all VMs, as `perf kvm stat report`"),
            Self::Msr => ("msr", "msr", "MSR accesses, as `perf kvm stat report --event=msr`"),
            Self::Ioport => ("ioport", "ioport", "Port I/O, as `perf kvm stat report --event=ioport`"),
            Self::Mmio => ("mmio", "mmio", "MMIO, as `perf kvm stat report --event=mmio`"),
            Self::Latency => ("latency", "latencies", "Wakeup, IPI, timer and injection latencies"),
            Self::Yield => ("yield", "yields", "PAUSE exits and directed yields"),
            Self::Scheduler => ("scheduler", "scheduler", "What a loaded scx_stealtime did with directed yields"),
            Self::Poll => ("poll", "halt_polls", "Halt polling"),
            Self::Interrupts => ("interrupts", "interrupts", "Host interrupts that hit a running guest"),
            Self::Events => ("events", "events", "Events of each tracepoint"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_a_name_of_its_own_and_the_order_of_the_tables() {
        assert!(Key::ALL.is_sorted_by(|a, b| a < b));
        let mut names: Vec<_> = Key::ALL.iter().map(|key| key.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Key::ALL.len());
    }
}

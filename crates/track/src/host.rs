//! The state that the scheduler's events change: CPUs, threads and vCPU threads.

use crate::cpu::Cpu;
use crate::links::Links;
use crate::observer::Observer;
use crate::{Reasons, Threads, Vcpu, VcpuIndex};

/// CPUs and threads of a host, and the observer of their changes.
#[derive(Debug)]
pub(crate) struct Host<O> {
    pub(crate) observer: O,
    /// Time of the trace, in ns: of its latest event, never going back.
    pub(crate) now: u64,
    /// Losses so far. A sleep that saw another number may have been interrupted unseen.
    pub(crate) losses: u64,
    /// Whether a `sched_switch` was seen.
    pub(crate) has_switches: bool,
    /// A thread ran after `sched_waking` without a `sched_wakeup`: the trace has only the former.
    pub(crate) lacks_wakeups: bool,
    pub(crate) threads: Threads,
    pub(crate) cpus: Vec<Cpu>,
    pub(crate) vcpus: Vec<Vcpu>,
    /// vCPUs that have ended, of which the numbers can be given out again.
    pub(crate) free: Vec<VcpuIndex>,
    pub(crate) reasons: Reasons,
    pub(crate) links: Links,
}

impl<O: Observer> Host<O> {
    /// A host of which nothing is known.
    pub(crate) fn new(observer: O) -> Self {
        Self {
            observer,
            now: 0,
            losses: 0,
            has_switches: false,
            lacks_wakeups: false,
            threads: Threads::new(O::RECYCLES).limited(O::MAX_THREADS),
            cpus: Vec::new(),
            vcpus: Vec::new(),
            free: Vec::new(),
            reasons: Reasons::default(),
            links: Links::default(),
        }
    }

    /// Makes the table of CPUs reach this one. CPU numbers are 16 bits, so it stays small.
    #[inline]
    pub(crate) fn ensure_cpu(&mut self, number: u16) {
        let index = usize::from(number);
        if index >= self.cpus.len() {
            self.cpus.resize_with(index + 1, Cpu::default);
        }
    }

    /// A task wakes a vCPU thread: which of them belong together.
    pub(crate) fn on_wakeup_evidence(&mut self, cpu: u16, woken: VcpuIndex) {
        let cpu = &self.cpus[usize::from(cpu)];
        match (cpu.vcpu(), cpu.thread()) {
            (Some(waker), _) if waker != woken => {
                let id = self.vcpus[woken.index()].id.0;
                if cpu.accepted == Some(id) {
                    // The current vCPU has just made an interrupt pending at the vCPU of this number,
                    // and nothing else came between: certain.
                    self.links.join(waker, woken);
                }
            }
            (None, Some(helper)) if helper.is_single() => self.links.helped(helper, woken),
            _ => {}
        }
    }
}

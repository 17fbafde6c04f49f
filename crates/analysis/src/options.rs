//! What to select and what to compute.

use std::collections::BTreeMap;

use crate::answers::SchedulerCount;
use crate::waits::Longest;

/// What the analysis counts. The state of threads and CPUs always follows every event: a selection
/// changes what is accounted, never what is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// What is counted.
    pub selection: Selection,
    /// Which VM a vCPU thread belongs to, by thread id, where the user knows it.
    pub groups: BTreeMap<i32, String>,
    /// The same of all vCPU threads of a process, by its id.
    pub processes: BTreeMap<i32, String>,
    /// The VMs of the host's snapshot.
    pub host: HostVms,
    /// What the host's scheduler counted, by its snapshots.
    pub scheduler: Vec<SchedulerCount>,
    /// What to leave out, to save time and memory.
    pub skip: Skip,
    /// The longest waits that are wanted.
    pub longest: Longest,
    /// Whether [`crate::Answers::histograms`] is wanted.
    pub histograms: bool,
}

/// The VMs that a host knows, with their threads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostVms {
    /// VMs. Their names differ.
    pub vms: Vec<HostVm>,
    /// Threads by id: vCPUs, and those that work for a VM.
    pub threads: BTreeMap<i32, HostThread>,
}

/// A VM that a host knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostVm {
    /// Its name.
    pub name: String,
    /// Its process.
    pub pid: i32,
}

/// A thread of such a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostThread {
    /// Index in [`HostVms::vms`].
    pub vm: usize,
    /// Whether it is a vCPU.
    pub is_vcpu: bool,
    /// Its number, if that is known.
    pub vcpu: Option<u32>,
}

impl HostVms {
    /// The VM of a vCPU thread, by its thread id or its process. A thread with another number than the
    /// host's is none: its id was used again.
    pub(crate) fn of_vcpu(&self, tid: i32, process: i32, number: u32) -> Option<usize> {
        if let Some(thread) = self.threads.get(&tid) {
            let is_same = thread.vcpu.is_none_or(|vcpu| vcpu == number);
            return (thread.is_vcpu && is_same).then_some(thread.vm);
        }
        let mut vms = self.vms.iter();
        vms.position(|vm| vm.pid == process && process > 0)
    }

    /// Whether the thread is known as the vCPU of this number.
    pub(crate) fn has_vcpu(&self, tid: i32, number: u32) -> bool {
        let thread = self.threads.get(&tid);
        thread.is_some_and(|thread| thread.is_vcpu && thread.vcpu == Some(number))
    }
}

/// A part of the trace. An empty list selects everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// VMs by name.
    pub vms: Vec<String>,
    /// vCPUs by number, of every VM selected.
    pub vcpus: Vec<u32>,
    /// Host CPUs. Time of a thread counts for the CPU that it runs on, waits for or last ran on.
    pub cpus: Vec<u16>,
    /// From here on, in ns after the first event.
    pub from_ns: Option<u64>,
    /// Up to here (exclusive), in ns after the first event.
    pub to_ns: Option<u64>,
}

/// Tables that are not wanted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Skip {
    /// The msr, ioport and mmio tables.
    pub keys: bool,
    /// Latencies of IPIs, timers and injection.
    pub latencies: bool,
}

/// The selection of time and CPUs, resolved to the trace's clock.
#[derive(Debug, Clone, Default)]
pub(crate) struct Window {
    /// Whether it leaves nothing out: the common case, and one comparison in the hot path.
    is_all: bool,
    /// Begin of the selection, in ns of the trace's clock: of its first event or later.
    origin: u64,
    from: u64,
    to: u64,
    cpus: Option<Vec<bool>>,
}

impl Window {
    /// The window of a trace with its first event at `first`, in ns.
    pub(crate) fn new(selection: &Selection, first: u64) -> Self {
        let cpus = (!selection.cpus.is_empty()).then(|| {
            let highest = selection.cpus.iter().copied().max().unwrap_or(0);
            let mut set = vec![false; usize::from(highest) + 1];
            for &cpu in &selection.cpus {
                if let Some(slot) = set.get_mut(usize::from(cpu)) {
                    *slot = true;
                }
            }
            set
        });
        let begin = selection.from_ns.map_or(0, |ns| first.saturating_add(ns));
        Self {
            origin: first.max(begin),
            is_all: cpus.is_none() && selection.from_ns.is_none() && selection.to_ns.is_none(),
            from: begin,
            to: selection
                .to_ns
                .map_or(u64::MAX, |ns| first.saturating_add(ns)),
            cpus,
        }
    }

    /// Whether the CPU is selected.
    pub(crate) fn has_cpu(&self, cpu: u16) -> bool {
        self.cpus
            .as_ref()
            .is_none_or(|set| set.get(usize::from(cpu)).copied().unwrap_or(false))
    }

    /// Whether something that happened at `time` on `cpu` counts.
    #[inline]
    pub(crate) fn has(&self, time: u64, cpu: u16) -> bool {
        self.is_all || self.has_part(time, cpu)
    }

    fn has_part(&self, time: u64, cpu: u16) -> bool {
        // An unbounded window holds the last instant of the clock too.
        time >= self.from && (time < self.to || self.to == u64::MAX) && self.has_cpu(cpu)
    }

    /// Begin of the selection, in ns of the trace's clock.
    pub(crate) const fn origin(&self) -> u64 {
        self.origin
    }

    /// The part of `[start, end)` on `cpu` that counts, in ns since [`Window::origin`]; `None` if it is
    /// empty.
    #[inline]
    pub(crate) fn part(&self, start: u64, end: u64, cpu: u16) -> Option<(u64, u64)> {
        let start = start.max(self.origin);
        let end = end.min(self.to);
        let counts = start < end && (self.is_all || self.has_cpu(cpu));
        counts.then(|| (start - self.origin, end - self.origin))
    }

    /// How long the selection is up to `now`, in ns.
    pub(crate) fn length(&self, now: u64) -> u64 {
        now.min(self.to).saturating_sub(self.origin)
    }

    /// How much of `[start, end)` on `cpu` counts, in ns.
    #[inline]
    pub(crate) fn clip(&self, start: u64, end: u64, cpu: u16) -> u64 {
        if self.is_all {
            end.saturating_sub(start)
        } else if self.has_cpu(cpu) {
            end.min(self.to).saturating_sub(start.max(self.from))
        } else {
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CPU 2 from 110 to 120.
    fn window() -> Window {
        let selection = Selection {
            cpus: vec![2],
            from_ns: Some(10),
            to_ns: Some(20),
            ..Selection::default()
        };
        Window::new(&selection, 100)
    }

    #[test]
    fn a_window_clips_what_crosses_it() {
        let window = window();
        assert_eq!(window.clip(0, 1000, 2), 10);
        assert_eq!(window.clip(115, 118, 2), 3);
        assert_eq!(window.clip(0, 50, 2), 0);
        assert_eq!(window.clip(0, 1000, 1), 0);
        assert!(window.has(110, 2) && !window.has(120, 2) && !window.has(110, 9));
        assert_eq!([0, 115, 1000].map(|now| window.length(now)), [0, 5, 10]);
    }

    #[test]
    fn a_part_is_relative_to_the_window() {
        let window = window();
        assert_eq!(window.part(0, 1000, 2), Some((0, 10)));
        assert_eq!(window.part(115, 118, 2), Some((5, 8)));
        assert_eq!(window.part(119, 121, 2), Some((9, 10)));
        for (start, end, cpu) in [(115, 118, 1), (0, 110, 2), (120, 130, 2), (115, 115, 2)] {
            assert_eq!(window.part(start, end, cpu), None, "{start} to {end}");
        }
        let all = Window::new(&Selection::default(), 100);
        assert_eq!(all.part(90, 103, 7), Some((0, 3)));
    }

    #[test]
    fn without_a_selection_everything_counts() {
        let window = Window::new(&Selection::default(), 5);
        assert!(window.has(u64::MAX, 65535) && window.has(0, 0));
        assert_eq!(window.clip(0, u64::MAX, 3), u64::MAX);
    }
}

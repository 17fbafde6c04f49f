//! Steps of a thread that pass as one, as long as nobody looks.
//!
//! Most of what a kernel does is nobody else's business: it holds a lock that nobody else wants, or
//! sends through a socket that has room and whose reader does not wait. A vCPU runs such steps in
//! one stretch, which is one event of the engine. What they do in the midst of it is done when it
//! ends or is stopped, or when somebody is about to see whether it has been done: who finds the lock
//! taken, or a queue empty, [cuts](Machine::cut) the stretch first, and a request to reschedule
//! cuts it too. So everything happens as if each step were an event.

use stealtime_hypervisor::eevdf::Resched;

use super::Micro;
use crate::ids::{CpuNr, ThreadNr, VcpuNr, VmNr};
use crate::machine::Machine;
use crate::program::{Passes, QueueId, Record, SpinId};

/// Passes of a stretch, at most: what is reserved for a stretch that is cut must be given back.
const MOST_PASSES: u32 = 32;

/// What the step in progress does beyond taking time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stretch {
    /// Nothing.
    #[default]
    None,
    /// It releases a spinlock after so much of it, in ns of work.
    Section { lock: SpinId, until_ns: u64 },
    /// It is so many passes of the thread's series. The counts that they take are reserved.
    Passes { n: u32 },
}

/// A series of passes that a thread is at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Series {
    what: Passes,
    /// Passes that have begun, those of the stretch in progress included.
    begun: u32,
    /// The last one that has begun is not counted yet.
    open: bool,
}

impl Series {
    pub(crate) const fn new(what: Passes) -> Self {
        Self {
            what,
            begun: 0,
            open: false,
        }
    }
}

impl Machine<'_> {
    /// A vCPU is about to run for `ns` at CPL 0, with a spinlock held that it will then release:
    /// goes on beyond that if nobody waits for the lock. How long it runs now.
    pub(crate) fn stretch_section(&mut self, vcpu: VcpuNr, ns: u64) -> u64 {
        let v = &mut self.vcpus[vcpu];
        let (vm, g) = (v.vm, &mut v.guest);
        let Some(&Micro::Unlock(lock)) = g.base.front() else {
            return ns;
        };
        let l = &self.vms[vm].kernel.spinlocks[lock.0 as usize];
        let own = l.owner.is_some_and(|owner| owner.vcpu == v.index);
        if g.in_irq.is_some() || g.resched != Resched::None || !own || !l.waiters.is_empty() {
            return ns;
        }
        g.base.pop_front();
        let then = match g.base.front() {
            Some(Micro::Run { kernel: true, .. }) => g.take_runs().map_or(0, |(then, _)| then),
            _ => 0,
        };
        g.stretch = Stretch::Section { lock, until_ns: ns };
        ns + u64::from(self.costs.locked_own_ns) + then
    }

    /// The thread's next passes: as many in one stretch as find counts and wake nobody, else one,
    /// step by step. Whether time passes.
    pub(crate) fn guest_passes(&mut self, cpu: CpuNr, vcpu: VcpuNr, thread: ThreadNr) -> bool {
        let v = &mut self.vcpus[vcpu];
        let kernel = &mut self.vms[v.vm].kernel;
        let Some(series) = &mut kernel.threads[thread].series else {
            return false;
        };
        let what = series.what;
        let ns = what.ns + u64::from(self.costs.guest_syscall_ns);
        let mut n = 0;
        if v.guest.resched == Resched::None && ns > 0 {
            let most = (what.passes - series.begun).min(MOST_PASSES);
            for (take, give) in what.passes_from(series.begun).take(most as usize) {
                let wakes = !kernel.queues[give.0 as usize].waiters.is_empty();
                let from = &mut kernel.queues[take.0 as usize];
                if wakes || from.counts == 0 {
                    break;
                }
                from.counts -= 1;
                n += 1;
            }
        }
        series.open = true;
        if n > 0 {
            series.begun += n;
            kernel.passing += 1;
            v.guest.stretch = Stretch::Passes { n };
            let ns = ns * u64::from(n);
            self.guest_stay(cpu, vcpu, Micro::Run { ns, kernel: true }, ns);
            return true;
        }
        let (take, give) = what.pass(series.begun);
        series.begun += 1;
        v.guest.push(Micro::Wait(take));
        v.guest.push(Micro::Run { ns, kernel: true });
        v.guest.push(Micro::Wake(give, 1));
        false
    }

    /// The thread is at a series: its last pass is over. Whether there is another one.
    pub(crate) fn series_goes_on(&mut self, vm: VmNr, thread: ThreadNr) -> bool {
        let machine_vm = &mut self.vms[vm];
        let t = &mut machine_vm.kernel.threads[thread];
        let Some(series) = &mut t.series else {
            return false;
        };
        let (what, begun) = (series.what, series.begun);
        if core::mem::take(&mut series.open) && what.counts && self.books.measuring() {
            self.stats.meters[machine_vm.meter].record(Record::Done(1));
        }
        if begun == what.passes {
            t.series = None;
        }
        begun < what.passes
    }

    /// Of a step of `ns`, `left` are left: does what the stretch should have done by now. What is
    /// left of the step that it is in the midst of; later ones come after that.
    pub(crate) fn settle(&mut self, vcpu: VcpuNr, ns: u64, left: u64) -> u64 {
        match core::mem::take(&mut self.vcpus[vcpu].guest.stretch) {
            Stretch::None => left,
            Stretch::Section { lock, until_ns } => {
                self.settle_section(vcpu, lock, until_ns, ns, left)
            }
            Stretch::Passes { n } => self.settle_passes(vcpu, n, ns, left),
        }
    }

    fn settle_section(
        &mut self,
        vcpu: VcpuNr,
        lock: SpinId,
        until: u64,
        ns: u64,
        left: u64,
    ) -> u64 {
        let own = u64::from(self.costs.locked_own_ns);
        let v = &mut self.vcpus[vcpu];
        let g = &mut v.guest;
        let run = |ns| Micro::Run { ns, kernel: true };
        let done = ns - left;
        if done < until {
            g.push_next(run(ns - until - own));
            g.push_next(Micro::Unlock(lock));
            return until - done;
        }
        self.vms[v.vm].kernel.spinlocks[lock.0 as usize].owner = None;
        g.preempt_off = g.preempt_off.saturating_sub(1);
        match (until + own).checked_sub(done) {
            None | Some(0) => left,
            Some(own_left) => {
                g.push_next(run(left - own_left));
                g.push_next(Micro::CheckResched);
                own_left
            }
        }
    }

    fn settle_passes(&mut self, vcpu: VcpuNr, n: u32, ns: u64, left: u64) -> u64 {
        let v = &mut self.vcpus[vcpu];
        let machine_vm = &mut self.vms[v.vm];
        let kernel = &mut machine_vm.kernel;
        kernel.passing -= 1;
        let thread = v.guest.current.map(|thread| &mut kernel.threads[thread]);
        let Some(series) = thread.and_then(|thread| thread.series.as_mut()) else {
            return left;
        };
        let each = ns / u64::from(n);
        let done = ns - left;
        // The last one ends with the stretch: what it gives is a step of its own.
        let over = ((done / each) as u32).min(n - 1);
        let first = series.begun - n;
        series.begun = first + over + 1;
        let what = series.what;
        for (_, give) in what.passes_from(first).take(over as usize) {
            kernel.queues[give.0 as usize].counts += 1;
        }
        let undone = n - over - 1;
        let next = first + over + 1;
        for (take, _) in what.passes_from(next).take(undone as usize) {
            kernel.queues[take.0 as usize].counts += 1;
        }
        if what.counts && over > 0 && self.books.measuring() {
            self.stats.meters[machine_vm.meter].record(Record::Done(over.into()));
        }
        let (_, give) = what.pass(first + over);
        v.guest.push_next(Micro::Wake(give, 1));
        each * u64::from(over + 1) - done
    }

    /// Somebody looks at what a vCPU's stretch touches: what should have happened has, and the rest
    /// goes step by step.
    pub(crate) fn cut(&mut self, vcpu: VcpuNr) {
        let v = &self.vcpus[vcpu];
        if v.guest.stretch == Stretch::None {
            return;
        }
        let cpu = self.tasks[v.task].cpu;
        debug_assert_eq!(self.guest_on(cpu), Some(vcpu));
        self.stop_guest(cpu, vcpu);
        match self.vcpus[vcpu].guest.take_runs() {
            Some((ns, kernel)) => self.guest_stay(cpu, vcpu, Micro::Run { ns, kernel }, ns),
            None => self.stay(cpu, 0),
        }
    }

    /// A queue is empty: cuts stretches whose passes take from it or give to it.
    pub(crate) fn cut_passes(&mut self, vm: VmNr, queue: QueueId) {
        if self.vms[vm].kernel.passing == 0 {
            return;
        }
        for index in 0..self.vms[vm].vcpus {
            let vcpu = self.vcpu_of(vm, index);
            if self.passes_touch(vcpu, queue) {
                self.cut(vcpu);
            }
        }
    }

    /// Cuts all stretches: whoever asks now is told what has happened by now.
    pub(crate) fn cut_all(&mut self) {
        for vcpu in self.vcpus.numbers() {
            self.cut(vcpu);
        }
    }

    fn passes_touch(&self, vcpu: VcpuNr, queue: QueueId) -> bool {
        let v = &self.vcpus[vcpu];
        let threads = &self.vms[v.vm].kernel.threads;
        let series = v.guest.current.and_then(|thread| threads[thread].series);
        match (v.guest.stretch, series) {
            (Stretch::Passes { n }, Some(series)) => series.what.touch(n, series.begun, queue),
            _ => false,
        }
    }

    /// What is wrong with a vCPU's stretch, if anything: somebody waits for what it touches.
    pub(crate) fn stretch_broken(&self, vcpu: VcpuNr) -> Option<&str> {
        let v = &self.vcpus[vcpu];
        let kernel = &self.vms[v.vm].kernel;
        match v.guest.stretch {
            Stretch::None => None,
            _ if !matches!(v.guest.running, Some(Micro::Run { kernel: true, .. })) => {
                Some("does not run in the kernel")
            }
            Stretch::Section { lock, .. } => {
                let l = &kernel.spinlocks[lock.0 as usize];
                let own = l.owner.is_some_and(|owner| owner.vcpu == v.index);
                (!own || !l.waiters.is_empty()).then_some("holds a lock that others want")
            }
            Stretch::Passes { .. } => {
                let waited = (0u32..).zip(&kernel.queues).any(|(queue, q)| {
                    !q.waiters.is_empty() && self.passes_touch(vcpu, QueueId(queue))
                });
                waited.then_some("passes through a queue that others wait for")
            }
        }
    }
}

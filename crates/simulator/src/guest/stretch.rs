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
use super::queues::Queues;
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
    /// After `lead_ns`, also in ns of work, it is `n` passes of the thread's series. The counts that
    /// they take are reserved. `gives`: the lead is the end of the pass before, which gives a count.
    Passes { n: u32, lead_ns: u32, gives: bool },
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

/// Whether nobody waits for the queues of a pass.
fn is_quiet(queues: &Queues, (take, give): (QueueId, QueueId)) -> bool {
    !queues.is_waited(take) && !queues.is_waited(give)
}

impl Machine<'_> {
    /// A vCPU is about to run for `ns` at CPL 0: goes on beyond that as far as nobody looks. How long
    /// it runs now.
    pub(crate) fn stretch(&mut self, vcpu: VcpuNr, ns: u64) -> u64 {
        let v = &self.vcpus[vcpu];
        let g = &v.guest;
        if g.in_irq.is_some() || g.resched != Resched::None {
            return ns;
        }
        match g.base.front() {
            Some(&Micro::Unlock(lock)) => self.stretch_section(vcpu, lock, ns),
            Some(&Micro::Wake(_, 1)) if g.base.len() == 1 => self.stretch_passes(vcpu, ns, true),
            None => self.stretch_passes(vcpu, ns, false),
            _ => ns,
        }
    }

    /// The vCPU holds a spinlock that it will then release: goes on if nobody waits for it.
    fn stretch_section(&mut self, vcpu: VcpuNr, lock: SpinId, ns: u64) -> u64 {
        let v = &mut self.vcpus[vcpu];
        let l = &self.vms[v.vm].kernel.spinlocks[lock.0 as usize];
        let is_own = l.owner.is_some_and(|owner| owner.vcpu == v.index);
        if !is_own || l.user || !l.waiters.is_empty() {
            return ns;
        }
        let g = &mut v.guest;
        g.base.pop_front();
        let then = match g.base.front() {
            Some(Micro::Run { kernel: true, .. }) => g.take_runs().map_or(0, |(then, _)| then),
            _ => 0,
        };
        g.stretch = Stretch::Section { lock, until_ns: ns };
        ns + u64::from(self.costs.locked_own_ns) + then
    }

    /// The vCPU's thread goes on with its series, after `lead_ns`: with passes that find counts and
    /// wake nobody.
    fn stretch_passes(&mut self, vcpu: VcpuNr, lead_ns: u64, gives: bool) -> u64 {
        let v = &mut self.vcpus[vcpu];
        let (vcpus, kernel) = (self.vms[v.vm].vcpus, &mut self.vms[v.vm].kernel);
        let thread = v.guest.current.map(|thread| &mut kernel.threads[thread]);
        let Some(series) = thread.and_then(|thread| thread.series.as_mut()) else {
            return lead_ns;
        };
        let (what, begun) = (series.what, series.begun);
        let each = what.ns + u64::from(self.costs.guest_syscall_ns);
        let Ok(lead) = u32::try_from(lead_ns) else {
            return lead_ns;
        };
        if each == 0 || (gives && !is_quiet(&kernel.queues, what.pass(begun - 1))) {
            return lead_ns;
        }
        let most = (what.passes - begun).min(MOST_PASSES);
        let n = kernel.queues.take_passes(&what, begun, most);
        if n == 0 {
            return lead_ns;
        }
        series.begun += n;
        let over = core::mem::replace(&mut series.open, true) && !gives;
        kernel.passing.begin(v.index, vcpus, &what);
        let g = &mut v.guest;
        if gives {
            g.base.pop_front();
        }
        g.stretch = Stretch::Passes {
            n,
            lead_ns: lead,
            gives,
        };
        let vm = v.vm;
        self.passes_over(vm, &what, u32::from(over));
        lead_ns + each * u64::from(n)
    }

    /// The thread's next passes: as many in one stretch as can be, else one, step by step. Whether
    /// time passes.
    pub(crate) fn guest_passes(&mut self, cpu: CpuNr, vcpu: VcpuNr, thread: ThreadNr) -> bool {
        if self.vcpus[vcpu].guest.resched == Resched::None {
            let ns = self.stretch_passes(vcpu, 0, false);
            if ns > 0 {
                self.guest_stay(cpu, vcpu, Micro::Run { ns, kernel: true }, ns);
                return true;
            }
        }
        let v = &mut self.vcpus[vcpu];
        let kernel = &mut self.vms[v.vm].kernel;
        if let Some(series) = &mut kernel.threads[thread].series
            && series.begun < series.what.passes
        {
            let (take, give) = series.what.pass(series.begun);
            let ns = series.what.ns + u64::from(self.costs.guest_syscall_ns);
            series.begun += 1;
            series.open = true;
            debug_assert!(v.guest.in_irq.is_none() && v.guest.base.front().is_none());
            let run = Micro::Run { ns, kernel: true };
            let steps = [Micro::Wait(take), run, Micro::Wake(give, 1)];
            v.guest.base.replace(steps);
        }
        false
    }

    /// The thread is at a series: its last pass is over. Whether there is another one.
    pub(crate) fn series_goes_on(&mut self, vm: VmNr, thread: ThreadNr) -> bool {
        let t = &mut self.vms[vm].kernel.threads[thread];
        let Some(series) = &mut t.series else {
            return false;
        };
        let (what, begun) = (series.what, series.begun);
        let over = core::mem::take(&mut series.open);
        if begun == what.passes {
            t.series = None;
        }
        self.passes_over(vm, &what, u32::from(over));
        begun < what.passes
    }

    /// So many passes are over: if they count, they are operations done.
    fn passes_over(&mut self, vm: VmNr, what: &Passes, n: u32) {
        if what.counts && n > 0 && self.books.measuring() {
            self.stats.meters[self.vms[vm].meter].record(Record::Done(n.into()));
        }
    }

    /// Of a step of `ns`, `left` are left: does what the stretch should have done by now. What is
    /// left of the step that it is in the midst of; later ones come after that.
    pub(crate) fn settle(&mut self, vcpu: VcpuNr, ns: u64, left: u64) -> u64 {
        match core::mem::take(&mut self.vcpus[vcpu].guest.stretch) {
            Stretch::None => left,
            Stretch::Section { lock, until_ns } => {
                self.settle_section(vcpu, lock, until_ns, ns, left)
            }
            Stretch::Passes { n, lead_ns, gives } => {
                self.settle_passes(vcpu, (n, lead_ns.into(), gives), ns, left)
            }
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

    fn settle_passes(
        &mut self,
        vcpu: VcpuNr,
        (n, lead, gives): (u32, u64, bool),
        ns: u64,
        left: u64,
    ) -> u64 {
        let v = &mut self.vcpus[vcpu];
        let kernel = &mut self.vms[v.vm].kernel;
        kernel.passing.end(v.index);
        let thread = v.guest.current.map(|thread| &mut kernel.threads[thread]);
        let Some(series) = thread.and_then(|thread| thread.series.as_mut()) else {
            return left;
        };
        let what = series.what;
        let queues = &mut kernel.queues;
        let first = series.begun - n;
        let done = ns - left;
        if done < lead {
            queues.give_back(&what, first, n);
            series.begun = first;
            series.open = gives;
            if gives {
                let (_, give) = what.pass(first - 1);
                v.guest.push_next(Micro::Wake(give, 1));
            }
            return lead - done;
        }
        let each = (ns - lead) / u64::from(n);
        // The last one ends with the stretch: what it gives is a step of its own.
        let over = (((done - lead) / each) as u32).min(n - 1);
        series.begun = first + over + 1;
        let given = first - u32::from(gives)..first + over;
        let count = given.len() as u32;
        queues.give_passes(&what, given.start, count);
        queues.give_back(&what, first + over + 1, n - over - 1);
        let (_, give) = what.pass(first + over);
        v.guest.push_next(Micro::Wake(give, 1));
        let vm = v.vm;
        self.passes_over(vm, &what, count);
        lead + each * u64::from(over + 1) - done
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
        let mut from = 0;
        while let Some(index) = self.vms[vm].kernel.passing.next_near(from, queue) {
            let vcpu = self.vcpu_of(vm, index);
            if self.passes_touch(vcpu, queue) {
                self.cut(vcpu);
            }
            from = index + 1;
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
            (Stretch::Passes { n, gives, .. }, Some(series)) => {
                series.what.touch(n + u32::from(gives), series.begun, queue)
            }
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
                let waited = kernel
                    .queues
                    .numbers()
                    .any(|queue| kernel.queues.is_waited(queue) && self.passes_touch(vcpu, queue));
                waited.then_some("passes through a queue that others wait for")
            }
        }
    }
}

//! Steps of a thread that pass as one event of the engine, while no other vCPU depends on them.
//!
//! Most of what a kernel does concerns no other vCPU. It holds a lock without waiters, or sends
//! through a socket with room and without a waiting reader. A vCPU runs such steps in one stretch,
//! which is one event of the engine. Its intermediate effects happen when it ends, is stopped, or
//! is about to be observed. A vCPU that finds the lock taken or a queue empty [cuts](cut) the
//! stretch first. A request to reschedule cuts it too. So everything happens as if each step were
//! an event.

use stealtime_hypervisor::fair::Resched;

use super::queues::Queues;
use super::{Guests, Micro};
use crate::host::Host;
use crate::ids::{CpuNr, ThreadNr, VcpuNr, VmNr};
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
    /// It is passes of the thread's series.
    Passes(PassStretch),
}

/// Passes of a series in one stretch. The counts that they take are reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PassStretch {
    /// How many.
    n: u32,
    /// What passes before the first one, in ns of work.
    lead_ns: u32,
    /// The lead is the end of the pass before, which gives a count.
    wakes_first: bool,
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
    pub(crate) const fn new(passes: Passes) -> Self {
        Self {
            what: passes,
            begun: 0,
            open: false,
        }
    }
}

/// Whether no thread waits for the queues of a pass.
fn is_quiet(queues: &Queues, passes: &Passes, n: u32) -> bool {
    let (take, give) = passes.pass(n);
    !queues.is_waited(take) && !queues.is_waited(give)
}

/// A vCPU is about to run for `ns` at CPL 0: extends that by steps no other vCPU depends on. How long
/// it runs now.
pub(crate) fn stretch(guests: &mut Guests, host: &mut Host<'_>, vcpu: VcpuNr, ns: u64) -> u64 {
    let v = &guests.cpus[vcpu];
    let g = &v;
    if g.in_irq.is_some() || g.resched != Resched::None {
        return ns;
    }
    match g.base.front() {
        Some(&Micro::Unlock(lock)) => extend_section(guests, host, vcpu, lock, ns),
        Some(&Micro::Wake(_, 1)) if g.base.len() == 1 => {
            extend_passes(guests, host, vcpu, ns, true)
        }
        None => extend_passes(guests, host, vcpu, ns, false),
        _ => ns,
    }
}

/// The vCPU holds a spinlock that it will then release: goes on if the lock has no waiter.
fn extend_section(
    guests: &mut Guests,
    host: &mut Host<'_>,
    vcpu: VcpuNr,
    lock: SpinId,
    ns: u64,
) -> u64 {
    let v = &mut guests.cpus[vcpu];
    let l = &guests.vms[v.vm].kernel.spinlocks[lock.0 as usize];
    let is_own = l.owner.is_some_and(|owner| owner.vcpu == v.index);
    if !is_own || l.user || !l.waiters.is_empty() {
        return ns;
    }
    let g = &mut *v;
    g.base.pop_front();
    let after_ns = match g.base.front() {
        Some(Micro::Run { kernel: true, .. }) => g.take_runs().map_or(0, |(after_ns, _)| after_ns),
        _ => 0,
    };
    g.stretch = Stretch::Section { lock, until_ns: ns };
    ns + u64::from(host.costs().locked_own_ns) + after_ns
}

/// The vCPU's thread goes on with its series, after `lead_ns`: with passes that find counts and
/// wake no thread.
fn extend_passes(
    guests: &mut Guests,
    host: &mut Host<'_>,
    vcpu: VcpuNr,
    lead_ns: u64,
    wakes_first: bool,
) -> u64 {
    let v = &mut guests.cpus[vcpu];
    let (vcpus, kernel) = (guests.vms[v.vm].vcpus, &mut guests.vms[v.vm].kernel);
    let thread = v.current.map(|thread| &mut kernel.threads[thread]);
    let Some(series) = thread.and_then(|thread| thread.series.as_mut()) else {
        return lead_ns;
    };
    let (passes, begun) = (series.what, series.begun);
    let pass_ns = passes.ns + u64::from(host.costs().guest_syscall_ns);
    let Ok(lead) = u32::try_from(lead_ns) else {
        return lead_ns;
    };
    if pass_ns == 0 || (wakes_first && !is_quiet(&kernel.queues, &passes, begun - 1)) {
        return lead_ns;
    }
    let maximum = (passes.passes - begun).min(MOST_PASSES);
    let n = kernel.queues.take_passes(&passes, begun, maximum);
    if n == 0 {
        return lead_ns;
    }
    series.begun += n;
    let finished = core::mem::replace(&mut series.open, true) && !wakes_first;
    kernel.passing.begin(v.index, vcpus, &passes);
    let g = &mut *v;
    if wakes_first {
        g.base.pop_front();
    }
    g.stretch = Stretch::Passes(PassStretch {
        n,
        lead_ns: lead,
        wakes_first,
    });
    let vm = v.vm;
    passes_over(guests, host, vm, &passes, u32::from(finished));
    lead_ns + pass_ns * u64::from(n)
}

/// The thread's next passes: as many in one stretch as can be, else one, step by step. Whether
/// time passes.
pub(crate) fn run_passes(
    guests: &mut Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vcpu: VcpuNr,
    thread: ThreadNr,
) -> bool {
    if guests.cpus[vcpu].resched == Resched::None {
        let ns = extend_passes(guests, host, vcpu, 0, false);
        if ns > 0 {
            guests.run_for(host, cpu, vcpu, Micro::Run { ns, kernel: true }, ns);
            return true;
        }
    }
    let v = &mut guests.cpus[vcpu];
    let kernel = &mut guests.vms[v.vm].kernel;
    if let Some(series) = &mut kernel.threads[thread].series
        && series.begun < series.what.passes
    {
        let (take, give) = series.what.pass(series.begun);
        let ns = series.what.ns + u64::from(host.costs().guest_syscall_ns);
        series.begun += 1;
        series.open = true;
        debug_assert!(v.in_irq.is_none() && v.base.front().is_none());
        let run = Micro::Run { ns, kernel: true };
        let steps = [Micro::Wait(take), run, Micro::Wake(give, 1)];
        v.base.replace(steps);
    }
    false
}

/// The thread is at a series: its last pass is over. Whether there is another one.
pub(crate) fn series_goes_on(
    guests: &mut Guests,
    host: &mut Host<'_>,
    vm: VmNr,
    thread: ThreadNr,
) -> bool {
    let t = &mut guests.vms[vm].kernel.threads[thread];
    let Some(series) = &mut t.series else {
        return false;
    };
    let (passes, begun) = (series.what, series.begun);
    let finished = core::mem::take(&mut series.open);
    if begun == passes.passes {
        t.series = None;
    }
    passes_over(guests, host, vm, &passes, u32::from(finished));
    begun < passes.passes
}

/// So many passes are over: if they count, they are operations done.
fn passes_over(guests: &mut Guests, host: &mut Host<'_>, vm: VmNr, passes: &Passes, n: u32) {
    if passes.counts && n > 0 && host.out().measuring() {
        host.stats_mut().meters[guests.vms[vm].meter].record(Record::Done(n.into()));
    }
}

/// Of a step of `ns`, `left` are left: does what the stretch should have done by now. What is
/// left of the step that it is in the midst of; later ones come after that.
#[inline]
pub(crate) fn settle(
    guests: &mut Guests,
    host: &mut Host<'_>,
    vcpu: VcpuNr,
    ns: u64,
    remaining: u64,
) -> u64 {
    if guests.cpus[vcpu].stretch == Stretch::None {
        return remaining;
    }
    settle_some(guests, host, vcpu, ns, remaining)
}

fn settle_some(
    guests: &mut Guests,
    host: &mut Host<'_>,
    vcpu: VcpuNr,
    ns: u64,
    remaining: u64,
) -> u64 {
    match core::mem::take(&mut guests.cpus[vcpu].stretch) {
        Stretch::None => remaining,
        Stretch::Section { lock, until_ns } => {
            settle_section(guests, host, vcpu, lock, until_ns, ns, remaining)
        }
        Stretch::Passes(stretch) => settle_passes(guests, host, vcpu, stretch, ns, remaining),
    }
}

fn settle_section(
    guests: &mut Guests,
    host: &mut Host<'_>,
    vcpu: VcpuNr,
    lock: SpinId,
    until_ns: u64,
    ns: u64,
    remaining: u64,
) -> u64 {
    let own_ns = u64::from(host.costs().locked_own_ns);
    let v = &mut guests.cpus[vcpu];
    let run = |ns| Micro::Run { ns, kernel: true };
    let elapsed = ns - remaining;
    if elapsed < until_ns {
        v.push_next(run(ns - until_ns - own_ns));
        v.push_next(Micro::Unlock(lock));
        return until_ns - elapsed;
    }
    guests.vms[v.vm].kernel.spinlocks[lock.0 as usize].owner = None;
    v.preempt_off = v.preempt_off.saturating_sub(1);
    match (until_ns + own_ns).checked_sub(elapsed) {
        None | Some(0) => remaining,
        Some(own_left) => {
            v.push_next(run(remaining - own_left));
            v.push_next(Micro::CheckResched);
            own_left
        }
    }
}

fn settle_passes(
    guests: &mut Guests,
    host: &mut Host<'_>,
    vcpu: VcpuNr,
    stretch: PassStretch,
    ns: u64,
    remaining: u64,
) -> u64 {
    let PassStretch {
        n,
        lead_ns,
        wakes_first,
    } = stretch;
    let lead = u64::from(lead_ns);
    let v = &mut guests.cpus[vcpu];
    let kernel = &mut guests.vms[v.vm].kernel;
    kernel.passing.end(v.index);
    let thread = v.current.map(|thread| &mut kernel.threads[thread]);
    let Some(series) = thread.and_then(|thread| thread.series.as_mut()) else {
        return remaining;
    };
    let passes = series.what;
    let queues = &mut kernel.queues;
    let first = series.begun - n;
    let elapsed = ns - remaining;
    if elapsed < lead {
        queues.give_back(&passes, first, n);
        series.begun = first;
        series.open = wakes_first;
        if wakes_first {
            let (_, give) = passes.pass(first - 1);
            v.push_next(Micro::Wake(give, 1));
        }
        return lead - elapsed;
    }
    let pass_ns = (ns - lead) / u64::from(n);
    // The last one ends with the stretch: what it gives is a step of its own.
    let complete = (((elapsed - lead) / pass_ns) as u32).min(n - 1);
    series.begun = first + complete + 1;
    let woken = first - u32::from(wakes_first)..first + complete;
    let count = woken.len() as u32;
    queues.give_passes(&passes, woken.start, count);
    queues.give_back(&passes, first + complete + 1, n - complete - 1);
    let (_, give) = passes.pass(first + complete);
    v.push_next(Micro::Wake(give, 1));
    let vm = v.vm;
    passes_over(guests, host, vm, &passes, count);
    lead + pass_ns * u64::from(complete + 1) - elapsed
}

/// Another vCPU reads what a stretch touches: what should have happened by now has, and the rest
/// goes step by step.
pub(crate) fn cut(guests: &mut Guests, host: &mut Host<'_>, vcpu: VcpuNr) {
    let v = &guests.cpus[vcpu];
    if v.stretch == Stretch::None {
        return;
    }
    let cpu = host.tasks()[guests.task_of(vcpu)].cpu;
    debug_assert_eq!(guests.cpu_of(host, vcpu), Some(cpu));
    guests.stop(host, cpu, vcpu);
    match guests.cpus[vcpu].take_runs() {
        Some((ns, kernel)) => guests.run_for(host, cpu, vcpu, Micro::Run { ns, kernel }, ns),
        None => host.stay(cpu, 0),
    }
}

/// A queue is empty: cuts stretches that take from it or give to it.
pub(crate) fn cut_passes(guests: &mut Guests, host: &mut Host<'_>, vm: VmNr, queue: QueueId) {
    let mut first = 0;
    while let Some(index) = guests.vms[vm].kernel.passing.next_near(first, queue) {
        let vcpu = guests.vcpu_of(vm, index);
        if passes_touch(guests, vcpu, queue) {
            cut(guests, host, vcpu);
        }
        first = index + 1;
    }
}

/// Cuts all stretches, so that counts and books are exact at this instant.
pub(crate) fn cut_all(guests: &mut Guests, host: &mut Host<'_>) {
    for vcpu in guests.cpus.numbers() {
        cut(guests, host, vcpu);
    }
}

fn passes_touch(guests: &Guests, vcpu: VcpuNr, queue: QueueId) -> bool {
    let v = &guests.cpus[vcpu];
    let threads = &guests.vms[v.vm].kernel.threads;
    let series = v.current.and_then(|thread| threads[thread].series);
    match (v.stretch, series) {
        (Stretch::Passes(PassStretch { n, wakes_first, .. }), Some(series)) => {
            series
                .what
                .touch(n + u32::from(wakes_first), series.begun, queue)
        }
        _ => false,
    }
}

/// What is wrong with a vCPU's stretch, if anything: a thread waits for what it touches.
pub(crate) fn violation(guests: &Guests, vcpu: VcpuNr) -> Option<&str> {
    let v = &guests.cpus[vcpu];
    let kernel = &guests.vms[v.vm].kernel;
    match v.stretch {
        Stretch::None => None,
        _ if !matches!(v.running, Some(Micro::Run { kernel: true, .. })) => {
            Some("does not run in the kernel")
        }
        Stretch::Section { lock, .. } => {
            let l = &kernel.spinlocks[lock.0 as usize];
            let is_own = l.owner.is_some_and(|owner| owner.vcpu == v.index);
            (!is_own || !l.waiters.is_empty()).then_some("holds a lock that others want")
        }
        Stretch::Passes(_) => {
            let waited = kernel
                .queues
                .numbers()
                .any(|queue| kernel.queues.is_waited(queue) && passes_touch(guests, vcpu, queue));
            waited.then_some("passes through a queue that others wait for")
        }
    }
}

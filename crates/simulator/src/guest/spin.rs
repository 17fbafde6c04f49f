//! Spinning: what ends it, and what limits it.

use stealtime_hypervisor::directed_yield::ple::PleVendor;

use super::{Guests, Micro, Spin, SpinLimit, SpinOn, deadlock, idle, lock, mutex};
use crate::at::At;
use crate::config::Costs;
use crate::fault::{Fault, Sim};
use crate::host::{Host, Message};
use crate::ids::{CpuNr, Number, ThreadNr, VcpuNr};
use crate::kvm::Exit;

/// Cycles of a PAUSE: Skylake and later (Intel's optimization manual, section 2.5.4). Before, it
/// was about 10.
const PAUSE_CYCLES: u64 = 140;
/// Rounds of PAUSE before the waiter for a paravirtual spinlock halts (`SPIN_THRESHOLD`).
const SPIN_THRESHOLD: u64 = 1 << 15;
/// Rounds of looking before the waiter for a spinlock that yields does so again (`spin_retry` of
/// s390). A round takes a load from the first level, two tests and a branch: so many cycles
/// (estimate).
const SPIN_RETRY: u64 = 1000;
const LOOK_CYCLES: u64 = 8;
/// A spin that is longer than this is looked at: it may never end. In ns.
const LOOK_AFTER_NS: u64 = 10_000_000_000;

/// How long a waiter for a spinlock that yields spins between two yields, in ns.
pub(super) fn spin_retry_ns(costs: &Costs) -> u64 {
    costs.ns_of_cycles(SPIN_RETRY * LOOK_CYCLES).max(1)
}

/// How long the waiter for a paravirtual spinlock spins before it halts, in ns.
pub(super) fn spin_threshold_ns(costs: &Costs) -> u64 {
    costs.ns_of_cycles(SPIN_THRESHOLD * PAUSE_CYCLES).max(1)
}

/// How long the window of pause-loop exiting is, in ns.
fn ple_window_ns(host: &Host<'_>, window: u32) -> u64 {
    let window = u64::from(window);
    let cycles = match host.cfg().knobs.kvm.ple.vendor {
        PleVendor::Vmx => window,
        // SVM counts PAUSEs, not cycles (AMD64 manual, volume 2, section 15.14.4).
        PleVendor::Svm => window * PAUSE_CYCLES,
    };
    host.costs().ns_of_cycles(cycles).max(1)
}

/// What a spinner finds when it looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// What it waited for.
    Over,
    /// Nothing; it goes on.
    Wait,
    /// Nothing, and it has waited long enough: it halts until it is kicked.
    Halt,
    /// Nothing; its CPU goes to this vCPU of the VM, which it waits for.
    Yield(u32),
}

/// The vCPU begins to spin, or looks again. `true`: it goes on spinning, and time passes.
pub(crate) fn spin(
    guests: &mut Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vcpu: VcpuNr,
    awaited: SpinOn,
    ple_window: u32,
) -> Sim<bool> {
    let now = host.now();
    let spin = guests.cpus[vcpu].spin.get_or_insert(Spin {
        on: awaited,
        since_ns: now,
        running_since: At::NEVER,
        spun_ns: 0,
    });
    let start = spin.since_ns;
    match look(guests, host, vcpu, awaited)? {
        Look::Over => {
            guests.cpus[vcpu].spin = None;
            if awaited == SpinOn::IdlePoll {
                idle::poll_ended(guests, vcpu, now - start);
            }
            Ok(false)
        }
        Look::Halt => {
            let g = &mut guests.cpus[vcpu];
            g.push_next(Micro::Spin(awaited));
            g.push_next(Micro::Exit(Exit::Hlt));
            Ok(false)
        }
        Look::Yield(owner) => {
            let g = &mut guests.cpus[vcpu];
            g.push_next(Micro::Spin(awaited));
            g.push_next(Micro::Exit(Exit::SchedYield { vcpu: owner }));
            Ok(false)
        }
        Look::Wait => {
            if now - start > LOOK_AFTER_NS && !matches!(awaited, SpinOn::IdlePoll | SpinOn::Mwait) {
                deadlock::check_guest(guests, guests.cpus[vcpu].vm)?;
            }
            spin_on(guests, host, cpu, vcpu, awaited, ple_window);
            Ok(true)
        }
    }
}

/// What the spinner sees. This is where a paravirtual lock changes hands and waiters halt.
fn look(guests: &mut Guests, host: &mut Host<'_>, vcpu: VcpuNr, awaited: SpinOn) -> Sim<Look> {
    match awaited {
        SpinOn::Lock(lock) => Ok(lock::look(guests, host, vcpu, lock)),
        SpinOn::Mutex(_) | SpinOn::Call | SpinOn::IdlePoll | SpinOn::Mwait => {
            let finished = is_over(guests, host, vcpu, awaited);
            Ok(if finished { Look::Over } else { Look::Wait })
        }
    }
}

/// Whether the spinner would stop if it looked now.
fn is_over(guests: &Guests, host: &Host<'_>, vcpu: VcpuNr, awaited: SpinOn) -> bool {
    let g = &guests.cpus[vcpu];
    let wanted = g.resched != stealtime_hypervisor::fair::Resched::None;
    match awaited {
        SpinOn::Lock(lock) => lock::wants_look(guests, vcpu, lock),
        SpinOn::Mutex(mutex) => {
            !mutex::may_spin(guests, host, vcpu, mutex) || mutex::is_free(guests, vcpu, mutex)
        }
        SpinOn::Call => g.awaited_calls == 0,
        SpinOn::Mwait => wanted || !g.calls.is_empty(),
        SpinOn::IdlePoll => {
            let waited = g.spin.map_or(0, |spin| host.now() - spin.since_ns);
            wanted || !g.calls.is_empty() || waited >= g.halt_poll.limit_ns()
        }
    }
}

/// Spins until a limit, or until what it waits for happens ([`poke`]).
fn spin_on(
    guests: &mut Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vcpu: VcpuNr,
    awaited: SpinOn,
    ple_window: u32,
) {
    // What the CPU owes passes before the spin begins.
    let now = host.now() + host.cpus()[cpu].debt_ns;
    let vm = guests.cpus[vcpu].vm;
    let pauses = awaited != SpinOn::Mwait;
    // VMX counts pause loops at CPL 0 only.
    let pauses = pauses && (host.cfg().host.profile.features.svm || guests.cpus[vcpu].in_kernel());
    let ple = host.cfg().host.profile.features.ple
        && host.cfg().knobs.kvm.ple.gap > 0
        && !guests.vms[vm].cfg.guest.pause_in_guest
        && pauses;
    let ple = ple.then(|| ple_window_ns(host, ple_window));
    let patience = patience_ns(guests, host, vcpu, awaited);
    let (limit, limit_ns) = match (ple, patience) {
        (Some(a), Some(b)) if b <= a => (SpinLimit::Own, Some(b)),
        (None, Some(b)) => (SpinLimit::Own, Some(b)),
        (Some(a), _) => (SpinLimit::Ple, Some(a)),
        (None, None) => (SpinLimit::None, None),
    };
    let v = &mut guests.cpus[vcpu];
    v.running = Some(Micro::Spin(awaited));
    v.spin_limit = limit;
    if let Some(spin) = &mut v.spin {
        spin.running_since = At::ns(now);
    }
    let hv = v.hv_at.get().map(|time| time.saturating_sub(now));
    let limit_ns = match (limit_ns, hv) {
        (Some(ns), hv) if limit == SpinLimit::Ple && hv.is_none_or(|hv| ns < hv) => {
            // Only the vCPU takes part in its exit, so the window and the way out of the guest
            // are one event of the engine.
            v.step_ends = now + ns;
            v.spin_limit = SpinLimit::PleAndExit;
            Some(ns + u64::from(host.costs().vmexit_ns))
        }
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
    if let Some(ns) = limit_ns {
        host.stay(cpu, ns);
    }
}

/// How much longer the spinner itself would go on.
fn patience_ns(guests: &Guests, host: &Host<'_>, vcpu: VcpuNr, awaited: SpinOn) -> Option<u64> {
    let v = &guests.cpus[vcpu];
    let spin = v.spin?;
    match awaited {
        SpinOn::Lock(lock) if lock::halts_for_lock(guests, v.vm, lock) => Some(
            spin_threshold_ns(host.costs())
                .saturating_sub(spin.spun_ns)
                .max(1),
        ),
        SpinOn::Lock(lock) if lock::yields_to_owner(guests, v.vm, lock) => Some(
            spin_retry_ns(host.costs())
                .saturating_sub(spin.spun_ns)
                .max(1),
        ),
        SpinOn::IdlePoll => {
            let waited = host.now() - spin.since_ns;
            Some(v.halt_poll.limit_ns().saturating_sub(waited).max(1))
        }
        _ => None,
    }
}

/// Whether a spinner's window is over by now.
#[inline]
pub(crate) fn is_ple_window_over(guests: &Guests, host: &Host<'_>, vcpu: VcpuNr) -> bool {
    let v = &guests.cpus[vcpu];
    matches!(v.running, Some(Micro::Spin(_)))
        && v.spin_limit == SpinLimit::PleAndExit
        && host.now() >= v.step_ends
}

/// A spinner's window is over: it is on its way out of the guest.
pub(crate) fn end_ple_window(guests: &mut Guests, vcpu: VcpuNr) {
    let v = &mut guests.cpus[vcpu];
    if let Some(spin) = v.running.take() {
        v.push_next(spin);
    }
    let time = v.step_ends;
    end_stretch(guests, vcpu, time);
}

/// The line has reached a spinner: the CPU on which it looks again, if there is something to see.
pub(crate) fn noticed(guests: &mut Guests, host: &mut Host<'_>, vcpu: VcpuNr) -> Option<CpuNr> {
    let cpu = guests.cpu_of(host, vcpu)?;
    if !is_spinning(guests, host, vcpu) {
        return None;
    }
    let spin = guests.cpus[vcpu].spin?;
    if !is_over(guests, host, vcpu, spin.on) {
        return None;
    }
    guests.stop(host, cpu, vcpu);
    Some(cpu)
}

/// The stretch of spinning ended at `time`, for whatever reason.
pub(crate) fn end_stretch(guests: &mut Guests, vcpu: VcpuNr, time: u64) {
    let v = &mut guests.cpus[vcpu];
    let Some(spin) = &mut v.spin else {
        debug_assert!(false, "a vCPU that does not spin stops spinning");
        return;
    };
    if let Some(start) = spin.running_since.take() {
        let spent = time.saturating_sub(start);
        spin.spun_ns += spent;
        if !matches!(spin.on, SpinOn::IdlePoll | SpinOn::Mwait) {
            v.spin_ns += spent;
        }
    }
}

/// What a vCPU may be spinning for has happened. It sees that when the line reaches it, or
/// when it runs again.
pub(crate) fn poke(guests: &mut Guests, host: &mut Host<'_>, vcpu: VcpuNr) {
    if is_spinning(guests, host, vcpu) {
        // A spinner reads its own copy of the line until the store invalidates it.
        let time = host.now() + u64::from(host.costs().cache_line_ns);
        host.post(time, Message::SpinOver { vcpu });
    }
}

fn is_spinning(guests: &Guests, host: &Host<'_>, vcpu: VcpuNr) -> bool {
    let v = &guests.cpus[vcpu];
    let expired = v.spin_limit == SpinLimit::PleAndExit && host.now() >= v.step_ends;
    !expired && matches!(v.running, Some(Micro::Spin(_)))
}

/// The vCPU of its VM that a spinning vCPU waits for, as the guest and the simulator know it. Of
/// several answers that it needs, the first one's.
pub(crate) fn awaited_vcpu(guests: &Guests, vcpu: VcpuNr) -> Option<u32> {
    let v = &guests.cpus[vcpu];
    let kernel = &guests.vms[v.vm].kernel;
    match v.spin?.on {
        SpinOn::Lock(lock) => Some(kernel.spinlocks[lock.0 as usize].owner?.vcpu),
        SpinOn::Mutex(mutex) => {
            let owner: Option<ThreadNr> = kernel.mutexes[mutex.0 as usize].owner;
            Some(kernel.threads[owner?].vcpu)
        }
        SpinOn::Call => {
            let first = guests.vms[v.vm].first_vcpu.index();
            let range = first..first + guests.vms[v.vm].vcpus as usize;
            let mut cpus = guests.cpus.as_slice().get(range).unwrap_or_default().iter();
            let called = |item: &&super::GuestCpu| item.calls.contains(&v.index);
            Some(cpus.find(called)?.index)
        }
        SpinOn::IdlePoll | SpinOn::Mwait => None,
    }
}

/// The program did what no kernel would survive.
pub(crate) fn wrong_program<T>(guests: &Guests, vcpu: VcpuNr, message: &str) -> Sim<T> {
    let v = &guests.cpus[vcpu];
    let vm = &guests.vms[v.vm];
    let thread = v.current.map_or("the idle thread", |thread| {
        vm.kernel.threads[thread].name.as_str()
    });
    Err(Box::new(Fault::Workload {
        vm: vm.cfg.name.to_string(),
        what: format!("{thread} {message}"),
    }))
}

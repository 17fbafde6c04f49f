//! Xen: softirqs, event-check IPIs, and the loop that sends a guest's multicast IPI.
//!
//! The scheduler is the fair class here too: what is modelled of Xen is how CPUs are notified. A
//! wakeup raises the SCHEDULE softirq on the CPU chosen, and with `xen.sched=credit` on an idle one
//! in the same mask. A kick raises `VCPU_KICK_SOFTIRQ`. A CPU that monitors its softirq word wakes
//! by the store itself; `xen.mwait_elision` and batching decide whether an IPI is sent too.

pub(crate) mod ipi;

use stealtime_hypervisor::wakeup_batch::icr::{ApicMode, CpuApic, IcrWrite, Topology};
use stealtime_hypervisor::wakeup_batch::mask::CpuMask;
use stealtime_hypervisor::wakeup_batch::policy::BatchDecider;
use stealtime_hypervisor::wakeup_batch::softirq::SoftirqWord;
use stealtime_hypervisor::wakeup_batch::{Batch, Context, Cpus, RaiseError};

use crate::host::{idle, irq};

pub(crate) use ipi::Sending;

use crate::config::{Config, ConfigError, Hypervisor, IdleMethod, XenScheduler};
use crate::fault::Sim;
use crate::host::{Host, Irq, Phase};
use crate::ids::{CpuNr, Number};
use crate::kvm::Word;
use crate::stats::Mechanisms;

/// `SCHEDULE_SOFTIRQ`.
const SCHEDULE: u32 = 2;
/// Cache lines that waking a vCPU on another CPU takes over from that CPU, beyond its softirq word.
/// Counted in Xen 4.4, from `vlapic_set_irq` by `vcpu_wake` to `__runq_tickle`:
///
/// - two of the vLAPIC's page (TMR, IRR);
/// - two of the vCPU (its state and pause flags; its run state), and one of its VMX part;
/// - the scheduler's data of the CPU, the lock in it, and its run queue's head;
/// - the woken vCPU's credit, the idle vCPU's credit, and the idle vCPU itself;
/// - the mask of idlers, and that of CPUs in MWAIT.
const WAKE_LINES: u32 = 13;
/// `VCPU_KICK_SOFTIRQ`.
pub(crate) const VCPU_KICK: u32 = 5;

type XenBatch = Batch<Vec<u64>>;
type XenCpus<'a> = Cpus<'a, Word, Vec<CpuApic>>;

/// What Xen keeps in addition to the host.
#[derive(Debug)]
pub(crate) struct Xen {
    words: Vec<SoftirqWord<Word>>,
    topology: Topology<Vec<CpuApic>>,
    batches: Vec<XenBatch>,
    /// By CPU: ICR writes of a finished batch that are still to be made, the next one last.
    flushes: Vec<Vec<IcrWrite>>,
    /// By CPU: the IPI of a guest that is being sent, which nothing preempts.
    sending: Vec<Option<Sending>>,
    pub(crate) decider: BatchDecider,
    /// By CPU: the idle CPU that a wakeup there tickled last (`last_tickle_cpu`).
    last_tickled: Vec<CpuNr>,
}

impl Xen {
    pub(crate) fn new(cfg: &Config) -> Result<Option<Box<Self>>, ConfigError> {
        if cfg.host.hypervisor != Hypervisor::Xen {
            return Ok(None);
        }
        let cpus = cfg.host.topology.cpus();
        let features = &cfg.host.profile.features;
        let mode = match (features.x2apic, features.x2apic_cluster) {
            (true, true) => ApicMode::X2apicCluster,
            (true, false) => ApicMode::X2apicPhysical,
            (false, _) if cpus <= 8 => ApicMode::XapicFlat,
            (false, _) => ApicMode::XapicPhysical,
        };
        let apics: Vec<CpuApic> = (0..cpus).map(|cpu| CpuApic::new(cpu, true)).collect();
        let topology = Topology::new(mode, apics).map_err(|error| ConfigError {
            key: "host.cpus".to_owned(),
            problem: error.to_string(),
        })?;
        let storage = vec![0u64; cpus.div_ceil(64) as usize];
        Ok(Some(Box::new(Self {
            words: (0..cpus).map(|_| SoftirqWord::default()).collect(),
            topology,
            batches: (0..cpus)
                .map(|cpu| Batch::new(cpu, storage.clone()))
                .collect(),
            flushes: vec![Vec::new(); cpus as usize],
            sending: (0..cpus).map(|_| None).collect(),
            decider: BatchDecider::new(cfg.knobs.xen.batch_wakeups),
            last_tickled: (0..cpus).map(CpuNr).collect(),
        })))
    }
}

fn context(host: &Host<'_>, cpu: CpuNr) -> Context {
    Context {
        cpu: cpu.0,
        in_irq: matches!(host.cpus()[cpu].phase, Phase::Irq(_)),
        in_nmi: false,
        irqs_on: !host.cpus()[cpu].irqs_off,
        hotplug: false,
    }
}

/// What a batch did.
struct Acted<T> {
    outcome: T,
    /// ICR writes to be made, in order.
    writes: Vec<IcrWrite>,
}

/// Lets the batch of `cpu` act. `None` without Xen.
fn on_batch<T>(
    host: &mut Host<'_>,
    cpu: CpuNr,
    act: impl FnOnce(&mut XenBatch, XenCpus<'_>, Context, &mut Vec<IcrWrite>, &Mechanisms) -> T,
) -> Option<Acted<T>> {
    let context = context(host, cpu);
    let (xen, mechanisms) = host.xen_and_mechanisms()?;
    let cpus = Cpus {
        words: &xen.words,
        topology: &xen.topology,
    };
    let mut writes = Vec::new();
    let batch = &mut xen.batches[cpu.0 as usize];
    let outcome = act(batch, cpus, context, &mut writes, mechanisms);
    Some(Acted { outcome, writes })
}

/// Raises a softirq on `cpu`, as `sender` does it (`cpu_raise_softirq`).
pub(crate) fn raise(host: &mut Host<'_>, cpu: CpuNr, nr: u32, sender: CpuNr) -> Sim {
    let noted = is_noted(host, sender, cpu);
    let raise = on_batch(host, sender, |batch, cpus, context, writes, events| {
        batch.raise(cpus, context, cpu.0, nr, &mut |w| writes.push(w), events)
    });
    raised(host, raise, &[cpu], noted, sender)
}

/// The same for several CPUs in one mask (`cpumask_raise_softirq`). The first is the target's.
fn raise_mask(host: &mut Host<'_>, targets: &[CpuNr], nr: u32, sender: CpuNr) -> Sim {
    let noted = targets
        .first()
        .is_some_and(|&cpu| is_noted(host, sender, cpu));
    let mut mask = CpuMask::empty(vec![0u64; host.cpus().len().div_ceil(64)]);
    for cpu in targets {
        mask.insert(cpu.0);
    }
    let raise = on_batch(host, sender, |batch, cpus, context, writes, events| {
        batch.raise_mask(
            cpus,
            context,
            &mut mask,
            nr,
            &mut |w| writes.push(w),
            events,
        )
    });
    raised(host, raise, targets, noted, sender)
}

fn is_noted(host: &Host<'_>, waker: CpuNr, cpu: CpuNr) -> bool {
    let batch = host.xen().map(|xen| &xen.batches[waker.index()]);
    batch.is_some_and(|batch| batch.batch_mask().contains(cpu.0))
}

/// What raising costs and brings; `noted`: the first target was in the batch before.
fn raised(
    host: &mut Host<'_>,
    raise: Option<Acted<Result<(), RaiseError>>>,
    targets: &[CpuNr],
    noted: bool,
    sender: CpuNr,
) -> Sim {
    let Some(Acted { outcome, writes }) = raise else {
        return Ok(());
    };
    if let Err(error) = outcome {
        return host.broken(format!("softirq: {error}"));
    }
    let mut by_store = false;
    for (n, &cpu) in targets.iter().enumerate() {
        host.charge(sender, host.costs().locked_shared_ns);
        if cpu != sender && monitors(host, cpu) {
            // The store itself ends MWAIT, IPI or not.
            idle::write_flag(host, cpu, sender);
            by_store |= n == 0;
        }
    }
    let set_ns = host.now() + host.cpus()[sender].debt_ns;
    let sent = !writes.is_empty();
    for write in writes {
        write_one(host, sender, write);
    }
    let (now, in_irq) = (
        host.now() + host.cpus()[sender].debt_ns,
        context(host, sender).in_irq,
    );
    let noted = is_noted(host, sender, targets[0]) && !noted;
    let sending = host
        .xen_mut()
        .and_then(|xen| xen.sending[sender.index()].as_mut());
    match sending.filter(|_| !by_store && !in_irq) {
        Some(sending) if sent => sending.notified(now - set_ns),
        Some(sending) if noted => sending.noted(targets[0], set_ns),
        _ => {}
    }
    Ok(())
}

/// The CPU is idle and watches its softirq word.
fn monitors(host: &Host<'_>, cpu: CpuNr) -> bool {
    host.cpus()[cpu].phase == Phase::Idle && host.cfg().host.idle == IdleMethod::Mwait
}

/// Makes an ICR write. Which CPUs it reaches, the sender's own not.
fn write_one(host: &mut Host<'_>, sender: CpuNr, write: IcrWrite) -> Vec<CpuNr> {
    host.stats_mut().icr_writes += 1;
    let reached: Vec<CpuNr> = match write {
        IcrWrite::Xapic { high, low } if low & 0x800 == 0 => vec![CpuNr(high >> 24)],
        // Flat logical: a bit for each of at most eight CPUs.
        IcrWrite::Xapic { high, .. } => {
            let members = (0..8).filter(|bit| high >> (24 + bit) & 1 == 1);
            members.map(CpuNr).collect()
        }
        IcrWrite::X2apic(value) if value & 0x800 == 0 => vec![CpuNr((value >> 32) as u32)],
        IcrWrite::X2apic(value) => {
            let id = (value >> 32) as u32;
            let members = (0..16).filter(|bit| id >> bit & 1 == 1);
            members.map(|bit| CpuNr((id >> 16) * 16 + bit)).collect()
        }
        IcrWrite::AllButSelf { .. } => host.cpus().numbers().filter(|&cpu| cpu != sender).collect(),
    };
    // One write: it costs and waits as for its first target.
    for (n, &cpu) in reached.iter().enumerate() {
        if n == 0 {
            irq::send_ipi(host, sender, cpu, Irq::EventCheck);
        } else {
            irq::fly(host, sender, cpu, Irq::EventCheck);
        }
    }
    reached
}

/// Something is to be scheduled on `cpu`.
pub(crate) fn tickle(host: &mut Host<'_>, cpu: CpuNr, sender: CpuNr) -> Sim {
    if cpu == sender {
        host.set_need_resched(cpu);
        return idle::leave(host, cpu);
    }
    let topology = &host.cfg().host.topology;
    let mut line = host.costs().cache_line_ns;
    if topology.socket_of(cpu.0) != topology.socket_of(sender.0) {
        line += host.costs().ipi_cross_socket_ns;
    }
    host.charge(sender, WAKE_LINES * line);
    match host.cfg().knobs.xen.sched {
        XenScheduler::Credit2 => raise(host, cpu, SCHEDULE, sender),
        XenScheduler::Credit => {
            let mut targets = vec![cpu];
            if !matches!(host.cpus()[cpu].phase, Phase::Idle | Phase::IdleExit) {
                targets.extend(next_idler(host, cpu));
            }
            raise_mask(host, &targets, SCHEDULE, sender)
        }
    }
}

/// The next idle CPU behind the one that a busy `cpu` tickled last (`tickle_one_idle_cpu`): it
/// may take over what waits here now.
fn next_idler(host: &mut Host<'_>, cpu: CpuNr) -> Option<CpuNr> {
    let n = host.cpus().len() as u32;
    let last = host.xen()?.last_tickled[cpu.index()];
    let mut successors = (1..=n).map(|step| CpuNr((last.0 + step) % n));
    let idler = successors.find(|&peer| host.cpus()[peer].phase == Phase::Idle)?;
    host.xen_mut()?.last_tickled[cpu.index()] = idler;
    Some(idler)
}

/// `do_softirq`: what was raised here is handled.
pub(crate) fn do_softirqs(host: &mut Host<'_>, cpu: CpuNr) {
    let word = host.xen().map(|xen| &xen.words[cpu.0 as usize]);
    let handled = word.map_or(0, |word| match word.pending() {
        0 => 0,
        _ => word.take(u32::MAX),
    });
    if handled == 0 {
        return;
    }
    if handled & 1 << SCHEDULE != 0 {
        host.set_need_resched(cpu);
    }
    host.charge(cpu, host.costs().softirq_ns);
}

/// Whether softirqs wait here.
pub(crate) fn is_pending(host: &Host<'_>, cpu: CpuNr) -> bool {
    host.xen()
        .is_some_and(|xen| xen.words[cpu.0 as usize].pending() != 0)
}

/// `mwait_idle_with_hints`: announces MWAIT. `false` if something is pending.
pub(crate) fn idle_enter(host: &mut Host<'_>, cpu: CpuNr) -> bool {
    let Some(xen) = host.xen() else {
        return true;
    };
    let word = &xen.words[cpu.0 as usize];
    if host.cfg().host.idle != IdleMethod::Mwait {
        return word.still_idle();
    }
    word.announce_mwait(host.cfg().knobs.xen.mwait_elision) && word.still_idle()
}

pub(crate) fn idle_leave(host: &mut Host<'_>, cpu: CpuNr) {
    if let Some(xen) = host.xen() {
        xen.words[cpu.0 as usize].leave_mwait();
    }
}

//! `wakeup-batch`: CPU 0 wakes others in a nested batch and is interrupted in it.
//!
//! CPU 1 halts. CPU 2 waits in MWAIT, or runs a guest, where only an IPI makes it look. CPU 3
//! raises softirqs without a batch.

use stealtime_hypervisor::wakeup_batch::icr::{ApicMode, CpuApic, IcrWrite, Topology};
use stealtime_hypervisor::wakeup_batch::mask::CpuMask;
use stealtime_hypervisor::wakeup_batch::softirq::SoftirqWord;
use stealtime_hypervisor::wakeup_batch::{Batch, Context, Cpus, raise_now};

use crate::model::{IDLE, Model, Op, State, Violation, at_rest};
use crate::word::{self, Class, Layout, Word, WordInfo};

/// What is put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    SoftirqNumber,
    NoSecondLook,
    /// MWAIT is tested before the bit is set, not in the same step.
    PromiseReadBefore,
}

const CPUS: u32 = 4;
const SENDER: u8 = 0;
const HALTER: u8 = 1;
const WAITER: u8 = 2;
const REMOTE: u8 = 3;
const IRQ: u8 = 4;
/// Softirqs that sender, remote CPU and interrupt handler raise.
const NUMBERS: [u32; 3] = [2, 3, 5];
const GO: Op = 1;
/// An idling CPU's other operations: it runs a guest instead, it takes an IPI with interrupts on.
const RUN: Op = 2;
const TAKE: Op = 3;

/// Where an idling CPU is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Idle {
    Looking,
    Halted,
    Announcing,
    Monitoring,
    Checking,
    Mwait,
    Leaving,
    Guest,
}

/// All that is not in the softirq words.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Local {
    batch: Batch<[u64; 1]>,
    /// The sender's next step.
    at: u8,
    idle: [Idle; 2],
    /// The word as MONITOR saw it.
    monitored: u64,
    ipi: [bool; CPUS as usize],
    guests_left: u8,
    remote_left: u8,
    irq_left: u8,
}

/// The model.
#[derive(Debug)]
pub(crate) struct WakeupBatch {
    words: Vec<SoftirqWord<Word>>,
    topology: Topology<Vec<CpuApic>>,
    layout: Layout,
    fault: Fault,
}

/// The sender's steps: begin, begin, raise on 1, finish, raise on 2 by a mask,
/// raise on 1, finish.
const STEPS: u8 = 7;

impl WakeupBatch {
    pub(crate) fn new(fault: Fault) -> Self {
        let names = ["softirq.0", "softirq.1", "softirq.2", "softirq.3"];
        let create = || (0..CPUS).map(|_| SoftirqWord::new()).collect();
        let (words, layout) = word::allocate(create, |n| WordInfo {
            name: names[n % 4],
            class: Class::Shared,
        });
        let apics = (0..CPUS).map(|cpu| CpuApic::new(cpu, true)).collect();
        let topology = Topology::new(ApicMode::X2apicPhysical, apics);
        let topology = topology.unwrap_or_else(|error| unreachable!("four different ids: {error}"));
        Self {
            words,
            topology,
            layout,
            fault,
        }
    }

    fn send(&self, local: &mut Local, step: u8) {
        let context = context(0, false);
        let cpus = Cpus {
            words: &self.words,
            topology: &self.topology,
        };
        let mut sent = Vec::new();
        let mut icr = |write| sent.push(write);
        let batch = &mut local.batch;
        // CPUs and softirqs exist, begins and finishes are paired: none of these can fail.
        let _ = match step {
            0 | 1 => batch.begin(),
            2 | 5 => batch.raise(cpus, context, 1, NUMBERS[0], &mut icr, &()),
            4 => batch.raise_mask(cpus, context, &mut mask(0b100), NUMBERS[0], &mut icr, &()),
            _ => batch.finish(cpus, context, &mut icr, &()).map(|_| ()),
        };
        local.at += 1;
        deliver(local, 0, &sent);
    }

    fn raise_alone(&self, local: &mut Local, source: u32, irq: bool) {
        let cpus = Cpus {
            words: &self.words,
            topology: &self.topology,
        };
        let mut sent = Vec::new();
        let mut icr = |write| sent.push(write);
        if irq {
            // An interrupt handler on CPU 0, in the middle of its batch.
            let mut batch = local.batch.clone();
            let context = context(0, true);
            let _ = batch.raise_mask(cpus, context, &mut mask(0b010), NUMBERS[2], &mut icr, &());
            local.irq_left -= 1;
        } else {
            let context = context(source, false);
            let promised = self.fault == Fault::PromiseReadBefore && self.words[2].in_mwait();
            let _ = raise_now(cpus, context, 2, NUMBERS[1], &mut icr, &());
            local.remote_left -= 1;
            if promised {
                return;
            }
        }
        deliver(local, source, &sent);
    }

    fn idle(&self, local: &mut Local, cpu: usize, op: Op) {
        if op == TAKE {
            local.ipi[cpu] = false;
            return;
        }
        let word = &self.words[cpu];
        let idle = &mut local.idle[cpu - 1];
        *idle = match *idle {
            // With interrupts off from the look to the entry: an IPI that comes then ends the guest.
            Idle::Looking if op == RUN && word.take(u32::MAX) == 0 => {
                local.guests_left -= 1;
                Idle::Guest
            }
            Idle::Looking if op == RUN => Idle::Looking,
            Idle::Guest => {
                local.ipi[cpu] = false;
                Idle::Looking
            }
            Idle::Looking if word.take(u32::MAX) != 0 => Idle::Looking,
            Idle::Looking if cpu == 1 => Idle::Halted,
            Idle::Looking => Idle::Announcing,
            Idle::Announcing if word.announce_mwait(true) => Idle::Monitoring,
            Idle::Announcing => Idle::Looking,
            Idle::Monitoring => {
                let _ = word.pending();
                local.monitored = word::peek(cpu);
                if self.fault == Fault::NoSecondLook {
                    Idle::Mwait
                } else {
                    Idle::Checking
                }
            }
            Idle::Checking if word.still_idle() => Idle::Mwait,
            Idle::Checking => Idle::Leaving,
            Idle::Mwait => {
                local.ipi[cpu] = false;
                Idle::Leaving
            }
            Idle::Halted => {
                local.ipi[cpu] = false;
                Idle::Looking
            }
            Idle::Leaving => {
                word.leave_mwait();
                Idle::Looking
            }
        };
    }

    /// Whether an idle CPU continues by itself.
    fn awake(state: &State<Local>, cpu: usize) -> bool {
        let local = &state.local;
        match local.idle[cpu - 1] {
            Idle::Halted | Idle::Guest => local.ipi[cpu],
            Idle::Mwait => local.ipi[cpu] || state.mem[cpu] != local.monitored,
            _ => true,
        }
    }
}

fn mask(cpus: u64) -> CpuMask<[u64; 1]> {
    let mut mask = CpuMask::empty([0]);
    for cpu in (0..CPUS).filter(|cpu| cpus >> cpu & 1 == 1) {
        mask.insert(cpu);
    }
    mask
}

fn context(cpu: u32, in_irq: bool) -> Context {
    Context {
        cpu,
        in_irq,
        in_nmi: false,
        irqs_on: !in_irq,
        hotplug: false,
    }
}

fn deliver(local: &mut Local, source: u32, sent: &[IcrWrite]) {
    for write in sent {
        for cpu in 0..CPUS {
            let hit = match write {
                IcrWrite::X2apic(value) => (value >> 32) as u32 == cpu,
                IcrWrite::AllButSelf { .. } => cpu != source,
                IcrWrite::Xapic { .. } => false,
            };
            local.ipi[cpu as usize] |= hit;
        }
    }
}

impl Model for WakeupBatch {
    type Local = Local;

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn agents(&self) -> Vec<&'static str> {
        vec!["CPU 0", "CPU 1", "CPU 2", "CPU 3", "IRQ CPU 0"]
    }

    fn initial(&self) -> State<Local> {
        let mut batch = Batch::new(0, [0]);
        if self.fault == Fault::SoftirqNumber {
            batch = batch.with_fault_of_2014();
        }
        let local = Local {
            batch,
            at: 0,
            idle: [Idle::Looking; 2],
            monitored: 0,
            ipi: [false; CPUS as usize],
            guests_left: 1,
            remote_left: 1,
            irq_left: 1,
        };
        at_rest(self.layout.initial, local)
    }

    fn choices(&self, state: &State<Local>, agent: u8, ops: &mut Vec<Op>) {
        let local = &state.local;
        let ready = match agent {
            SENDER => local.at < STEPS,
            HALTER | WAITER => Self::awake(state, usize::from(agent)),
            REMOTE => local.remote_left > 0,
            IRQ => local.irq_left > 0,
            _ => false,
        };
        if ready {
            ops.push(GO + if agent == SENDER { local.at } else { 0 });
        }
        if matches!(agent, HALTER | WAITER) && local.idle[usize::from(agent) - 1] == Idle::Looking {
            if agent == WAITER && local.guests_left > 0 {
                ops.push(RUN);
            }
            if local.ipi[usize::from(agent)] {
                ops.push(TAKE);
            }
        }
    }

    fn runs(&self, state: &State<Local>, agent: u8) -> bool {
        // The handler runs on the sender's CPU.
        agent != SENDER || state.agents[usize::from(IRQ)].op == IDLE
    }

    fn execute(&self, local: &mut Local, agent: u8, op: Op) {
        match agent {
            SENDER => self.send(local, op - GO),
            REMOTE => self.raise_alone(local, 3, false),
            IRQ => self.raise_alone(local, 0, true),
            _ => self.idle(local, usize::from(agent), op),
        }
    }

    fn check(&self, state: &State<Local>) -> Option<Violation> {
        let local = &state.local;
        if let Some(cpu) = [0, 3].into_iter().find(|&cpu| local.ipi[cpu]) {
            let sentence = format!("CPU {cpu} was sent an IPI without a raised softirq");
            return Some(Violation::new("no-stray-ipi", sentence));
        }
        let senders = [SENDER, REMOTE, IRQ];
        let quiet = local.at == STEPS
            && senders
                .iter()
                .all(|a| state.agents[usize::from(*a)].op == IDLE);
        let asleep = |cpu: usize| !Self::awake(state, cpu) && state.agents[cpu].op == IDLE;
        let cpu = (1..3).find(|&cpu| quiet && asleep(cpu) && state.mem[cpu] as u32 != 0)?;
        let sentence = format!(
            "CPU {cpu} {} with softirqs {:#x} raised, and no IPI is on its way",
            match local.idle[cpu - 1] {
                Idle::Guest => "runs a guest",
                _ => "idles",
            },
            state.mem[cpu] as u32
        );
        Some(Violation::new("softirq-seen", sentence))
    }

    fn describe(&self, agent: u8, op: Op) -> &'static str {
        match (agent, op - GO) {
            (SENDER, 0 | 1) => "begin batch",
            (SENDER, 4) => "raise 2 on CPU 2",
            (SENDER, 2 | 5) => "raise 2 on CPU 1",
            (SENDER, _) => "finish batch",
            (REMOTE, _) => "raise 3 on CPU 2",
            (IRQ, _) => "handler raises 5 on CPU 1",
            _ if op == RUN => "run guest",
            _ if op == TAKE => "take IPI",
            _ => "idle loop",
        }
    }

    fn shown(&self, state: &State<Local>) -> Vec<(&'static str, String)> {
        let local = &state.local;
        let mut shown = vec![
            ("CPU 1", format!("{:?}", local.idle[0])),
            ("CPU 2", format!("{:?}", local.idle[1])),
        ];
        for (cpu, name) in ["IPI CPU 0", "IPI CPU 1", "IPI CPU 2", "IPI CPU 3"]
            .iter()
            .enumerate()
        {
            shown.push((name, u8::from(local.ipi[cpu]).to_string()));
        }
        shown.push((
            "noted",
            format!(
                "{:#x}",
                local.batch.batch_mask().iter().fold(0, |m, c| m | 1 << c)
            ),
        ));
        shown
    }
}

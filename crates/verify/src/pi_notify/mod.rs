//! `pi-notify`: posted interrupts to a vCPU that enters, leaves, blocks, is preempted and moves.
//!
//! There are two CPUs and two vCPUs. A device posts through VT-d, a remote CPU in software, and a
//! vCPU by IPI virtualization. A remote CPU and the handlers of interrupts kick.
//!
//! Each CPU's interrupts are an agent. They wait while the CPU has interrupts off. In the host they
//! reach the handler, and in guest mode the processor's own posted-interrupt processing.

mod config;
mod posters;
mod properties;
mod show;
mod thread;

use std::hash::{Hash, Hasher};

use stealtime_hypervisor::lapic::Lapic;
use stealtime_hypervisor::posted_interrupt::{PostedVcpu, SharedVcpu};

use crate::model::{IDLE, Model, Op, State, Violation, at_rest, run_free};
use crate::word::{self, Class, Layout, Word, WordInfo};

pub(crate) use config::{Barrier, Config, PLAIN_HOST};
pub(crate) use show::value;
pub(crate) use thread::destination;
use thread::{Pc, Vcpu, op as thread_op};

/// Agents by number.
pub(crate) mod agent {
    pub(crate) const V0: u8 = 0;
    pub(crate) const V1: u8 = 1;
    pub(crate) const DEVICE: u8 = 2;
    pub(crate) const POSTER: u8 = 3;
    pub(crate) const IRQ0: u8 = 4;
    pub(crate) const KICKER: u8 = 6;
}

/// APIC ids of the two CPUs.
pub(crate) const APIC_IDS: [u32; 2] = [0x10, 0x21];
/// The vector of device and IPI, and that of the remote poster.
pub(crate) const VECTORS: [u8; 2] = [0x41, 0x52];

/// Slots of the words, in the order of creation.
pub(crate) mod slot {
    pub(crate) const PIR: usize = 0;
    pub(crate) const CONTROL: usize = 1;
    pub(crate) const IRR: usize = 2;
    pub(crate) const MODE: usize = 3;
    pub(crate) const REQUESTS: usize = 4;
    pub(crate) const WAIT: usize = 6;
    pub(crate) const PER_VCPU: usize = 7;
    pub(crate) const LISTS: usize = 14;
}

/// Physical interrupts that wait at a CPU.
pub(crate) mod pending {
    pub(crate) const NOTIFICATION: u8 = 1;
    pub(crate) const WAKEUP: u8 = 2;
    pub(crate) const RESCHEDULE: u8 = 4;
}

/// One CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cpu {
    pub(crate) pending: u8,
    /// The handler of the wakeup vector is due.
    pub(crate) in_handler: bool,
}

/// All that is not in shared words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Local {
    pub(crate) vcpus: [Vcpu; 2],
    pub(crate) cpus: [Cpu; 2],
    /// An interrupt that device, poster, kicker or vCPU 1 is about to send: CPU and kind.
    pub(crate) sending: [Option<(u8, u8)>; 4],
    /// The remote poster must still wake the vCPU.
    pub(crate) wake_due: bool,
    /// Posts that were made, by vector.
    pub(crate) posted: [u8; 2],
    /// Interrupts that the guest took, by vector.
    pub(crate) delivered: [u8; 2],
    pub(crate) device_left: u8,
    pub(crate) poster_left: u8,
    pub(crate) ipi_left: u8,
    pub(crate) kicks_left: u8,
    pub(crate) irq_kicks_left: u8,
    pub(crate) migrations_left: u8,
    pub(crate) assigned: bool,
    pub(crate) assignment_told: bool,
}

impl Hash for Local {
    /// In few numbers: each one costs as much as a byte.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self {
            vcpus,
            cpus: [cpu_0, cpu_1],
            sending,
            wake_due,
            posted,
            delivered,
            device_left,
            poster_left,
            ipi_left,
            kicks_left,
            irq_kicks_left,
            migrations_left,
            assigned,
            assignment_told,
        } = *self;
        let flags = [
            wake_due,
            assigned,
            assignment_told,
            cpu_0.in_handler,
            cpu_1.in_handler,
        ];
        let counts = [
            posted[0],
            posted[1],
            delivered[0],
            delivered[1],
            device_left,
            poster_left,
            ipi_left,
            kicks_left,
        ];
        let rest = [
            irq_kicks_left,
            migrations_left,
            cpu_0.pending,
            cpu_1.pending,
            packed(flags),
            0,
            0,
            0,
        ];
        let sending = sending.iter().fold(0, |packed, sent| {
            let (cpu, kind) = sent.map_or((0, 0), |(cpu, kind)| (cpu + 1, kind));
            packed << 16 | u64::from(cpu) << 8 | u64::from(kind)
        });
        vcpus.hash(state);
        state.write_u64(u64::from_le_bytes(counts));
        state.write_u64(u64::from_le_bytes(rest));
        state.write_u64(sending);
    }
}

/// Truth values as bits.
fn packed<const N: usize>(flags: [bool; N]) -> u8 {
    const { assert!(N <= 8) };
    flags
        .iter()
        .rev()
        .fold(0, |bits, flag| bits << 1 | u8::from(*flag))
}

/// What vCPU 0 and its surroundings share.
#[derive(Debug)]
pub(crate) struct PiNotify {
    pub(crate) config: Config,
    pub(crate) vcpus: [SharedVcpu<Word>; 2],
    pub(crate) lists: Vec<Word>,
    /// By vCPU, CPU and whether it blocks: the vCPU's own part.
    pi_vcpus: Vec<PostedVcpu>,
    layout: Layout,
}

pub(crate) fn info(n: usize) -> WordInfo {
    // Four words of PIR, control, three reserved, four of IRR and its hint, mode, requests,
    // APICv, CPU, wait; twice; then the lists.
    const WORDS: usize = 18;
    const NAMES: [[&str; 7]; 2] = [
        ["PIR", "control", "IRR", "mode", "requests", "cpu", "wait"],
        [
            "PIR.1",
            "control.1",
            "IRR.1",
            "mode.1",
            "requests.1",
            "cpu.1",
            "wait.1",
        ],
    ];
    let vcpu = n / WORDS;
    let (class, name) = match (vcpu, n % WORDS) {
        (2, _) => (Class::Shared, ["list.cpu0", "list.cpu1"][n % WORDS % 2]),
        // No agent posts to vCPU 1 or wakes it: its words are private.
        (1, 1 | 4 | 9 | 13 | 14 | 16 | 17) => {
            let index = [1, 4, 9, 13, 14, 16, 17]
                .iter()
                .position(|w| *w == n % WORDS);
            (Class::Private(1), NAMES[1][index.unwrap_or(0)])
        }
        (_, 1) => (Class::Shared, NAMES[vcpu][0]),
        (_, 4) => (Class::Shared, NAMES[vcpu][1]),
        (_, 9) => (Class::Private(vcpu as u8), NAMES[vcpu][2]),
        (_, 13) => (Class::Shared, NAMES[vcpu][3]),
        (_, 14) => (Class::Shared, NAMES[vcpu][4]),
        (_, 16) => (Class::Shared, NAMES[vcpu][5]),
        (_, 17) => (Class::Shared, NAMES[vcpu][6]),
        _ => (Class::Constant, "constant"),
    };
    WordInfo { name, class }
}

impl PiNotify {
    /// The model of a configuration.
    pub(crate) fn new(config: Config) -> Self {
        let create = || {
            use stealtime_hypervisor::word::AtomicWord;
            let vcpus = [SharedVcpu::new(true), SharedVcpu::new(true)];
            (vcpus, vec![Word::new(0), Word::new(0)])
        };
        let ((vcpus, lists), layout) = word::allocate(create, info);
        let mut model = Self {
            config,
            vcpus,
            lists,
            pi_vcpus: Vec::new(),
            layout,
        };
        model.pi_vcpus = model.make_pi_vcpus();
        model
    }

    /// The vCPUs' own parts, made by the functions that make them in earnest.
    fn make_pi_vcpus(&self) -> Vec<PostedVcpu> {
        word::install(&self.layout, false);
        let mut vcpus = Vec::new();
        for vcpu in 0..2u32 {
            for cpu in 0..2u32 {
                let mut scratch = at_rest(self.layout.initial, ());
                let pi_vcpu = run_free(&mut scratch, vcpu as u8, |()| {
                    let config = &self.config;
                    let mut pi_vcpu = PostedVcpu::new(vcpu, config.capabilities, config.policy)
                        .with_fault(config.fault);
                    let shared = &self.vcpus[vcpu as usize];
                    let lists = word::ListWords {
                        lists: &self.lists,
                        wrong: None,
                    };
                    // A fresh vCPU is on no list, so that this cannot fail.
                    let _ = pi_vcpu.load(shared, cpu, APIC_IDS[cpu as usize], &lists, &());
                    vcpus.push(pi_vcpu.clone());
                    pi_vcpu.begin_blocking(shared, &());
                    pi_vcpu
                });
                vcpus.push(pi_vcpu);
            }
        }
        vcpus
    }

    pub(crate) fn pi_vcpu(&self, vcpu: usize, state: &Vcpu) -> &PostedVcpu {
        &self.pi_vcpus[4 * vcpu + 2 * usize::from(state.last_cpu) + usize::from(state.blocking)]
    }

    /// A LAPIC between two operations: nothing is in service then.
    pub(crate) fn lapic(state: &Vcpu) -> Lapic {
        let mut lapic = Lapic::new(true);
        lapic.set_rvi(state.rvi);
        if state.event {
            lapic.request_event();
        }
        lapic
    }

    /// The CPU that a vCPU's thread occupies.
    pub(crate) fn occupies(state: &State<Local>, vcpu: usize) -> Option<u8> {
        match state.agents[vcpu].op {
            thread_op::LOAD0 => Some(0),
            thread_op::LOAD1 => Some(1),
            _ => state.local.vcpus[vcpu].on_cpu,
        }
    }

    pub(crate) fn occupant(state: &State<Local>, cpu: u8) -> Option<usize> {
        (0..2).find(|&v| Self::occupies(state, v) == Some(cpu))
    }
}

impl Model for PiNotify {
    type Local = Local;

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn tso(&self) -> bool {
        self.config.tso
    }

    fn agents(&self) -> Vec<&'static str> {
        vec![
            "vCPU 0",
            "vCPU 1",
            "device",
            "poster",
            "IRQ CPU 0",
            "IRQ CPU 1",
            "kicker",
        ]
    }

    fn initial(&self) -> State<Local> {
        let config = &self.config;
        let vcpu = |cpu| Vcpu::in_guest(cpu);
        let local = Local {
            vcpus: [vcpu(0), vcpu(1)],
            cpus: [Cpu::default(); 2],
            sending: [None; 4],
            wake_due: false,
            posted: [0; 2],
            delivered: [0; 2],
            device_left: config.device,
            poster_left: config.poster,
            ipi_left: config.ipi,
            kicks_left: config.kicks,
            irq_kicks_left: config.irq_kicks,
            migrations_left: config.migrations,
            assigned: !config.late_assignment,
            assignment_told: !config.late_assignment,
        };
        let mut state = at_rest(self.layout.initial, local);
        for vcpu in 0..2usize {
            run_free(&mut state, vcpu as u8, |local| self.start(local, vcpu));
        }
        if !config.second_vcpu {
            state.local.vcpus[1].pc = Pc::Absent;
            state.local.vcpus[1].on_cpu = None;
        }
        state
    }

    fn choices(&self, state: &State<Local>, agent: u8, ops: &mut Vec<Op>) {
        match agent {
            agent::V0 | agent::V1 => self.thread_choices(state, usize::from(agent), ops),
            _ => self.poster_choices(state, agent, ops),
        }
    }

    fn runs(&self, state: &State<Local>, agent: u8) -> bool {
        if agent > agent::V1 {
            return true;
        }
        // While a CPU handles an interrupt, its thread does not go on.
        Self::occupies(state, usize::from(agent)).is_none_or(|cpu| {
            let irq = &state.agents[usize::from(agent::IRQ0 + cpu)];
            // Thread and handler are one CPU with one buffer: the return from an interrupt is serializing.
            let handled = irq.op == IDLE && irq.is_drained();
            !state.local.cpus[usize::from(cpu)].in_handler && handled
        })
    }

    fn preempts(&self, state: &State<Local>, agent: u8) -> Option<Op> {
        let actor = state.agents.get(usize::from(agent))?;
        (self.config.preempt && agent == agent::V0 && actor.op == thread_op::WAIT)
            .then_some(thread_op::PREEMPT)
    }

    fn resumes(&self, local: &Local, agent: u8) -> bool {
        let vcpu = local.vcpus.get(usize::from(agent));
        vcpu.is_some_and(|v| v.pc == Pc::Blocking)
    }

    fn execute(&self, local: &mut Local, agent: u8, op: Op) {
        match agent {
            agent::V0 | agent::V1 => self.thread_execute(local, usize::from(agent), op),
            _ => self.poster_execute(local, agent, op),
        }
    }

    fn check(&self, state: &State<Local>) -> Option<Violation> {
        self.violation(state)
    }

    fn describe(&self, agent: u8, op: Op) -> &'static str {
        show::operation(agent, op)
    }

    fn shown(&self, state: &State<Local>) -> Vec<(&'static str, String)> {
        show::local(&state.local)
    }

    fn value(&self, slot: usize, value: u64) -> String {
        show::value(slot, value)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::fingerprint::Fingerprint;
    use stealtime_hypervisor::posted_interrupt::Suppression;

    #[test]
    fn each_field_counts_in_the_fingerprint_of_a_state() {
        let base = PiNotify::new(Config::full(Suppression::Put))
            .initial()
            .local;
        let changes: [fn(&mut Local); 33] = [
            |_| {},
            |local| local.vcpus[0].pc = Pc::Sleepy,
            |local| local.vcpus[1].pc = Pc::Sleepy,
            |local| local.vcpus[0].back = Pc::Awake,
            |local| local.vcpus[0].on_cpu = None,
            |local| local.vcpus[0].on_cpu = Some(1),
            |local| local.vcpus[0].last_cpu ^= 1,
            |local| local.vcpus[0].rvi = 1,
            |local| local.vcpus[0].blocking ^= true,
            |local| local.vcpus[0].event ^= true,
            |local| local.vcpus[0].missed_at_arming ^= true,
            |local| local.vcpus[0].armed ^= true,
            |local| local.cpus[0].pending ^= pending::WAKEUP,
            |local| local.cpus[1].pending ^= pending::WAKEUP,
            |local| local.cpus[0].in_handler ^= true,
            |local| local.cpus[1].in_handler ^= true,
            |local| local.sending[0] = Some((0, pending::WAKEUP)),
            |local| local.sending[0] = Some((1, pending::WAKEUP)),
            |local| local.sending[0] = Some((0, pending::RESCHEDULE)),
            |local| local.sending[3] = Some((0, pending::WAKEUP)),
            |local| local.wake_due ^= true,
            |local| local.posted[0] += 1,
            |local| local.posted[1] += 1,
            |local| local.delivered[0] += 1,
            |local| local.delivered[1] += 1,
            |local| local.device_left += 1,
            |local| local.poster_left += 1,
            |local| local.ipi_left += 1,
            |local| local.kicks_left += 1,
            |local| local.irq_kicks_left += 1,
            |local| local.migrations_left += 1,
            |local| local.assigned ^= true,
            |local| local.assignment_told ^= true,
        ];
        let prints: BTreeSet<[u64; 2]> = changes
            .iter()
            .map(|change| {
                let mut local = base;
                change(&mut local);
                Fingerprint::of(&local)
            })
            .collect();
        assert_eq!(prints.len(), changes.len());
    }
}

//! `yield`: directed yields with their lag credit, against ticks, a migration and other spinners.
//!
//! There are two CPUs. CPU 0 has vCPU 0, which spins, and vCPU 1 in one group, and a third party in
//! another. CPU 1 has vCPU 2, which spins too. The scheduler works under its run queues' locks:
//! each of its operations is one step. What spinning vCPUs look at without a lock (flags, IPI
//! records, the vCPU boosted last) are shared words, and each access is a step.

mod host;
mod properties;
mod sched;

use std::sync::Arc;

use stealtime_hypervisor::directed_yield::{DirectedYield, YieldKnobs, YieldState};
use stealtime_hypervisor::ipi_tracking::{IpiContext, Unicast, record};
use stealtime_hypervisor::lag_credit::CreditFault;

use crate::model::{IDLE, Model, Op, State, Violation, at_rest, run_free};
use crate::word::{self, Class, Layout, Word, WordInfo};
use host::Host;
use sched::Sched;

/// vCPUs of the VM. The third party's number comes after theirs.
pub(crate) const VCPUS: usize = 3;
pub(crate) const THIRD: usize = VCPUS;
/// Forced reschedules of a run queue are so far apart, in ns.
pub(crate) const WINDOW_NS: u64 = 6_000_000;
/// The time advances in steps of so many ns.
const STEP_NS: u64 = 3_000_000;

const SPINNERS: [u8; 2] = [0, 1];
const CPU0: u8 = 2;
const BALANCER: u8 = 4;
const CLOCK: u8 = 5;
/// Spinner of a CPU: vCPU 0 on CPU 0, vCPU 2 on CPU 1.
const SPINS: [u32; 2] = [0, 2];

mod op {
    pub(super) const SPIN: u8 = 1;
    pub(super) const IPI: u8 = 2;
    pub(super) const TICK: u8 = 3;
    pub(super) const PICK: u8 = 4;
    pub(super) const SWITCH: u8 = 5;
    pub(super) const DETACH: u8 = 6;
    pub(super) const ATTACH: u8 = 7;
}

/// What is explored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) fault: CreditFault,
    /// Time steps, spins of vCPU 0 and of vCPU 2, ticks of each CPU, migrations.
    pub(crate) steps: u8,
    pub(crate) spins: [u8; 2],
    pub(crate) ticks: [u8; 2],
    pub(crate) migrations: u8,
    pub(crate) ipis: u8,
}

impl Config {
    /// Three spins, ticks and an IPI on one CPU, over more than a window of forced reschedules.
    pub(crate) const ONE_CPU: Self = Self {
        fault: CreditFault::None,
        steps: 4,
        spins: [3, 0],
        ticks: [3, 0],
        migrations: 0,
        ipis: 1,
    };
    /// The target moves to the other CPU while it is yielded to.
    pub(crate) const MIGRATION: Self = Self {
        steps: 2,
        spins: [2, 0],
        ticks: [1, 1],
        migrations: 1,
        ipis: 0,
        ..Self::ONE_CPU
    };
    /// Two vCPUs spin at once on two CPUs.
    pub(crate) const TWO_SPINNERS: Self = Self {
        steps: 1,
        spins: [1, 1],
        ticks: [0, 0],
        migrations: 1,
        ipis: 0,
        ..Self::ONE_CPU
    };
}

/// A switch in progress on a CPU: the previous and the next task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Switch {
    pub(crate) prev: Option<u8>,
    pub(crate) next: Option<u8>,
}

/// All that is not in shared words.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Local {
    pub(crate) sched: Arc<Sched>,
    pub(crate) now_ns: u64,
    pub(crate) steps: u8,
    pub(crate) spins: [u8; 2],
    pub(crate) ticks: [u8; 2],
    pub(crate) migrations: u8,
    pub(crate) ipis: u8,
    pub(crate) detached: bool,
    pub(crate) switching: [Option<Switch>; 2],
    /// When a reschedule was forced last on each CPU.
    pub(crate) forced: [Option<u64>; 2],
    pub(crate) wrong: Option<Wrong>,
}

/// What a step did that it must not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Wrong {
    /// The sums of a CPU's queues are not what their members say.
    Sums { cpu: u8 },
    /// A credited target's lag, and its bound.
    Lag { lag: i64, bound: i64 },
    /// Two forced reschedules of a CPU so far apart.
    Forced { cpu: u8, apart_ns: u64 },
    /// A vCPU was named that is not there, or the spinner itself.
    NoSuchTarget { spinner: u32, named: u32 },
}

/// The model.
#[derive(Debug)]
pub(crate) struct Yields {
    pub(crate) config: Config,
    pub(crate) states: Vec<YieldState<Word>>,
    pub(crate) contexts: Vec<IpiContext<Word>>,
    boosted: DirectedYield<Word>,
    knobs: YieldKnobs,
    layout: Layout,
}

impl Yields {
    pub(crate) fn new(config: Config) -> Self {
        let create = || {
            let states = (0..VCPUS).map(|_| YieldState::new()).collect();
            let contexts = (0..VCPUS).map(|_| IpiContext::new()).collect();
            (states, contexts, DirectedYield::new())
        };
        let ((states, contexts, boosted), layout) = word::allocate(create, info);
        Self {
            config,
            states,
            contexts,
            boosted,
            knobs: YieldKnobs::default(),
            layout,
        }
    }

    /// Whether the vCPU's thread is on a CPU, and no switch is under way there.
    fn on_cpu(local: &Local, vcpu: u32) -> bool {
        let cpu = (0..2).find(|&cpu| local.sched.running(cpu) == Some(vcpu as u8));
        cpu.is_some_and(|cpu| local.switching[cpu].is_none())
    }

    fn spin(&self, local: &mut Local, agent: u8) {
        let me = SPINS[usize::from(agent)];
        // Read once: it may go on before the spin ends.
        let now_ns = word::call(|| {
            local.spins[usize::from(agent)] -= 1;
            local.now_ns
        });
        let mut host = Host {
            model: self,
            local,
            me,
            cpu: usize::from(agent),
        };
        // The spinner exists.
        let spun = self
            .boosted
            .on_spin(&mut host, &self.knobs, me, true, now_ns, &());
        if let Ok(outcome) = spun
            && !word::stopped()
            && let Some(boost) = outcome.boosted
            && (boost.vcpu == me || boost.vcpu as usize >= VCPUS)
        {
            local.wrong = Some(Wrong::NoSuchTarget {
                spinner: me,
                named: boost.vcpu,
            });
        }
    }

    /// The second half of a switch: what the vCPUs' notifiers write.
    fn switch(&self, local: &mut Local, cpu: usize) {
        let Some(Switch { prev, next }) = local.switching[cpu] else {
            debug_assert!(false, "no switch is in progress");
            return;
        };
        use stealtime_hypervisor::directed_yield::SchedOut;
        let state = |task: Option<u8>| self.states.get(usize::from(task?));
        if let Some(state) = state(prev) {
            state.sched_out(SchedOut {
                runnable: true,
                wants_to_run: true,
                in_kernel: true,
            });
        }
        if let Some(state) = state(next) {
            state.sched_in();
        }
        word::call(|| {
            local.switching[cpu] = None;
            0
        });
    }

    fn balance(&self, local: &mut Local, op: Op) {
        word::call(|| {
            let now = local.now_ns;
            let sched = Arc::make_mut(&mut local.sched);
            if op == op::DETACH {
                local.detached = sched.detach(1, now);
                local.migrations -= 1;
            } else {
                sched.attach(1, 1, now);
                local.detached = false;
            }
            0
        });
    }

    fn cpu(&self, local: &mut Local, cpu: usize, op: Op) {
        if op == op::SWITCH {
            self.switch(local, cpu);
            return;
        }
        word::call(|| {
            let now = local.now_ns;
            let sched = Arc::make_mut(&mut local.sched);
            if op == op::TICK {
                sched.tick(cpu, now);
                local.ticks[cpu] -= 1;
            } else {
                local.switching[cpu] = sched.pick(cpu, now);
            }
            local.look_at_sums();
            0
        });
    }
}

impl Local {
    fn look_at_sums(&mut self) {
        if let Some(cpu) = (0..2u8).find(|cpu| !self.sched.consistent(usize::from(*cpu))) {
            self.wrong = Some(Wrong::Sums { cpu });
        }
    }
}

fn info(n: usize) -> WordInfo {
    const FLAGS: [&str; VCPUS] = ["flags.0", "flags.1", "flags.2"];
    const CONTEXT: [&str; 3] = ["outgoing.0", "time.0", "sender"];
    let after = n.checked_sub(VCPUS);
    let (name, class) = match after {
        None => (FLAGS[n % VCPUS], Class::Shared),
        // vCPU 0 alone sends.
        Some(n @ 0..2) => (CONTEXT[n], Class::Private(SPINNERS[0])),
        // A receiver keeps its sender: no agent ends an interrupt here.
        Some(n) if n < 3 * VCPUS && n % 3 == 2 => (CONTEXT[2], Class::Private(SPINNERS[0])),
        Some(n) if n < 3 * VCPUS => ("constant", Class::Constant),
        Some(_) => ("last boosted", Class::Shared),
    };
    WordInfo { name, class }
}

impl Model for Yields {
    type Local = Local;

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn keeps_each_step(&self) -> bool {
        true
    }

    fn heap_bytes(&self) -> usize {
        // A scheduler of four tasks and two groups on two CPUs.
        8 * 1024
    }

    fn agents(&self) -> Vec<&'static str> {
        vec!["vCPU 0", "vCPU 2", "CPU 0", "CPU 1", "balancer", "time"]
    }

    fn initial(&self) -> State<Local> {
        let sched = Sched::new(self.config.fault);
        let now_ns = sched.started_ns;
        let local = Local {
            sched: Arc::new(sched),
            now_ns,
            steps: self.config.steps,
            spins: self.config.spins,
            ticks: self.config.ticks,
            migrations: self.config.migrations,
            ipis: self.config.ipis,
            detached: false,
            switching: [None; 2],
            forced: [None; 2],
            wrong: None,
        };
        let mut state = at_rest(self.layout.initial, local);
        // vCPU 1 was preempted in its kernel: it is what a spinner looks for.
        run_free(&mut state, SPINNERS[0], |local| {
            let next = local.sched.running(0);
            local.switching[0] = Some(Switch {
                prev: Some(1),
                next,
            });
            self.switch(local, 0);
        });
        state
    }

    fn choices(&self, state: &State<Local>, agent: u8, ops: &mut Vec<Op>) {
        let local = &state.local;
        match agent {
            0 | 1 if Self::on_cpu(local, SPINS[usize::from(agent)]) => {
                if local.spins[usize::from(agent)] > 0 {
                    ops.push(op::SPIN);
                }
                if agent == 0 && local.ipis > 0 {
                    ops.push(op::IPI);
                }
            }
            CPU0 | 3 => {
                let cpu = usize::from(agent - CPU0);
                if local.switching[cpu].is_some() {
                    ops.push(op::SWITCH);
                } else {
                    if local.sched.wants_pick(cpu) {
                        ops.push(op::PICK);
                    }
                    if local.ticks[cpu] > 0 {
                        ops.push(op::TICK);
                    }
                }
            }
            BALANCER => {
                if local.detached {
                    ops.push(op::ATTACH);
                } else if local.migrations > 0 && local.sched.may_detach(1) {
                    ops.push(op::DETACH);
                }
            }
            CLOCK if local.steps > 0 => ops.push(1),
            _ => {}
        }
    }

    fn runs(&self, state: &State<Local>, agent: u8) -> bool {
        // A vCPU in its spin continues once it is current again.
        let spinner = SPINS.get(usize::from(agent));
        spinner.is_none_or(|vcpu| Self::on_cpu(&state.local, *vcpu))
    }

    fn execute(&self, local: &mut Local, agent: u8, op: Op) {
        match (agent, op) {
            (0 | 1, op::SPIN) => self.spin(local, agent),
            (0 | 1, _) => {
                let now_ns = word::call(|| {
                    local.ipis -= 1;
                    local.now_ns
                });
                // Both vCPUs exist.
                let ipi = Unicast {
                    sender: 0,
                    receiver: 1,
                    vector: 0x41,
                };
                let _ = record(&self.contexts, &self.knobs.ipi, &ipi, now_ns, &());
            }
            (CPU0 | 3, _) => self.cpu(local, usize::from(agent - CPU0), op),
            (BALANCER, _) => self.balance(local, op),
            _ => {
                word::call(|| {
                    local.now_ns += STEP_NS;
                    local.steps -= 1;
                    0
                });
            }
        }
    }

    fn check(&self, state: &State<Local>) -> Option<Violation> {
        properties::violation(&state.local)
    }

    fn describe(&self, _agent: u8, op: Op) -> &'static str {
        match op {
            op::SPIN => "spin",
            op::IPI => "send IPI to vCPU 1",
            op::TICK => "tick",
            op::PICK => "pick",
            op::SWITCH => "switch",
            op::DETACH => "detach vCPU 1",
            op::ATTACH => "attach to CPU 1",
            IDLE => "",
            _ => "advances",
        }
    }

    fn shown(&self, state: &State<Local>) -> Vec<(&'static str, String)> {
        properties::shown(&state.local)
    }

    fn value(&self, slot: usize, value: u64) -> String {
        properties::word(slot, value)
    }
}

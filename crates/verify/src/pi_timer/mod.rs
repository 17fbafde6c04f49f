//! `pi-timer`: a guest's deadline timer against a vCPU that enters, leaves, blocks and moves.
//!
//! One vCPU has two CPUs: the first is isolated, and the second a housekeeping CPU. The hrtimer's
//! callback runs on a third CPU, and time is an agent of its own. The timer's owner serializes its
//! calls, as the documentation requires. Each is one step; one that cancels waits for a running
//! callback.
//! What a call wants done (posting, requests, kicks) follows step by step, on shared words.

mod callback;
mod properties;
mod show;
mod thread;

use stealtime_hypervisor::lapic::Lapic;
use stealtime_hypervisor::lapic_timer::{
    Action, GuestTsc, LapicTimer, Now, TimerEnvironment, TimerParameters, TimerPolicy,
};
use stealtime_hypervisor::posted_interrupt::{
    Capabilities, PostedVcpu, SharedVcpu, Suppression, VcpuMode,
};

use crate::model::{Model, Op, State, Violation, at_rest, run_free};
use crate::pi_notify::{APIC_IDS, PLAIN_HOST, info};
use crate::word::{self, Layout, ListWords, Word};

/// Agents by number.
pub(crate) mod agent {
    pub(crate) const VCPU: u8 = 0;
    pub(crate) const CALLBACK: u8 = 1;
    pub(crate) const IRQ0: u8 = 2;
    pub(crate) const CLOCK: u8 = 4;
}

/// The timer's vector.
pub(crate) const VECTOR: u8 = 0x41;
/// The deadlines that the guest programs, in ns and cycles alike: its TSC runs at 1 GHz.
const DEADLINES: [u64; 2] = [100_000, 200_000];
/// A deadline's hrtimer with an advance of 1000 ns, and where a wait cut to the advance that was
/// made smaller ends.
const INSTANTS_IN_ADVANCE: [i64; 4] = [0, 99_000, 99_875, 100_000];
const INSTANTS: [i64; 3] = [0, 100_000, 200_000];

/// Where the timer runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    /// The preemption timer, an hrtimer while the vCPU blocks.
    Hv,
    /// An hrtimer; expiries are injected by the vCPU's thread.
    Hrtimer,
    /// An hrtimer; expiries are posted to a vCPU in guest mode.
    Posted,
    /// Posted on the isolated CPU, the preemption timer on the other: a move switches.
    Switching,
}

/// What is put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// Arming anew does not wait for a callback that runs.
    CancelNotAwaited,
    /// The run loop looks for pending expiries before it takes requests, not after.
    LooksTooEarly,
    /// A posted expiry is pending as well.
    BothWays,
    /// An expiry wakes the vCPU, but makes no request.
    NoRequest,
    /// The preemption timer keeps the deadline while the vCPU blocks.
    HvWhileBlocking,
    /// The poster does not wait for the deadline itself.
    NoSpin,
}

/// What is explored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) backend: Backend,
    pub(crate) fault: Fault,
    /// Deadlines that the guest programs, at most two.
    pub(crate) deadlines: u8,
    pub(crate) migrations: u8,
    pub(crate) preempt: bool,
    /// Timers fire in advance, and the rest is waited for.
    pub(crate) advance: bool,
    /// HLT leaves the guest and blocks.
    pub(crate) blocks: bool,
    /// An interrupt that an entry delivers may come early by as much as the wait there is cut.
    pub(crate) entry_may_cut: bool,
}

impl Config {
    pub(crate) fn of(backend: Backend) -> Self {
        Self {
            backend,
            fault: Fault::None,
            deadlines: 2,
            migrations: 1,
            preempt: true,
            advance: false,
            blocks: true,
            entry_may_cut: false,
        }
    }
}

/// Where the vCPU's thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Pc {
    /// Runnable, without a CPU.
    Out,
    /// In the run loop, about to take requests.
    Requests,
    /// In the run loop, about to look for pending expiries.
    Pending,
    /// In the run loop, about to enter.
    Enter,
    /// In guest mode, or entering with interrupts off until the deadline.
    EntryWait,
    Guest,
    /// The processor has taken a notification.
    Notifying,
    /// An exit that is handled with interrupts off: the guest programs its timer.
    Programming,
    /// Such an exit is about to re-enter.
    FastExit,
    /// A fast exit found something to do.
    Leaving,
    Halted,
    /// The timer has been switched for blocking.
    Switched,
    Blocking,
    Sleepy,
    SwitchingOut,
    Asleep,
    Awake,
    /// Blocking has ended; the timer is to be switched back.
    Unblocked,
}

/// The hrtimer's callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Callback {
    Idle,
    /// Taken off the queue; it runs.
    Runs,
    /// It has read the vCPU's mode.
    Looked(VcpuMode),
    /// The timer has said what to do.
    Acts,
}

/// All that is not in shared words.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Local {
    pub(crate) pc: Pc,
    pub(crate) back: Pc,
    pub(crate) on_cpu: Option<u8>,
    pub(crate) last_cpu: u8,
    pub(crate) blocking: bool,
    /// Loaded on another CPU, before the timer is restarted there.
    pub(crate) moved: bool,
    pub(crate) rvi: u8,
    pub(crate) event: bool,
    pub(crate) timer: LapicTimer,
    /// Interrupts that the thread is to inject.
    pub(crate) inject: u8,
    /// The hrtimer, while it is on a queue.
    pub(crate) queue: Option<i64>,
    pub(crate) callback: Callback,
    pub(crate) todo: [Option<Action>; 4],
    /// When a busy wait ends: the callback's, the thread's.
    pub(crate) spins: [Option<i64>; 2],
    pub(crate) sending: Option<(u8, u8)>,
    pub(crate) wake_due: bool,
    pub(crate) pending: [u8; 2],
    /// Index of the instant.
    pub(crate) at: u8,
    pub(crate) programmed: u8,
    pub(crate) migrations_left: u8,
    /// The deadline armed last has been reached, and has not been delivered since.
    pub(crate) due: bool,
    /// Deliveries that deadlines reached allow.
    pub(crate) allowed: u8,
    pub(crate) delivered: u8,
    /// The deadline armed last was delivered before it was reached, as an entry may.
    pub(crate) early: bool,
    /// A delivery that nothing allowed: the instant, and the next deadline if it was early.
    pub(crate) wrong: Option<(i64, Option<u64>)>,
}

/// The model.
#[derive(Debug)]
pub(crate) struct PiTimer {
    pub(crate) config: Config,
    pub(crate) vcpu: SharedVcpu<Word>,
    pub(crate) lists: Vec<Word>,
    /// By CPU and whether it blocks.
    pi_vcpus: Vec<PostedVcpu>,
    layout: Layout,
}

const CAPABILITIES: Capabilities = PLAIN_HOST;
pub(crate) const POLICY: Suppression = Suppression::Corrected;

impl PiTimer {
    pub(crate) fn new(config: Config) -> Self {
        let (vcpu, layout) = word::allocate(|| SharedVcpu::new(true), info);
        let mut model = Self {
            config,
            vcpu,
            lists: Vec::new(),
            pi_vcpus: Vec::new(),
            layout,
        };
        word::install(&model.layout, false);
        for cpu in 0..2u32 {
            let mut scratch = at_rest(model.layout.initial, ());
            let (loaded, blocking) = run_free(&mut scratch, agent::VCPU, |()| {
                let mut pi_vcpu = PostedVcpu::new(0, CAPABILITIES, POLICY);
                let lists = model.lists();
                // On no list: this cannot fail.
                let _ = pi_vcpu.load(&model.vcpu, cpu, APIC_IDS[cpu as usize], &lists, &());
                let loaded = pi_vcpu.clone();
                pi_vcpu.begin_blocking(&model.vcpu, &());
                (loaded, pi_vcpu)
            });
            model.pi_vcpus.extend([loaded, blocking]);
        }
        model
    }

    pub(crate) fn lists(&self) -> ListWords<'_> {
        ListWords {
            lists: &self.lists,
            wrong: None,
        }
    }

    pub(crate) fn pi_vcpu(&self, local: &Local) -> &PostedVcpu {
        &self.pi_vcpus[2 * usize::from(local.last_cpu) + usize::from(local.blocking)]
    }

    pub(crate) fn lapic(local: &Local) -> Lapic {
        let mut lapic = Lapic::new(true);
        lapic.set_rvi(local.rvi);
        if local.event {
            lapic.request_event();
        }
        lapic
    }

    fn instants(&self) -> &'static [i64] {
        if self.config.advance {
            &INSTANTS_IN_ADVANCE
        } else {
            &INSTANTS[..=usize::from(self.config.deadlines.min(2))]
        }
    }

    pub(crate) fn ns(&self, local: &Local) -> i64 {
        let instants = self.instants();
        instants[usize::from(local.at).min(instants.len() - 1)]
    }

    pub(crate) fn now(&self, local: &Local) -> Now {
        let ns = self.ns(local);
        Now {
            ns,
            host_tsc: ns.unsigned_abs(),
        }
    }

    /// The environment that each call passes to the timer.
    pub(crate) fn environment(&self, local: &Local) -> TimerEnvironment {
        let backend = self.config.backend;
        TimerEnvironment {
            pi_inject_timer: matches!(backend, Backend::Posted | Backend::Switching),
            apicv: true,
            mwait_in_guest: false,
            hlt_in_guest: !self.config.blocks,
            hv_shift: (backend != Backend::Hrtimer).then_some(5),
            on_housekeeping_cpu: local.last_cpu == 1,
            wants_to_run: true,
        }
    }

    /// The deadline that the guest programmed last.
    pub(crate) fn deadline(local: &Local) -> Option<u64> {
        let last = usize::from(local.programmed).checked_sub(1)?;
        DEADLINES.get(last).copied()
    }

    fn first_timer(&self) -> LapicTimer {
        let policy = match self.config.backend {
            Backend::Hv | Backend::Hrtimer => TimerPolicy::Off,
            Backend::Posted => TimerPolicy::Always,
            Backend::Switching => TimerPolicy::IsolatedOnly,
        };
        let parameters = TimerParameters {
            policy,
            advance: self.config.advance,
            ..TimerParameters::default()
        };
        let tsc = GuestTsc::new(1_000_000, GuestTsc::NEUTRAL, 0);
        let tsc = tsc.unwrap_or_else(|error| unreachable!("1 GHz: {error}"));
        let mut timer = LapicTimer::new(parameters, tsc);
        // TSC deadline; nothing is armed that would have to be cancelled.
        let _ = timer.write_lvt(0x40000 | u32::from(VECTOR));
        timer
    }
}

impl Model for PiTimer {
    type Local = Local;

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn agents(&self) -> Vec<&'static str> {
        vec!["vCPU 0", "callback", "IRQ CPU 0", "IRQ CPU 1", "time"]
    }

    fn initial(&self) -> State<Local> {
        let local = Local {
            pc: Pc::Guest,
            back: Pc::Requests,
            on_cpu: Some(0),
            last_cpu: 0,
            blocking: false,
            moved: false,
            rvi: 0,
            event: false,
            timer: self.first_timer(),
            inject: 0,
            queue: None,
            callback: Callback::Idle,
            todo: [None; 4],
            spins: [None; 2],
            sending: None,
            wake_due: false,
            pending: [0; 2],
            at: 0,
            programmed: 0,
            migrations_left: self.config.migrations,
            due: false,
            allowed: 0,
            delivered: 0,
            early: false,
            wrong: None,
        };
        let mut state = at_rest(self.layout.initial, local);
        run_free(&mut state, agent::VCPU, |local| {
            let mut pi_vcpu = PostedVcpu::new(0, CAPABILITIES, POLICY);
            let _ = pi_vcpu.load(&self.vcpu, 0, APIC_IDS[0], &self.lists(), &());
            let mut lapic = Self::lapic(local);
            let _ = pi_vcpu.enter(&self.vcpu, &mut lapic, &());
        });
        state
    }

    fn choices(&self, state: &State<Local>, agent: u8, ops: &mut Vec<Op>) {
        match agent {
            agent::VCPU => self.thread_choices(state, ops),
            agent::CALLBACK => self.callback_choices(&state.local, ops),
            agent::CLOCK if usize::from(state.local.at) + 1 < self.instants().len() => ops.push(1),
            irq if irq < agent::CLOCK => self.irq_choices(state, irq - agent::IRQ0, ops),
            _ => {}
        }
    }

    fn execute(&self, local: &mut Local, agent: u8, op: Op) {
        match agent {
            agent::VCPU => self.thread_execute(local, op),
            agent::CALLBACK => self.callback_execute(local, op),
            agent::CLOCK => self.tick(local),
            irq => local.pending[usize::from(irq - agent::IRQ0) % 2] &= !op,
        }
    }

    fn check(&self, state: &State<Local>) -> Option<Violation> {
        self.violation(state)
    }

    fn describe(&self, agent: u8, op: Op) -> &'static str {
        show::operation(agent, op)
    }

    fn shown(&self, state: &State<Local>) -> Vec<(&'static str, String)> {
        show::local(self, &state.local)
    }

    fn value(&self, slot: usize, value: u64) -> String {
        crate::pi_notify::value(slot, value)
    }
}

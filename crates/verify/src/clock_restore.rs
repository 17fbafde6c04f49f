//! `clock` while vCPUs run: the VM's time is restored, or its master clock taken anew.
//!
//! The host keeps all vCPUs out of the guest during the restore, and each updates its own page
//! before it enters again. Otherwise a guest would read a new time on one vCPU and then an old one
//! on another.

use stealtime_hypervisor::counter::kvm_clock::KvmClockData;
use stealtime_hypervisor::counter::pvclock::PvclockPage;
use stealtime_hypervisor::counter::scaling::{HostTsc, RatioFormat};
use stealtime_hypervisor::counter::tsc_sync::{HostInstant, VcpuTsc, VmTsc};
use stealtime_hypervisor::lapic::Lapic;
use stealtime_hypervisor::posted_interrupt::{
    Capabilities, Entry, Kick, PostedVcpu, Requests, SharedVcpu, Suppression, kick,
};

use crate::model::{IDLE, Model, Op, State, Violation, at_rest, run_free};
use crate::word::{self, Class, Layout, Word, WordInfo};

const VCPUS: usize = 2;
const HOST: u8 = 2;
const READS: u8 = 2;

/// `KVM_REQ_MCLOCK_INPROGRESS`: no entry while it is there.
const IN_PROGRESS: Requests = Requests(1 << 8);
/// `KVM_REQ_CLOCK_UPDATE`: bring the page up to date.
const CLOCK_UPDATE: Requests = Requests(1 << 9);

const TSC: HostTsc = HostTsc::new(1_000_000, RatioFormat::VMX);
const BEFORE: HostInstant = HostInstant {
    ns: 5_000,
    tsc: 5_000,
    real_ns: 5_000,
};
/// The host's clock has run ahead of its TSC by 7 ns.
const AFTER: HostInstant = HostInstant {
    ns: 6_007,
    tsc: 6_000,
    real_ns: 6_007,
};

/// What the host does to the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// `KVM_SET_CLOCK`.
    Restore,
    /// A new pair of host instants.
    Update,
}

/// What is put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// vCPUs are not kept out.
    EntryNotBlocked,
    /// Those in the guest are kicked, but not awaited.
    ExitsNotAwaited,
    /// vCPUs may enter before they receive the request to update their page.
    UnblockedTooEarly,
}

mod op {
    pub(super) const REQUESTS: u8 = 1;
    pub(super) const ENTER: u8 = 2;
    pub(super) const READ: u8 = 3;
    pub(super) const EXIT: u8 = 4;
    /// The host's steps, for vCPU 0 and vCPU 1.
    pub(super) const KICK: u8 = 1;
    pub(super) const AWAIT: u8 = 3;
    pub(super) const CHANGE: u8 = 5;
    pub(super) const TELL: u8 = 6;
    pub(super) const UNBLOCK: u8 = 8;
}

/// The host's steps in order.
const STEPS: [u8; 9] = [1, 2, 3, 4, 5, 6, 7, 8, 9];
const STEPS_TOO_EARLY: [u8; 9] = [1, 2, 3, 4, 5, 8, 9, 6, 7];

/// All that is not in shared words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Local {
    vm: VmTsc,
    tsc: [VcpuTsc; VCPUS],
    in_guest: [bool; VCPUS],
    reads_left: [u8; VCPUS],
    step: u8,
    /// Kicked while in guest mode: must be awaited.
    kicked: [bool; VCPUS],
    latest_ns: u64,
    back: Option<(u8, u64, u64)>,
}

/// The model.
#[derive(Debug)]
pub(crate) struct ClockRestore {
    vcpus: Vec<SharedVcpu<Word>>,
    pages: Vec<PvclockPage<Word>>,
    pi_vcpu: PostedVcpu,
    layout: Layout,
    change: Change,
    fault: Fault,
}

fn info(n: usize) -> WordInfo {
    const WORDS: usize = 18;
    const SHARED: [[&str; 2]; VCPUS] = [["mode.0", "requests.0"], ["mode.1", "requests.1"]];
    const PAGE: [[&str; 4]; VCPUS] = [
        ["version.0", "tsc.0", "time.0", "scale.0"],
        ["version.1", "tsc.1", "time.1", "scale.1"],
    ];
    let vcpu = n / WORDS;
    let (name, class) = match n.checked_sub(VCPUS * WORDS) {
        // A vCPU's page is written and read on its own thread.
        Some(n) => (PAGE[n / 4 % 2][n % 4], Class::Private((n / 4) as u8)),
        None if n % WORDS == 13 => (SHARED[vcpu][0], Class::Shared),
        None if n % WORDS == 14 => (SHARED[vcpu][1], Class::Shared),
        None => ("constant", Class::Constant),
    };
    WordInfo { name, class }
}

impl ClockRestore {
    pub(crate) fn new(change: Change, fault: Fault) -> Self {
        let create = || {
            let vcpus = (0..VCPUS).map(|_| SharedVcpu::new(true)).collect();
            let pages = (0..VCPUS).map(|_| PvclockPage::new()).collect();
            (vcpus, pages)
        };
        let ((vcpus, pages), layout) = word::allocate(create, info);
        let capabilities = Capabilities {
            apicv: true,
            irqchip: true,
            ipiv: false,
            vtd_posting: false,
            host_x2apic: true,
        };
        Self {
            vcpus,
            pages,
            pi_vcpu: PostedVcpu::new(0, capabilities, Suppression::Put),
            layout,
            change,
            fault,
        }
    }

    /// The vCPU's page as its time is now.
    fn update_page(&self, local: &mut Local, vcpu: usize) {
        let now = if local.step > 4 { AFTER } else { BEFORE };
        // 1 GHz has a scale.
        let time = local
            .vm
            .guest_time_update(&mut local.tsc[vcpu], &TSC, &now, false);
        if let Ok(time) = time {
            self.pages[vcpu].publish(time);
        }
    }

    fn thread(&self, local: &mut Local, vcpu: usize, op: Op) {
        let shared = &self.vcpus[vcpu];
        match op {
            op::REQUESTS => {
                if shared.take(CLOCK_UPDATE).0 != 0 {
                    self.update_page(local, vcpu);
                }
            }
            op::ENTER => {
                let mut lapic = Lapic::new(true);
                let entered = self.pi_vcpu.enter(shared, &mut lapic, &());
                local.in_guest[vcpu] = entered == Entry::Run;
            }
            op::READ => {
                // A guest that finds its page in an update reads again: this read is not counted.
                if let Ok((time, _, ())) = self.pages[vcpu].try_read(|| ()) {
                    let ns = time.at(AFTER.tsc);
                    if ns < local.latest_ns {
                        local.back = Some((vcpu as u8, ns, local.latest_ns));
                    }
                    local.latest_ns = local.latest_ns.max(ns);
                    local.reads_left[vcpu] -= 1;
                }
            }
            _ => {
                self.pi_vcpu.vm_exit(shared, &());
                self.pi_vcpu.leave(shared, &());
                local.in_guest[vcpu] = false;
            }
        }
    }

    fn steps(&self) -> &'static [u8; 9] {
        if self.fault == Fault::UnblockedTooEarly {
            &STEPS_TOO_EARLY
        } else {
            &STEPS
        }
    }

    fn host(&self, local: &mut Local, op: Op) {
        match op {
            op::CHANGE => self.change(local),
            n if n < op::AWAIT => {
                if self.fault != Fault::EntryNotBlocked {
                    let vcpu = usize::from(n - op::KICK);
                    let action = kick(&self.vcpus[vcpu], IN_PROGRESS, false);
                    local.kicked[vcpu] = matches!(action, Kick::Ipi(_));
                }
            }
            n if n < op::CHANGE => {}
            n if n < op::UNBLOCK => {
                let vcpu = usize::from(n - op::TELL);
                if local.vm.needs_clock_update(&local.tsc[vcpu]) {
                    self.vcpus[vcpu].request(CLOCK_UPDATE);
                }
            }
            n => {
                let _ = self.vcpus[usize::from(n - op::UNBLOCK)].take(IN_PROGRESS);
            }
        }
        local.step += 1;
    }

    /// Whether the host can take a step: it waits for the exit of each vCPU that it has kicked.
    fn is_ready(&self, state: &State<Local>, step: Op) -> bool {
        if !(op::AWAIT..op::CHANGE).contains(&step) || self.fault == Fault::ExitsNotAwaited {
            return true;
        }
        let (local, vcpu) = (&state.local, usize::from(step - op::AWAIT));
        let enters = state.agents[vcpu].op != IDLE;
        !local.kicked[vcpu] || !(local.in_guest[vcpu] || enters)
    }

    fn change(&self, local: &mut Local) {
        if self.change == Change::Update {
            local.vm.refresh_master_clock(&TSC, &AFTER);
            return;
        }
        let data = KvmClockData {
            clock_ns: 1_000_000,
            ..KvmClockData::default()
        };
        // No unknown flags.
        let _ = local.vm.set_clock(&TSC, &AFTER, &data);
    }
}

impl Model for ClockRestore {
    type Local = Local;

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn agents(&self) -> Vec<&'static str> {
        vec!["vCPU 0", "vCPU 1", "host"]
    }

    fn initial(&self) -> State<Local> {
        let mut vm = VmTsc::new(&TSC, &HostInstant::default());
        let mut host = TSC;
        let mut create = |cpu| vm.create_vcpu(&mut host, &BEFORE, cpu, 1_000_000, false).0;
        let tsc = [create(0), create(1)];
        vm.refresh_master_clock(&TSC, &BEFORE);
        let local = Local {
            vm,
            tsc,
            in_guest: [false; VCPUS],
            reads_left: [READS; VCPUS],
            step: 0,
            kicked: [false; VCPUS],
            latest_ns: 0,
            back: None,
        };
        let mut state = at_rest(self.layout.initial, local);
        for vcpu in 0..VCPUS {
            run_free(&mut state, vcpu as u8, |local| {
                self.update_page(local, vcpu);
                self.thread(local, vcpu, op::ENTER);
            });
        }
        state
    }

    fn choices(&self, state: &State<Local>, agent: u8, ops: &mut Vec<Op>) {
        let local = &state.local;
        if agent == HOST {
            let next = self.steps().get(usize::from(local.step)).copied();
            ops.extend(next.filter(|&next| self.is_ready(state, next)));
            return;
        }
        let vcpu = usize::from(agent);
        if vcpu >= VCPUS {
            return;
        }
        if local.in_guest[vcpu] {
            ops.push(op::EXIT);
            if local.reads_left[vcpu] > 0 {
                ops.push(op::READ);
            }
            return;
        }
        // The word of requests is its second.
        let requests = state.mem[2 * vcpu + 1];
        if requests & CLOCK_UPDATE.0 != 0 {
            ops.push(op::REQUESTS);
        } else if requests & IN_PROGRESS.0 == 0 {
            ops.push(op::ENTER);
        }
    }

    fn execute(&self, local: &mut Local, agent: u8, op: Op) {
        if agent == HOST {
            self.host(local, op);
        } else {
            self.thread(local, usize::from(agent) % VCPUS, op);
        }
    }

    fn check(&self, state: &State<Local>) -> Option<Violation> {
        let (vcpu, ns, latest) = state.local.back?;
        let sentence = format!("vCPU {vcpu} reads {ns} ns after a vCPU has read {latest} ns");
        Some(Violation::new("no-time-travel", sentence))
    }

    fn describe(&self, agent: u8, op: Op) -> &'static str {
        if agent != HOST {
            return match op {
                op::REQUESTS => "update page",
                op::ENTER => "enter guest",
                op::READ => "read clock",
                _ => "exit guest",
            };
        }
        match op {
            1 => "keep vCPU 0 out",
            2 => "keep vCPU 1 out",
            3 => "await vCPU 0",
            4 => "await vCPU 1",
            op::CHANGE if self.change == Change::Restore => "restore clock",
            op::CHANGE => "new master clock",
            6 => "tell vCPU 0",
            7 => "tell vCPU 1",
            8 => "let vCPU 0 in",
            _ => "let vCPU 1 in",
        }
    }

    fn shown(&self, state: &State<Local>) -> Vec<(&'static str, String)> {
        let local = &state.local;
        let place = |v: usize| {
            if local.in_guest[v] {
                "in guest"
            } else {
                "in host"
            }
            .to_owned()
        };
        vec![
            ("vCPU 0", place(0)),
            ("vCPU 1", place(1)),
            ("latest", format!("{} ns", local.latest_ns)),
        ]
    }
}

//! Guests: a kernel in small, and the threads that it runs.
//!
//! A vCPU in guest mode works off [`Micro`] steps: some take time, some leave the guest, some do
//! something at an instant. An interrupt's steps come before those of what it interrupted.

mod build;
pub(crate) mod call;
pub(crate) mod clock;
pub(crate) mod counter;
pub(crate) mod deadlock;
pub(crate) mod idle;
pub(crate) mod irq;
mod kernel;
pub(crate) mod lock;
pub(crate) mod mutex;
mod queues;
mod sched;
pub(crate) mod source;
pub(crate) mod spin;
mod step;
mod steps;
pub(crate) mod stretch;
pub(crate) mod timer;

use stealtime_hypervisor::fair::{Resched, RqId};

pub use build::{Arrivals, GuestBuilder};
pub(crate) use kernel::{DeviceInterrupt, Kernel, ThreadState};
pub(crate) use step::Progress;
pub(crate) use steps::Steps;

use crate::at::At;
use crate::config::{GuestConfig, VmConfig};
use crate::fault::Sim;
use crate::host::Host;
use crate::ids::{Table, TaskNr, ThreadNr, VcpuNr, VmNr};
use crate::kvm::Exit;
use crate::migration::GuestClock;
use crate::program::{DeviceId, MutexId, QueueId, SourceId, SpinId};

/// The guest's timer vector.
pub(crate) const LOCAL_TIMER_VECTOR: u8 = 0xec;
/// The guest's reschedule vector.
pub(crate) const RESCHEDULE_VECTOR: u8 = 0xfd;
/// The guest's call-function vector.
pub(crate) const CALL_FUNCTION_VECTOR: u8 = 0xfb;
/// The first device's vector.
pub(crate) const DEVICE_VECTOR: u8 = 0x30;
/// Vectors of block devices; further ones share them.
pub(crate) const DEVICES: u32 = 48;
/// The first network card's vector.
pub(crate) const SOURCE_VECTOR: u8 = DEVICE_VECTOR + DEVICES as u8;
/// Vectors of network cards; further ones share them.
pub(crate) const SOURCES: u32 = 16;
/// The vector of [`crate::program::Op::Kick`].
pub(crate) const KICK_VECTOR: u8 = 0xf5;
/// Vectors of what vCPUs send each other.
pub(crate) const IPI_VECTORS: [u8; 3] = [RESCHEDULE_VECTOR, CALL_FUNCTION_VECTOR, KICK_VECTOR];

/// What of a guest's configuration is asked for while it runs.
#[derive(Clone, Debug)]
pub(crate) struct VmSettings {
    pub(crate) name: Box<str>,
    pub(crate) guest: GuestConfig,
    pub(crate) assigned_device: bool,
    pub(crate) physical_counter_offset: u64,
    pub(crate) start_ns: u64,
}

impl VmSettings {
    pub(crate) fn of(cfg: &VmConfig) -> Self {
        Self {
            name: cfg.name.as_str().into(),
            guest: cfg.guest,
            assigned_device: cfg.assigned_device,
            physical_counter_offset: cfg.physical_counter_offset,
            start_ns: cfg.start_ns,
        }
    }
}

/// A guest.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) cfg: VmSettings,
    pub(crate) first_vcpu: VcpuNr,
    /// The thread of its first vCPU.
    pub(crate) first_task: TaskNr,
    pub(crate) vcpus: u32,
    pub(crate) kernel: Kernel,
    /// Index of its statistics.
    pub(crate) meter: usize,
    /// Its clocks, if it is to be migrated.
    pub(crate) clock: Option<Box<GuestClock>>,
}

/// All guests, and their vCPUs as the guests see them. Nothing outside of them writes to them.
#[derive(Debug, Default)]
pub(crate) struct Guests {
    vms: Table<VmNr, Guest>,
    cpus: Table<VcpuNr, GuestCpu>,
}

impl Guests {
    pub(crate) fn reserve(&mut self, vms: usize, vcpus: usize) {
        self.vms.reserve(vms);
        self.cpus.reserve(vcpus);
    }

    pub(crate) fn add(&mut self, guest: Guest) -> VmNr {
        self.vms.add(guest)
    }

    /// The next vCPU of a guest. The host's threads of a guest's vCPUs follow each other, so that the
    /// first one's number is enough.
    pub(crate) fn add_cpu(&mut self, vm: VmNr, index: u32, task: TaskNr) -> VcpuNr {
        let guest = &mut self.vms[vm];
        if index == 0 {
            guest.first_task = task;
        }
        debug_assert_eq!(task.0, guest.first_task.0 + index, "threads out of order");
        self.cpus.add(GuestCpu::new(vm, index))
    }

    /// The host's thread that runs a vCPU.
    fn task_of(&self, vcpu: VcpuNr) -> TaskNr {
        let v = &self.cpus[vcpu];
        TaskNr(self.vms[v.vm].first_task.0 + v.index)
    }

    pub(crate) fn vms(&self) -> impl DoubleEndedIterator<Item = VmNr> + use<> {
        self.vms.numbers()
    }

    pub(crate) fn vm(&self, vm: VmNr) -> &Guest {
        &self.vms[vm]
    }

    pub(crate) fn cpu(&self, vcpu: VcpuNr) -> &GuestCpu {
        &self.cpus[vcpu]
    }

    pub(crate) fn vcpu_of(&self, vm: VmNr, index: u32) -> VcpuNr {
        VcpuNr(self.vms[vm].first_vcpu.0 + index)
    }

    /// The wall clock of a VM's host steps. Whether the VM has one, for a migration.
    pub(crate) fn step_wall_clock(&mut self, vm: VmNr, ns: i64) -> bool {
        let clock = &mut self.vms[vm].clock;
        clock.iter_mut().for_each(|clock| clock.step_wall_clock(ns));
        clock.is_some()
    }

    /// The guest has been moved: these are its clocks from now on.
    pub(crate) fn replace_clock(&mut self, vm: VmNr, clock: GuestClock) {
        self.vms[vm].clock = Some(Box::new(clock));
    }

    /// The guest boots: its threads are there, and its clients send.
    pub(crate) fn boot(&mut self, host: &mut Host<'_>, vm: VmNr) -> Sim {
        let now = host.now();
        let kernel = &mut self.vms[vm].kernel;
        for thread in kernel.threads.numbers() {
            let t = &kernel.threads[thread];
            let rq = RqId::nth(t.vcpu);
            kernel.runnable[t.vcpu as usize] += 1;
            kernel.fair.fork(t.fair, rq, now)?;
        }
        source::start(self, host, vm);
        for index in 0..self.vms[vm].vcpus {
            let vcpu = self.vcpu_of(vm, index);
            self.cpus[vcpu].resched = Resched::Now;
            self.cpus[vcpu].started = true;
        }
        Ok(())
    }

    /// The warm-up is over.
    pub(crate) fn begin_measuring(&mut self) {
        self.cpus.iter_mut().for_each(|cpu| cpu.spin_ns = 0);
    }
}

/// What a spinning vCPU waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpinOn {
    /// A spinlock.
    Lock(SpinId),
    /// A mutex with a running owner.
    Mutex(MutexId),
    /// Answers to a function call.
    Call,
    /// Something to run: the idle loop polls before it halts.
    IdlePoll,
    /// The same by MWAIT, which does not exit.
    Mwait,
}

/// A spin in progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spin {
    pub(crate) on: SpinOn,
    pub(crate) since_ns: u64,
    /// Since when the present stretch of it goes on, while it does.
    pub(crate) running_since: At,
    /// Time spent in it on a CPU since it began. For a paravirtual lock: since the vCPU last halted
    /// or became the first waiter.
    pub(crate) spun_ns: u64,
}

/// What ends a stretch of spinning, if nothing else does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SpinLimit {
    /// Nothing.
    #[default]
    None,
    /// The window of pause-loop exiting, and the way out of the guest after it.
    PleAndExit,
    /// The window of pause-loop exiting, unless the preemption timer comes first.
    Ple,
    /// The spinner's own patience.
    Own,
}

/// One step of a vCPU in guest mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Micro {
    /// Takes time, in user mode or at CPL 0.
    Run { ns: u64, kernel: bool },
    /// An instruction that may leave the guest.
    Exit(Exit),
    /// CLI.
    IrqsOff,
    /// STI.
    IrqsOn,
    /// Spins until it may stop.
    Spin(SpinOn),
    /// The handler of a vector does its work.
    Handle(u8),
    /// The time is the answer to the thread's step.
    ReadClock,
    /// The physical counter is the answer to the thread's step.
    ReadCounter,
    /// The thread takes a count of a queue, or waits for it.
    Wait(QueueId),
    /// The thread gives counts.
    Wake(QueueId, u32),
    /// The thread goes on with its series of passes.
    Passes(ThreadNr),
    /// The thread sleeps until then.
    SleepUntil(u64),
    /// The thread will wait for a device. The answer may come first.
    ExpectDevice,
    /// The thread blocks, unless it was woken since it said for what it waits.
    Block,
    /// The thread tries for a spinlock.
    TryLock(SpinId),
    /// The thread lets a spinlock go.
    Unlock(SpinId),
    /// The thread tries for a mutex.
    TryMutex(MutexId),
    /// The thread, which slept for a mutex, tries again.
    RetryMutex(MutexId),
    /// The thread lets a mutex go.
    UnlockMutex(MutexId),
    /// The function call goes out to the others.
    Call { flush: bool },
    /// The function call goes out to one vCPU.
    CallOne(u32),
    /// The function call has been answered.
    CallOver,
    /// The thread takes the next request of clients, which is there.
    TakeRequest(SourceId),
    /// An assigned device gets a request of the thread.
    Submit { device: DeviceId, thread: ThreadNr },
    /// An assigned card gets the answer to a request.
    Answer(SourceId),
    /// `sched_yield`.
    Yield,
    /// The thread ends.
    End,
    /// Looks whether another thread should run.
    CheckResched,
}

/// The part of a vCPU that is the guest's.
#[derive(Debug)]
pub(crate) struct GuestCpu {
    pub(crate) vm: VmNr,
    /// Index within the VM.
    pub(crate) index: u32,
    /// Steps of the thread, or of the idle loop.
    pub(crate) base: Steps,
    /// Steps of the interrupt's handler.
    pub(crate) irq: Steps,
    pub(crate) in_irq: Option<u8>,
    /// CLI.
    pub(crate) irqs_off: bool,
    /// Preemption is off: spinlocks held.
    pub(crate) preempt_off: u16,
    /// Of these: for locks of programs, at CPL 3.
    pub(crate) user_locks: u16,
    /// The step in progress; the CPU's timer fires at its end.
    pub(crate) running: Option<Micro>,
    /// What it does beyond taking time.
    pub(crate) stretch: stretch::Stretch,
    pub(crate) spin: Option<Spin>,
    /// What ends the present stretch of it, if that is not the awaited.
    pub(crate) spin_limit: SpinLimit,
    pub(crate) current: Option<ThreadNr>,
    pub(crate) resched: Resched,
    /// In the idle loop.
    pub(crate) idle: bool,
    /// `TIF_POLLING_NRFLAG`: the idle loop looks before it halts.
    pub(crate) polling: bool,
    pub(crate) halt_poll: idle::GuestHaltPoll,
    pub(crate) clock: clock::TaskClock,
    /// Sleeping threads, the first to wake last.
    pub(crate) sleepers: Vec<(u64, ThreadNr)>,
    pub(crate) tick_at: At,
    /// What the LAPIC timer is programmed to.
    pub(crate) programmed: At,
    /// vCPUs that have asked for a function call here.
    pub(crate) calls: Vec<u32>,
    /// Answers that this vCPU's function call waits for.
    pub(crate) awaited_calls: u32,
    pub(crate) started: bool,
    /// When the step in progress ends by itself, in ns.
    step_ends: u64,
    /// When the preemption timer fires, while in the guest.
    hv_at: At,
    /// Spinning on a CPU, in ns.
    pub(crate) spin_ns: u64,
}

impl GuestCpu {
    fn new(vm: VmNr, index: u32) -> Self {
        Self {
            vm,
            index,
            base: Steps::default(),
            irq: Steps::default(),
            in_irq: None,
            irqs_off: false,
            preempt_off: 0,
            user_locks: 0,
            running: None,
            stretch: stretch::Stretch::None,
            spin: None,
            spin_limit: SpinLimit::None,
            current: None,
            resched: Resched::None,
            idle: false,
            polling: false,
            halt_poll: idle::GuestHaltPoll::default(),
            clock: clock::TaskClock::default(),
            sleepers: Vec::new(),
            tick_at: At::NEVER,
            programmed: At::NEVER,
            calls: Vec::new(),
            awaited_calls: 0,
            started: false,
            step_ends: 0,
            hv_at: At::NEVER,
            spin_ns: 0,
        }
    }

    /// RFLAGS.IF, and no handler is running.
    pub(crate) fn takes_interrupts(&self) -> bool {
        self.in_irq.is_none() && !self.irqs_off
    }

    /// At CPL 0.
    pub(crate) fn in_kernel(&self) -> bool {
        if self.in_irq.is_some() || self.idle || self.preempt_off > self.user_locks {
            return true;
        }
        if let Some(spin) = self.spin {
            // One for a lock of the kernel has switched preemption off.
            return !matches!(spin.on, SpinOn::Lock(_));
        }
        match self.running.or(self.base.front().copied()) {
            Some(Micro::Run { kernel, .. }) => kernel,
            _ => true,
        }
    }

    /// Adds a step to what runs now.
    pub(crate) fn push(&mut self, micro: Micro) {
        if self.in_irq.is_some() {
            self.irq.push_back(micro);
        } else {
            self.base.push_back(micro);
        }
    }

    /// Adds a step that comes next. Inline, so that it is made in its place.
    #[inline(always)]
    pub(crate) fn push_next(&mut self, micro: Micro) {
        if self.in_irq.is_some() {
            self.irq.push_front(micro);
        } else {
            self.base.push_front(micro);
        }
    }

    /// Takes the next steps as far as they just take time in one mode: how much, and whether at
    /// CPL 0.
    pub(crate) fn take_runs(&mut self) -> Option<(u64, bool)> {
        let queue = match self.in_irq {
            Some(_) => &mut self.irq,
            None => &mut self.base,
        };
        let mut runs: Option<(u64, bool)> = None;
        while let Some(&Micro::Run { ns, kernel }) = queue.front() {
            let (so_far, mode) = runs.unwrap_or((0, kernel));
            if mode != kernel {
                break;
            }
            runs = Some((so_far + ns, kernel));
            queue.pop_front();
        }
        runs
    }

    /// The next step.
    pub(crate) fn front(&self) -> Option<&Micro> {
        match self.in_irq {
            Some(_) => self.irq.front(),
            None => self.base.front(),
        }
    }

    /// Takes the next step.
    pub(crate) fn take(&mut self) -> Option<Micro> {
        if self.in_irq.is_some() {
            self.irq.pop_front()
        } else {
            self.base.pop_front()
        }
    }
}

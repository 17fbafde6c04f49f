//! Guests: a kernel in small, and the threads that it runs.
//!
//! A vCPU in guest mode works off [`Micro`] steps: some take time, some leave the guest, some do
//! something at an instant. An interrupt's steps come before those of what it interrupted.

mod build;
mod call;
mod clock;
mod counter;
mod deadlock;
mod idle;
mod irq;
mod kernel;
mod lock;
mod mutex;
mod queues;
mod sched;
mod source;
mod spin;
mod step;
mod steps;
mod stretch;
mod timer;

use stealtime_hypervisor::directed_yield::DirectedYield;
use stealtime_hypervisor::eevdf::Resched;
use stealtime_hypervisor::ipi_tracking::IpiContext;
use stealtime_hypervisor::lapic::{Apic, ApicBus, ApicMode, BusOptions};
use stealtime_hypervisor::prefetch::prefetch;

pub use build::{Arrivals, GuestBuilder};
pub(crate) use kernel::{Kernel, Thread, ThreadState};
pub(crate) use steps::Steps;

use crate::at::At;
use crate::config::{GuestConfig, VmConfig};
use crate::ids::{ThreadNr, VcpuNr};
use crate::kvm::{Exit, Word};
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
pub(crate) struct Vm {
    pub(crate) cfg: VmSettings,
    pub(crate) first_vcpu: VcpuNr,
    pub(crate) vcpus: u32,
    pub(crate) kernel: Kernel,
    /// Entries of the PID-pointer table, by APIC id.
    pub(crate) pid_table: Vec<u64>,
    pub(crate) directed_yield: DirectedYield<Word>,
    /// By vCPU, if it is kept who waits for whom.
    pub(crate) ipi_contexts: Vec<IpiContext<Word>>,
    /// Its LAPICs, from the first IPI on.
    pub(crate) apics: Option<Box<Apics>>,
    /// Index of its statistics.
    pub(crate) meter: usize,
    /// Its clocks, if it is to be migrated.
    pub(crate) clock: Option<Box<GuestClock>>,
    /// The VMM's thread that has stopped it.
    pub(crate) paused_by: Option<crate::ids::TaskNr>,
    /// How soon its vCPUs take interrupts.
    pub(crate) answers: crate::books::Answers,
    /// vCPUs that are not parked.
    pub(crate) running: u32,
}

/// A guest's LAPICs.
#[derive(Debug)]
pub(crate) struct Apics {
    pub(crate) bus: ApicBus,
    /// Room for the vCPUs that an IPI reaches.
    pub(crate) reached: Vec<u32>,
}

impl Vm {
    /// Its LAPICs, set up as Linux does (`init_x2apic_ldr`; `default_init_apic_ldr` for up to 8 of
    /// xAPIC, above that there are no logical ids).
    pub(crate) fn apics(&mut self) -> &mut Apics {
        let (vcpus, x2apic) = (self.vcpus, self.cfg.guest.x2apic);
        self.apics.get_or_insert_with(|| {
            let apic = |id: u32| Apic {
                vcpu_id: id,
                mode: if x2apic {
                    ApicMode::X2apic
                } else {
                    ApicMode::Xapic
                },
                sw_enabled: true,
                id: if x2apic { id } else { id << 24 },
                ldr: match x2apic {
                    true => (id >> 4) << 16 | 1 << (id & 15),
                    false if vcpus <= 8 => 1 << (24 + id),
                    false => 0,
                },
                dfr: u32::MAX,
                arb_prio: 0,
            };
            let all = (0..vcpus).map(apic).collect();
            Box::new(Apics {
                bus: ApicBus::new(all, BusOptions::default()),
                reached: Vec::new(),
            })
        })
    }
}

/// What a spinning vCPU waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpinOn {
    /// A spinlock.
    Lock(SpinId),
    /// A mutex whose owner runs.
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
    /// Time spent in it on a CPU since it began or, for a paravirtual lock, since the vCPU last
    /// halted or became the first to wait.
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
    /// The thread will wait for a device, whose answer may come before it does.
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
#[derive(Debug, Default)]
pub(crate) struct GuestCpu {
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
    /// The step in progress, whose end the CPU's timer says.
    pub(crate) running: Option<Micro>,
    /// What it does beyond taking time.
    pub(crate) stretch: stretch::Stretch,
    pub(crate) spin: Option<Spin>,
    /// What ends the present stretch of it, if that is not the awaited.
    pub(crate) spin_limit: SpinLimit,
    pub(crate) current: Option<ThreadNr>,
    pub(crate) resched: Resched,
    /// A paravirtual spinlock was passed on to this vCPU while it was halted.
    pub(crate) pv_unhalted: bool,
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
    /// vCPUs whose function is to be called here.
    pub(crate) calls: Vec<u32>,
    /// Answers that this vCPU's function call waits for.
    pub(crate) awaited_calls: u32,
    pub(crate) started: bool,
}

impl GuestCpu {
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

    /// Adds a step that comes next.
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

    /// Asks for the memory that its lists are in.
    pub(crate) fn prefetch(&self) {
        self.base.prefetch();
        self.irq.prefetch();
        if let Some(first) = self.sleepers.last() {
            prefetch(first);
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

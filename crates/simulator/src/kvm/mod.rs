//! KVM: vCPU threads, the run loop, interrupts on their way to guests.

pub(crate) mod build;
pub(crate) mod deliver;
mod exit;
pub(crate) mod guest_mode;
pub(crate) mod halt;
mod ipiv;
pub(crate) mod load;
pub(crate) mod run;
mod spin;
pub(crate) mod timer;
pub(crate) mod tracking;

use core::cell::Cell;
use core::num::NonZeroU8;

use stealtime_hypervisor::directed_yield::ple::PleWindow;
use stealtime_hypervisor::directed_yield::{DirectedYield, YieldState};
use stealtime_hypervisor::halt_poll::{Halt, HaltPoll};
use stealtime_hypervisor::ipi_tracking::IpiContext;
use stealtime_hypervisor::lapic::{Apic, ApicBus, ApicMode, BusOptions, Lapic};
use stealtime_hypervisor::lapic_timer::LapicTimer;
use stealtime_hypervisor::posted_interrupt::{PostedVcpu, SharedVcpu};
use stealtime_hypervisor::scx;

pub(crate) use exit::{Exit, IpiMask, IpiTo};

use crate::books::Answers;
use crate::ids::{Table, TaskNr, TimerNr, VcpuNr, VmNr};

/// The word type of everything shared: the simulator has one thread.
pub(crate) type Word = Cell<u64>;

/// Where a vCPU's thread is in the run loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VcpuRun {
    /// About to look at requests and to enter.
    Ready,
    /// On the way into the guest, interrupts off.
    Entering,
    /// In the guest.
    Guest,
    /// On the way out of the guest, interrupts off.
    Exiting,
    /// An exit is handled with interrupts off, and the guest is entered again.
    Fast,
    /// An exit is handled.
    Handling,
    /// An IPI of the guest is sent, one receiver after the other (Xen).
    Sending,
    /// Halted, polling.
    Polling,
    /// Halted, asleep or about to be.
    Blocked,
}

/// How the hypervisor sees a vCPU's EOIs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Eois {
    /// None yet: the hardware completes them (APICv).
    Unseen,
    /// As they happen.
    Shown,
    /// At a later exit (paravirtual EOI).
    Deferred,
}

/// A vCPU.
#[derive(Debug)]
pub(crate) struct Vcpu {
    pub(crate) vm: VmNr,
    /// Index within the VM; its APIC id too.
    pub(crate) index: u32,
    pub(crate) task: TaskNr,
    pub(crate) run: VcpuRun,
    /// The exit that is being taken or handled, or was last.
    pub(crate) exit: Exit,
    pub(crate) shared: SharedVcpu<Word>,
    pub(crate) posted: PostedVcpu,
    pub(crate) lapic: Lapic,
    pub(crate) timer: LapicTimer,
    pub(crate) hrtimer: TimerNr,
    pub(crate) halt_poll: HaltPoll,
    pub(crate) halt: Option<HaltState>,
    pub(crate) ple: PleWindow,
    pub(crate) yields: YieldState<Word>,
    /// A vector to be injected at the next entry, without APICv.
    pub(crate) inject: Option<NonZeroU8>,
    /// An exit is wanted when the guest can take an interrupt.
    pub(crate) window: bool,
    /// Its VM is stopped, and its thread sleeps until it runs again.
    pub(crate) parked: bool,
    /// A paravirtual spinlock was passed on to it while it was halted.
    pub(crate) pv_unhalted: bool,
    /// All awaited answers have come since the last entry.
    pub(crate) answered: bool,
    pub(crate) eois: Eois,
    /// The vector of a paravirtual EOI that the hypervisor has not seen.
    pub(crate) pv_eoi: Option<NonZeroU8>,
    pub(crate) books: crate::books::RunningBooks,
}

/// A VM as the hypervisor has it.
#[derive(Debug)]
pub(crate) struct Vm {
    /// Entries of the PID-pointer table, by APIC id.
    pub(crate) pid_table: Vec<u64>,
    pub(crate) directed_yield: DirectedYield<Word>,
    /// The vCPU that each vCPU awaits; empty unless that is tracked.
    pub(crate) ipi_contexts: Vec<IpiContext<Word>>,
    /// Those that `scx_stealtime` knows; empty without it.
    pub(crate) answers_due: Vec<scx::Answers<Word>>,
    /// When the last answer to each one's IPI came, in ns; 0: none has. With `scx_stealtime` alone.
    pub(crate) answered_ns: Vec<u64>,
    /// Its LAPICs, from the first IPI on.
    pub(crate) apics: Option<Box<Apics>>,
    /// The VMM's thread that has stopped it.
    pub(crate) paused_by: Option<TaskNr>,
    /// How soon its vCPUs take interrupts.
    pub(crate) answers: Answers,
    /// vCPUs that are not parked.
    pub(crate) running: u32,
}

/// The hypervisor: VMs and their vCPUs.
#[derive(Debug, Default)]
pub(crate) struct Kvm {
    vms: Table<VmNr, Vm>,
    vcpus: Table<VcpuNr, Vcpu>,
}

/// A vCPU's thread stays out of the guest.
pub(crate) struct Parked {
    /// The VMM's thread that has stopped the VM.
    pub(crate) vmm: TaskNr,
    /// No vCPU of the VM runs any more.
    pub(crate) is_last: bool,
}

/// What migration, Xen's loop over vCPUs and the checks read and change.
impl Kvm {
    #[inline]
    pub(crate) fn vcpu(&self, vcpu: VcpuNr) -> &Vcpu {
        &self.vcpus[vcpu]
    }

    pub(crate) fn vm(&self, vm: VmNr) -> &Vm {
        &self.vms[vm]
    }

    pub(crate) fn vcpu_numbers(&self) -> impl Iterator<Item = VcpuNr> + use<> {
        self.vcpus.numbers()
    }

    /// Tests break what checks are to find.
    #[cfg(test)]
    pub(crate) fn vcpus_mut(&mut self) -> &mut Table<VcpuNr, Vcpu> {
        &mut self.vcpus
    }

    /// The vCPU's thread sends an IPI of its guest (Xen).
    pub(crate) fn begin_sending(&mut self, vcpu: VcpuNr) {
        self.vcpus[vcpu].run = VcpuRun::Sending;
    }

    /// Each receiver of the IPI is notified.
    pub(crate) fn end_sending(&mut self, vcpu: VcpuNr) {
        debug_assert_eq!(self.vcpus[vcpu].run, VcpuRun::Sending);
        self.vcpus[vcpu].run = VcpuRun::Ready;
    }

    /// The VMM's thread stops a VM: its vCPUs park instead of entering the guest.
    pub(crate) fn stop(&mut self, vm: VmNr, vmm: TaskNr) {
        self.vms[vm].paused_by = Some(vmm);
    }

    /// Parks a vCPU if its VM is stopped.
    pub(crate) fn park(&mut self, vcpu: VcpuNr) -> Option<Parked> {
        let v = &mut self.vcpus[vcpu];
        let vm = &mut self.vms[v.vm];
        let vmm = vm.paused_by?;
        // A parked thread that is woken in between parks again.
        vm.running = vm.running.saturating_sub(1);
        v.parked = true;
        Some(Parked {
            vmm,
            is_last: vm.running == 0,
        })
    }

    /// The VM runs again, and its `vcpus` vCPUs may enter the guest.
    pub(crate) fn restart(&mut self, vm: VmNr, vcpus: u32) {
        self.vms[vm].paused_by = None;
        self.vms[vm].running = vcpus;
    }

    pub(crate) fn unpark(&mut self, vcpu: VcpuNr) {
        self.vcpus[vcpu].parked = false;
    }
}

impl Kvm {
    /// The warm-up is over at `now`: the books of vCPUs start anew.
    pub(crate) fn begin_measuring(&mut self, now: u64) {
        self.settle_books(now);
        self.vcpus.iter_mut().for_each(|vcpu| vcpu.books.clear(now));
        self.vms
            .iter_mut()
            .for_each(|vm| vm.answers = Answers::default());
    }

    /// Brings the books of vCPUs up to `now`.
    pub(crate) fn settle_books(&mut self, now: u64) {
        self.vcpus
            .iter_mut()
            .for_each(|vcpu| vcpu.books.settle(now));
    }
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
    pub(super) fn apics(&mut self, vcpus: u32, x2apic: bool) -> &mut Apics {
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
            let apics = (0..vcpus).map(apic).collect();
            Box::new(Apics {
                bus: ApicBus::new(apics, BusOptions::default()),
                reached: Vec::new(),
            })
        })
    }
}

/// A halt in progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HaltState {
    pub(crate) halt: Halt,
    pub(crate) since_ns: u64,
    pub(crate) poll_ns: u64,
    pub(crate) waited: bool,
}

//! The state of a vCPU that other CPUs access: mode, requests, the waiting task.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use super::descriptor::Descriptor;
use crate::lapic::Irr;
use crate::word::AtomicWord;

/// A physical CPU, counted from 0.
pub type CpuId = u32;
/// A vCPU, by the caller's numbering.
pub type VcpuId = u32;

/// The mode of a vCPU (`vcpu->mode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum VcpuMode {
    /// In the host.
    OutsideGuest = 0,
    /// In the guest, or entering with interrupts off.
    InGuest = 1,
    /// Kicked: leaving, or not to enter.
    ExitingGuest = 2,
    /// In the host, reading shadow page tables.
    ReadingShadowPageTables = 3,
}

impl VcpuMode {
    fn from_word(word: u64) -> Self {
        match word {
            0 => Self::OutsideGuest,
            1 => Self::InGuest,
            2 => Self::ExitingGuest,
            _ => {
                debug_assert_eq!(word, 3, "only modes are stored");
                Self::ReadingShadowPageTables
            }
        }
    }
}

/// Requests to a vCPU, a bit each. Bits 8 and above are the caller's.
///
/// A request takes effect at the next guest entry. Only [`Requests::UNBLOCK`] and
/// [`Requests::NESTED_POSTED`] end a wait (`kvm_vcpu_check_block`). A caller adds `UNBLOCK` to a
/// request of its own that must reach a waiting vCPU, or the vCPU wakes and sleeps again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Requests(pub u64);

impl Requests {
    /// Check for interrupts before entering (`KVM_REQ_EVENT`).
    pub const EVENT: Self = Self(1 << 0);
    /// Stop blocking and check again (`KVM_REQ_UNBLOCK`).
    pub const UNBLOCK: Self = Self(1 << 1);
    /// An interrupt was posted for the nested guest (`nested.pi_pending`).
    pub const NESTED_POSTED: Self = Self(1 << 2);
    /// Restart the LAPIC timer on the CPU that the vCPU moved to (`KVM_REQ_MIGRATE_TIMER`).
    pub const MIGRATE_TIMER: Self = Self(1 << 3);
}

/// No CPU, in the word for one.
const NO_CPU: u64 = u64::MAX;
/// The vCPU's task waits and may be woken.
const WAITING: u64 = 1;

/// The part of a vCPU that other CPUs and hardware access.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SharedVcpu<W: AtomicWord> {
    /// The posted-interrupt descriptor.
    pub desc: Descriptor<W>,
    /// The interrupt request register of its LAPIC.
    pub irr: Irr<W>,
    mode: W,
    requests: W,
    apicv: W,
    cpu: W,
    wait: W,
}

impl<W: AtomicWord> SharedVcpu<W> {
    /// A vCPU before its first load.
    #[must_use]
    pub fn new(apicv: bool) -> Self {
        Self {
            desc: Descriptor::default(),
            irr: Irr::default(),
            mode: W::new(0),
            requests: W::new(0),
            apicv: W::new(u64::from(apicv)),
            cpu: W::new(NO_CPU),
            wait: W::new(0),
        }
    }

    /// The mode, as another CPU reads it.
    pub fn mode(&self) -> VcpuMode {
        VcpuMode::from_word(self.mode.load(Acquire))
    }

    /// Writes the mode (vCPU thread only). The release orders earlier stores, above all whether
    /// APICv is active, for readers of the mode.
    pub fn set_mode(&self, mode: VcpuMode) {
        self.mode.store(mode as u64, Release);
    }

    /// Whether APICv is active (`kvm_vcpu_apicv_active`).
    pub fn apicv(&self) -> bool {
        self.apicv.load(Relaxed) != 0
    }

    /// Switches APICv (vCPU thread, outside the guest).
    pub fn set_apicv(&self, active: bool) {
        self.apicv.store(u64::from(active), Relaxed);
    }

    /// The CPU of the last load.
    pub fn cpu(&self) -> Option<CpuId> {
        // Only 32-bit ids and `NO_CPU` are stored.
        CpuId::try_from(self.cpu.load(Relaxed)).ok()
    }

    pub(super) fn set_cpu(&self, cpu: CpuId) {
        self.cpu.store(u64::from(cpu), Relaxed);
    }

    /// Pending requests.
    pub fn requests(&self) -> Requests {
        Requests(self.requests.load(Relaxed))
    }

    /// Makes requests, after earlier stores. The release does not order a later load of the mode,
    /// which needs the fence of [`kick`].
    pub fn request(&self, requests: Requests) {
        self.requests.fetch_or(requests.0, Release);
    }

    /// Clears `requests` (vCPU thread), and returns those of them that were pending.
    pub fn take(&self, requests: Requests) -> Requests {
        // A load first: most calls find no request and need no locked operation.
        if self.requests.load(Relaxed) & requests.0 == 0 {
            return Requests(0);
        }
        let pending = self.requests.fetch_and(!requests.0, SeqCst);
        Requests(pending & requests.0)
    }

    /// A full fence between two accesses of this vCPU's words.
    pub(super) fn fence(&self) {
        self.mode.fence(SeqCst);
    }

    pub(super) fn write_fence(&self) {
        self.mode.fence(Release);
    }

    /// Publishes that the task waits (`rcuwait` and `TASK_INTERRUPTIBLE`).
    pub(super) fn publish_wait(&self) {
        self.wait.store(WAITING, Relaxed);
    }

    /// Whether the task still waits: the scheduler may take it off the CPU only then.
    pub fn still_waiting(&self) -> bool {
        self.wait.load(Acquire) == WAITING
    }

    pub(super) fn stop_waiting(&self) {
        self.wait.store(0, Release);
    }
}

/// Wakes a vCPU's task (`kvm_vcpu_wake_up`). True for a sleeper, which the caller must make
/// runnable. The fence pairs with the one in the vCPU's wait: either the waiter is visible here,
/// or the waiter sees the caller's earlier stores.
pub fn wake_up<W: AtomicWord>(vcpu: &SharedVcpu<W>) -> bool {
    vcpu.fence();
    if vcpu.wait.load(Relaxed) != WAITING {
        return false;
    }
    let (ok, fail) = (SeqCst, Relaxed);
    vcpu.wait.compare_exchange(WAITING, 0, ok, fail).is_ok()
}

/// The action that a kick requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kick {
    /// Make the waiting task runnable.
    Wake,
    /// Send a reschedule IPI to the CPU: the vCPU was in guest mode.
    Ipi(Option<CpuId>),
    /// None: the vCPU is in the host and will see the request.
    Nothing,
}

/// Makes requests and makes the vCPU see them (`kvm_make_request` and `__kvm_vcpu_kick`). A request
/// that must end a wait includes [`Requests::UNBLOCK`].
///
/// `on_loaded_cpu`: the kick comes from the CPU that has this vCPU loaded (`kvm_running_vcpu`), from
/// its own thread or an interrupt handler. The mode changes by a plain store then, and no IPI is
/// sent. The wakeup comes first: an interrupt between the last check of
/// [`PostedVcpu::wait`](super::PostedVcpu::wait) and the switch finds a waiter that is still loaded.
pub fn kick<W: AtomicWord>(vcpu: &SharedVcpu<W>, requests: Requests, on_loaded_cpu: bool) -> Kick {
    vcpu.request(requests);
    // `wake_up` starts with the full fence that orders the request before the mode.
    if wake_up(vcpu) {
        return Kick::Wake;
    }
    if on_loaded_cpu {
        if vcpu.mode() == VcpuMode::InGuest {
            vcpu.set_mode(VcpuMode::ExitingGuest);
        }
        return Kick::Nothing;
    }
    let (in_guest, exiting) = (VcpuMode::InGuest as u64, VcpuMode::ExitingGuest as u64);
    match vcpu
        .mode
        .compare_exchange(in_guest, exiting, SeqCst, Relaxed)
    {
        Ok(_) => Kick::Ipi(vcpu.cpu()),
        Err(_) => Kick::Nothing,
    }
}

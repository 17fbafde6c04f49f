//! Load and put of a vCPU by its thread (`vmx_vcpu_pi_load`, `vmx_vcpu_pi_put`).

use core::fmt;

use super::descriptor::{Control, ndst};
use super::policy::{Fault, Suppression};
use super::shared::{CpuId, Kick, Requests, SharedVcpu, VcpuId, kick, wake_up};
use super::sync::{recompute_on, suppress, unsuppress};
use super::wakeup::{WakeupList, WakeupLists};
use super::{POSTED_INTR_VECTOR, POSTED_INTR_WAKEUP_VECTOR};
use crate::events::Events;
use crate::word::AtomicWord;

/// The capabilities of host and VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Capabilities {
    /// APICv is enabled (`kvm_intel.enable_apicv`).
    pub apicv: bool,
    /// The VM has an in-kernel LAPIC.
    pub irqchip: bool,
    /// IPI virtualization is usable.
    pub ipiv: bool,
    /// The IOMMU can post.
    pub vtd_posting: bool,
    /// The host's LAPICs are in x2APIC mode.
    pub host_x2apic: bool,
}

/// The state that only the vCPU's thread accesses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PostedVcpu {
    id: VcpuId,
    capabilities: Capabilities,
    policy: Suppression,
    fault: Fault,
    /// The CPU of the last load.
    cpu: Option<CpuId>,
    pub(super) blocking: bool,
}

/// The circumstances of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PutReason {
    /// The task is preempted, and still runnable.
    pub preempted: bool,
    /// The guest accepts no interrupt: RFLAGS.IF = 0 or an interrupt shadow.
    pub irq_blocked: bool,
    /// The VM has a device with interrupts that may bypass the host.
    pub device_assigned: bool,
}

/// The effect of a load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// The vCPU was removed from the wakeup list of its previous CPU.
    pub unlinked: bool,
    /// ON was set, because PIR was not empty.
    pub on_recomputed: bool,
}

/// The effect of a put.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Put {
    /// The vCPU is on its CPU's wakeup list and NV is the wakeup vector.
    pub armed: bool,
    /// Send the wakeup vector to this CPU: an interrupt was posted before NV changed. This needs an
    /// IPI, because the scheduler, which calls put, cannot wake a task.
    pub self_ipi: bool,
    /// SN was set where it must be clear (the kernel warns).
    pub sn_was_set: bool,
}

/// The CPU of a blocking vCPU has no free wakeup list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotOnACpu {
    /// The vCPU.
    pub vcpu: VcpuId,
    /// The CPU of its last load, `None` before the first.
    pub cpu: Option<CpuId>,
}

impl fmt::Display for NotOnACpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let vcpu = self.vcpu;
        match self.cpu {
            Some(cpu) => write!(
                f,
                "vCPU {vcpu}: CPU {cpu} has no free wakeup list; \
                 make one per CPU and lock each once at a time"
            ),
            None => write!(f, "vCPU {vcpu} blocks before its first load: load it first"),
        }
    }
}

impl core::error::Error for NotOnACpu {}

impl PostedVcpu {
    /// A vCPU before its first load.
    #[must_use]
    pub fn new(id: VcpuId, capabilities: Capabilities, policy: Suppression) -> Self {
        Self {
            id,
            capabilities,
            policy,
            fault: Fault::None,
            cpu: None,
            blocking: false,
        }
    }

    /// With an injected fault, for a checker to find.
    #[must_use]
    pub fn with_fault(mut self, fault: Fault) -> Self {
        self.fault = fault;
        self
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> VcpuId {
        self.id
    }
    /// The suppression policy.
    #[must_use]
    pub fn policy(&self) -> Suppression {
        self.policy
    }
    /// The CPU of the last load.
    #[must_use]
    pub fn cpu(&self) -> Option<CpuId> {
        self.cpu
    }
    /// Whether it is between the start and the end of blocking.
    #[must_use]
    pub fn is_blocking(&self) -> bool {
        self.blocking
    }

    /// The vCPU's thread becomes current on `cpu`, which has APIC id `apic_id`.
    ///
    /// # Errors
    /// [`NotOnACpu`] if the wakeup list of the previous CPU cannot be locked.
    pub fn load<W: AtomicWord>(
        &mut self,
        vcpu: &SharedVcpu<W>,
        cpu: CpuId,
        apic_id: u32,
        lists: &impl WakeupLists,
        events: &impl Events,
    ) -> Result<Loaded, NotOnACpu> {
        let mut loaded = Loaded::default();
        if !self.capabilities.apicv || !self.capabilities.irqchip {
            self.move_to(vcpu, cpu);
            return Ok(loaded);
        }
        let was_armed = vcpu.desc.control().nv() == POSTED_INTR_WAKEUP_VECTOR;
        // `vmx_vcpu_pi_load` returns early: NV and NDST are as needed, and only SN may be stale.
        if !was_armed && self.cpu == Some(cpu) {
            loaded.on_recomputed = self.load_in_place(vcpu, events);
            self.repeat_check(vcpu, loaded);
            return Ok(loaded);
        }
        // Before NV changes: the wakeup handler must not find a vCPU with another vector.
        if was_armed && self.fault != Fault::NotUnlinked {
            loaded.unlinked = self.unlink(lists)?;
        }
        let dest = ndst(apic_id, self.capabilities.host_x2apic);
        let sn = self.sn_when_loaded();
        vcpu.desc.update_control(|old| {
            // One compare-and-exchange: hardware that posts in between must see NV and NDST of the
            // same load.
            let new = old.with_ndst(dest).with_nv(POSTED_INTR_VECTOR);
            Some(sn.map_or(new, |sn| new.with_sn(sn)))
        });
        self.move_to(vcpu, cpu);
        if sn == Some(false) && self.fault != Fault::OnNotRecomputed {
            vcpu.desc.fence_after_rmw();
            loaded.on_recomputed = recompute_on(vcpu);
        }
        self.repeat_check(vcpu, loaded);
        Ok(loaded)
    }

    /// Ends the wait of a blocking vCPU for which the load has set ON. A concurrent poster finds ON
    /// set and does not wake it. So a vCPU that was preempted after its last check must check
    /// again, above all where no wakeup vector is armed afterwards.
    fn repeat_check<W: AtomicWord>(&self, vcpu: &SharedVcpu<W>, loaded: Loaded) {
        if loaded.on_recomputed && self.blocking && self.policy == Suppression::Corrected {
            wake_up(vcpu);
        }
    }

    fn move_to<W: AtomicWord>(&mut self, vcpu: &SharedVcpu<W>, cpu: CpuId) {
        self.cpu = Some(cpu);
        vcpu.set_cpu(cpu);
    }

    /// The value of SN after a load on another CPU; `None`: unchanged (flaw 8).
    fn sn_when_loaded(&self) -> Option<bool> {
        match self.policy {
            Suppression::Off | Suppression::Put => Some(false),
            Suppression::AsPostedV1 | Suppression::AsPostedV2 => Some(true),
            Suppression::AsPostedV3 => None,
            // A blocking vCPU must be notified even if it is preempted before it sleeps.
            Suppression::Corrected => Some(!self.blocking),
        }
    }

    /// A load on the same CPU, not from a wakeup list. Whether ON was set.
    fn load_in_place<W: AtomicWord>(&self, vcpu: &SharedVcpu<W>, events: &impl Events) -> bool {
        let clear = match self.policy {
            Suppression::Corrected => self.blocking,
            policy => policy.clears_at_load(),
        };
        if !clear {
            if self.policy == Suppression::Corrected {
                suppress(vcpu, events);
            }
            return false;
        }
        if !vcpu.desc.test_and_clear_sn() {
            return false;
        }
        events.sn_cleared();
        if self.fault == Fault::OnNotRecomputed {
            return false;
        }
        vcpu.desc.fence_after_rmw();
        recompute_on(vcpu)
    }

    /// Removes the vCPU from the list of the CPU on which it blocked, not of the one that loads it.
    fn unlink(&self, lists: &impl WakeupLists) -> Result<bool, NotOnACpu> {
        let locked = |cpu| lists.locked(cpu, |list| list.remove(self.id));
        self.cpu.and_then(locked).ok_or(NotOnACpu {
            vcpu: self.id,
            cpu: self.cpu,
        })
    }

    /// Whether hardware may post to this vCPU while it blocks (`vmx_needs_pi_wakeup`).
    fn needs_wakeup(&self, device_assigned: bool) -> bool {
        let Capabilities {
            irqchip,
            ipiv,
            vtd_posting,
            ..
        } = self.capabilities;
        ipiv || (irqchip && vtd_posting && device_assigned)
    }

    /// The vCPU's thread leaves its CPU.
    ///
    /// # Errors
    /// [`NotOnACpu`] if the vCPU must be on a wakeup list and there is none.
    pub fn put<W: AtomicWord>(
        &self,
        vcpu: &SharedVcpu<W>,
        reason: PutReason,
        lists: &impl WakeupLists,
        events: &impl Events,
    ) -> Result<Put, NotOnACpu> {
        // Software that posts reads the mode and wakes the task itself. Only hardware needs a
        // vector that wakes.
        if !self.needs_wakeup(reason.device_assigned) {
            return Ok(Put::default());
        }
        // A vCPU that blocks interrupts is not woken by one (`vmx_interrupt_blocked`). A preempted one is in
        // a run queue, and no handler has to wake it.
        let before_2025 = self.policy.puts_as_before_2025();
        let may_sleep = self.blocking && !reason.irq_blocked;
        let put = if may_sleep && (before_2025 || !reason.preempted) {
            self.enable_wakeup(vcpu, lists, events)?
        } else {
            Put::default()
        };
        let suppresses = if before_2025 {
            reason.preempted
        } else {
            !put.armed
        };
        if suppresses {
            suppress(vcpu, events);
        }
        Ok(put)
    }

    /// Switches to the wakeup vector (`pi_enable_wakeup_handler`). The list comes first, because a
    /// wakeup interrupt may arrive as soon as NV changes. The test for posts under the old NV comes
    /// last, on the image that was written.
    fn enable_wakeup<W: AtomicWord>(
        &self,
        vcpu: &SharedVcpu<W>,
        lists: &impl WakeupLists,
        events: &impl Events,
    ) -> Result<Put, NotOnACpu> {
        let append = |cpu| lists.locked(cpu, |list| list.append(self.id));
        self.cpu.and_then(append).ok_or(NotOnACpu {
            vcpu: self.id,
            cpu: self.cpu,
        })?;
        events.wakeup_armed();
        // SN must be clear from here on: hardware sends no wakeup vector under SN = 1.
        let clears_sn = self.policy.wakeup_clears_sn();
        let sn_was_set = !clears_sn && vcpu.desc.test_sn();
        if sn_was_set {
            events.sn_set_while_blocking();
        }
        let won = vcpu.desc.update_control(|old| {
            let new = old.with_nv(POSTED_INTR_WAKEUP_VECTOR);
            Some(if clears_sn { new.with_sn(false) } else { new })
        });
        let mut self_ipi = won.is_some_and(Control::on);
        if self.policy.wakeup_tests_pir() {
            // A post under SN = 1 leaves ON clear, and the handler wakes only vCPUs with ON set.
            vcpu.desc.fence_after_rmw();
            self_ipi |= recompute_on(vcpu);
        }
        self_ipi &= self.fault != Fault::SelfIpiLost;
        if self_ipi {
            events.wakeup_self_ipi();
        }
        Ok(Put {
            armed: true,
            self_ipi,
            sn_was_set,
        })
    }

    /// Sets SN by the policy as a vCPU starts or ends blocking.
    pub(super) fn suppress_for_blocking<W: AtomicWord>(
        &self,
        vcpu: &SharedVcpu<W>,
        blocks: bool,
        events: &impl Events,
    ) {
        if !self.policy.follows_mode() {
            return;
        }
        if blocks {
            unsuppress(vcpu, events);
        } else {
            suppress(vcpu, events);
        }
    }

    /// Reports to a vCPU that a device was assigned to the VM (`vmx_pi_start_bypass`). A vCPU that
    /// blocks was put without the wakeup vector, and must block again to be put with it.
    pub fn device_assigned<W: AtomicWord>(vcpu: &SharedVcpu<W>, fault: Fault) -> Kick {
        if fault == Fault::BlockedNotKicked {
            return Kick::Nothing;
        }
        kick(vcpu, Requests::UNBLOCK, false)
    }
}

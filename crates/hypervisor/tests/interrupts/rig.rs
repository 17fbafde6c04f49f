//! One vCPU with everything around it, on one thread.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use stealtime_hypervisor::events::Events;
use stealtime_hypervisor::lapic::Lapic;
use stealtime_hypervisor::posted_interrupt::{
    Capabilities, Delivery, Entry, Fault, LocalLists, Notification, POSTED_INTR_VECTOR, PostedVcpu,
    Put, PutReason, SharedVcpu, Suppression, deliver, hardware, wake_up, wakeup_handler,
};
use stealtime_hypervisor::word::AtomicWord;

/// APIC ids of the CPUs 0, 1 and 2.
pub(crate) const APIC_IDS: [u32; 3] = [0x10, 0x21, 0x32];

/// Everything hardware could want.
pub(crate) const IPIV_HOST: Capabilities = Capabilities {
    apicv: true,
    irqchip: true,
    ipiv: true,
    vtd_posting: true,
    host_x2apic: true,
};

/// APICv, and software is the only poster.
pub(crate) const PLAIN_APICV_HOST: Capabilities = Capabilities {
    ipiv: false,
    vtd_posting: false,
    ..IPIV_HOST
};

pub(crate) const SLEEPS: PutReason = PutReason {
    preempted: false,
    irq_blocked: false,
    device_assigned: true,
};

pub(crate) const PREEMPTED: PutReason = PutReason {
    preempted: true,
    ..SLEEPS
};

/// The policies that must never lose an interrupt.
pub(crate) const SOUND: [Suppression; 3] =
    [Suppression::Off, Suppression::Put, Suppression::Corrected];

/// Counts what some tests ask for.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) sn_toggles: Cell<u32>,
    pub(crate) sn_warnings: Cell<u32>,
    pub(crate) merged: RefCell<Vec<u32>>,
    pub(crate) skipped: Cell<u32>,
}

impl Events for Counts {
    fn sn_set(&self) {
        self.sn_toggles.set(self.sn_toggles.get() + 1);
    }
    fn sn_cleared(&self) {
        self.sn_toggles.set(self.sn_toggles.get() + 1);
    }
    fn sn_set_while_blocking(&self) {
        self.sn_warnings.set(self.sn_warnings.get() + 1);
    }
    fn notification_in_guest(&self, merged: u32) {
        self.merged.borrow_mut().push(merged);
    }
    fn sync_skipped(&self) {
        self.skipped.set(self.skipped.get() + 1);
    }
}

#[derive(Debug)]
pub(crate) struct Rig<W: AtomicWord = Cell<u64>> {
    pub(crate) own: PostedVcpu,
    pub(crate) shared: Rc<SharedVcpu<W>>,
    pub(crate) lapic: Lapic,
    pub(crate) lists: LocalLists,
    pub(crate) counts: Counts,
}

impl<W: AtomicWord> Rig<W> {
    /// A vCPU that is loaded on CPU 0, in the host.
    pub(crate) fn new(capabilities: Capabilities, policy: Suppression) -> Self {
        Self::with_fault(capabilities, policy, Fault::None)
    }

    pub(crate) fn with_fault(
        capabilities: Capabilities,
        policy: Suppression,
        fault: Fault,
    ) -> Self {
        let mut rig = Self {
            own: PostedVcpu::new(7, capabilities, policy).with_fault(fault),
            shared: Rc::new(SharedVcpu::new(true)),
            lapic: Lapic::new(true),
            lists: LocalLists::new(3, 1),
            counts: Counts::default(),
        };
        rig.load(0);
        rig
    }

    pub(crate) fn load(&mut self, cpu: u32) {
        let apic_id = APIC_IDS[cpu as usize];
        self.own
            .load(&self.shared, cpu, apic_id, &self.lists, &self.counts)
            .unwrap();
    }

    pub(crate) fn put(&self, reason: PutReason) -> Put {
        self.own
            .put(&self.shared, reason, &self.lists, &self.counts)
            .unwrap()
    }

    pub(crate) fn enter(&mut self) -> Entry {
        self.own.enter(&self.shared, &mut self.lapic, &self.counts)
    }

    /// The VM exit and the way back to the host.
    pub(crate) fn leave(&mut self) {
        self.own.vm_exit(&self.shared, &self.counts);
        self.own.leave(&self.shared, &self.counts);
    }

    /// Into the guest and out of it again, so that the vCPU is as any that has run.
    pub(crate) fn run_once(&mut self) {
        assert_eq!(self.enter(), Entry::Run);
        self.leave();
    }

    pub(crate) fn begin_blocking(&mut self) {
        self.own.begin_blocking(&self.shared, &self.counts);
    }

    /// Whether the vCPU may be switched out.
    pub(crate) fn wait(&mut self) -> bool {
        self.own
            .wait(&self.shared, &mut self.lapic, true, &self.counts)
    }

    pub(crate) fn deliver(&self, vector: u8) -> Delivery {
        deliver(&self.shared, vector, false, self.own.policy(), &self.counts)
    }

    /// Delivers and does what is asked; whether the sleeping vCPU was woken.
    pub(crate) fn deliver_and_wake(&self, vector: u8) -> bool {
        self.deliver(vector) == Delivery::Wake && wake_up(&self.shared)
    }

    /// The wakeup vector arrives on a CPU; whether the sleeping vCPU was woken.
    pub(crate) fn wakeup_irq(&self, cpu: u32) -> bool {
        let (woken, calls) = (Cell::new(false), Cell::new(0));
        let counted = wakeup_handler(
            cpu,
            &self.lists,
            |_| Some(&*self.shared),
            &self.counts,
            |_| {
                woken.set(wake_up(&self.shared));
                calls.set(calls.get() + 1);
            },
        );
        assert_eq!(counted, Some(calls.get()));
        woken.get()
    }

    pub(crate) fn notification(&mut self) -> Notification {
        hardware::interrupt_in_guest(
            &self.shared,
            &mut self.lapic,
            POSTED_INTR_VECTOR,
            POSTED_INTR_VECTOR,
            &self.counts,
        )
    }

    /// The guest takes what it can; the vectors in order.
    pub(crate) fn take_interrupts(&mut self) -> Vec<u8> {
        let mut taken = Vec::new();
        self.lapic.virtual_entry();
        while let Some(vector) = self.lapic.virtual_deliver(&self.shared.irr) {
            taken.push(vector);
            self.lapic.virtual_eoi(&());
        }
        taken
    }
}

//! The protocol on real threads and real atomics, for the memory model that Miri or the machine
//! has. A lost interrupt shows as a sender that waits in vain.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use stealtime_hypervisor::lapic::Lapic;
use stealtime_hypervisor::posted_interrupt::{
    Delivery, Entry, LocalLists, POSTED_INTR_VECTOR, PostedVcpu, SharedVcpu, Suppression, deliver,
    hardware, vtd, wake_up,
};

use crate::rig::{IPIV_HOST, PLAIN_APICV_HOST, SOUND};

type Shared = SharedVcpu<AtomicU64>;

const ROUNDS: u64 = if cfg!(miri) { 6 } else { 3000 };
/// Under Miri time is counted in steps.
const PATIENCE: Duration = if cfg!(miri) {
    Duration::from_secs(20)
} else {
    Duration::from_secs(30)
};

/// What connects the sender with the vCPU's CPU.
struct Machine {
    vcpu: Shared,
    /// A notification waits in the physical APIC.
    notification: AtomicU64,
    /// How many interrupts the guest has taken.
    taken: AtomicU64,
    done: AtomicU64,
}

impl Machine {
    fn new() -> Self {
        Self {
            vcpu: Shared::new(true),
            notification: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            done: AtomicU64::new(0),
        }
    }

    fn wait_until(&self, what: &str, ready: impl Fn() -> bool) {
        // At first without leaving the CPU: the races are a few nanoseconds wide.
        let eager = if cfg!(miri) { 1 } else { 200 };
        if (0..eager).any(|_| ready()) {
            return;
        }
        let start = Instant::now();
        while !ready() {
            assert!(start.elapsed() < PATIENCE, "{what}: lost");
            thread::yield_now();
        }
    }

    /// The guest takes what it may.
    fn guest(&self, lapic: &mut Lapic) {
        lapic.virtual_entry();
        while lapic.virtual_deliver(&self.vcpu.irr).is_some() {
            lapic.virtual_eoi(&());
            self.taken.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// The vCPU's thread: now it stays in the guest and relies on notifications, now it sleeps
    /// and relies on being woken.
    fn vcpu_thread(&self, policy: Suppression, sleeps: bool) {
        let host = if sleeps { PLAIN_APICV_HOST } else { IPIV_HOST };
        let mut own = PostedVcpu::new(0, host, policy);
        let mut lapic = Lapic::new(true);
        let lists = LocalLists::new(1, 1);
        own.load(&self.vcpu, 0, 0, &lists, &()).unwrap();
        while self.done.load(Ordering::SeqCst) == 0 {
            assert_eq!(own.enter(&self.vcpu, &mut lapic, &()), Entry::Run);
            self.guest(&mut lapic);
            if !sleeps {
                let over = || self.done.load(Ordering::SeqCst) != 0;
                self.wait_until("notification", || {
                    over() || self.notification.load(Ordering::SeqCst) != 0
                });
                if self.notification.swap(0, Ordering::SeqCst) != 0 {
                    let (nv, vector) = (POSTED_INTR_VECTOR, POSTED_INTR_VECTOR);
                    hardware::interrupt_in_guest(&self.vcpu, &mut lapic, nv, vector, &());
                    self.guest(&mut lapic);
                }
            }
            own.vm_exit(&self.vcpu, &());
            own.leave(&self.vcpu, &());
            if sleeps {
                own.begin_blocking(&self.vcpu, &());
                if own.wait(&self.vcpu, &mut lapic, true, &()) {
                    let over = || self.done.load(Ordering::SeqCst) != 0;
                    self.wait_until("wakeup", || over() || !self.vcpu.still_waiting());
                }
                own.end_blocking(&self.vcpu, &());
            }
        }
    }

    /// Posts one interrupt after the other, each when the one before was taken.
    fn sender(&self, policy: Suppression, vtd_posts: bool) {
        for n in 0..ROUNDS {
            let vector = 32 + (n % 200) as u8;
            // Now early, now late in the vCPU's way out and in again.
            (0..n % 97).for_each(|_| std::hint::spin_loop());
            if vtd_posts && n % 2 == 0 {
                if vtd::post(&self.vcpu.desc, vector, false, &()).is_some() {
                    self.notification.store(1, Ordering::SeqCst);
                }
            } else {
                match deliver(&self.vcpu, vector, false, policy, &()) {
                    Delivery::Ipi { .. } => self.notification.store(1, Ordering::SeqCst),
                    Delivery::Wake => {
                        wake_up(&self.vcpu);
                    }
                    _ => {}
                }
            }
            self.wait_until("interrupt", || self.taken.load(Ordering::SeqCst) > n);
        }
        self.done.store(1, Ordering::SeqCst);
    }
}

fn run(policy: Suppression, sleeps: bool) {
    let machine = Machine::new();
    thread::scope(|scope| {
        scope.spawn(|| machine.vcpu_thread(policy, sleeps));
        scope.spawn(|| machine.sender(policy, !sleeps));
    });
    assert_eq!(machine.taken.load(Ordering::SeqCst), ROUNDS);
}

#[test]
fn threads_in_guest_mode_get_every_interrupt_once() {
    for policy in SOUND {
        run(policy, false);
    }
}

#[test]
fn threads_that_sleep_get_every_interrupt_once() {
    for policy in SOUND {
        run(policy, true);
    }
}

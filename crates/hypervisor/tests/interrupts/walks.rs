//! Random walks of one vCPU, its posters and its IPIs, against a set of vectors as the model.
//!
//! A walk is a pure function of (policy, host, seed); a failure names them. The sound policies
//! must keep every invariant; the faulty ones must be caught.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use stealtime_hypervisor::posted_interrupt::hardware::interrupt_in_host;
use stealtime_hypervisor::posted_interrupt::{
    Delivery, Entry, HostInterrupt, Kick, POSTED_INTR_VECTOR, POSTED_INTR_WAKEUP_VECTOR, Requests,
    Suppression, ipi_virtualization, kick, vtd, wake_up,
};

use crate::rig::{APIC_IDS, IPIV_HOST, PLAIN_APICV_HOST, PREEMPTED, Rig as AnyRig, SLEEPS, SOUND};

type Rig = AnyRig<Cell<u64>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Its thread runs in the host.
    Host,
    Guest,
    /// Between the turns of the wait loop.
    Blocking,
    /// It has looked and found nothing.
    AboutToSleep,
    Asleep,
    /// Preempted or in its VMM.
    Out,
    /// Preempted just before it would have slept.
    OutAboutToSleep,
}

struct Walk {
    rig: Rig,
    hardware_posts: bool,
    state: State,
    /// IPIs on their way: CPU and vector.
    ipis: Vec<(u32, u8)>,
    /// Vectors that were posted and not yet taken.
    outstanding: BTreeSet<u8>,
    /// How often each vector's PIR bit was turned on, less how often the guest took it. A vector
    /// may wait in the IRR and in PIR at once.
    credit: BTreeMap<u8, u32>,
    random: u64,
}

impl Walk {
    fn new(policy: Suppression, hardware_posts: bool, seed: u64) -> Self {
        let host = if hardware_posts {
            IPIV_HOST
        } else {
            PLAIN_APICV_HOST
        };
        Self {
            rig: Rig::new(host, policy),
            hardware_posts,
            state: State::Host,
            ipis: Vec::new(),
            outstanding: BTreeSet::new(),
            credit: BTreeMap::new(),
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        }
    }

    /// A number below `n` (xorshift).
    fn below(&mut self, n: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % n
    }

    fn post(&mut self) {
        let vector = 0x30 + self.below(6) as u8 * 0x13;
        self.outstanding.insert(vector);
        if !self.rig.shared.desc.test_pir(vector) {
            *self.credit.entry(vector).or_default() += 1;
        }
        let posters = if self.hardware_posts { 3 } else { 1 };
        match self.below(posters) {
            0 => match self.rig.deliver(vector) {
                Delivery::Ipi { cpu, vector } => self.ipis.push((cpu.unwrap(), vector)),
                Delivery::Wake => {
                    wake_up(&self.rig.shared);
                }
                _ => {}
            },
            n => {
                let desc = &self.rig.shared.desc;
                let sent = if n == 1 {
                    vtd::post(desc, vector, false, &())
                } else {
                    ipi_virtualization::post(desc, vector, &())
                };
                if let Some(ipi) = sent {
                    let cpu = APIC_IDS.iter().position(|&id| id == ipi.ndst).unwrap();
                    self.ipis.push((cpu as u32, ipi.vector));
                }
            }
        }
    }

    /// The oldest IPI arrives.
    fn ipi(&mut self) {
        if self.ipis.is_empty() {
            return;
        }
        let (cpu, vector) = self.ipis.remove(0);
        let here = self.state == State::Guest && self.rig.own.cpu() == Some(cpu);
        if here && vector == POSTED_INTR_VECTOR {
            self.rig.notification();
        } else if interrupt_in_host(vector, &()) == HostInterrupt::Wakeup {
            // If a guest runs there, it is an exit, handled by the host.
            self.rig.wakeup_irq(cpu);
        }
    }

    fn take_interrupts(&mut self) {
        for vector in self.rig.take_interrupts() {
            self.outstanding.remove(&vector);
            let credit = self.credit.entry(vector).or_default();
            let left = credit.checked_sub(1);
            *credit = left.unwrap_or_else(|| panic!("I4: vector {vector} was taken twice"));
        }
    }

    fn load(&mut self) {
        let cpu = self.below(3) as u32;
        self.rig.load(cpu);
    }

    /// One step of the vCPU's thread.
    fn vcpu(&mut self) {
        let choice = self.below(8);
        self.state = match (self.state, choice) {
            (State::Host, 0..=3) => {
                self.rig.shared.take(Requests::EVENT);
                match self.rig.enter() {
                    Entry::Run => State::Guest,
                    Entry::Cancelled => State::Host,
                }
            }
            (State::Host, 4..=5) => {
                self.rig.begin_blocking();
                State::Blocking
            }
            (State::Host, n) => {
                let _ = self.rig.put(if n == 6 { PREEMPTED } else { SLEEPS });
                State::Out
            }
            (State::Guest, 0..=3) => {
                self.take_interrupts();
                State::Guest
            }
            (State::Guest, 4) => {
                self.rig.own.vm_exit(&self.rig.shared, &());
                let again = self
                    .rig
                    .own
                    .reenter(&self.rig.shared, &mut self.rig.lapic, &());
                if again == Entry::Cancelled {
                    self.rig.own.leave(&self.rig.shared, &());
                    State::Host
                } else {
                    State::Guest
                }
            }
            (State::Guest, _) => {
                self.rig.leave();
                State::Host
            }
            (State::Blocking, _) => {
                if self.rig.wait() {
                    State::AboutToSleep
                } else {
                    self.rig.own.end_blocking(&self.rig.shared, &());
                    State::Host
                }
            }
            (State::AboutToSleep, 0..=1) => {
                let _ = self.rig.put(PREEMPTED);
                State::OutAboutToSleep
            }
            (State::AboutToSleep, _) => self.sleep(),
            (State::Asleep, _) if self.rig.shared.still_waiting() => State::Asleep,
            (State::Asleep, _) => {
                self.load();
                State::Blocking
            }
            (State::Out, _) => {
                self.load();
                State::Host
            }
            (State::OutAboutToSleep, _) => {
                self.load();
                State::AboutToSleep
            }
        };
    }

    fn sleep(&mut self) -> State {
        if !self.rig.shared.still_waiting() {
            return State::Blocking;
        }
        if self.rig.put(SLEEPS).self_ipi {
            let cpu = self.rig.own.cpu().unwrap();
            self.ipis.push((cpu, POSTED_INTR_WAKEUP_VECTOR));
        }
        State::Asleep
    }

    fn other(&mut self) {
        if self.below(8) == 0
            && let Kick::Ipi(_) = kick(&self.rig.shared, Requests::EVENT, false)
        {
            // The exit that the kick causes.
            self.rig.leave();
            self.state = State::Host;
        }
    }

    /// What must hold between any two steps.
    fn invariants(&self) -> Result<(), String> {
        let desc = &self.rig.shared.desc;
        let control = desc.control();
        let mut broken = Vec::new();
        if self.state == State::Guest && control.sn() {
            broken.push("I2: SN is set in guest mode");
        }
        let runnable = matches!(self.state, State::Host | State::Out);
        let corrected = self.rig.own.policy() == Suppression::Corrected;
        if corrected && runnable && !control.sn() {
            broken.push("I3: SN is clear in the host");
        }
        if !control.sn() && !desc.is_pir_empty() && !control.on() {
            broken.push("I5: PIR is not empty, SN and ON are clear");
        }
        if broken.is_empty() {
            Ok(())
        } else {
            Err(format!("{broken:?} in state {:?}", self.state))
        }
    }

    /// No more posts: everything on its way arrives, and everything must be taken. A vCPU in the
    /// guest stays there; one that sleeps must be woken.
    fn settle(&mut self) -> Result<(), String> {
        for _ in 0..64 {
            while !self.ipis.is_empty() {
                self.ipi();
            }
            let posted = !self.rig.shared.desc.is_pir_empty();
            if self.outstanding.is_empty() && !posted {
                return Ok(());
            }
            match self.state {
                State::Guest => self.take_interrupts(),
                State::Asleep if self.rig.shared.still_waiting() => {
                    return Err(format!("I1: asleep with {:?} posted", self.outstanding));
                }
                State::AboutToSleep => self.state = self.sleep(),
                State::Host => {
                    self.rig.shared.take(Requests::EVENT);
                    if self.rig.enter() == Entry::Run {
                        self.state = State::Guest;
                    }
                }
                _ => self.vcpu(),
            }
        }
        Err(format!(
            "I4: never taken: {:?} in {:?}",
            self.outstanding, self.state
        ))
    }

    fn run(&mut self, steps: u32) -> Result<(), String> {
        for n in 0..steps {
            match self.below(4) {
                0 => self.post(),
                1 => self.ipi(),
                2 => self.vcpu(),
                _ => self.other(),
            }
            self.invariants().map_err(|e| format!("step {n}: {e}"))?;
        }
        self.settle()
    }
}

fn walk(policy: Suppression, hardware_posts: bool, seed: u64) -> Result<(), String> {
    let steps = 20 + (seed % 60) as u32;
    Walk::new(policy, hardware_posts, seed).run(steps)
}

const SEEDS: u64 = if cfg!(miri) { 3 } else { 4000 };

#[test]
fn sound_policies_keep_every_invariant() {
    for policy in SOUND {
        for hardware_posts in [true, false] {
            for seed in 0..SEEDS {
                if let Err(e) = walk(policy, hardware_posts, seed) {
                    panic!("{policy:?} hardware_posts {hardware_posts} seed {seed}: {e}");
                }
            }
        }
    }
}

/// The first seed at which a policy breaks the invariant named.
fn first_break(policy: Suppression, hardware_posts: bool, invariant: &str) -> Option<u64> {
    (0..4000).find(|&seed| {
        let end = walk(policy, hardware_posts, seed);
        end.is_err_and(|e| e.contains(invariant))
    })
}

#[test]
#[cfg_attr(miri, ignore = "thousands of walks")]
fn faulty_policies_leave_a_vcpu_asleep() {
    for (policy, hardware_posts) in [
        (Suppression::AsPostedV1, true),
        (Suppression::AsPostedV1, false),
        (Suppression::AsPostedV2, false),
        (Suppression::AsPostedV3, true),
    ] {
        let seed = first_break(policy, hardware_posts, "I1");
        assert!(seed.is_some(), "{policy:?} hardware_posts {hardware_posts}");
    }
}

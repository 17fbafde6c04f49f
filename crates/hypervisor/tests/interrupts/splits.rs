//! A word that logs its accesses and lets another CPU in before any one of them.
//!
//! Each procedure of the vCPU's thread is run with a poster that comes in whole before access 1,
//! before access 2, and so on to the end. That is no full exploration of interleavings, but
//! every order of the protocol's steps that matters shows in it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::Ordering;

use stealtime_hypervisor::posted_interrupt::{
    Delivery, Entry, POSTED_INTR_VECTOR, POSTED_INTR_WAKEUP_VECTOR, SharedVcpu, Suppression,
    deliver, ipi_virtualization, vtd, wake_up,
};
use stealtime_hypervisor::word::{AtomicWord, CacheLine};

use crate::rig::{IPIV_HOST, PREEMPTED, Rig, SLEEPS, SOUND};

/// An access, with the number of its word: 0 to 3 are PIR, 4 is the descriptor's control word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Load(usize),
    Store(usize),
    /// A store that orders what came before it.
    Release(usize),
    Rmw(usize),
    Fence,
}

type Intruder = Box<dyn FnOnce()>;

thread_local! {
    static LOG: RefCell<Option<Vec<(char, usize)>>> = const { RefCell::new(None) };
    static INTRUDER: RefCell<Option<(usize, Intruder)>> = const { RefCell::new(None) };
}

/// Notes an access of the word at `at`, after letting the intruder in if it is its turn.
fn step(kind: char, at: usize) {
    let due = INTRUDER.with_borrow_mut(|slot| match slot {
        Some((0, _)) => slot.take().map(|(_, intruder)| intruder),
        Some((left, _)) => {
            *left -= 1;
            None
        }
        None => None,
    });
    if let Some(intruder) = due {
        intruder();
    }
    LOG.with_borrow_mut(|log| {
        if let Some(log) = log {
            log.push((kind, at));
        }
    });
}

#[derive(Debug)]
pub(crate) struct Logged(Cell<u64>);

impl Logged {
    fn note(&self, kind: char) {
        step(kind, std::ptr::from_ref(self).addr());
    }
}

impl AtomicWord for Logged {
    type Line = CacheLine;
    fn new(value: u64) -> Self {
        Self(Cell::new(value))
    }
    fn load(&self, order: Ordering) -> u64 {
        self.note('l');
        self.0.load(order)
    }
    fn store(&self, value: u64, order: Ordering) {
        self.note(if order == Ordering::Relaxed { 's' } else { 'S' });
        self.0.store(value, order);
    }
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.note('r');
        AtomicWord::swap(&self.0, value, order)
    }
    fn fetch_or(&self, bits: u64, order: Ordering) -> u64 {
        self.note('r');
        self.0.fetch_or(bits, order)
    }
    fn fetch_and(&self, bits: u64, order: Ordering) -> u64 {
        self.note('r');
        self.0.fetch_and(bits, order)
    }
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.note('r');
        self.0.fetch_add(value, order)
    }
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.note('r');
        self.0.compare_exchange(current, new, success, failure)
    }
    fn fence(&self, _order: Ordering) {
        self.note('f');
    }
}

/// The accesses of `body`. Words are numbered from the lowest cache line that was touched, which
/// is the descriptor's if that was touched at all.
pub(crate) fn log_of(body: impl FnOnce()) -> Vec<Access> {
    LOG.set(Some(Vec::new()));
    body();
    let log = LOG.take().unwrap();
    let line = log.iter().map(|&(_, at)| at & !63).min().unwrap();
    number(log, line)
}

/// The accesses of `body`, words numbered from the beginning of `vcpu`, where its descriptor is.
pub(crate) fn log_in(vcpu: &SharedVcpu<Logged>, body: impl FnOnce()) -> Vec<Access> {
    LOG.set(Some(Vec::new()));
    body();
    number(LOG.take().unwrap(), std::ptr::from_ref(&vcpu.desc).addr())
}

fn number(log: Vec<(char, usize)>, line: usize) -> Vec<Access> {
    log.into_iter()
        .map(|(kind, at)| {
            let word = at.wrapping_sub(line) / 8;
            match kind {
                'l' => Access::Load(word),
                's' => Access::Store(word),
                'S' => Access::Release(word),
                'r' => Access::Rmw(word),
                _ => Access::Fence,
            }
        })
        .collect()
}

type Shared = SharedVcpu<Logged>;

/// Runs `procedure`, with `intruder` coming in before its access number `n`; `false` if the
/// procedure has fewer and the intruder came after it.
pub(crate) fn split_at(
    n: usize,
    procedure: impl FnOnce(),
    intruder: impl FnOnce() + 'static,
) -> bool {
    INTRUDER.set(Some((n, Box::new(intruder))));
    procedure();
    match INTRUDER.take() {
        None => true,
        Some((_, intruder)) => {
            intruder();
            false
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Poster {
    Software,
    Vtd,
    Ipiv,
}

const POSTERS: [Poster; 3] = [Poster::Software, Poster::Vtd, Poster::Ipiv];

impl Poster {
    /// Posts vector 50 and wakes the vCPU if necessary. Returns the vector of the IPI that is now on its way.
    fn post(self, vcpu: &Shared, policy: Suppression) -> Option<u8> {
        let sent = match self {
            Self::Software => match deliver(vcpu, 50, false, policy, &()) {
                Delivery::Ipi { vector, .. } => return Some(vector),
                Delivery::Wake => {
                    wake_up(vcpu);
                    return None;
                }
                _ => return None,
            },
            Self::Vtd => vtd::post(&vcpu.desc, 50, false, &()),
            Self::Ipiv => ipi_virtualization::post(&vcpu.desc, 50, &()),
        };
        sent.map(|ipi| ipi.vector)
    }

    /// An intruder that posts and leaves the IPI's vector in `sent`.
    fn intruder(
        self,
        rig: &Rig<Logged>,
        sent: &Rc<Cell<Option<u8>>>,
    ) -> impl FnOnce() + use<> + 'static {
        let (vcpu, sent, policy) = (rig.shared.clone(), sent.clone(), rig.own.policy());
        move || sent.set(self.post(&vcpu, policy))
    }
}

/// At which splits the interrupt that was posted while the vCPU entered is not taken.
fn lost_at_entry(policy: Suppression, poster: Poster) -> Vec<usize> {
    let mut lost = Vec::new();
    for n in 0.. {
        let mut rig = Rig::<Logged>::new(IPIV_HOST, policy);
        rig.run_once();
        let sent = Rc::new(Cell::new(None));
        let intruder = poster.intruder(&rig, &sent);
        let within = split_at(n, || assert_eq!(rig.enter(), Entry::Run), intruder);
        rig.lapic.virtual_entry();
        // Interrupts were off: whatever was sent arrives in the guest.
        if sent.get() == Some(POSTED_INTR_VECTOR) {
            rig.notification();
        }
        if rig.take_interrupts() != [50] {
            lost.push(n);
        }
        if !within {
            return lost;
        }
    }
    unreachable!()
}

/// At which splits a vCPU that goes to sleep stays asleep though an interrupt was posted.
fn asleep_for_ever(policy: Suppression, poster: Poster) -> Vec<usize> {
    let mut lost = Vec::new();
    for n in 0.. {
        let mut rig = Rig::<Logged>::new(IPIV_HOST, policy);
        rig.run_once();
        let sent = Rc::new(Cell::new(None));
        let intruder = poster.intruder(&rig, &sent);
        let mut self_ipi = false;
        let go_to_sleep = || {
            rig.begin_blocking();
            if rig.wait() {
                self_ipi = rig.put(SLEEPS).self_ipi;
            }
        };
        let within = split_at(n, go_to_sleep, intruder);
        // Interrupts come on again: the wakeup vector's handler runs.
        if self_ipi || sent.get() == Some(POSTED_INTR_WAKEUP_VECTOR) {
            rig.wakeup_irq(0);
        }
        if rig.shared.still_waiting() {
            lost.push(n);
        }
        if !within {
            return lost;
        }
    }
    unreachable!()
}

#[test]
fn entry_loses_nothing_wherever_a_poster_comes_in() {
    for policy in SOUND {
        for poster in POSTERS {
            let lost = lost_at_entry(policy, poster);
            assert!(lost.is_empty(), "{policy:?} {poster:?}: {lost:?}");
        }
    }
}

#[test]
fn sleeper_is_woken_wherever_a_poster_comes_in() {
    for policy in SOUND {
        for poster in POSTERS {
            let lost = asleep_for_ever(policy, poster);
            assert!(lost.is_empty(), "{policy:?} {poster:?}: {lost:?}");
        }
    }
}

#[test]
fn first_posting_leaves_sleepers_asleep() {
    for poster in POSTERS {
        let lost = asleep_for_ever(Suppression::AsPostedV1, poster);
        assert!(!lost.is_empty(), "{poster:?}");
    }
}

#[test]
fn preempted_vcpu_notices_on_load_wherever_a_poster_comes_in() {
    for policy in SOUND {
        for poster in POSTERS {
            for cpu in [0, 1] {
                for n in 0..64 {
                    let mut rig = Rig::<Logged>::new(IPIV_HOST, policy);
                    rig.run_once();
                    let _ = rig.put(PREEMPTED);
                    let sent = Rc::new(Cell::new(None));
                    let intruder = poster.intruder(&rig, &sent);
                    split_at(n, || rig.load(cpu), intruder);
                    // In the host the notification does nothing.
                    assert_eq!(rig.enter(), Entry::Run);
                    let taken = rig.take_interrupts();
                    assert_eq!(taken, [50], "{policy:?} {poster:?} CPU {cpu} split {n}");
                }
            }
        }
    }
}

#[test]
fn poster_loses_nothing_wherever_the_vcpu_comes_in() {
    #[derive(Clone, Copy, Debug)]
    enum Vcpu {
        Enters,
        Sleeps,
    }
    for policy in SOUND {
        for poster in POSTERS {
            for vcpu in [Vcpu::Enters, Vcpu::Sleeps] {
                for n in 0..16 {
                    let mut rig = Rig::<Logged>::new(IPIV_HOST, policy);
                    rig.run_once();
                    let shared = rig.shared.clone();
                    let (rig, self_ipi) = (Rc::new(RefCell::new(rig)), Rc::new(Cell::new(false)));
                    let intruder = {
                        let (rig, self_ipi) = (rig.clone(), self_ipi.clone());
                        move || {
                            let mut rig = rig.borrow_mut();
                            match vcpu {
                                Vcpu::Enters => assert_eq!(rig.enter(), Entry::Run),
                                Vcpu::Sleeps => {
                                    rig.begin_blocking();
                                    if rig.wait() {
                                        self_ipi.set(rig.put(SLEEPS).self_ipi);
                                    }
                                }
                            }
                        }
                    };
                    let mut sent = None;
                    split_at(n, || sent = poster.post(&shared, policy), intruder);
                    let mut rig = rig.borrow_mut();
                    let at = format!("{policy:?} {poster:?} {vcpu:?} split {n}");
                    match vcpu {
                        Vcpu::Enters => {
                            rig.lapic.virtual_entry();
                            if sent == Some(POSTED_INTR_VECTOR) {
                                rig.notification();
                            }
                            assert_eq!(rig.take_interrupts(), [50], "{at}");
                        }
                        Vcpu::Sleeps => {
                            if self_ipi.get() || sent == Some(POSTED_INTR_WAKEUP_VECTOR) {
                                rig.wakeup_irq(0);
                            }
                            assert!(!rig.shared.still_waiting(), "{at}");
                        }
                    }
                }
            }
        }
    }
}

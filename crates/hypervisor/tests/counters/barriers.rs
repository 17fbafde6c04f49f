//! Order of the clock page's accesses, and their barriers: what the version protocol rests on.
//!
//! On x86 no test with threads can see a missing barrier here: the machine keeps the order anyway. So
//! the accesses are logged.

use std::cell::{Cell, RefCell};
use std::sync::atomic::Ordering;

use stealtime_hypervisor::counter::arith::TimeScale;
use stealtime_hypervisor::counter::pvclock::{PVCLOCK_TSC_STABLE, PvclockPage, PvclockTime};
use stealtime_hypervisor::word::{AtomicWord, CacheLine};

/// An access of the word at this place of the page: 0 is the version, 1 to 3 are the fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Load(usize, Ordering),
    Store(usize, Ordering),
    Rmw(usize, Ordering),
    Fence(Ordering),
    /// The reader's own look at the TSC.
    Tsc,
}

use Access::{Fence, Load, Rmw, Store, Tsc};

/// Which access it is, once its word's place is known.
type Kind = fn(usize, Ordering) -> Access;

thread_local! {
    static LOG: RefCell<Vec<(usize, Kind, Ordering)>> = const { RefCell::new(Vec::new()) };
}

fn note(at: usize, access: Kind, order: Ordering) {
    LOG.with_borrow_mut(|log| log.push((at, access, order)));
}

#[derive(Debug)]
struct Logged(Cell<u64>);

impl Logged {
    fn note(&self, access: Kind, order: Ordering) {
        note(std::ptr::from_ref(self).addr(), access, order);
    }
}

impl AtomicWord for Logged {
    type Line = CacheLine;
    fn new(value: u64) -> Self {
        Self(Cell::new(value))
    }
    fn load(&self, order: Ordering) -> u64 {
        self.note(Load, order);
        self.0.load(order)
    }
    fn store(&self, value: u64, order: Ordering) {
        self.note(Store, order);
        self.0.store(value, order);
    }
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.note(Rmw, order);
        AtomicWord::swap(&self.0, value, order)
    }
    fn fetch_or(&self, bits: u64, order: Ordering) -> u64 {
        self.note(Rmw, order);
        self.0.fetch_or(bits, order)
    }
    fn fetch_and(&self, bits: u64, order: Ordering) -> u64 {
        self.note(Rmw, order);
        self.0.fetch_and(bits, order)
    }
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.note(Rmw, order);
        self.0.fetch_add(value, order)
    }
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.note(Rmw, success);
        self.0.compare_exchange(current, new, success, failure)
    }
    fn fence(&self, order: Ordering) {
        self.note(|_, order| Fence(order), order);
        self.0.fence(order);
    }
}

/// What `body` does to the page, in order.
fn log_in(page: &PvclockPage<Logged>, body: impl FnOnce()) -> Vec<Access> {
    LOG.take();
    body();
    let base = std::ptr::from_ref(page).addr();
    let place = |(at, access, order): (usize, Kind, Ordering)| {
        access(at.wrapping_sub(base) / size_of::<Logged>(), order)
    };
    LOG.take().into_iter().map(place).collect()
}

fn time(n: u64) -> PvclockTime {
    PvclockTime {
        tsc_timestamp: n,
        system_time_ns: n,
        scale: TimeScale { mul: 1, shift: 0 },
        flags: PVCLOCK_TSC_STABLE,
    }
}

const VERSION: usize = 0;
const FIELDS: [usize; 3] = [1, 2, 3];

/// The fields that are accessed so between two places of a log.
fn fields(log: &[Access], of: impl Fn(Access) -> Option<usize>) -> Vec<usize> {
    let mut fields: Vec<usize> = log.iter().filter_map(|a| of(*a)).collect();
    fields.sort_unstable();
    fields
}

fn stored(access: Access) -> Option<usize> {
    match access {
        Store(at, _) if at != VERSION => Some(at),
        _ => None,
    }
}

fn loaded(access: Access) -> Option<usize> {
    match access {
        Load(at, _) if at != VERSION => Some(at),
        _ => None,
    }
}

fn at(log: &[Access], wanted: Access) -> usize {
    let found = log.iter().position(|a| *a == wanted);
    found.unwrap_or_else(|| panic!("no {wanted:?} in {log:?}"))
}

/// The kernel's `smp_wmb()` on both sides of the fields: no field is visible before the odd version, nor
/// the even version before the last field.
#[test]
fn the_host_makes_the_version_odd_before_and_even_after_all_fields() {
    let page = PvclockPage::<Logged>::new();
    page.publish(time(1));
    let log = log_in(&page, || {
        page.publish(time(2));
    });
    let odd = at(&log, Store(VERSION, Ordering::Relaxed));
    let fence = at(&log, Fence(Ordering::Release));
    let even = at(&log, Store(VERSION, Ordering::Release));
    assert!(odd < fence && fence < even, "{log:?}");
    assert_eq!(even, log.len() - 1, "{log:?}");
    assert_eq!(fields(&log[..fence], stored), [], "{log:?}");
    assert_eq!(fields(&log[fence..even], stored), FIELDS, "{log:?}");
}

/// The same where the three steps are taken apart, as a checker does.
#[test]
fn the_host_s_steps_have_their_barriers_each() {
    let page = PvclockPage::<Logged>::new();
    let mut odd = 0;
    let begin = log_in(&page, || odd = page.begin_update());
    assert_eq!(begin.last(), Some(&Fence(Ordering::Release)), "{begin:?}");
    let end = log_in(&page, || page.end_update(odd));
    assert_eq!(end, [Store(VERSION, Ordering::Release)]);
}

/// The guest's `rmb` on both sides: no field, nor the TSC, is read before the first look at the version,
/// and the second look comes after all of them.
#[test]
fn the_guest_looks_at_the_version_before_and_after_all_fields_and_the_tsc() {
    let page = PvclockPage::<Logged>::new();
    page.publish(time(1));
    let log = log_in(&page, || {
        let read = page.try_read(|| note(0, |_, _| Tsc, Ordering::Relaxed));
        assert_eq!(read.unwrap().0, time(1));
    });
    assert_eq!(log[0], Load(VERSION, Ordering::Acquire), "{log:?}");
    let fence = at(&log, Fence(Ordering::Acquire));
    assert_eq!(fields(&log[..fence], loaded), FIELDS, "{log:?}");
    assert!(at(&log, Tsc) < fence, "{log:?}");
    assert_eq!(log[fence + 1..], [Load(VERSION, Ordering::Relaxed)]);
}

/// The host may write between the guest's look at the bit and its write: only one exchange keeps what
/// else stands in the word.
#[test]
fn the_guest_acknowledges_a_stop_in_one_access() {
    let page = PvclockPage::<Logged>::new();
    let log = log_in(&page, || assert!(!page.acknowledge_stopped()));
    assert!(matches!(log[..], [Rmw(3, _)]), "{log:?}");
}

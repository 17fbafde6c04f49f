//! Barriers R1 to R10 of the specification: the order in which each side touches its words.
//!
//! The other words of a vCPU have no fixed place; they are known by what touches them first.

use std::cell::RefCell;

use stealtime_hypervisor::posted_interrupt::{
    CpuList, Delivery, Entry, LocalLists, POSTED_INTR_VECTOR, POSTED_INTR_WAKEUP_VECTOR, Requests,
    SharedVcpu, Suppression, VcpuMode, WakeupLists, kick, unsuppress, wake_up,
};

use crate::rig::{IPIV_HOST, Rig as AnyRig, SLEEPS, SOUND};
use crate::splits::{Access, Logged, log_in};

type Rig = AnyRig<Logged>;

/// The descriptor's control word.
const CONTROL: usize = 4;

fn rig(policy: Suppression) -> Rig {
    let mut rig = Rig::new(IPIV_HOST, policy);
    rig.run_once();
    rig
}

/// The word of the mode, which `set_mode` stores to.
fn mode_word(rig: &Rig) -> usize {
    let log = log_in(&rig.shared, || rig.shared.set_mode(VcpuMode::OutsideGuest));
    match log[..] {
        [Access::Release(word)] => word,
        _ => panic!("{log:?}"),
    }
}

/// The word of the requests.
fn request_word(rig: &Rig) -> usize {
    let log = log_in(&rig.shared, || rig.shared.request(Requests(0)));
    match log[..] {
        [Access::Rmw(word)] => word,
        _ => panic!("{log:?}"),
    }
}

/// The word of the waiting task.
fn wait_word(rig: &Rig) -> usize {
    let log = log_in(&rig.shared, || {
        rig.shared.still_waiting();
    });
    match log[..] {
        [Access::Load(word)] => word,
        _ => panic!("{log:?}"),
    }
}

/// Where an access first happens.
fn at(log: &[Access], wanted: Access) -> usize {
    let found = log.iter().position(|&a| a == wanted);
    found.unwrap_or_else(|| panic!("no {wanted:?} in {log:?}"))
}

/// Whether a fence lies between two places.
fn fenced(log: &[Access], from: usize, to: usize) -> bool {
    from < to && log[from..to].contains(&Access::Fence)
}

#[test]
fn r1_poster_sets_on_before_it_reads_the_mode_and_entry_does_the_reverse() {
    for policy in SOUND {
        let mut rig = rig(policy);
        let mode = mode_word(&rig);
        let shared = rig.shared.clone();
        let entry = log_in(&shared, || assert_eq!(rig.enter(), Entry::Run));
        let stored = at(&entry, Access::Release(mode));
        let last_read = entry.iter().rposition(|&a| a == Access::Load(CONTROL));
        assert!(
            fenced(&entry, stored, last_read.unwrap()),
            "{policy:?} {entry:?}"
        );
        let post = log_in(&shared, || {
            assert!(matches!(rig.deliver(50), Delivery::Ipi { .. }));
        });
        let (on, read) = (
            at(&post, Access::Rmw(CONTROL)),
            at(&post, Access::Load(mode)),
        );
        assert!(fenced(&post, on, read), "{policy:?} {post:?}");
    }
}

#[test]
fn r3_suppression_ends_before_pir_is_read() {
    let rig = rig(Suppression::Corrected);
    rig.shared.desc.test_and_set_pir(50);
    let log = log_in(&rig.shared, || assert!(unsuppress(&rig.shared, &())));
    let cleared = at(&log, Access::Rmw(CONTROL));
    let read = at(&log, Access::Load(0));
    assert!(fenced(&log, cleared, read), "{log:?}");
    assert_eq!(log.last(), Some(&Access::Rmw(CONTROL)), "ON is set");
    // At load likewise.
    let mut rig = self::rig(Suppression::Put);
    let _ = rig.put(SLEEPS);
    let shared = rig.shared.clone();
    let log = log_in(&shared, || rig.load(1));
    let cleared = at(&log, Access::Rmw(CONTROL));
    assert!(fenced(&log, cleared, at(&log, Access::Load(0))), "{log:?}");
}

#[test]
fn r4_sleeper_publishes_itself_before_it_looks_and_waker_does_the_reverse() {
    for policy in SOUND {
        let mut rig = rig(policy);
        let wait = wait_word(&rig);
        rig.begin_blocking();
        let shared = rig.shared.clone();
        let log = log_in(&shared, || assert!(rig.wait()));
        let published = at(&log, Access::Store(wait));
        let looked = at(&log, Access::Load(CONTROL));
        assert!(fenced(&log, published, looked), "{policy:?} {log:?}");
        let log = log_in(&shared, || assert!(wake_up(&rig.shared)));
        assert_eq!(log[..2], [Access::Fence, Access::Load(wait)], "{log:?}");
    }
}

/// Lists that note which CPU's was locked and what NV was then.
struct Spy<'a> {
    lists: &'a LocalLists,
    vcpu: &'a SharedVcpu<Logged>,
    locked: RefCell<Vec<(u32, u8)>>,
}

impl WakeupLists for Spy<'_> {
    type List = CpuList;

    fn locked<R>(&self, cpu: u32, body: impl FnOnce(&mut CpuList) -> R) -> Option<R> {
        let nv = self.vcpu.desc.control().nv();
        self.locked.borrow_mut().push((cpu, nv));
        self.lists.locked(cpu, body)
    }
}

#[test]
fn r5_and_r10_lists_are_locked_before_the_vector_changes_and_on_the_right_cpu() {
    for policy in SOUND {
        let mut rig = rig(policy);
        rig.begin_blocking();
        assert!(rig.wait());
        let spy = Spy {
            lists: &rig.lists,
            vcpu: &rig.shared,
            locked: RefCell::default(),
        };
        let log = log_in(&rig.shared, || {
            assert!(rig.own.put(&rig.shared, SLEEPS, &spy, &()).unwrap().armed);
        });
        let exchanges = log.iter().filter(|a| matches!(a, Access::Rmw(CONTROL)));
        assert_eq!(
            exchanges.count(),
            1,
            "one exchange, and its image decides: {log:?}"
        );
        assert_eq!(spy.locked.take(), [(0, POSTED_INTR_VECTOR)], "{policy:?}");
        assert_eq!(rig.shared.desc.control().nv(), POSTED_INTR_WAKEUP_VECTOR);
        // Loaded elsewhere: still the list of CPU 0, and before NV changes back.
        rig.own.load(&rig.shared, 2, 2, &spy, &()).unwrap();
        assert_eq!(
            spy.locked.take(),
            [(0, POSTED_INTR_WAKEUP_VECTOR)],
            "{policy:?}"
        );
        assert_eq!(rig.shared.desc.control().nv(), POSTED_INTR_VECTOR);
    }
}

#[test]
fn r6_kick_requests_before_it_reads_the_mode_and_entry_does_the_reverse() {
    let mut rig = rig(Suppression::Put);
    let (mode, requests) = (mode_word(&rig), request_word(&rig));
    let shared = rig.shared.clone();
    let entry = log_in(&shared, || assert_eq!(rig.enter(), Entry::Run));
    let (stored, read) = (
        at(&entry, Access::Release(mode)),
        at(&entry, Access::Load(requests)),
    );
    assert!(fenced(&entry, stored, read), "{entry:?}");
    let log = log_in(&shared, || {
        kick(&rig.shared, Requests::EVENT, false);
    });
    let (made, exchanged) = (at(&log, Access::Rmw(requests)), at(&log, Access::Rmw(mode)));
    assert!(fenced(&log, made, exchanged), "{log:?}");
    // One's own thread stores.
    rig.leave();
    rig.shared.set_mode(VcpuMode::InGuest);
    let log = log_in(&shared, || {
        kick(&rig.shared, Requests::EVENT, true);
    });
    assert!(
        log.contains(&Access::Release(mode)) && !log.contains(&Access::Rmw(mode)),
        "{log:?}"
    );
    assert_eq!(rig.shared.mode(), VcpuMode::ExitingGuest);
}

#[test]
fn r9_mode_is_released_so_that_its_reader_sees_the_present_apicv_state() {
    for policy in SOUND {
        let mut rig = rig(policy);
        let mode = mode_word(&rig);
        let shared = rig.shared.clone();
        let apicv = log_in(&shared, || rig.shared.set_apicv(true));
        let entry = log_in(&shared, || assert_eq!(rig.enter(), Entry::Run));
        // The switch itself is relaxed: what is stored next carries it.
        assert!(matches!(apicv[..], [Access::Store(_)]), "{apicv:?}");
        assert_eq!(entry[0], Access::Release(mode), "{policy:?} {entry:?}");
    }
}

/// With SN set, only the policies of the series clear an ON that is clear: one more locked operation.
#[test]
fn a_clear_on_is_cleared_by_the_policies_of_the_series_alone() {
    for (policy, clears) in [
        (Suppression::AsPostedV1, true),
        (Suppression::AsPostedV3, true),
        (Suppression::Corrected, false),
    ] {
        let mut rig = rig(policy);
        rig.shared.desc.set_sn();
        rig.shared.desc.test_and_set_pir(50);
        let shared = rig.shared.clone();
        let log = log_in(&shared, || {
            assert_eq!(rig.own.sync(&rig.shared, &mut rig.lapic, &()), Some(50));
        });
        assert_eq!(
            log.contains(&Access::Rmw(CONTROL)),
            clears,
            "{policy:?} {log:?}"
        );
    }
}

/// `smp_wmb` between the mode and `local_irq_enable`: no interrupt handler finds a vCPU in guest mode that is
/// in the host.
#[test]
fn the_mode_outside_the_guest_is_written_before_interrupts_are_enabled() {
    for policy in SOUND {
        let mut rig = rig(policy);
        let mode = mode_word(&rig);
        let shared = rig.shared.clone();
        assert_eq!(rig.enter(), Entry::Run);
        let exit = log_in(&shared, || rig.leave());
        rig.shared.request(Requests::EVENT);
        let cancelled = log_in(&shared, || assert_eq!(rig.enter(), Entry::Cancelled));
        for log in [exit, cancelled] {
            assert!(log.contains(&Access::Release(mode)), "{policy:?} {log:?}");
            assert_eq!(log.last(), Some(&Access::Fence), "{policy:?} {log:?}");
        }
    }
}

/// Requests are taken before each VM entry with a virtual-APIC page. Most words of an IRR have none.
#[test]
fn words_of_the_irr_without_a_request_are_not_locked() {
    let rig = rig(Suppression::Put);
    for vector in [50, 250, 251] {
        assert!(rig.shared.irr.set(vector));
    }
    let log = log_in(&rig.shared, || {
        assert!(rig.shared.irr.take().iter().eq([50, 250, 251]));
    });
    let locked = log.iter().filter(|a| matches!(a, Access::Rmw(_)));
    assert_eq!((locked.count(), log.len()), (2, 6), "{log:?}");
}

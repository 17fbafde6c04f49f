//! An EOI while others record: what they write in the middle of it stays. And the receivers that
//! both ways of delivery report.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::Ordering;

use stealtime_hypervisor::ipi_tracking::{
    Delivery, IpiContext, IpiKnobs, NotRecorded, Unicast, confirmed_receiver, eoi, record,
};
use stealtime_hypervisor::lapic::{Apic, ApicBus, ApicMode, BusOptions};
use stealtime_hypervisor::scx::{Answered, Answers, MOST_RECEIVERS, Receiver};
use stealtime_hypervisor::word::AtomicWord;

type Hook = Box<dyn FnOnce()>;

thread_local! {
    /// Runs before the compare-and-exchange that comes after so many others.
    static BEFORE: RefCell<Option<(u32, Hook)>> = const { RefCell::new(None) };
}

/// A word with a hook that runs before an exchange, as another CPU might.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Watched(Cell<u64>);

impl AtomicWord for Watched {
    type Line = <Cell<u64> as AtomicWord>::Line;

    fn new(value: u64) -> Self {
        Self(Cell::new(value))
    }
    fn load(&self, _: Ordering) -> u64 {
        self.0.get()
    }
    fn store(&self, value: u64, _: Ordering) {
        self.0.set(value);
    }
    fn swap(&self, value: u64, _: Ordering) -> u64 {
        self.0.replace(value)
    }
    fn fetch_or(&self, bits: u64, _: Ordering) -> u64 {
        self.0.replace(self.0.get() | bits)
    }
    fn fetch_and(&self, bits: u64, _: Ordering) -> u64 {
        self.0.replace(self.0.get() & bits)
    }
    fn fetch_add(&self, value: u64, _: Ordering) -> u64 {
        self.0.replace(self.0.get().wrapping_add(value))
    }
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        _: Ordering,
        _: Ordering,
    ) -> Result<u64, u64> {
        let due = BEFORE.with(|before| {
            let mut before = before.borrow_mut();
            match &mut *before {
                Some((0, _)) => before.take(),
                Some((left, _)) => {
                    *left -= 1;
                    None
                }
                None => None,
            }
        });
        if let Some((_, hook)) = due {
            hook();
        }
        let old = self.0.get();
        if old != current {
            return Err(old);
        }
        self.0.set(new);
        Ok(old)
    }
    fn fence(&self, _: Ordering) {}
}

const NOW: u64 = 7_000_000_000;

fn knobs() -> IpiKnobs {
    IpiKnobs::default()
}

type Contexts = Rc<Vec<IpiContext<Watched>>>;

/// vCPU 1 ends vector 0xfb, which vCPU 0 sent it; before the exchange `n` another record is made.
fn ends_while(n: u32, sender: u32, receiver: u32) -> (bool, Contexts) {
    let contexts: Contexts = Rc::new((0..4).map(|_| IpiContext::new()).collect());
    let send = |contexts: &Contexts, sender, receiver, now_ns| {
        let ipi = Unicast {
            sender,
            receiver,
            vector: 0xfb,
        };
        record(contexts, &knobs(), &ipi, now_ns, &()).unwrap();
    };
    send(&contexts, 0, 1, NOW);
    let others = Rc::clone(&contexts);
    let hook: Hook = Box::new(move || send(&others, sender, receiver, NOW + 5));
    BEFORE.set(Some((n, hook)));
    let settled = eoi(&contexts, &knobs(), 1, Some(0xfb), NOW + 10, &()).unwrap();
    assert!(BEFORE.take().is_none(), "the hook has run");
    (settled, contexts)
}

fn awaited(contexts: &Contexts, sender: u32) -> Option<u32> {
    confirmed_receiver(contexts, &knobs(), sender, NOW + 20).map(|awaited| awaited.receiver)
}

#[test]
fn an_eoi_leaves_a_newer_senders_record() {
    // Another vCPU sends to the same receiver after the first record was settled: the receiver's
    // next EOI is for that one.
    let (settled, contexts) = ends_while(1, 2, 1);
    assert!(settled);
    assert_eq!(contexts[1].last_sender(), Some(2));
    assert_eq!(
        (awaited(&contexts, 0), awaited(&contexts, 2)),
        (None, Some(1))
    );
    assert!(eoi(&contexts, &knobs(), 1, Some(0xfb), NOW + 20, &()).unwrap());
    assert_eq!(awaited(&contexts, 2), None);
    // The same before: the first record is settled all the same.
    let (settled, contexts) = ends_while(0, 2, 1);
    assert!(settled);
    assert_eq!(contexts[1].last_sender(), Some(2));
    assert_eq!(awaited(&contexts, 2), Some(1));
}

#[test]
fn an_eoi_leaves_the_record_that_its_sender_makes_meanwhile() {
    let (settled, contexts) = ends_while(0, 0, 3);
    assert!(!settled, "the record now is another sender's");
    assert_eq!(awaited(&contexts, 0), Some(3));
    // To the same receiver, with the same vector, but later.
    let (settled, contexts) = ends_while(0, 0, 1);
    assert!(!settled);
    assert_eq!(awaited(&contexts, 0), Some(1));
}

type Owed = Rc<[Answers<Watched>; 3]>;

/// vCPU 1 answers an IPI to vCPUs 1 and 2; before its exchange something else happens.
fn answers_while(meanwhile: fn(&Owed)) -> (Option<Answered>, Vec<u32>) {
    let contexts: Owed = Rc::new([(); 3].map(|()| Answers::new()));
    send_to_both(&contexts, NOW);
    let others = Rc::clone(&contexts);
    BEFORE.set(Some((0, Box::new(move || meanwhile(&others)))));
    let answered = Answers::eoi(&*contexts, 1, 0xfb);
    assert!(BEFORE.take().is_none(), "nothing came in");
    let due = contexts[0].due(1_000, NOW + 10).collect();
    (answered, due)
}

fn send_to_both(contexts: &Owed, now_ns: u64) {
    contexts[0].send(now_ns);
    for (index, vcpu) in [1, 2].into_iter().enumerate() {
        let receiver = Receiver {
            vcpu,
            index,
            vector: 0xfb,
        };
        contexts[0].accept(0, &contexts[vcpu as usize], receiver);
    }
}

#[test]
fn an_answer_counts_though_another_comes_in() {
    let (answered, due) = answers_while(|contexts| {
        let other = Answers::eoi(&**contexts, 2, 0xfb);
        assert!(other.is_some_and(|other| !other.is_last));
    });
    let last = Answered {
        sender: 0,
        is_last: true,
    };
    assert_eq!((answered, due), (Some(last), vec![]));
}

#[test]
fn an_answer_leaves_the_ipi_that_its_sender_begins_meanwhile() {
    let (answered, due) = answers_while(|contexts| send_to_both(contexts, NOW + 5));
    assert_eq!((answered, due), (None, vec![1, 2]));
}

/// Further receivers of an IPI: with the first one they are as many as are awaited.
const OTHERS: usize = MOST_RECEIVERS - 1;

/// Before the next exchange, the IPI of vCPU 0 reaches another receiver, or that one answers. Further
/// receivers follow before further exchanges.
fn meet_before_exchanges(contexts: &Rc<Vec<Answers<Watched>>>, index: usize, is_accepted: bool) {
    let others = Rc::clone(contexts);
    let hook: Hook = Box::new(move || {
        let vcpu = index as u32 + 1;
        if is_accepted {
            assert!(Answers::eoi(&others, vcpu, 0xfb).is_some());
        } else {
            accept(&others, index);
        }
        let next = index + usize::from(is_accepted);
        if next <= OTHERS {
            meet_before_exchanges(&others, next, !is_accepted);
        }
    });
    BEFORE.set(Some((0, hook)));
}

fn accept(contexts: &[Answers<Watched>], index: usize) {
    let receiver = Receiver {
        vcpu: index as u32 + 1,
        index,
        vector: 0xfb,
    };
    contexts[0].accept(0, &contexts[index + 1], receiver);
}

/// The word of the sender changes twice for each of the 31 others, each time just before the exchange.
#[test]
fn an_answer_counts_though_all_others_are_reached_and_answer_meanwhile() {
    let contexts: Rc<Vec<_>> = Rc::new((0..=MOST_RECEIVERS).map(|_| Answers::new()).collect());
    contexts[0].send(NOW);
    accept(&contexts, 0);
    meet_before_exchanges(&contexts, 1, false);
    let answered = Answers::eoi(&contexts, 1, 0xfb);
    assert!(BEFORE.take().is_none(), "some are not reached");
    let last = Answered {
        sender: 0,
        is_last: true,
    };
    assert_eq!(answered, Some(last));
    assert_eq!(contexts[0].due(1_000, NOW).count(), 0);
}

/// An x2APIC with this logical id.
fn apic(id: u32, ldr: u32, mode: ApicMode, dfr: u32) -> Apic {
    Apic {
        vcpu_id: id,
        mode,
        sw_enabled: true,
        id: if mode == ApicMode::Xapic {
            id << 24
        } else {
            id
        },
        ldr,
        dfr,
        arb_prio: 0,
    }
}

/// By the map and without it alike, one LAPIC that takes the IPI is recorded, several are not.
#[test]
fn both_ways_of_delivery_report_the_receiver() {
    const FLAT: u32 = u32::MAX;
    const CLUSTER: u32 = 0x0fff_ffff;
    for (slow, odd) in [(false, FLAT), (true, CLUSTER)] {
        // A LAPIC in another logical mode leaves the VM without a map for logical destinations.
        let dfr = |id| if id == 3 { odd } else { FLAT };
        let apics = (0..4).map(|id| apic(id, 1 << (24 + id), ApicMode::Xapic, dfr(id)));
        let mut bus = ApicBus::new(apics.collect(), BusOptions::default());
        let mut disabled = bus.apics()[2];
        disabled.sw_enabled = false;
        bus.set(2, disabled).unwrap();
        let mut send = |low: u32, dest: u32| {
            let contexts: Vec<IpiContext<Cell<u64>>> = (0..4).map(|_| IpiContext::new()).collect();
            let counts = Slow::default();
            let mut delivery = Delivery::new(Some(0), low);
            let hand = |to, taken| delivery.destination(to as u32, i32::from(taken));
            bus.write_icr(0, low, dest << 24, &counts, hand).unwrap();
            let done = delivery.finish(&contexts, &knobs(), NOW, &());
            let awaited = confirmed_receiver(&contexts, &knobs(), 0, NOW);
            assert_eq!(awaited.is_some(), done.is_ok());
            (
                done,
                awaited.map(|awaited| awaited.receiver),
                counts.0.get(),
            )
        };
        let logical = 0x8fb;
        assert_eq!(send(logical, 0b0010), (Ok(()), Some(1), slow));
        // The mask names two, of which one takes nothing.
        assert_eq!(send(logical, 0b0110).1, Some(1));
        let several = send(logical, 0b0011);
        assert_eq!(several.0, Err(NotRecorded::SeveralReceivers));
        assert_eq!(send(logical, 0b0100).0, Err(NotRecorded::NoReceiver));
        assert_eq!(send(logical, 0b0001).0, Err(NotRecorded::ToSelf));
        assert_eq!(send(0xfb, 1).1, Some(1), "physical");
        let shorthand = send(0xc_00fb, 0);
        assert_eq!(shorthand.0, Err(NotRecorded::Shorthand));
    }
}

/// Whether delivery went without the map.
#[derive(Default)]
struct Slow(Cell<bool>);

impl stealtime_hypervisor::events::Events for Slow {
    fn destination_slow_path(&self) {
        self.0.set(true);
    }
}

//! The batch: items 1–6, 15 and 16, and bad input.

use stealtime_hypervisor::wakeup_batch::icr::{ApicMode, IcrError};
use stealtime_hypervisor::wakeup_batch::{Batch, Cpus, Finished, RaiseError, raise_mask_now};

use crate::machine::{ALL_BUT_SELF, Machine, SCHEDULE, mask, to};

fn machine(cpus: u32) -> Machine {
    Machine::new(cpus, ApicMode::X2apicPhysical)
}

#[test]
fn wakeup_sloppy_01_the_mask_holds_cpus_not_softirqs() {
    let mut m = machine(100);
    m.batch.begin().unwrap();
    m.raise(77, SCHEDULE);
    m.raise(12, SCHEDULE);
    assert_eq!(m.noted(), [12, 77]);
    m.finish();
    assert_eq!(m.sent(), [to(12), to(77)]);
}

#[test]
fn wakeup_sloppy_02_the_first_raiser_owns_the_ipi() {
    let mut m = machine(8);
    m.raise(5, SCHEDULE);
    assert_eq!(m.sent(), [to(5)]);
    m.batch.begin().unwrap();
    m.raise(5, SCHEDULE);
    assert_eq!(m.noted(), []);
    m.raise(5, 4);
    assert_eq!(
        m.noted(),
        [5],
        "another softirq is raised for the first time"
    );
}

#[test]
fn wakeup_sloppy_03_self_gets_no_ipi() {
    let mut m = machine(8);
    m.raise(0, SCHEDULE);
    m.batch.begin().unwrap();
    m.raise(0, 4);
    assert_eq!(m.noted(), []);
    m.finish();
    assert_eq!(m.sent(), []);
    assert_eq!(m.words[0].pending(), 1 << SCHEDULE | 1 << 4);
}

#[test]
fn wakeup_sloppy_04_a_cpu_that_noticed_gets_no_ipi_unless_something_is_left() {
    let mut m = machine(8);
    m.batch.begin().unwrap();
    for cpu in [1, 2, 3] {
        m.raise(cpu, SCHEDULE);
    }
    assert_eq!(m.words[1].take(u32::MAX), 1 << SCHEDULE);
    // CPU 2 handled it and got another one meanwhile.
    m.words[2].take(1 << SCHEDULE);
    m.words[2].set_pending(9);
    let finished = m.finish();
    assert_eq!(m.sent(), [to(2), to(3)]);
    let expected = Finished {
        noted: 3,
        noticed: 1,
        icr_writes: 2,
    };
    assert_eq!(finished, expected);
}

#[test]
fn wakeup_sloppy_05_a_handler_inside_a_batch_sends_at_once() {
    let mut m = machine(200);
    m.batch.begin().unwrap();
    m.raise(7, SCHEDULE);
    m.raise_in_irq(&[150], SCHEDULE);
    m.raise_in_irq(&[20, 30, 0], SCHEDULE);
    assert_eq!(m.sent(), [to(150), to(20), to(30)]);
    assert_eq!((m.noted(), m.batch.batching()), (vec![7], 1));
    // The same through the batch, since its count is above zero.
    m.context.in_irq = true;
    m.raise(40, SCHEDULE);
    assert_eq!((m.sent(), m.noted()), (vec![to(40)], vec![7]));
    // Interrupts that are merely disabled do not count.
    m.context.in_irq = false;
    m.context.irqs_on = false;
    m.raise(41, SCHEDULE);
    assert_eq!((m.sent(), m.noted()), (vec![], vec![7, 41]));
}

#[test]
fn wakeup_sloppy_06_an_inner_finish_flushes_the_outer_set() {
    let mut m = machine(8);
    m.batch.begin().unwrap();
    m.raise(1, SCHEDULE);
    m.batch.begin().unwrap();
    m.raise(2, SCHEDULE);
    assert_eq!(m.batch.batching(), 2);
    m.finish();
    assert_eq!((m.sent(), m.batch.batching()), (vec![to(1), to(2)], 1));
    m.raise(3, SCHEDULE);
    assert_eq!(m.noted(), [3], "still batching");
    m.finish();
    assert_eq!((m.sent(), m.batch.batching()), (vec![to(3)], 0));
    m.raise(4, SCHEDULE);
    assert_eq!(m.sent(), [to(4)]);
}

#[test]
fn wakeup_sloppy_15_everybody_else_takes_one_write() {
    let everybody = |m: &mut Machine| {
        m.batch.begin().unwrap();
        for cpu in 1..64 {
            m.raise(cpu, SCHEDULE);
        }
        m.finish();
        m.sent()
    };
    assert_eq!(everybody(&mut machine(64)), [ALL_BUT_SELF]);
    // Not from where hotplug or another sender could interrupt, and not if one is left out.
    let changes: [fn(&mut Machine); 4] = [
        |m| m.context.irqs_on = false,
        |m| m.context.in_nmi = true,
        |m| m.context.hotplug = true,
        |m| m.words[9].restore_mwait(true),
    ];
    for (change, writes) in changes.into_iter().zip([63, 63, 63, 62]) {
        let mut m = machine(64);
        change(&mut m);
        assert_eq!(everybody(&mut m).len(), writes);
    }
}

#[test]
fn wakeup_sloppy_16_an_empty_batch_sends_nothing() {
    let mut m = machine(8);
    m.batch.begin().unwrap();
    assert_eq!(m.finish(), Finished::default());
    assert_eq!(m.sent(), []);
}

#[test]
fn requests_that_cannot_be() {
    let mut m = machine(8);
    let cpus = Cpus {
        words: &m.words,
        topology: &m.topology,
    };
    let mut icr = |w| panic!("sent {w:?}");
    let context = m.context;
    let batch = &mut m.batch;
    let unfinished = batch.finish(cpus, context, &mut icr, &());
    assert_eq!(unfinished, Err(RaiseError::NotBatching { cpu: 0 }));
    batch.begin().unwrap();
    let stranger = RaiseError::Icr(IcrError::NoSuchCpu { cpu: 8, cpus: 8 });
    assert_eq!(
        batch.raise(cpus, context, 8, 3, &mut icr, &()),
        Err(stranger)
    );
    let none = RaiseError::NoSuchSoftirq { nr: 32 };
    assert_eq!(batch.raise(cpus, context, 1, 32, &mut icr, &()), Err(none));
    let beyond = RaiseError::BeyondMask {
        cpu: 70,
        capacity: 64,
    };
    let mut targets = mask([70]);
    let raised = batch.raise_mask(cpus, context, &mut targets, 3, &mut icr, &());
    assert_eq!(raised, Err(beyond));
    let beyond = RaiseError::BeyondMask {
        cpu: 64,
        capacity: 64,
    };
    assert_eq!(
        batch.raise(cpus, context, 64, 3, &mut icr, &()),
        Err(beyond)
    );
    // Refused before any bit is set, in a batch and without one.
    for (targets, nr, refusal) in [([1, 8], 3, stranger), ([1, 2], 32, none)] {
        let raised = batch.raise_mask(cpus, context, &mut mask(targets), nr, &mut icr, &());
        assert_eq!(raised, Err(refusal));
        let raised = raise_mask_now(cpus, context, &mut mask(targets), nr, &mut icr, &());
        assert_eq!(raised, Err(refusal));
    }
    assert!(m.words.iter().all(|word| word.pending() == 0));
    let mut tiny = Batch::new(0, []);
    tiny.begin().unwrap();
    let beyond = RaiseError::BeyondMask {
        cpu: 1,
        capacity: 0,
    };
    assert_eq!(tiny.raise(cpus, context, 1, 3, &mut icr, &()), Err(beyond));
    assert!(beyond.to_string().contains("CPU 1"), "{beyond}");
}

//! The order in which a raiser and a CPU that goes idle access the softirq word. Each of the two runs
//! at every place between accesses of the other.

use std::cell::Cell;
use std::rc::Rc;

use stealtime_hypervisor::wakeup_batch::softirq::{SeparateMwait, SetPending, SoftirqWord};

use crate::splits::{Access, Logged, log_of, split_at};

const NR: u32 = 3;

/// Both schemes' words in known places: the softirq word is word 0, the separate flag word 8.
#[repr(C)]
struct Cpu {
    word: SoftirqWord<Logged>,
    flag: SeparateMwait<Logged>,
}

const FLAG: usize = 8;

fn cpu() -> Rc<Cpu> {
    Rc::new(Cpu {
        word: SoftirqWord::new(),
        flag: SeparateMwait::new(),
    })
}

#[test]
fn one_word_needs_no_fence() {
    let cpu = cpu();
    // Bit and promise change and are read in one step: nothing is left to order.
    let raise = log_of(|| assert_eq!(cpu.word.set_pending(NR), SetPending::NeedsIpi));
    assert_eq!(raise, [Access::Load(0), Access::Rmw(0)]);
    let again = log_of(|| assert_eq!(cpu.word.set_pending(NR), SetPending::AlreadyPending));
    assert_eq!(
        again,
        [Access::Load(0)],
        "a bit that is set costs no locked access"
    );
    assert_eq!(
        log_of(|| assert_eq!(cpu.word.take(1 << NR), 1 << NR)),
        [Access::Rmw(0)]
    );
    // The promise is made before the last look, and taken back by a step of its own.
    let idle = log_of(|| {
        assert!(cpu.word.announce_mwait(true));
        assert!(cpu.word.still_idle());
        cpu.word.leave_mwait();
    });
    let steps = [
        Access::Load(0),
        Access::Rmw(0),
        Access::Load(0),
        Access::Rmw(0),
    ];
    assert_eq!(idle, steps);
}

#[test]
fn a_separate_flag_is_read_behind_a_fence() {
    let cpu = cpu();
    let raise = log_of(|| {
        assert_eq!(cpu.flag.set_pending(&cpu.word, NR), SetPending::NeedsIpi);
    });
    // Without the fence the flag may be read before the bit is seen by a CPU that looks for it.
    assert_eq!(raise, [Access::Rmw(0), Access::Fence, Access::Load(FLAG)]);
    cpu.word.take(u32::MAX);
    let idle = log_of(|| {
        assert!(cpu.flag.announce_mwait(&cpu.word));
        cpu.flag.leave_mwait();
    });
    let steps = [
        Access::Load(0),
        Access::Release(FLAG),
        Access::Release(FLAG),
    ];
    assert_eq!(idle, steps);
}

/// A CPU goes idle, `raise` comes in before its access number `n`. Whether the CPU sleeps with a bit
/// pending, and whether the raiser sent an IPI.
fn idle_with_raise_at(n: usize, raise: fn(&Cpu) -> SetPending) -> (bool, bool, bool) {
    let (target, set) = (cpu(), Rc::new(Cell::new(None)));
    let intruder = {
        let (target, set) = (target.clone(), set.clone());
        move || set.set(Some(raise(&target)))
    };
    // What the store to the monitored line ends: MWAIT, from MONITOR on.
    let monitored = Rc::new(Cell::new(false));
    let mut sleeps = false;
    let idle = || {
        if target.word.announce_mwait(true) {
            // MONITOR comes between the promise and the last look.
            monitored.set(set.get().is_none());
            sleeps = target.word.still_idle();
        }
    };
    let within = split_at(n, idle, intruder);
    // Raised after the last look: the store ends the MWAIT that MONITOR has armed.
    let woken_by_store = monitored.get() && !within;
    let ipi = set.get() == Some(SetPending::NeedsIpi);
    (sleeps && !woken_by_store, ipi, within)
}

#[test]
fn no_raise_is_lost_wherever_it_comes_in() {
    let mut n = 0;
    loop {
        let (sleeps, ipi, within) = idle_with_raise_at(n, |cpu| cpu.word.set_pending(NR));
        assert!(!sleeps || ipi, "asleep with a bit pending, split {n}");
        if !within {
            break;
        }
        n += 1;
    }
    // The look, the promise, the last look.
    assert_eq!(n, 3);
}

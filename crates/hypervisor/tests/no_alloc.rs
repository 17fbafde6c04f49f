//! After set-up nothing allocates: run queues, groups and tasks, lists of blocked vCPUs, timers and
//! sets of CPUs are made, then operations run. A lean host allocates as it runs, a little at a time.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use stealtime_hypervisor::fair::timeline::{Keys, Pool, Timeline};
use stealtime_hypervisor::fair::{Attr, Block, Config, Fair, Feature, PickMode, TaskId, TaskState};
use stealtime_hypervisor::lag_credit::LagCredit;
use stealtime_hypervisor::lapic::Lapic;
use stealtime_hypervisor::lapic_timer::{
    GuestTsc, LapicTimer, Now, TimerEnvironment, TimerParameters,
};
use stealtime_hypervisor::posted_interrupt::{CpuList, VcpuMode};
use stealtime_hypervisor::wakeup_batch::icr::{ApicMode, CpuApic, Topology};
use stealtime_hypervisor::wakeup_batch::mask::CpuMask;
use stealtime_hypervisor::wakeup_batch::softirq::SoftirqWord;
use stealtime_hypervisor::wakeup_batch::{Batch, Context, Cpus, raise_mask_now};

/// The system's allocator, counting.
struct Counting;

std::thread_local! {
    /// Of this thread: the test harness allocates on threads of its own.
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    static FREED: Cell<usize> = const { Cell::new(0) };
    /// Bytes that are allocated; what another thread frees is missing.
    static BYTES: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: passes each call on to the system's allocator unchanged; needed to see allocations.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        BYTES.with(|bytes| bytes.set(bytes.get().wrapping_add(layout.size())));
        // SAFETY: the caller keeps to the contract of this same function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        FREED.with(|count| count.set(count.get() + 1));
        BYTES.with(|bytes| bytes.set(bytes.get().wrapping_sub(layout.size())));
        // SAFETY: `ptr` came from `alloc` above with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn roll(state: &mut u64, sides: usize) -> usize {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    (state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % sides
}

fn host(mode: PickMode) -> (Fair, Vec<TaskId>) {
    let mut config = Config::linux_7_2(16);
    config.features = config.features.with(Feature::YieldToLagCredit);
    config.lag_credit.across_run_queues = true;
    let mut fair = Fair::new(config).unwrap();
    fair.set_self_check(false);
    let rqs = [0; 3].map(|_| fair.create_rq(mode).unwrap());
    let mut tasks = Vec::new();
    for machine in 0..40 {
        let group = fair.create_group(None).unwrap();
        for rq in rqs {
            fair.extend_group(group, rq).unwrap();
        }
        for _ in 0..4 {
            let task = fair.create_task(Attr::default(), Some(group)).unwrap();
            fair.fork(task, rqs[machine % 3], 0).unwrap();
            tasks.push(task);
        }
    }
    for rq in rqs {
        fair.pick(rq, 0).unwrap();
    }
    (fair, tasks)
}

#[test]
fn operations_do_not_allocate() {
    for mode in [PickMode::Hierarchical, PickMode::Flat] {
        let (mut fair, tasks) = host(mode);
        let rqs = tasks.iter().map(|t| fair.view(*t).unwrap().rq.unwrap());
        let rqs: Vec<_> = rqs.collect();
        let (mut dice, mut now, mut moved) = (9, 0, 0);
        let before = ALLOCATIONS.with(Cell::get);
        for _ in 0..100_000 {
            now += roll(&mut dice, 300_000) as u64;
            let (task, rq) = (tasks[roll(&mut dice, 160)], rqs[roll(&mut dice, 160)]);
            let idle = fair.running(rq).unwrap().is_none();
            let view = fair.view(task).unwrap();
            match roll(&mut dice, 8) {
                0 => drop(fair.tick(rq, now).unwrap()),
                1 if !idle => {
                    fair.block(rq, Block::Sleep, now).unwrap();
                    fair.pick(rq, now).unwrap();
                }
                2 if !idle => drop(fair.yield_to_pulling(rq, task, true, now).unwrap()),
                3 if view.entity.on_rq && !view.running => {
                    fair.detach(task, now).unwrap();
                    fair.attach(task, rq, now).unwrap();
                    moved += 1;
                }
                4..=6 if view.state == TaskState::Asleep => {
                    let there = fair.delayed_on(task).unwrap().unwrap_or(rq);
                    fair.wake(task, there, now).unwrap();
                }
                _ => drop(fair.pick(rq, now).unwrap()),
            }
        }
        assert_eq!(ALLOCATIONS.with(Cell::get), before, "{mode:?}");
        assert!(moved > 1_000, "{mode:?}: {moved}");
    }
}

/// The slots of tasks that have ended are kept for others in a list that has room for all.
#[test]
fn tasks_end_without_memory() {
    for mode in [PickMode::Hierarchical, PickMode::Flat] {
        let (mut fair, tasks) = host(mode);
        let new = [(); 40].map(|()| fair.create_task(Attr::default(), None).unwrap());
        let rqs = [0, 4, 8].map(|n| fair.view(tasks[n]).unwrap().rq.unwrap());
        let before = ALLOCATIONS.with(Cell::get);
        for task in new {
            fair.destroy_task(task).unwrap();
        }
        for rq in rqs {
            while fair.running(rq).unwrap().is_some() {
                fair.block(rq, Block::Exit, 1_000).unwrap();
                fair.pick(rq, 1_000).unwrap();
            }
        }
        assert_eq!(ALLOCATIONS.with(Cell::get), before, "{mode:?}");
        assert!(tasks.iter().all(|task| fair.view(*task).is_err()));
    }
}

/// A task that moves on leaves parts of its group. They serve the next CPU.
#[test]
fn groups_that_come_back_take_the_memory_they_left() {
    for mode in [PickMode::Hierarchical, PickMode::Flat] {
        let mut fair = Fair::new(Config::linux_7_2(16)).unwrap();
        let rqs = [0; 3].map(|_| fair.create_rq(mode).unwrap());
        let group = fair.create_group(None).unwrap();
        fair.extend_group(group, rqs[0]).unwrap();
        let task = fair.create_task(Attr::default(), Some(group)).unwrap();
        fair.fork(task, rqs[0], 0).unwrap();
        let mut there_and_back = || {
            for rq in &rqs[1..] {
                fair.extend_group(group, *rq).unwrap();
            }
            fair.compact_group(task).unwrap();
            assert!(fair.group_entity(rqs[1], group).is_err());
        };
        there_and_back();
        let before = ALLOCATIONS.with(Cell::get);
        (0..1_000).for_each(|_| there_and_back());
        assert_eq!(ALLOCATIONS.with(Cell::get), before, "{mode:?}");
    }
}

/// What `body` makes, and the bytes that this has and that a clone of it has. A clone has nothing in reserve.
fn memory_of<T: Clone>(body: impl FnOnce() -> T) -> (T, [usize; 2]) {
    let bytes = || BYTES.with(Cell::get);
    let before = bytes();
    let made = body();
    let used = bytes().wrapping_sub(before);
    let copy = made.clone();
    let least = bytes().wrapping_sub(before.wrapping_add(used));
    drop(copy);
    (made, [used, least])
}

/// [`Fair::set_lean`]: a table grows by single entries up to 32 of them, then by a sixteenth, rounded down:
/// 120 times up to 5,000. The entities and their places in the timelines have one each.
#[test]
fn a_lean_host_has_a_sixteenth_in_reserve() {
    let before = ALLOCATIONS.with(Cell::get);
    let mut grown = 0;
    let (_, [used, least]) = memory_of(|| {
        let mut fair = Fair::new(Config::linux_7_2(16)).unwrap();
        fair.set_lean();
        for _ in 0..5_000 {
            fair.create_task(Attr::default(), None).unwrap();
        }
        grown = ALLOCATIONS.with(Cell::get) - before;
        fair
    });
    assert!(
        (least..=least * 17 / 16).contains(&used),
        "{used} of {least}"
    );
    assert!(grown <= 2 * 120, "{grown}");
}

/// Each queue of two has a node. The table of nodes grows by four, and by an eighth from 40 on: 39 times up
/// to 1,000. The list of free ones has room for each growth: it doubles six times.
#[test]
fn timelines_of_a_lean_host_have_an_eighth_in_reserve() {
    let mut grown = 0;
    let (pool, [used, least]) = memory_of(|| {
        let mut pool = Pool::default();
        pool.set_lean();
        pool.grow(2_000);
        let before = ALLOCATIONS.with(Cell::get);
        for n in 0..1_000 {
            let mut queue = Timeline::EMPTY;
            let keys = Keys {
                deadline: 0,
                vruntime: 0,
            };
            pool.insert(&mut queue, 2 * n, 700_000, &|_| keys);
            pool.insert(&mut queue, 2 * n + 1, 700_000, &|_| keys);
        }
        grown = ALLOCATIONS.with(Cell::get) - before;
        pool
    });
    assert!(pool.contains(1_999));
    assert!((least..=least * 9 / 8).contains(&used), "{used} of {least}");
    assert!(grown <= 39 + 6, "{grown}");
}

/// A guest's scheduler has no credits, and those without a guard have no tokens: neither takes memory for it.
#[test]
fn only_guarded_credits_take_memory_for_tokens() {
    let bytes = |is_credited: bool, lag_credit: LagCredit| {
        let mut config = Config::linux_7_2(16);
        config.lag_credit = lag_credit;
        if is_credited {
            config.features = config.features.with(Feature::YieldToLagCredit);
        }
        let made = memory_of(|| {
            let mut fair = Fair::new(config).unwrap();
            for _ in 0..100 {
                fair.create_rq(PickMode::Hierarchical).unwrap();
            }
            fair
        });
        let [_, least] = made.1;
        least
    };
    let (plain, guarded) = (LagCredit::SERIES_V3, LagCredit::GUARDED);
    assert_eq!(bytes(false, plain), bytes(false, guarded));
    assert!(bytes(false, plain) < bytes(true, plain));
    assert!(bytes(true, plain) < bytes(true, guarded));
}

/// What `body` allocates and frees, as under a spinlock with interrupts off.
fn under_a_spinlock(body: impl FnOnce()) -> (usize, usize) {
    let count = || (ALLOCATIONS.with(Cell::get), FREED.with(Cell::get));
    let before = count();
    body();
    let after = count();
    (after.0 - before.0, after.1 - before.1)
}

#[test]
fn lists_of_blocked_vcpus_have_room_beforehand() {
    let mut list = CpuList::with_room(64);
    let all_block = |list: &mut CpuList| {
        for round in 0..10 {
            (0..64).for_each(|vcpu| list.append(vcpu));
            (0..64).for_each(|vcpu| assert!(list.remove((vcpu * 7 + round) % 64)));
        }
    };
    assert_eq!(under_a_spinlock(|| all_block(&mut list)), (0, 0));
    // More vCPUs are created: the list moves, and the old memory is freed outside of the lock.
    list.append(5);
    let mut larger = CpuList::with_room(128);
    let held = under_a_spinlock(|| {
        list.move_to(&mut larger);
        (64..190).for_each(|vcpu| list.append(vcpu));
    });
    assert_eq!(held, (0, 0));
    assert_eq!(list.vcpus().len(), 127);
    assert_eq!((list.vcpus()[0], list.room()), (5, 128));
    assert_eq!(larger.room(), 64);
}

#[test]
fn timers_do_not_allocate() {
    let tsc = |offset| GuestTsc::new(2_500_000, GuestTsc::NEUTRAL, offset).unwrap();
    let env = TimerEnvironment {
        pi_inject_timer: false,
        apicv: true,
        mwait_in_guest: false,
        hlt_in_guest: false,
        hv_shift: Some(5),
        on_housekeeping_cpu: false,
        wants_to_run: true,
    };
    let at = |us: u64| Now {
        ns: (us * 1000) as i64,
        host_tsc: us * 2500,
    };
    let mut timer = LapicTimer::new(TimerParameters::default(), tsc(0));
    let mut prepared = timer.prepare_tsc(tsc(77));
    let held = under_a_spinlock(|| {
        for lvt in [0xec, 1 << 17 | 0xec, 2 << 17 | 0xec] {
            let _ = timer.write_lvt(lvt);
            let _ = timer.write_tmict(500_000, at(0), &env, &());
            let _ = timer.write_tscdeadline(500_000, at(0), &env, &());
            let _ = timer.begin_blocking(at(1), &env, &());
            let _ = timer.hrtimer_fired(at(900), VcpuMode::OutsideGuest, &env, &());
            let _ = timer.inject_pending();
            let _ = timer.end_blocking(at(901), &env, &());
            let _ = timer.cpu_changed(at(902), &env, &());
            // A guest's TSC is written under `tsc_write_lock`.
            let _ = timer.tsc_changed(&mut prepared, at(903), &env, &());
        }
    });
    assert_eq!(held, (0, 0));
    // A further timer of the VM needs no memory of its own: vCPUs may be many.
    assert_eq!(under_a_spinlock(|| drop(LapicTimer::like(&timer))), (0, 0));
    let mut lapic = Lapic::new(true);
    lapic.reserve_level_triggered();
    assert_eq!(under_a_spinlock(|| lapic.note_trigger(50, true)), (0, 0));
}

#[test]
fn handlers_raise_softirqs_without_memory() {
    let words: Vec<SoftirqWord<Cell<u64>>> = (0..200).map(|_| SoftirqWord::new()).collect();
    let apics: Vec<_> = (0..200).map(|cpu| CpuApic::new(cpu, true)).collect();
    let topology = Topology::new(ApicMode::X2apicCluster, apics).unwrap();
    let cpus = Cpus {
        words: &words,
        topology: &topology,
    };
    let context = |in_irq| Context {
        cpu: 0,
        in_irq,
        in_nmi: false,
        irqs_on: false,
        hotplug: false,
    };
    let mut mask = CpuMask::empty(vec![0; 4]);
    let mut batch = Batch::new(0, vec![0; 4]);
    let mut writes = 0;
    let held = under_a_spinlock(|| {
        for in_irq in [true, false] {
            let mut icr = |_| writes += 1;
            (1..150).for_each(|cpu| assert!(mask.insert(cpu)));
            raise_mask_now(cpus, context(in_irq), &mut mask, 3, &mut icr, &()).unwrap();
            batch.begin().unwrap();
            (50..200).for_each(|cpu| assert!(mask.insert(cpu)));
            let raised = batch.raise_mask(cpus, context(in_irq), &mut mask, 4, &mut icr, &());
            raised.unwrap();
            batch.finish(cpus, context(false), &mut icr, &()).unwrap();
        }
    });
    assert_eq!(held, (0, 0));
    assert!(mask.is_empty());
    assert!(writes > 10, "{writes}");
}

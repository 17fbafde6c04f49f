//! After set-up nothing allocates: run queues, groups and tasks are made, then operations run.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use stealtime_hypervisor::eevdf::{
    Attr, Block, Config, Fair, Feature, PickMode, TaskId, TaskState,
};

/// The system's allocator, counting.
struct Counting;

std::thread_local! {
    /// Of this thread: the test harness allocates on threads of its own.
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: passes each call on to the system's allocator unchanged; needed to see allocations.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps to the contract of this same function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
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

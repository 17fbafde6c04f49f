//! The fair class shares a CPU between vCPUs: `fair` and `lag_credit` of the mechanisms, under one lock.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use stealtime_hypervisor::directed_yield::YieldTo as Yield;
use stealtime_hypervisor::fair::{
    Attr, Block, Config, Fair, Feature, PickMode, Resched, RqId, TaskId, YieldTo,
};
use stealtime_hypervisor::lag_credit::{LagCredit, Method, RateLimit};

use crate::boot::MAX_CPUS;
use crate::cpu::SpinLock;
use crate::phase::Guest;
use crate::vcpu::{NS_PER_CYCLE, Stop, now};

/// How vCPUs share a CPU.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Scheduling {
    /// In turn. Ticks at random times preempt, so that races show soon.
    Turns,
    /// By weight, as Linux 7.2.
    Fair,
    /// The same, and directed yields transfer lag credit.
    LagCredit,
}

/// The kernel's times are divided by this, so that a run needs fewer instructions.
const FASTER: u64 = 10;

impl Scheduling {
    fn config(self) -> Config {
        let linux = Config::linux_7_2(8);
        let lag_credit = LagCredit {
            method: Method::Credit {
                margin_ns: 50_000 / FASTER,
                keep_request: false,
            },
            rate_limit: RateLimit::Fixed {
                interval_ns: 6_000_000 / FASTER,
            },
            ..LagCredit::SERIES_V3
        };
        let features = match self {
            Self::LagCredit => linux.features.with(Feature::YieldToLagCredit),
            _ => linux.features,
        };
        Config {
            features,
            tick_ns: linux.tick_ns / FASTER,
            base_slice_ns: linux.base_slice_ns / FASTER,
            migration_cost_ns: linux.migration_cost_ns / FASTER,
            lag_credit,
            ..linux
        }
    }

    /// Cycles between ticks of the fair class.
    pub fn tick_cycles(self) -> u64 {
        self.config().tick_ns / NS_PER_CYCLE
    }
}

/// Run queues and tasks of a phase.
struct Class {
    fair: Fair,
    rqs: Vec<RqId>,
    /// By vCPU.
    tasks: Vec<TaskId>,
    /// Target of the last directed yield on each CPU, until the next pick.
    yielded_to: [Option<TaskId>; MAX_CPUS],
    last_ns: u64,
}

static CLASS: SpinLock<Option<Class>> = SpinLock::new(None);
static ACTIVE: AtomicBool = AtomicBool::new(false);
/// Directed yields, and those with the target as next task.
pub static YIELDS: AtomicU64 = AtomicU64::new(0);
pub static REACHED: AtomicU64 = AtomicU64::new(0);
/// Yields with a credit on at least one level.
pub static CREDITED: AtomicU64 = AtomicU64::new(0);

/// Makes run queues and tasks for a phase.
pub fn begin(scheduling: Scheduling, guests: &[Guest], cpus: u32) {
    for counter in [&YIELDS, &REACHED, &CREDITED] {
        counter.store(0, SeqCst);
    }
    ACTIVE.store(scheduling != Scheduling::Turns, SeqCst);
    if scheduling == Scheduling::Turns {
        return;
    }
    let mut fair = Fair::new(scheduling.config()).expect("times within the class's bounds");
    let rqs: Vec<RqId> = (0..cpus)
        .map(|_| fair.create_rq(PickMode::Hierarchical).expect("few CPUs"))
        .collect();
    let tasks = guests.iter().map(|guest| {
        let attr = Attr {
            nice: guest.nice,
            ..Attr::default()
        };
        fair.create_task(attr, None).expect("a nice value")
    });
    let tasks: Vec<TaskId> = tasks.collect();
    let mut class = Class {
        fair,
        rqs,
        tasks,
        yielded_to: [None; MAX_CPUS],
        last_ns: 0,
    };
    let now_ns = class.now_ns();
    for (task, guest) in class.tasks.iter().zip(guests) {
        let rq = class.rqs[guest.cpu as usize];
        class.fair.fork(*task, rq, now_ns).expect("a new task");
    }
    *CLASS.lock() = Some(class);
}

/// Whether the fair class schedules.
pub fn is_active() -> bool {
    ACTIVE.load(Relaxed)
}

impl Class {
    /// The time, which never goes back from one CPU to the next.
    fn now_ns(&mut self) -> u64 {
        self.last_ns = self.last_ns.max(now().ns.unsigned_abs());
        self.last_ns
    }
}

/// Runs `body` with the class, its lock taken.
fn with<R>(cpu: u32, body: impl FnOnce(&mut Class, RqId, u64) -> R) -> R {
    let mut class = CLASS.lock();
    let class = class.as_mut().expect("a phase with the fair class");
    let rq = class.rqs[cpu as usize];
    let now_ns = class.now_ns();
    body(class, rq, now_ns)
}

fn wants_pick(resched: Resched) -> bool {
    resched == Resched::Now
}

/// The next vCPU of a CPU.
pub fn pick(cpu: u32) -> Option<u32> {
    with(cpu, |class, rq, now_ns| {
        let picked = class.fair.pick(rq, now_ns).expect("a pick").task;
        if let Some(target) = class.yielded_to[cpu as usize].take() {
            YIELDS.fetch_add(1, Relaxed);
            if picked == Some(target) {
                REACHED.fetch_add(1, Relaxed);
            }
        }
        let index = |task| class.tasks.iter().position(|known| *known == task);
        picked.and_then(index).map(|index| index as u32)
    })
}

/// The tick. Whether the CPU must reschedule.
pub fn tick(cpu: u32) -> bool {
    with(cpu, |class, rq, now_ns| {
        wants_pick(class.fair.tick(rq, now_ns).expect("a tick").resched)
    })
}

/// The current task of a CPU leaves it. A pick follows within the same lock: both are halves of one
/// `schedule()`.
pub fn leave(cpu: u32, stop: Stop) {
    let block = match stop {
        Stop::Preempted => return,
        Stop::Blocked => Block::Sleep,
        Stop::Done => Block::Exit,
    };
    with(cpu, |class, rq, now_ns| {
        class.fair.block(rq, block, now_ns).expect("a current task");
        class.fair.pick(rq, now_ns).expect("a pick");
    });
}

/// Wakes a vCPU on its CPU. Whether that one must reschedule.
pub fn wake(vcpu: u32, home: u32) -> bool {
    with(home, |class, rq, now_ns| {
        let task = class.tasks[vcpu as usize];
        wants_pick(
            class
                .fair
                .wake(task, rq, now_ns)
                .expect("a sleeper")
                .resched,
        )
    })
}

/// The current task of a CPU yields to a vCPU.
pub fn yield_to(cpu: u32, vcpu: u32) -> Yield {
    with(cpu, |class, rq, now_ns| {
        let target = class.tasks[vcpu as usize];
        match class.fair.yield_to(rq, target, now_ns) {
            Ok(YieldTo::Yielded { credit, .. }) => {
                class.yielded_to[cpu as usize] = Some(target);
                if credit.levels > 0 {
                    CREDITED.fetch_add(1, Relaxed);
                }
                Yield::Yielded
            }
            Ok(YieldTo::OnlyOne) => Yield::BothAlone,
            // The target has ended.
            Ok(YieldTo::Refused) | Err(_) => Yield::Declined,
        }
    })
}

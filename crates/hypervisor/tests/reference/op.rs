//! Operations on a host's fair class, and what can be seen of it after each.

use stealtime_hypervisor::fair::{
    CgroupMode, Config, Features, OtherLoad, PickMode, Policy, Preempt, WakeFlags,
};
use stealtime_hypervisor::lag_credit::Method;

/// Lag that a credit aims at for each other entity, in ns.
pub(crate) const MARGIN_NS: u64 = 1_400_000;

/// What a scheduler is made with.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) features: Features,
    pub(crate) preempt: Preempt,
    pub(crate) tick_ns: u64,
    pub(crate) base_slice_ns: u64,
    pub(crate) migration_cost_ns: u64,
    pub(crate) other_load: OtherLoad,
    pub(crate) cgroup_mode: CgroupMode,
    /// A lag credit keeps the distance to the deadline.
    pub(crate) keep_request: bool,
    pub(crate) mode: PickMode,
    pub(crate) cpus: usize,
    /// Group `g` is at `g - 1`; its parent has a smaller number, 0 is the root group.
    pub(crate) groups: Vec<GroupSetup>,
}

/// A group at the start. It has a part on every CPU.
#[derive(Clone, Debug)]
pub(crate) struct GroupSetup {
    pub(crate) parent: usize,
    pub(crate) shares: u64,
    /// Its load elsewhere, by CPU; the last one counts for all further CPUs.
    pub(crate) ext_load: Vec<u64>,
}

impl Setup {
    /// The configuration of the crate's scheduler.
    pub(crate) fn config(&self) -> Config {
        let mut config = Config::linux_7_2(16);
        config.features = self.features;
        config.preempt = self.preempt;
        config.tick_ns = self.tick_ns;
        config.base_slice_ns = self.base_slice_ns;
        config.migration_cost_ns = self.migration_cost_ns;
        config.other_load = self.other_load;
        config.cgroup_mode = self.cgroup_mode;
        config.lag_credit.method = Method::Credit {
            margin_ns: MARGIN_NS,
            keep_request: self.keep_request,
        };
        config
    }
}

impl GroupSetup {
    pub(crate) fn ext_load(&self, cpu: usize) -> u64 {
        let own = self.ext_load.get(cpu).or(self.ext_load.last());
        own.copied().unwrap_or(0)
    }
}

/// One operation, at a time and on a CPU where it needs one. Tasks and groups are numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Fork {
        id: i64,
        nice: i8,
        policy: Policy,
        slice: u64,
        group: usize,
    },
    Wake {
        id: i64,
        flags: WakeFlags,
    },
    Sleep,
    SleepSpecial,
    Throttle,
    Unthrottle {
        id: i64,
    },
    Exit,
    Pick,
    Tick,
    Hrtick,
    Account,
    Yield,
    YieldTo {
        to: i64,
    },
    SetAffinity {
        id: i64,
    },
    SetNice {
        id: i64,
        nice: i8,
    },
    SetAttr {
        id: i64,
        policy: Policy,
        nice: i8,
        slice: u64,
    },
    Move {
        id: i64,
        group: usize,
    },
    SetShares {
        group: usize,
        shares: u64,
    },
    ExtLoad {
        group: usize,
        load: u64,
    },
    SetIdle {
        group: usize,
        idle: bool,
    },
    Detach {
        id: i64,
    },
    Attach {
        id: i64,
    },
}

/// An operation where and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) cpu: usize,
    pub(crate) t: u64,
    pub(crate) op: Op,
}

/// What an operation answers: the task picked, the return value, whether something changed.
pub(crate) type Answer = Option<i64>;

/// Fields of an entity, in the order of the recorded vectors.
pub(crate) const ENTITY: [&str; 9] = [
    "vruntime",
    "deadline",
    "vlag",
    "on_rq",
    "sched_delayed",
    "vprot",
    "slice",
    "weight",
    "rel_deadline",
];

/// Fields of a queue, in the order of the recorded vectors.
pub(crate) const QUEUE: [&str; 11] = [
    "nr_queued",
    "h_nr_queued",
    "h_nr_runnable",
    "h_nr_idle",
    "load_weight",
    "avg_vruntime",
    "zero_vruntime",
    "sum_weight",
    "sum_w_vruntime",
    "curr",
    "next",
];

/// A scheduler that the operations can be done on. Entity `n > 0` is task `n`, `-g` is group `g`
/// on the CPU asked for, 0 is none.
pub(crate) trait Scheduler {
    fn apply(&mut self, step: &Step) -> Answer;
    /// `None` of a task that is gone.
    fn entity(&self, cpu: usize, id: i64) -> Option<[i64; 9]>;
    /// Weight at which an entity competes: what is recorded is the weight on its level.
    #[allow(dead_code, reason = "recordings have none")]
    fn weight(&self, cpu: usize, id: i64) -> Option<u64>;
    fn queue(&self, cpu: usize, group: usize) -> [i64; 11];
    /// Request pending (0 none, 1 lazy, 2 immediate) and expiry of the slice timer (0 none).
    fn pending(&self, cpu: usize) -> [i64; 2];
    /// The running task; 0 for the idle task.
    fn running(&self, cpu: usize) -> i64;
}

/// Lines that say in which fields two tuples differ.
pub(crate) fn differences<const N: usize>(
    what: &str,
    names: &[&str; N],
    expected: &[i64; N],
    got: &[i64; N],
    wrong: &mut Vec<String>,
) {
    for ((name, expected), got) in names.iter().zip(expected).zip(got) {
        if expected != got {
            wrong.push(format!("  {what}: {name}: expected {expected}, got {got}"));
        }
    }
}

//! Decisions of `scx_stealtime`, the sched_ext scheduler for hosts of VMs (`sched-ext/bpf`).
//!
//! Each cache domain has one queue, ordered by virtual deadline. A CPU that needs a task takes the
//! first eligible one (EEVDF). A directed yield runs the vCPU that the yielder waits for, and that
//! one borrows the rest of the yielder's request. [`Scx`] has no clock and wakes no task. The caller
//! passes the time and where a task may run, and acts on what is returned.
//!
//! Each operation names its callback of `struct sched_ext_ops`. Ids are those of [`crate::fair`], so
//! that a caller may replace one class by the other.
//!
//! | part | invariant |
//! |---|---|
//! | `Domain` | sums agree with the members' virtual times and weights |
//! | `Groups` | a group counts in the one above while something below it is runnable |
//! | `Answers` | an answer to an earlier IPI leaves a newer one alone |
//! | `Scx` | a task is in one place: asleep, in a queue, on a CPU's own list, or running |
//!
//! # Example
//!
//! ```
//! use stealtime_hypervisor::scx::{Anywhere, Config, Scx};
//!
//! let mut scx = Scx::new(Config::default());
//! let cpu = scx.create_cpu(0);
//! let task = scx.create_task(0, None)?;
//! scx.wake(task, cpu, true, 1_000)?;
//! assert_eq!(scx.pick(cpu, 1_000, &Anywhere)?.task, Some(task));
//! # Ok::<(), stealtime_hypervisor::fair::Error>(())
//! ```

mod answers;
mod domain;
mod groups;
mod loan;
mod member;
mod queues;
#[cfg(test)]
mod tests;
mod want;

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::fair::weights::{cpu_weight_of_shares, weight_of_nice};
use crate::fair::{Error, GroupId, RqId, TaskId};
pub use answers::{Answered, Answers, MOST_RECEIVERS, Receiver};
use domain::Domain;
use groups::Groups;
pub use loan::{Awaits, Outcome, Refusal, Served, Yielded};
use member::Member;
pub use want::{MOST_SLICE_US, WantWord, Wanted};

/// `SCX_SLICE_DFL`: the slice that the kernel gives a task which has none, in ns.
pub const SLICE_DFL_NS: u64 = 20_000_000;
/// Entries of a queue that are asked for an eligible one.
const ELIGIBLE_SCAN: usize = 16;
/// A running task is not interrupted by a woken one before this time, in ns.
const MIN_RUN_NS: u64 = 700_000;

/// What a directed yield runs (`--yield`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Yields {
    /// Nothing: each yield is refused.
    Refuse,
    /// The vCPU that KVM nominates.
    Nominee,
    /// The receiver of the yielder's IPI, else the nominee.
    #[default]
    Receiver,
}

impl Yields {
    const fn follows_ipis(self) -> bool {
        matches!(self, Self::Receiver)
    }
}

/// Options of `scx_stealtime`. Times are in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Length of a request (`--slice-us`).
    pub slice_ns: u64,
    /// The kernel's tick.
    pub tick_ns: u64,
    /// What a directed yield runs.
    pub yields: Yields,
    /// How long a vCPU spins on while the receiver of its IPI runs (`--spin-us`).
    pub spin_ns: u64,
    /// Longest loan to the receiver of an IPI where the hardware completes EOIs, APICv (`--loan-us`).
    pub loan_ns: u64,
    /// How long the receiver of an IPI runs on after its EOI, before it gives the slice back
    /// (`--answer-us`). Linux ends an interrupt first, and handles it then (`apic_eoi`).
    pub answer_ns: u64,
    /// Shortest time between two forced reschedules of a CPU (`--force-interval-ms`).
    pub force_interval_ns: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            slice_ns: 1_400_000,
            tick_ns: 4_000_000,
            yields: Yields::Receiver,
            spin_ns: 50_000,
            loan_ns: 200_000,
            answer_ns: 50_000,
            force_interval_ns: 6_000_000,
        }
    }
}

/// Where tasks may run: the caller's knowledge.
pub trait Affinity {
    /// Whether `task` may run on `cpu`.
    fn may_run(&self, task: TaskId, cpu: RqId) -> bool;
    /// Whether `task` may run on one CPU only.
    fn is_pinned(&self, task: TaskId) -> bool;
}

/// Each task may run on each CPU.
#[derive(Clone, Copy, Debug)]
pub struct Anywhere;

impl Affinity for Anywhere {
    fn may_run(&self, _: TaskId, _: RqId) -> bool {
        true
    }

    fn is_pinned(&self, _: TaskId) -> bool {
        false
    }
}

/// What [`Scx::pick`] decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Picked {
    /// The current task; `None` for the idle task.
    pub task: Option<TaskId>,
    /// The CPU on which it waited, if that is another one.
    pub from: Option<RqId>,
    /// The task that was current and waits now: an idle CPU that may run it is to pick.
    pub requeued: Option<TaskId>,
    /// When to call [`Scx::end_loan`], in ns; `None` for no timer. It replaces the last one.
    pub loan_end_ns: Option<u64>,
}

/// Where a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Asleep,
    /// In its domain's queue, under this key.
    Queue {
        key: (i64, u64),
    },
    /// On the own list of its CPU.
    Local,
    Running,
}

#[derive(Clone, Debug)]
struct Task {
    generation: u32,
    exists: bool,
    place: Place,
    /// The CPU on which it ran or woke last.
    cpu: usize,
    /// Weight as `p->scx.weight`: 100 at nice 0.
    own_weight: u32,
    group: usize,
    time: Member,
    domain: usize,
    /// Start of the part of its run that is not charged yet; `None` while it does not run.
    exec_start: Option<u64>,
    slice_ns: u64,
    is_placed: bool,
    /// The task that pays for its run, and for how long.
    loan: Option<Loan>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Loan {
    lender: TaskId,
    left_ns: u64,
    /// No EOI ends it: a timer does, at `left_ns` at the latest.
    is_timed: bool,
}

impl Loan {
    /// The lender pays for no more.
    const fn is_used_up(self) -> bool {
        self.left_ns == 0
    }
}

/// A task that a CPU is to run next, out of order.
#[derive(Clone, Copy, Debug)]
struct Want {
    task: TaskId,
    /// Where it waits: another domain's queue has no such task.
    domain: usize,
    /// `None` if it runs at its own cost.
    lender: Option<TaskId>,
    slice_ns: u64,
    is_timed: bool,
}

impl Want {
    /// The lender of a loan that ends runs next, if it is due.
    const fn back(lender: TaskId, domain: usize) -> Self {
        Self {
            task: lender,
            domain,
            lender: None,
            slice_ns: 0,
            is_timed: false,
        }
    }
}

#[derive(Clone, Debug)]
struct Cpu {
    domain: usize,
    current: Option<usize>,
    local: VecDeque<usize>,
    want: Option<Want>,
    /// Deadline of the current task as it began, or at the last tick.
    deadline: u64,
    since_ns: Option<u64>,
    /// When the current task gives its loan back, after it has ended the interrupt that the loan is for.
    returns_ns: Option<u64>,
    forced_ns: Option<u64>,
}

impl Cpu {
    /// Whether the current task has run for less than `spin_ns` since a time.
    fn is_near(&self, time_ns: u64, now_ns: u64, spin_ns: u64) -> bool {
        now_ns.saturating_sub(time_ns.max(self.since_ns.unwrap_or(0))) < spin_ns
    }
}

/// The scheduler of a host.
#[derive(Clone, Debug)]
pub struct Scx {
    config: Config,
    cpus: Vec<Cpu>,
    domains: Vec<Domain>,
    groups: Groups,
    tasks: Vec<Task>,
    free: Vec<usize>,
    inserted: u64,
    outcomes: loan::Counts,
}

/// The host: its CPUs, groups and tasks.
impl Scx {
    /// A host without CPUs.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            cpus: Vec::new(),
            domains: Vec::new(),
            groups: Groups::new(),
            tasks: Vec::new(),
            free: Vec::new(),
            inserted: 0,
            outcomes: loan::Counts::default(),
        }
    }

    /// Adds a CPU, idle, of a cache domain, counted from 0.
    pub fn create_cpu(&mut self, domain: usize) -> RqId {
        if self.domains.len() <= domain {
            self.domains.resize_with(domain + 1, Domain::new);
        }
        self.cpus.push(Cpu {
            domain,
            current: None,
            local: VecDeque::new(),
            want: None,
            deadline: 0,
            since_ns: None,
            returns_ns: None,
            forced_ns: None,
        });
        RqId(self.cpus.len() as u32 - 1)
    }

    /// `ops.cgroup_init`: adds a group with the default weight, 100.
    ///
    /// # Errors
    ///
    /// An unknown parent.
    pub fn create_group(&mut self, parent: Option<GroupId>) -> Result<GroupId, Error> {
        let above = self.groups.index(parent)?;
        Ok(self.groups.create(above))
    }

    /// `ops.cgroup_set_weight`: `weight` as in `cpu.weight`, [1, 10000].
    ///
    /// # Errors
    ///
    /// An unknown group.
    pub fn set_weight(&mut self, group: GroupId, weight: u32) -> Result<(), Error> {
        let index = self.groups.index(Some(group))?;
        self.groups.set_weight(index, weight);
        Ok(())
    }

    /// `ops.init_task`: adds a task that sleeps.
    ///
    /// # Errors
    ///
    /// An unknown group, or a nice value out of range.
    pub fn create_task(&mut self, nice: i8, group: Option<GroupId>) -> Result<TaskId, Error> {
        if !(-20..=19).contains(&nice) {
            return Err(Error::NiceOutOfRange(nice));
        }
        let group = self.groups.index(group)?;
        let index = self.free.pop().unwrap_or_else(|| {
            self.tasks.push(Task::unused());
            self.tasks.len() - 1
        });
        let task = &mut self.tasks[index];
        *task = Task {
            generation: task.generation + 1,
            exists: true,
            // `sched_weight_to_cgroup`: to the nearest.
            own_weight: cpu_weight_of_shares(weight_of_nice(nice)),
            group,
            ..Task::unused()
        };
        Ok(self.id_of(index))
    }

    /// What directed yields came to.
    pub fn outcomes(&self) -> impl Iterator<Item = (Outcome, u64)> + '_ {
        self.outcomes.iter()
    }

    /// The current task of `cpu`.
    ///
    /// # Errors
    ///
    /// An unknown CPU.
    pub fn running(&self, cpu: RqId) -> Result<Option<TaskId>, Error> {
        let index = self.cpu_index(cpu)?;
        Ok(self.cpus[index].current.map(|task| self.id_of(task)))
    }

    /// The CPU on which a runnable task runs or waits.
    ///
    /// # Errors
    ///
    /// A stale id.
    pub fn runnable_on(&self, task: TaskId) -> Result<Option<RqId>, Error> {
        let task = &self.tasks[self.index_of(task)?];
        Ok((task.place != Place::Asleep).then_some(RqId(task.cpu as u32)))
    }

    /// Lag of a runnable task in virtual ns: what it is behind the average of its domain.
    ///
    /// # Errors
    ///
    /// A stale id.
    pub fn lag_ns(&self, task: TaskId) -> Result<i64, Error> {
        let task = &self.tasks[self.index_of(task)?];
        let domain = self.domains.get(task.domain);
        Ok(domain.map_or(0, |domain| task.time.lag(domain)))
    }

    /// Whether all sums agree with the tasks; linear in their number, for checks.
    pub fn consistent(&self) -> bool {
        let agrees = |n: usize| {
            let members = self.tasks.iter().filter(|task| task.domain == n);
            self.domains[n].agrees(members.map(|task| &task.time))
        };
        (0..self.domains.len()).all(agrees)
    }

    fn id_of(&self, index: usize) -> TaskId {
        TaskId {
            index: index as u32,
            generation: self.tasks[index].generation,
        }
    }

    fn index_of(&self, task: TaskId) -> Result<usize, Error> {
        match self.tasks.get(task.slot()) {
            Some(found) if found.exists && found.generation == task.generation => Ok(task.slot()),
            _ => Err(Error::NoSuchTask(task)),
        }
    }

    fn cpu_index(&self, cpu: RqId) -> Result<usize, Error> {
        if cpu.slot() < self.cpus.len() {
            Ok(cpu.slot())
        } else {
            Err(Error::NoSuchRq(cpu))
        }
    }
}

impl Task {
    fn unused() -> Self {
        Self {
            generation: 0,
            exists: false,
            place: Place::Asleep,
            cpu: 0,
            own_weight: 100,
            group: 0,
            time: Member::default(),
            domain: 0,
            exec_start: None,
            slice_ns: 0,
            is_placed: false,
            loan: None,
        }
    }
}

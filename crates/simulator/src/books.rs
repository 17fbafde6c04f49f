//! Who spent which time on what, exactly once.

use std::collections::BTreeMap;

use crate::ids::{CpuNr, Number, TaskNr};
use crate::machine::{Machine, TaskState};
use crate::stats::Histogram;

/// A task's time, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskBooks {
    since_ns: u64,
    /// When the state was entered.
    changed_ns: u64,
    state: Ran,
    /// On a CPU.
    pub run_ns: u64,
    /// Waiting for one.
    pub wait_ns: u64,
    /// Of it: after having been preempted.
    pub preempted_ns: u64,
    /// Asleep.
    pub sleep_ns: u64,
    /// Not there yet, or ended.
    pub absent_ns: u64,
    /// `sched_info.run_delay`: all waiting since the task began, warm-up included.
    pub(crate) run_delay_ns: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Ran {
    #[default]
    Not,
    Running,
    Preempted,
    Woken,
    Asleep,
}

impl TaskBooks {
    /// The task changes to this state now.
    pub(crate) fn enter(&mut self, state: TaskState, now: u64) {
        self.settle(now);
        self.changed_ns = now;
        self.state = match state {
            TaskState::Running => Ran::Running,
            TaskState::Runnable if self.state == Ran::Running => Ran::Preempted,
            TaskState::Throttled => Ran::Preempted,
            TaskState::Runnable => Ran::Woken,
            TaskState::Blocked => Ran::Asleep,
            TaskState::Dead | TaskState::New => Ran::Not,
        };
    }

    pub(crate) fn settle(&mut self, now: u64) {
        let spent = now - self.since_ns;
        self.since_ns = now;
        match self.state {
            Ran::Not => self.absent_ns += spent,
            Ran::Running => self.run_ns += spent,
            Ran::Preempted => {
                self.run_delay_ns += spent;
                self.wait_ns += spent;
                self.preempted_ns += spent;
            }
            Ran::Woken => {
                self.run_delay_ns += spent;
                self.wait_ns += spent;
            }
            Ran::Asleep => self.sleep_ns += spent,
        }
    }

    fn clear(&mut self, now: u64) {
        *self = Self {
            since_ns: now,
            changed_ns: self.changed_ns,
            state: self.state,
            run_delay_ns: self.run_delay_ns,
            ..Self::default()
        };
    }

    /// When the task came into its present state, in ns.
    pub(crate) const fn changed_ns(&self) -> u64 {
        self.changed_ns
    }

    /// Whether it waits since it was preempted, and not since it woke.
    pub(crate) fn was_preempted(&self) -> bool {
        self.state == Ran::Preempted
    }

    /// All of it: the measured time.
    #[must_use]
    pub const fn total_ns(&self) -> u64 {
        self.run_ns + self.wait_ns + self.sleep_ns + self.absent_ns
    }
}

/// A vCPU's time beyond its thread's, in ns, and what it did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VcpuBooks {
    entered_ns: Option<u64>,
    polling_since: Option<u64>,
    /// From entries to exits.
    pub guest_ns: u64,
    /// Polling in halts.
    pub poll_ns: u64,
    /// Spinning in guest mode for locks, owners and answers.
    pub spin_ns: u64,
    /// Halts.
    pub halts: u64,
    /// Exits by the number of their reason.
    pub exits: BTreeMap<u32, u64>,
    /// The same while the run goes on: few reasons, the frequent ones soon in front.
    counting: Vec<(u32, u64)>,
    /// From an interrupt's acceptance until the guest takes it.
    pub irq_latency: Histogram,
    /// Interrupts accepted, those for vectors that were pending included.
    pub irqs_accepted: u64,
    /// Of them: for vectors that were pending already.
    pub irqs_coalesced: u64,
    /// Interrupts that the guest took.
    pub irqs_taken: u64,
    /// Accepted and not taken yet, and when.
    outstanding: Vec<(u8, u64)>,
}

impl VcpuBooks {
    pub(crate) fn entered(&mut self, now: u64) {
        self.entered_ns = Some(now);
    }

    pub(crate) fn exited(&mut self, now: u64, reason: u32) {
        if let Some(at) = self.entered_ns.take() {
            self.guest_ns += now - at;
        }
        match self.counting.iter().position(|&(known, _)| known == reason) {
            Some(at) => {
                self.counting[at].1 += 1;
                if at > 0 && self.counting[at - 1].1 < self.counting[at].1 {
                    self.counting.swap(at - 1, at);
                }
            }
            None => self.counting.push((reason, 1)),
        }
    }

    pub(crate) fn polling(&mut self, now: u64, on: bool) {
        if on {
            self.polling_since = Some(now);
        } else if let Some(at) = self.polling_since.take() {
            self.poll_ns += now - at;
        }
    }

    pub(crate) fn spun(&mut self, ns: u64) {
        self.spin_ns += ns;
    }

    /// An interrupt was accepted for the vCPU.
    pub(crate) fn accepted(&mut self, now: u64, vector: u8) {
        self.irqs_accepted += 1;
        if self.outstanding.iter().any(|&(known, _)| known == vector) {
            self.irqs_coalesced += 1;
        } else {
            self.outstanding.push((vector, now));
        }
    }

    /// The guest takes an interrupt; `again` if the vector has been posted once more since it went
    /// to the IRR. Whether it was outstanding.
    pub(crate) fn taken(&mut self, now: u64, vector: u8, again: bool) -> bool {
        let found = self.outstanding.iter().position(|o| o.0 == vector);
        let Some(at) = found else {
            return false;
        };
        self.irqs_taken += 1;
        self.irq_latency.add(now - self.outstanding[at].1);
        if again {
            // The acceptance that looked coalesced was not.
            self.irqs_coalesced = self.irqs_coalesced.saturating_sub(1);
            self.outstanding[at].1 = now;
        } else {
            self.outstanding.swap_remove(at);
        }
        true
    }

    /// Vectors that were accepted and not taken yet, and since when.
    pub(crate) fn outstanding(&self) -> &[(u8, u64)] {
        &self.outstanding
    }

    /// When the guest was entered, if it runs.
    pub(crate) const fn entered_at(&self) -> Option<u64> {
        self.entered_ns
    }

    fn settle(&mut self, now: u64) {
        if let Some(at) = &mut self.entered_ns {
            self.guest_ns += now - *at;
            *at = now;
        }
        if let Some(at) = &mut self.polling_since {
            self.poll_ns += now - *at;
            *at = now;
        }
        self.exits = self.counting.iter().copied().collect();
    }

    /// Interrupts that are outstanding count as accepted in what is measured.
    fn clear(&mut self, now: u64) {
        *self = Self {
            entered_ns: self.entered_ns.map(|_| now),
            polling_since: self.polling_since.map(|_| now),
            irqs_accepted: self.outstanding.len() as u64,
            outstanding: core::mem::take(&mut self.outstanding),
            ..Self::default()
        };
    }
}

/// A CPU's time, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuBooks {
    since_ns: u64,
    busy: bool,
    irq_since: u64,
    in_irq: bool,
    /// With a task, switches to it included.
    pub busy_ns: u64,
    /// Without one.
    pub idle_ns: u64,
    /// Of both: in interrupts' handlers.
    pub irq_ns: u64,
}

impl CpuBooks {
    fn settle(&mut self, now: u64) {
        let spent = now - self.since_ns;
        self.since_ns = now;
        if self.busy {
            self.busy_ns += spent;
        } else {
            self.idle_ns += spent;
        }
        if self.in_irq {
            self.irq_ns += now - self.irq_since;
            self.irq_since = now;
        }
    }
}

/// The books of a run.
#[derive(Clone, Debug)]
pub struct Books {
    pub(crate) cpus: Vec<CpuBooks>,
    measuring: bool,
    /// Since when is measured, in ns.
    pub(crate) since_ns: u64,
}

impl Books {
    pub(crate) fn new(cpus: u32) -> Self {
        Self {
            cpus: vec![CpuBooks::default(); cpus as usize],
            measuring: false,
            since_ns: 0,
        }
    }

    pub(crate) fn measuring(&self) -> bool {
        self.measuring
    }

    pub(crate) fn switched(&mut self, cpu: CpuNr, task: Option<TaskNr>, now: u64) {
        let c = &mut self.cpus[cpu.index()];
        c.settle(now);
        c.busy = task.is_some();
    }

    pub(crate) fn irq(&mut self, cpu: CpuNr, now: u64, begins: bool) {
        let c = &mut self.cpus[cpu.index()];
        if begins {
            c.irq_since = now;
        } else {
            c.irq_ns += now - c.irq_since;
        }
        c.in_irq = begins;
    }
}

impl Machine<'_> {
    /// The warm-up is over: all books start anew.
    pub(crate) fn begin_measuring(&mut self) {
        let now = self.now;
        self.settle_books();
        for cpu in &mut self.books.cpus {
            *cpu = CpuBooks {
                since_ns: now,
                busy: cpu.busy,
                irq_since: now,
                in_irq: cpu.in_irq,
                ..CpuBooks::default()
            };
        }
        self.tasks.iter_mut().for_each(|task| task.books.clear(now));
        self.vcpus.iter_mut().for_each(|vcpu| vcpu.books.clear(now));
        self.books.measuring = true;
        self.books.since_ns = now;
        self.stats.clear();
    }

    /// Brings all books up to now.
    pub(crate) fn settle_books(&mut self) {
        let now = self.now;
        self.books.cpus.iter_mut().for_each(|cpu| cpu.settle(now));
        self.tasks
            .iter_mut()
            .for_each(|task| task.books.settle(now));
        self.vcpus
            .iter_mut()
            .for_each(|vcpu| vcpu.books.settle(now));
    }
}

//! Accounts of time: every nanosecond of a CPU, task and vCPU exactly once.

use std::collections::BTreeMap;

use crate::at::At;
use crate::host::TaskState;
use crate::ids::{CpuNr, Number, TaskNr};
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
    /// The most that it was behind its fair share when it got a CPU, on any level of its groups.
    pub worst_lag_ns: u64,
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

    /// It gets a CPU, and was owed so much, in ns.
    pub(crate) fn was_behind(&mut self, lag_ns: i64) {
        self.worst_lag_ns = self.worst_lag_ns.max(lag_ns.max(0) as u64);
    }

    pub(crate) fn clear(&mut self, now: u64) {
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

/// A vCPU's time beyond its thread's, in ns, and the counts of its exits and interrupts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VcpuBooks {
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
    /// Interrupts accepted, those for vectors that were pending included.
    pub irqs_accepted: u64,
    /// Of them: for vectors that were pending already.
    pub irqs_coalesced: u64,
    /// Interrupts that the guest took.
    pub irqs_taken: u64,
}

/// How soon a VM's vCPUs take interrupts, in ns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answers {
    /// From an interrupt's acceptance until the guest takes it.
    pub interrupts: Histogram,
    /// From the instruction with which a vCPU sends an IPI until the receiver takes it.
    pub ipis: Histogram,
}

/// The same while the run goes on, as small as it can be: there is one for each vCPU.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunningBooks {
    crossed: Crossing,
    polling_since: At,
    guest_ns: u64,
    poll_ns: u64,
    halts: u64,
    /// Exits and the number of their reason: few reasons, the frequent ones soon in front.
    exits: Box<[Exits]>,
    irqs_accepted: u64,
    irqs_coalesced: u64,
    irqs_taken: u64,
    /// Vectors accepted and not taken yet, and when.
    outstanding: Vec<Accepted>,
    /// When it last began to send an IPI.
    sends_ns: u64,
    /// When those that it has not taken yet were sent, by vector.
    sent: [At; crate::guest::IPI_VECTORS.len()],
}

/// When a vCPU last entered or left the guest, in ns: the time plus one, doubled, and 1 more in the
/// guest. One word, as there is one for each vCPU; 0 before the first entry.
#[derive(Clone, Copy, Debug, Default)]
struct Crossing(u64);

impl Crossing {
    const fn entry(ns: u64) -> Self {
        Self((ns + 1) << 1 | 1)
    }

    const fn exit(ns: u64) -> Self {
        Self((ns + 1) << 1)
    }

    fn entered_ns(self) -> Option<u64> {
        (self.0 & 1 == 1).then(|| (self.0 >> 1) - 1)
    }

    fn exited_ns(self) -> Option<u64> {
        (self.0 != 0 && self.0 & 1 == 0).then(|| (self.0 >> 1) - 1)
    }
}

/// Exits for one reason: the reason in the high 16 bits, and how many.
type Exits = u64;
const ONE_REASON: u32 = 48;

/// A vector in the low 8 bits, and when it was accepted.
type Accepted = u64;

fn ipi_of(vector: u8) -> Option<usize> {
    crate::guest::IPI_VECTORS.iter().position(|&v| v == vector)
}

fn accepted_at(item: Accepted) -> u64 {
    item >> 8
}

fn vector_of(item: Accepted) -> u8 {
    item as u8
}

/// What has passed of something that goes on; it is counted anew from now on.
fn spent(start: &mut At, now: u64) -> u64 {
    match start.get() {
        Some(time) => {
            *start = At::ns(now);
            now - time
        }
        None => 0,
    }
}

impl RunningBooks {
    /// How long the exit that ends here took; `None` at the first entry.
    pub(crate) fn entered(&mut self, now: u64) -> Option<u64> {
        let exited = self.crossed.exited_ns();
        self.crossed = Crossing::entry(now);
        exited.map(|time| now - time)
    }

    pub(crate) fn exited(&mut self, now: u64, reason: u32) {
        if let Some(entered) = self.crossed.entered_ns() {
            self.guest_ns += now - entered;
        }
        self.crossed = Crossing::exit(now);
        let reason = u64::from(reason);
        match self.exits.iter().position(|e| e >> ONE_REASON == reason) {
            Some(place) => {
                self.exits[place] += 1;
                let count = |e: Exits| e & ((1 << ONE_REASON) - 1);
                if place > 0 && count(self.exits[place - 1]) < count(self.exits[place]) {
                    self.exits.swap(place - 1, place);
                }
            }
            None => {
                let known = self.exits.iter().copied();
                self.exits = known.chain([reason << ONE_REASON | 1]).collect();
            }
        }
    }

    /// Its guest begins to send an IPI.
    pub(crate) fn sends(&mut self, now: u64) {
        self.sends_ns = now;
    }

    pub(crate) const fn sends_ns(&self) -> u64 {
        self.sends_ns
    }

    /// An IPI that was sent at `time` comes to the vCPU.
    pub(crate) fn was_sent(&mut self, time: u64, vector: u8) {
        if let Some(n) = ipi_of(vector) {
            // Of several in one, the first counts.
            self.sent[n] = self.sent[n].earlier(time);
        }
    }

    /// How long ago the IPI that the guest takes was sent.
    pub(crate) fn response(&mut self, now: u64, vector: u8) -> Option<u64> {
        let time = self.sent[ipi_of(vector)?].take()?;
        Some(now - time)
    }

    pub(crate) fn halted(&mut self) {
        self.halts += 1;
    }

    pub(crate) fn polling(&mut self, now: u64, begins: bool) {
        if begins {
            self.polling_since = At::ns(now);
        } else if let Some(time) = self.polling_since.take() {
            self.poll_ns += now - time;
        }
    }

    /// An interrupt was accepted for the vCPU.
    pub(crate) fn accepted(&mut self, now: u64, vector: u8) {
        self.irqs_accepted += 1;
        if self.outstanding.iter().any(|&o| vector_of(o) == vector) {
            self.irqs_coalesced += 1;
        } else {
            self.outstanding.reserve_exact(1);
            self.outstanding.push(now << 8 | u64::from(vector));
        }
    }

    /// The guest takes an interrupt; `again` if the vector has been posted once more since it went
    /// to the IRR. How long it was outstanding, if it was.
    pub(crate) fn taken(&mut self, now: u64, vector: u8, again: bool) -> Option<u64> {
        let place = self
            .outstanding
            .iter()
            .position(|&o| vector_of(o) == vector)?;
        self.irqs_taken += 1;
        let waited = now - accepted_at(self.outstanding[place]);
        if again {
            // The acceptance that looked coalesced was not. The end of the warm-up drops that count: then it
            // counts as accepted now.
            match self.irqs_coalesced.checked_sub(1) {
                Some(coalesced) => self.irqs_coalesced = coalesced,
                None => self.irqs_accepted += 1,
            }
            self.outstanding[place] = now << 8 | u64::from(vector);
        } else {
            self.outstanding.swap_remove(place);
        }
        Some(waited)
    }

    /// Vectors that were accepted and not taken yet, and since when.
    pub(crate) fn outstanding(&self) -> impl Iterator<Item = (u8, u64)> {
        self.outstanding
            .iter()
            .map(|&item| (vector_of(item), accepted_at(item)))
    }

    /// When the guest was entered, if it runs.
    pub(crate) fn entered_at(&self) -> Option<u64> {
        self.crossed.entered_ns()
    }

    pub(crate) fn settle(&mut self, now: u64) {
        if let Some(time) = self.crossed.entered_ns() {
            self.guest_ns += now - time;
            self.crossed = Crossing::entry(now);
        }
        self.poll_ns += spent(&mut self.polling_since, now);
    }

    /// The account so far, with the time that the guest has spun.
    pub(crate) fn so_far(&self, spin_ns: u64) -> VcpuBooks {
        let pair = |&e: &Exits| ((e >> ONE_REASON) as u32, e & ((1 << ONE_REASON) - 1));
        VcpuBooks {
            guest_ns: self.guest_ns,
            poll_ns: self.poll_ns,
            spin_ns,
            halts: self.halts,
            exits: self.exits.iter().map(pair).collect(),
            irqs_accepted: self.irqs_accepted,
            irqs_coalesced: self.irqs_coalesced,
            irqs_taken: self.irqs_taken,
        }
    }

    /// Interrupts that are outstanding count as accepted in what is measured.
    pub(crate) fn clear(&mut self, now: u64) {
        *self = Self {
            crossed: match self.crossed.entered_ns() {
                Some(_) => Crossing::entry(now),
                None => self.crossed,
            },
            polling_since: self.polling_since.get().map_or(At::NEVER, |_| At::ns(now)),
            irqs_accepted: self.outstanding.len() as u64,
            outstanding: core::mem::take(&mut self.outstanding),
            sends_ns: self.sends_ns,
            sent: self.sent,
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
    pub(crate) fn settle(&mut self, now: u64) {
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

    /// The warm-up is over: all start anew.
    pub(crate) fn begin_measuring(&mut self, now: u64) {
        self.settle(now);
        for cpu in &mut self.cpus {
            *cpu = CpuBooks {
                since_ns: now,
                busy: cpu.busy,
                irq_since: now,
                in_irq: cpu.in_irq,
                ..CpuBooks::default()
            };
        }
        self.measuring = true;
        self.since_ns = now;
    }

    /// Brings them up to now.
    pub(crate) fn settle(&mut self, now: u64) {
        self.cpus.iter_mut().for_each(|cpu| cpu.settle(now));
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

#[cfg(test)]
mod tests {
    use super::RunningBooks;

    /// The second interrupt came before the warm-up ended, and is taken after it.
    #[test]
    fn an_interrupt_from_the_warm_up_is_accepted_once() {
        let mut books = RunningBooks::default();
        books.accepted(1, 0xfb);
        books.accepted(2, 0xfb);
        books.clear(3);
        assert_eq!(books.taken(4, 0xfb, true), Some(3));
        let seen = books.so_far(0);
        let open = books.outstanding().count() as u64;
        assert_eq!(
            (
                seen.irqs_accepted,
                seen.irqs_taken,
                seen.irqs_coalesced,
                open
            ),
            (2, 1, 0, 1)
        );
    }
}

//! Directed yields: `sched-ext/bpf/yield.h`.
//!
//! The confirmed receiver of the yielder's IPI comes before the vCPU that KVM nominates. The target
//! borrows the rest of the yielder's request, and runs at the yielder's cost. A confirmed receiver does
//! so until shortly after its EOI, others until a timer ends the loan. A yielder that has sent no IPI
//! lately gives a nominee the rest of its request. The VM's share stays, and no third party pays.
//!
//! KVM may nominate no vCPU. Without APICv it passes over those preempted in user mode, even if an
//! interrupt of theirs is pending. Then the PAUSE exit itself is a yield to the receiver.

use super::queues::LEAST_SLICE_NS;
use super::{Affinity, Loan, Place, Scx, Task, Want, Yields};
use crate::fair::{Error, RqId, TaskId};
use crate::lag_credit::arithmetic::is_due;

/// What a served yield runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Served {
    /// The confirmed receiver of the yielder's IPI.
    Receiver,
    /// The vCPU that KVM nominates.
    Nominee,
}

/// Why a yield is refused: KVM tries its next candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// [`Yields::Refuse`].
    Mode,
    /// The receiver runs, and its answer is near: the yielder spins on.
    ReceiverRuns,
    /// The yielder has hardly run since it was answered, and has not seen it yet.
    Answered,
    /// Neither the yielder nor the target has had less than its share. The yielder's CPU picks once KVM's
    /// scan is over: tasks that are due run.
    Guard,
    /// Both may run on one CPU each, and not the same.
    Pinned,
    /// The target waits in no queue.
    NotQueued,
}

/// Outcome of a directed yield.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Yielded {
    /// The caller picks. `kicked` is another CPU that is to be interrupted.
    Served {
        /// What runs.
        target: Served,
        /// The CPU on which it waits, if it may not run on the yielder's.
        kicked: Option<RqId>,
    },
    /// The yielder goes on, but for [`Refusal::Guard`].
    Refused(Refusal),
}

/// Names of counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// Yields by target.
    Served(Served),
    /// Yields by reason.
    Refused(Refusal),
    /// Receivers that run because of a PAUSE exit at which KVM nominates no vCPU.
    PauseReceiver,
    /// Slices lent to a target.
    Loans,
    /// Of them, ended by the receiver's EOI.
    LoansReturned,
    /// Requests given to a nominee.
    HandedOver,
    /// Time that targets ran at the lender's cost, in ns.
    LentNs,
    /// Wanted tasks that ran next.
    WantPicked,
    /// Those that had left the queue, or were not due.
    WantMissed,
}

const OUTCOMES: [Outcome; 15] = [
    Outcome::Served(Served::Receiver),
    Outcome::Served(Served::Nominee),
    Outcome::Refused(Refusal::Mode),
    Outcome::Refused(Refusal::ReceiverRuns),
    Outcome::Refused(Refusal::Answered),
    Outcome::Refused(Refusal::Guard),
    Outcome::Refused(Refusal::Pinned),
    Outcome::Refused(Refusal::NotQueued),
    Outcome::PauseReceiver,
    Outcome::Loans,
    Outcome::LoansReturned,
    Outcome::HandedOver,
    Outcome::LentNs,
    Outcome::WantPicked,
    Outcome::WantMissed,
];

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts([u64; OUTCOMES.len()]);

impl Counts {
    fn add(&mut self, outcome: Outcome, count: u64) {
        if let Some(index) = OUTCOMES.iter().position(|known| *known == outcome) {
            self.0[index] += count;
        }
    }

    pub(super) fn lent(&mut self, ns: u64) {
        self.add(Outcome::LentNs, ns);
    }

    pub(super) fn picked(&mut self) {
        self.add(Outcome::WantPicked, 1);
    }

    pub(super) fn missed(&mut self) {
        self.add(Outcome::WantMissed, 1);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Outcome, u64)> + '_ {
        OUTCOMES.into_iter().zip(self.0)
    }
}

/// What KVM's tracepoints know of the yielder's last IPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaits {
    /// It has sent no IPI lately. It may wait for a lock.
    NoIpi,
    /// It has sent an IPI lately, and no known receiver of it is to answer.
    Nothing,
    /// All known receivers of its last IPI have answered, the last one at `at_ns`.
    Answered {
        /// Time of the EOI in ns, or now if the yielder has not been in its guest since.
        at_ns: u64,
    },
    /// The receiver has not ended the interrupt.
    Receiver {
        /// Its thread.
        task: TaskId,
        /// Time of the IPI, in ns.
        sent_ns: u64,
        /// Whether KVM sees its EOIs as they happen. With APICv the hardware completes them. With
        /// `KVM_FEATURE_PV_EOI` KVM sees them at a later exit.
        shows_eoi: bool,
    },
}

/// What the yielder's last IPI means for a yield.
enum Aim {
    Receiver(Target),
    Refused(Refusal),
    /// No receiver waits for a CPU: KVM's nominee is next in order.
    Nominee,
}

/// A task that a yield is to run.
#[derive(Clone, Copy, Debug)]
struct Target {
    index: usize,
    served: Served,
    /// Its EOI ends a loan: it is a receiver, and KVM sees EOIs of it.
    shows_eoi: bool,
    /// It gets the rest of the yielder's request, if it is due by it.
    takes_over: bool,
}

impl Scx {
    /// `ops.yield` without a target: the current task of `cpu` forfeits its request. The caller picks.
    ///
    /// # Errors
    ///
    /// [`Error::Idle`], an unknown CPU.
    pub fn yield_task(&mut self, cpu: RqId, now_ns: u64) -> Result<(), Error> {
        let number = self.cpu_index(cpu)?;
        let index = self.cpus[number].current.ok_or(Error::Idle(cpu))?;
        self.charge_running(index, now_ns);
        let task = &mut self.tasks[index];
        let domain = &mut self.domains[task.domain];
        task.time.forfeit(domain, self.config.slice_ns);
        self.tasks[index].slice_ns = 0;
        Ok(())
    }

    /// `ops.yield` with a target: the current task of `cpu` spins, and KVM nominates another vCPU.
    ///
    /// # Errors
    ///
    /// A stale id, [`Error::Idle`], an unknown CPU.
    pub fn yield_to(
        &mut self,
        cpu: RqId,
        nominee: TaskId,
        awaits: Awaits,
        now_ns: u64,
        affinity: &impl Affinity,
    ) -> Result<Yielded, Error> {
        let (number, nominee) = (self.cpu_index(cpu)?, self.index_of(nominee)?);
        let yielder = self.cpus[number].current.ok_or(Error::Idle(cpu))?;
        let yielded = self.decide(number, yielder, nominee, awaits, now_ns, affinity);
        let outcome = match yielded {
            Yielded::Served { target, .. } => Outcome::Served(target),
            Yielded::Refused(refusal) => Outcome::Refused(refusal),
        };
        self.outcomes.add(outcome, 1);
        Ok(yielded)
    }

    fn decide(
        &mut self,
        number: usize,
        yielder: usize,
        nominee: usize,
        awaits: Awaits,
        now_ns: u64,
        affinity: &impl Affinity,
    ) -> Yielded {
        if self.config.yields == Yields::Refuse {
            return Yielded::Refused(Refusal::Mode);
        }
        self.charge_running(yielder, now_ns);
        match self.aim(number, awaits, now_ns) {
            Aim::Receiver(target) => return self.serve(number, yielder, target, now_ns, affinity),
            Aim::Refused(refusal) => return Yielded::Refused(refusal),
            Aim::Nominee => (),
        }
        // What waits on a CPU's own list runs at once.
        if !matches!(self.tasks[nominee].place, Place::Queue { .. }) {
            return Yielded::Refused(Refusal::NotQueued);
        }
        let target = Target {
            index: nominee,
            served: Served::Nominee,
            shows_eoi: false,
            takes_over: self.config.yields.follows_ipis() && awaits == Awaits::NoIpi,
        };
        self.serve(number, yielder, target, now_ns, affinity)
    }

    fn aim(&self, number: usize, awaits: Awaits, now_ns: u64) -> Aim {
        let (task, sent_ns, shows_eoi) = match awaits {
            Awaits::NoIpi | Awaits::Nothing => return Aim::Nominee,
            Awaits::Answered { at_ns } => {
                return match self.cpus[number].is_near(at_ns, now_ns, self.config.spin_ns) {
                    true => Aim::Refused(Refusal::Answered),
                    false => Aim::Nominee,
                };
            }
            Awaits::Receiver {
                task,
                sent_ns,
                shows_eoi,
            } if self.config.yields.follows_ipis() => (task, sent_ns, shows_eoi),
            Awaits::Receiver { .. } => return Aim::Nominee,
        };
        let Ok(index) = self.index_of(task) else {
            return Aim::Nominee;
        };
        let Task { place, cpu, .. } = self.tasks[index];
        match place {
            Place::Running if self.cpus[cpu].is_near(sent_ns, now_ns, self.config.spin_ns) => {
                Aim::Refused(Refusal::ReceiverRuns)
            }
            Place::Queue { .. } => Aim::Receiver(Target {
                index,
                served: Served::Receiver,
                shows_eoi,
                takes_over: false,
            }),
            // It sleeps, runs at once, or is held up: an answer takes longer than an interrupt does.
            Place::Running | Place::Local | Place::Asleep => Aim::Nominee,
        }
    }

    /// The current task of `cpu` leaves its guest by PAUSE, and KVM nominates no vCPU. `None` if the
    /// yielder goes on, else the outcome: the caller picks.
    ///
    /// # Errors
    ///
    /// [`Error::Idle`], an unknown CPU.
    pub fn pause(
        &mut self,
        cpu: RqId,
        awaits: Awaits,
        now_ns: u64,
        affinity: &impl Affinity,
    ) -> Result<Option<Yielded>, Error> {
        let number = self.cpu_index(cpu)?;
        let yielder = self.cpus[number].current.ok_or(Error::Idle(cpu))?;
        let Aim::Receiver(target) = self.aim(number, awaits, now_ns) else {
            return Ok(None);
        };
        self.charge_running(yielder, now_ns);
        let yielded = self.serve(number, yielder, target, now_ns, affinity);
        let served = matches!(yielded, Yielded::Served { .. });
        self.outcomes.add(Outcome::PauseReceiver, u64::from(served));
        Ok(Some(yielded))
    }

    fn serve(
        &mut self,
        number: usize,
        yielder: usize,
        target: Target,
        now_ns: u64,
        affinity: &impl Affinity,
    ) -> Yielded {
        let Target {
            index: target,
            served,
            shows_eoi,
            takes_over,
        } = target;
        let rq = RqId(number as u32);
        let (lending, wanted) = (self.id_of(yielder), self.id_of(target));
        let may_run_here = affinity.may_run(wanted, rq);
        let target_cpu = self.tasks[target].cpu;
        if !may_run_here && affinity.is_pinned(lending) && affinity.is_pinned(wanted) {
            return Yielded::Refused(Refusal::Pinned);
        }
        let (yielder_due, target_due) = (self.is_due(yielder), self.is_due(target));
        // A yielder that has had more than its share lends nothing: pairs that take turns would never
        // end.
        if !yielder_due && !target_due {
            self.tasks[yielder].slice_ns = 0;
            return Yielded::Refused(Refusal::Guard);
        }
        let left_ns = self.tasks[yielder].time.request_left_ns();
        let mut slice_ns = left_ns.max(LEAST_SLICE_NS);
        let takes_over = takes_over && self.hand_over(yielder, target, left_ns);
        // Without an EOI to end the loan, a target that is due pays for itself.
        let pays = takes_over || target_due && (served != Served::Receiver || !yielder_due);
        let lender = (!pays).then_some(lending);
        let is_timed = lender.is_some() && !shows_eoi;
        if is_timed && served == Served::Receiver {
            slice_ns = slice_ns.min(self.config.loan_ns);
        }
        let runs_on = if may_run_here { number } else { target_cpu };
        self.cpus[runs_on].want = Some(Want {
            task: wanted,
            domain: self.tasks[target].domain,
            lender,
            slice_ns,
            is_timed,
        });
        let mut kicked = None;
        if !may_run_here {
            let cpu = &mut self.cpus[runs_on];
            // `yield_to_local_force_resched`: limited for each run queue.
            if is_due(cpu.forced_ns, self.config.force_interval_ns, now_ns) {
                cpu.forced_ns = Some(now_ns);
                if let Some(current) = cpu.current {
                    self.tasks[current].slice_ns = 0;
                }
                kicked = Some(RqId(runs_on as u32));
            }
        }
        self.tasks[yielder].slice_ns = 0;
        let longest_ns = self.longest_ns();
        let task = &mut self.tasks[yielder];
        task.time
            .forfeit_excess(&mut self.domains[task.domain], longest_ns);
        if lender.is_some() {
            self.outcomes.add(Outcome::Loans, 1);
        }
        Yielded::Served {
            target: served,
            kicked,
        }
    }

    /// The yielder gives the rest of its request, `left_ns`, to the target, if that is due by it. A spinner
    /// that waits for a lock has no use of its request, and a loan would end with it.
    fn hand_over(&mut self, yielder: usize, target: usize, left_ns: u64) -> bool {
        let domain = self.tasks[yielder].domain;
        if self.tasks[target].domain != domain || !self.is_due(yielder) {
            return false;
        }
        let domain = &mut self.domains[domain];
        if left_ns == 0 || !self.tasks[target].time.is_due_with(left_ns, domain) {
            return false;
        }
        let slice_ns = self.config.slice_ns;
        self.tasks[yielder].time.forfeit(domain, slice_ns);
        self.tasks[target].time.gain(left_ns, domain);
        self.outcomes.add(Outcome::HandedOver, 1);
        true
    }

    /// The receiver's EOI settles the record of `sender`: if the receiver runs on its loan, the lender
    /// has its slice back. The CPU, and when to call [`Scx::end_loan`] for it, in ns.
    ///
    /// # Errors
    ///
    /// A stale id.
    pub fn answered(
        &mut self,
        sender: TaskId,
        receiver: TaskId,
        now_ns: u64,
    ) -> Result<Option<(RqId, u64)>, Error> {
        let (_, index) = (self.index_of(sender)?, self.index_of(receiver)?);
        let Task {
            place, cpu, loan, ..
        } = self.tasks[index];
        if place != Place::Running || loan.is_none_or(|loan| loan.lender != sender) {
            return Ok(None);
        }
        self.cpus[cpu].want = Some(Want::back(sender, self.tasks[index].domain));
        let time_ns = now_ns + self.config.answer_ns;
        self.cpus[cpu].returns_ns = Some(time_ns);
        self.outcomes.add(Outcome::LoansReturned, 1);
        Ok(Some((RqId(cpu as u32), time_ns)))
    }

    /// The timer of a loan. Whether `cpu` is to reschedule: the lender has its slice back then, if it is
    /// due.
    ///
    /// # Errors
    ///
    /// An unknown CPU.
    pub fn end_loan(&mut self, cpu: RqId, now_ns: u64) -> Result<bool, Error> {
        let number = self.cpu_index(cpu)?;
        let Some(index) = self.cpus[number].current else {
            return Ok(false);
        };
        self.charge_running(index, now_ns);
        let is_used_up = self.tasks[index].loan.is_some_and(Loan::is_used_up);
        let is_over = is_used_up || self.cpus[number].returns_ns.is_some();
        if is_over {
            self.tasks[index].slice_ns = 0;
        }
        Ok(is_over)
    }
}

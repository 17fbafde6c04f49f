//! Queues and virtual time: the callbacks of `sched-ext/bpf/scx_stealtime.bpf.c` and `vtime.h`.

use super::{Affinity, ELIGIBLE_SCAN, MIN_RUN_NS, Picked, Place, SLICE_DFL_NS, Scx, Task};
use crate::fair::weights::{calc_delta_fair, service_ns};
use crate::fair::{Block, Error, RqId, TaskId};
use crate::wide;

/// Shortest slice of a task that goes on or borrows, in ns: an interrupt's handler needs some time.
pub(super) const LEAST_SLICE_NS: u64 = 100_000;

/// Membership in the sums of a domain.
impl Scx {
    /// Largest lag that is kept at a weight, in virtual ns (the bound in `entity_lag`).
    pub(super) fn lag_bound(&self, weight: u64) -> i64 {
        let longest_ns = self.config.slice_ns + self.config.tick_ns;
        calc_delta_fair(longest_ns, weight).min(i64::MAX as u64) as i64
    }

    /// The task leaves the sums; its lag is kept, within the bound.
    fn leave_domain(&mut self, index: usize) {
        let bound = self.lag_bound(self.tasks[index].weight);
        let task = &mut self.tasks[index];
        if task.weight == 0 {
            return;
        }
        let domain = &mut self.domains[task.domain];
        let average = domain.rebase();
        domain.leave(task.vruntime, task.weight);
        task.vlag = (average.wrapping_sub(task.vruntime) as i64).clamp(-bound, bound);
        task.weight = 0;
    }

    /// `place_entity`: the task joins with its lag, which it keeps although the average moves with it.
    /// A task that slept keeps no debt that the queue has passed meanwhile.
    fn join_domain(&mut self, index: usize, number: usize, weight: u64, has_slept: bool) {
        let task = &mut self.tasks[index];
        let domain = &mut self.domains[number];
        let average = domain.rebase();
        if has_slept && task.vlag < 0 && task.domain == number {
            let left = average.wrapping_sub(task.vruntime) as i64;
            if left > task.vlag {
                task.vlag = left.min(0);
            }
        }
        let mut lag = task.vlag.unsigned_abs();
        let total = domain.weight();
        if total > 0 && lag > 0 {
            let product = u128::from(lag) * u128::from(total + weight);
            lag = u64::try_from(wide::div(product, total)).unwrap_or(u64::MAX);
        }
        task.vruntime = if task.vlag < 0 {
            average.wrapping_add(lag)
        } else {
            average.wrapping_sub(lag)
        };
        let request = calc_delta_fair(self.config.slice_ns, weight);
        task.deadline = task.vruntime.wrapping_add(request);
        task.domain = number;
        task.weight = weight;
        domain.join(task.vruntime, weight);
    }

    pub(super) fn shift(&mut self, index: usize, delta: i64) {
        let task = &mut self.tasks[index];
        if task.weight == 0 {
            return;
        }
        task.vruntime = task.vruntime.wrapping_add(delta as u64);
        self.domains[task.domain].shift(delta, task.weight);
    }

    /// A new weight scales the lag, so that the service it is worth stays.
    fn reweight(&mut self, index: usize) {
        let task = &mut self.tasks[index];
        let weight = self.groups.flat_weight(task.group, task.own_weight);
        if task.weight == 0 || task.weight == weight {
            return;
        }
        let domain = &mut self.domains[task.domain];
        let average = domain.rebase();
        let scaled = |size: u64| {
            let product = u128::from(size) * u128::from(task.weight);
            u64::try_from(wide::div(product, weight)).unwrap_or(u64::MAX)
        };
        let lag = average.wrapping_sub(task.vruntime) as i64;
        let size = scaled(lag.unsigned_abs());
        let request = scaled((task.deadline.wrapping_sub(task.vruntime) as i64).max(0) as u64);
        domain.leave(task.vruntime, task.weight);
        task.vruntime = if lag < 0 {
            average.wrapping_add(size)
        } else {
            average.wrapping_sub(size)
        };
        task.deadline = task.vruntime.wrapping_add(request);
        task.weight = weight;
        domain.join(task.vruntime, weight);
    }

    /// Charges `ns` of run time to a task, and starts the next request at the end of one.
    fn charge(&mut self, index: usize, ns: u64) {
        let weight = self.tasks[index].weight;
        if weight == 0 {
            return;
        }
        self.shift(index, calc_delta_fair(ns, weight) as i64);
        let task = &mut self.tasks[index];
        if task.vruntime.wrapping_sub(task.deadline) as i64 >= 0 {
            task.deadline = task
                .vruntime
                .wrapping_add(calc_delta_fair(self.config.slice_ns, weight));
        }
    }

    /// Charges the current task of a CPU up to now; a lender pays within its loan.
    pub(super) fn charge_running(&mut self, index: usize, now_ns: u64) {
        let task = &mut self.tasks[index];
        let Some(start) = task.exec_start else {
            return;
        };
        let mut ns = now_ns.saturating_sub(start);
        task.exec_start = Some(now_ns.max(start));
        task.slice_ns = task.slice_ns.saturating_sub(ns);
        if let Some(loan) = &mut task.loan {
            let lent = ns.min(loan.left_ns);
            let lender = loan.lender;
            // A lender that sleeps pays nothing.
            if let Ok(lender) = self.index_of(lender)
                && self.tasks[lender].weight > 0
            {
                if let Some(loan) = &mut self.tasks[index].loan {
                    loan.left_ns -= lent;
                }
                self.charge(lender, lent);
                self.outcomes.lent(lent);
                ns -= lent;
            }
        }
        self.charge(index, ns);
        self.reweight(index);
    }

    /// Real time that is left of a task's request, in ns.
    pub(super) fn request_left_ns(&self, index: usize) -> u64 {
        let task = &self.tasks[index];
        let left = task.deadline.wrapping_sub(task.vruntime) as i64;
        service_ns(left.max(0) as u64, task.weight)
    }

    pub(super) fn is_due(&self, index: usize) -> bool {
        let task = &self.tasks[index];
        task.weight > 0 && self.domains[task.domain].is_eligible(task.vruntime)
    }
}

/// Callbacks of the class.
impl Scx {
    /// `ops.select_cpu` and `ops.enqueue`: a sleeping task wakes on `cpu`, which is idle or not. True
    /// if the current task of that CPU is to be interrupted, or if it idles.
    ///
    /// # Errors
    ///
    /// A stale id, an unknown CPU, [`Error::NotAsleep`].
    pub fn wake(
        &mut self,
        task: TaskId,
        cpu: RqId,
        is_idle: bool,
        now_ns: u64,
    ) -> Result<bool, Error> {
        let (index, number) = (self.index_of(task)?, self.cpu_index(cpu)?);
        if self.tasks[index].place != Place::Asleep {
            return Err(Error::NotAsleep(task));
        }
        self.become_runnable(index, number);
        if is_idle && self.cpus[number].current.is_none() {
            self.tasks[index].slice_ns = self.config.slice_ns;
            self.tasks[index].place = Place::Local;
            self.cpus[number].local.push_back(index);
            return Ok(true);
        }
        self.enqueue(index);
        Ok(self.preempts_later(index, number, now_ns))
    }

    /// `ops.runnable`.
    fn become_runnable(&mut self, index: usize, number: usize) {
        let task = &mut self.tasks[index];
        task.cpu = number;
        let (group, own_weight) = (task.group, task.own_weight);
        let has_slept = core::mem::replace(&mut task.is_placed, true);
        self.groups.add(group, own_weight);
        let weight = self.groups.flat_weight(group, own_weight);
        self.join_domain(index, self.cpus[number].domain, weight, has_slept);
    }

    /// `ops.quiescent`.
    fn become_quiescent(&mut self, index: usize) {
        self.leave_domain(index);
        let task = &mut self.tasks[index];
        task.place = Place::Asleep;
        let (group, own_weight) = (task.group, task.own_weight);
        self.groups.remove(group, own_weight);
    }

    fn enqueue(&mut self, index: usize) {
        self.inserted += 1;
        let task = &mut self.tasks[index];
        let key = (task.deadline as i64, self.inserted);
        task.slice_ns = self.config.slice_ns;
        task.place = Place::Queue { key };
        self.domains[task.domain].insert(key, index);
    }

    /// Takes a waiting task out of its list.
    fn take(&mut self, index: usize) {
        match self.tasks[index].place {
            Place::Queue { key } => self.domains[self.tasks[index].domain].remove(key, index),
            Place::Local => {
                let cpu = self.tasks[index].cpu;
                self.cpus[cpu].local.retain(|waiting| *waiting != index);
            }
            Place::Asleep | Place::Running => debug_assert!(false, "the task waits"),
        }
    }

    /// A woken task with an earlier deadline interrupts the running one.
    fn preempts_later(&mut self, index: usize, number: usize, now_ns: u64) -> bool {
        let (task, cpu) = (&self.tasks[index], &self.cpus[number]);
        let Some(current) = cpu.current else {
            return true;
        };
        let Some(since_ns) = cpu.since_ns else {
            return false;
        };
        if task.deadline.wrapping_sub(cpu.deadline) as i64 >= 0
            || now_ns.saturating_sub(since_ns) < MIN_RUN_NS
            || !self.is_due(index)
        {
            return false;
        }
        self.tasks[current].slice_ns = 0;
        true
    }

    /// The current task of `cpu` sleeps or ends. The caller picks.
    ///
    /// # Errors
    ///
    /// [`Error::Idle`], an unknown CPU.
    pub fn block(&mut self, cpu: RqId, mode: Block, now_ns: u64) -> Result<(), Error> {
        let number = self.cpu_index(cpu)?;
        let index = self.cpus[number].current.take().ok_or(Error::Idle(cpu))?;
        self.stop(index, number, now_ns);
        self.become_quiescent(index);
        if mode == Block::Exit {
            self.tasks[index].exists = false;
            self.free.push(index);
        }
        Ok(())
    }

    /// `ops.stopping`.
    fn stop(&mut self, index: usize, number: usize, now_ns: u64) {
        self.charge_running(index, now_ns);
        let task = &mut self.tasks[index];
        task.exec_start = None;
        task.loan = None;
        self.cpus[number].since_ns = None;
    }

    /// `ops.tick`: whether the current task's slice is used up.
    ///
    /// # Errors
    ///
    /// An unknown CPU.
    pub fn tick(&mut self, cpu: RqId, now_ns: u64) -> Result<bool, Error> {
        let number = self.cpu_index(cpu)?;
        let Some(index) = self.cpus[number].current else {
            return Ok(false);
        };
        self.charge_running(index, now_ns);
        self.cpus[number].deadline = self.tasks[index].deadline;
        Ok(self.tasks[index].slice_ns == 0)
    }

    /// A waiting task leaves its queue, to go to another CPU.
    ///
    /// # Errors
    ///
    /// A stale id, [`Error::NotQueued`], [`Error::Running`].
    pub fn detach(&mut self, task: TaskId) -> Result<(), Error> {
        let index = self.index_of(task)?;
        match self.tasks[index].place {
            Place::Asleep => return Err(Error::NotQueued(task)),
            Place::Running => return Err(Error::Running(task)),
            Place::Queue { .. } | Place::Local => self.take(index),
        }
        self.become_quiescent(index);
        Ok(())
    }

    /// `ops.dispatch`, and what the kernel does around it: the task that `cpu` runs next, of those that
    /// `affinity` allows there.
    ///
    /// # Errors
    ///
    /// An unknown CPU.
    pub fn pick(
        &mut self,
        cpu: RqId,
        now_ns: u64,
        affinity: &impl Affinity,
    ) -> Result<Picked, Error> {
        let number = self.cpu_index(cpu)?;
        let former = self.cpus[number].current;
        if let Some(index) = former {
            self.charge_running(index, now_ns);
            if self.tasks[index].slice_ns > 0 {
                return Ok(self.goes_on(index, now_ns));
            }
        }
        let next = match self.cpus[number].local.front() {
            Some(&index) => Some(index),
            None => self.dispatch(number, former, affinity),
        };
        let Some(index) = next else {
            return Ok(Picked {
                task: None,
                from: None,
                requeued: None,
                loan_end_ns: None,
            });
        };
        if former == Some(index) {
            return Ok(self.goes_on(index, now_ns));
        }
        // Moved before the former task is queued, as `put_prev_task_scx` comes last.
        self.take(index);
        let requeued = former.map(|index| {
            self.stop(index, number, now_ns);
            self.enqueue(index);
            self.id_of(index)
        });
        let from = (self.tasks[index].cpu != number).then_some(RqId(self.tasks[index].cpu as u32));
        self.begin(index, number, now_ns);
        Ok(Picked {
            task: Some(self.id_of(index)),
            from,
            requeued,
            loan_end_ns: self.loan_end_ns(index, now_ns),
        })
    }

    fn goes_on(&self, index: usize, now_ns: u64) -> Picked {
        Picked {
            task: Some(self.id_of(index)),
            from: None,
            requeued: None,
            loan_end_ns: self.loan_end_ns(index, now_ns),
        }
    }

    /// Slices end at ticks, and loans by a timer of their own.
    fn loan_end_ns(&self, index: usize, now_ns: u64) -> Option<u64> {
        let loan = self.tasks[index].loan?;
        Some(now_ns + loan.left_ns)
    }

    /// The timer of a loan: the lender has its slice back, if it is due. Whether `cpu` is to
    /// reschedule.
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
        let Some(loan) = self.tasks[index].loan.filter(|loan| loan.left_ns == 0) else {
            return Ok(false);
        };
        self.give_back(index, loan.lender);
        Ok(true)
    }

    /// `ops.running`.
    fn begin(&mut self, index: usize, number: usize, now_ns: u64) {
        let here = self.cpus[number].domain;
        let task = &mut self.tasks[index];
        task.place = Place::Running;
        task.cpu = number;
        if task.domain != here && task.weight > 0 {
            let weight = task.weight;
            self.leave_domain(index);
            self.join_domain(index, here, weight, false);
        }
        let task = &mut self.tasks[index];
        task.exec_start = Some(now_ns);
        if task.slice_ns == 0 {
            task.slice_ns = SLICE_DFL_NS;
        }
        let cpu = &mut self.cpus[number];
        cpu.current = Some(index);
        cpu.deadline = task.deadline;
        cpu.since_ns = Some(now_ns);
    }

    /// The wanted task, else the first eligible one, else the current one, else another domain's.
    fn dispatch(
        &mut self,
        number: usize,
        current: Option<usize>,
        affinity: &impl Affinity,
    ) -> Option<usize> {
        if let Some(index) = current {
            // A loan is one slice: a task that goes on pays for itself.
            self.tasks[index].loan = None;
        }
        let here = self.cpus[number].domain;
        self.take_wanted(number, affinity)
            .or_else(|| self.first_eligible(number, current, affinity))
            .or_else(|| {
                let index = current?;
                self.tasks[index].slice_ns = self.config.slice_ns;
                Some(index)
            })
            .or_else(|| {
                let count = self.domains.len();
                (1..count).find_map(|step| self.head((here + step) % count, number, affinity))
            })
    }

    /// The first task of a queue that may run here.
    fn head(&self, domain: usize, number: usize, affinity: &impl Affinity) -> Option<usize> {
        let mut waiting = self.domains[domain].waiting();
        waiting.find(|&index| affinity.may_run(self.id_of(index), RqId(number as u32)))
    }

    /// `pick_eevdf`: the current task competes as well.
    fn first_eligible(
        &mut self,
        number: usize,
        current: Option<usize>,
        affinity: &impl Affinity,
    ) -> Option<usize> {
        let here = self.cpus[number].domain;
        let domain = &self.domains[here];
        let found = domain.waiting().take(ELIGIBLE_SCAN).find(|&index| {
            domain.is_eligible(self.tasks[index].vruntime)
                && affinity.may_run(self.id_of(index), RqId(number as u32))
        });
        let Some(found) = found else {
            return self.head(here, number, affinity);
        };
        let deadline = self.tasks[found].deadline;
        let earlier = current.filter(|&index| {
            let ahead = self.tasks[index].deadline.wrapping_sub(deadline) as i64;
            self.is_due(index) && ahead < 0
        });
        if let Some(index) = earlier {
            self.tasks[index].slice_ns = self.request_left_ns(index).max(LEAST_SLICE_NS);
        }
        Some(earlier.unwrap_or(found))
    }

    /// Takes up the task that a yield or the end of a loan wants here. Out of order only on a loan, or
    /// if it is due.
    fn take_wanted(&mut self, number: usize, affinity: &impl Affinity) -> Option<usize> {
        let want = self.cpus[number].want.take()?;
        let index = self.index_of(want.task).ok()?;
        let Task { place, domain, .. } = self.tasks[index];
        let is_queued = matches!(place, Place::Queue { .. }) && domain == self.cpus[number].domain;
        if !is_queued
            || !affinity.may_run(want.task, RqId(number as u32))
            || want.lender.is_none() && !self.is_due(index)
        {
            self.outcomes.missed();
            return None;
        }
        let task = &mut self.tasks[index];
        if want.slice_ns > 0 {
            task.slice_ns = want.slice_ns;
        }
        task.loan = want.lender.map(|lender| super::Loan {
            lender,
            left_ns: want.slice_ns,
        });
        self.outcomes.picked();
        Some(index)
    }
}

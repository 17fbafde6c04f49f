//! Queues and virtual time: the callbacks of `sched-ext/bpf/scx_stealtime.bpf.c` and `vtime.h`.

use super::{Affinity, ELIGIBLE_SCAN, MIN_RUN_NS, Picked, Place, SLICE_DFL_NS, Scx, Task, Want};
use crate::fair::{Block, Error, RqId, TaskId};

/// Shortest slice of a task that goes on or borrows, in ns: an interrupt's handler needs some time.
pub(super) const LEAST_SLICE_NS: u64 = 100_000;

/// Virtual time of tasks.
impl Scx {
    /// The longest that a task runs beyond its share, in ns.
    pub(super) fn longest_ns(&self) -> u64 {
        self.config.slice_ns + self.config.tick_ns
    }

    pub(super) fn is_due(&self, index: usize) -> bool {
        let task = &self.tasks[index];
        task.time.is_due(&self.domains[task.domain])
    }

    fn charge(&mut self, index: usize, ns: u64) {
        let task = &mut self.tasks[index];
        let domain = &mut self.domains[task.domain];
        task.time.charge(domain, ns, self.config.slice_ns);
    }

    /// Charges the current task of a CPU up to now; a lender pays within its loan.
    pub(super) fn charge_running(&mut self, index: usize, now_ns: u64) {
        let task = &mut self.tasks[index];
        let start = task.exec_start.replace(now_ns).unwrap_or(now_ns);
        let mut ns = now_ns.saturating_sub(start);
        task.slice_ns = task.slice_ns.saturating_sub(ns);
        if let Some(loan) = task.loan {
            // A lender that sleeps pays nothing.
            if let Ok(lender) = self.index_of(loan.lender)
                && self.tasks[lender].time.weight() > 0
            {
                let lent = ns.min(loan.left_ns);
                self.tasks[index].loan = Some(super::Loan {
                    left_ns: loan.left_ns - lent,
                    ..loan
                });
                self.charge(lender, lent);
                self.outcomes.lent(lent);
                ns -= lent;
            }
        }
        self.charge(index, ns);
        let task = &mut self.tasks[index];
        let weight = self.groups.flat_weight(task.group, task.own_weight);
        task.time.reweight(&mut self.domains[task.domain], weight);
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

    /// The task is queued, or runs in place.
    fn become_runnable(&mut self, index: usize, number: usize) {
        let task = &mut self.tasks[index];
        task.cpu = number;
        let (group, own_weight) = (task.group, task.own_weight);
        let has_slept = core::mem::replace(&mut task.is_placed, true);
        self.groups.add(group, own_weight);
        let weight = self.groups.flat_weight(group, own_weight);
        let number = self.cpus[number].domain;
        let task = &mut self.tasks[index];
        let domain = &mut self.domains[number];
        if has_slept && task.domain == number {
            task.time.forgive(domain);
        }
        task.domain = number;
        task.time.join(domain, weight, self.config.slice_ns);
    }

    /// `ops.stopping` of a task that sleeps.
    fn become_quiescent(&mut self, index: usize) {
        let longest_ns = self.longest_ns();
        let task = &mut self.tasks[index];
        task.time.leave(&mut self.domains[task.domain], longest_ns);
        task.place = Place::Asleep;
        let (group, own_weight) = (task.group, task.own_weight);
        self.groups.remove(group, own_weight);
    }

    fn enqueue(&mut self, index: usize) {
        self.inserted += 1;
        let task = &mut self.tasks[index];
        let key = (task.time.deadline() as i64, self.inserted);
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
        if task.time.deadline().wrapping_sub(cpu.deadline) as i64 >= 0
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
        self.cpus[number].returns_ns = None;
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
        self.cpus[number].deadline = self.tasks[index].time.deadline();
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
        let source = self.tasks[index].cpu;
        let from_other = (source != number).then_some(RqId(source as u32));
        self.begin(index, number, now_ns);
        Ok(Picked {
            task: Some(self.id_of(index)),
            from: from_other,
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
        let Task { cpu, loan, .. } = self.tasks[index];
        let timed = loan.filter(|loan| loan.is_timed);
        let end_ns = timed.map(|loan| now_ns + loan.left_ns);
        self.cpus[cpu].returns_ns.or(end_ns)
    }

    /// `ops.running`.
    fn begin(&mut self, index: usize, number: usize, now_ns: u64) {
        let domain = self.cpus[number].domain;
        let longest_ns = self.longest_ns();
        let task = &mut self.tasks[index];
        task.place = Place::Running;
        task.cpu = number;
        if task.domain != domain {
            let weight = task.time.weight();
            task.time.leave(&mut self.domains[task.domain], longest_ns);
            task.domain = domain;
            let joined = &mut self.domains[domain];
            task.time.join(joined, weight, self.config.slice_ns);
        }
        let task = &mut self.tasks[index];
        task.exec_start = Some(now_ns);
        if task.slice_ns == 0 {
            task.slice_ns = SLICE_DFL_NS;
        }
        let cpu = &mut self.cpus[number];
        cpu.current = Some(index);
        cpu.deadline = task.time.deadline();
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
            let (task, cpu) = (&mut self.tasks[index], &mut self.cpus[number]);
            cpu.returns_ns = None;
            // A loan is one slice: a task that goes on pays for itself.
            let used_up = task.loan.take().filter(|loan| loan.is_used_up());
            let lender = used_up.map(|loan| Want::back(loan.lender, task.domain));
            cpu.want = cpu.want.or(lender);
        }
        let domain = self.cpus[number].domain;
        self.take_wanted(number, affinity)
            .or_else(|| self.first_eligible(number, current, affinity))
            .or_else(|| {
                let index = current?;
                self.tasks[index].slice_ns = self.config.slice_ns;
                Some(index)
            })
            .or_else(|| {
                let count = self.domains.len();
                (1..count).find_map(|step| self.head((domain + step) % count, number, affinity))
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
        let local = self.cpus[number].domain;
        let domain = &self.domains[local];
        let found = domain.waiting().take(ELIGIBLE_SCAN).find(|&index| {
            self.tasks[index].time.is_due(domain)
                && affinity.may_run(self.id_of(index), RqId(number as u32))
        });
        let Some(found) = found else {
            return self.head(local, number, affinity);
        };
        let deadline = self.tasks[found].time.deadline();
        let earlier = current.filter(|&index| {
            let ahead = self.tasks[index].time.deadline().wrapping_sub(deadline) as i64;
            self.is_due(index) && ahead < 0
        });
        if let Some(index) = earlier {
            self.tasks[index].slice_ns =
                self.tasks[index].time.request_left_ns().max(LEAST_SLICE_NS);
        }
        Some(earlier.unwrap_or(found))
    }

    /// Takes up the task that a yield or the end of a loan wants here. Out of order only on a loan, or
    /// if it is due.
    fn take_wanted(&mut self, number: usize, affinity: &impl Affinity) -> Option<usize> {
        let want = self.cpus[number].want.take()?;
        let index = self.index_of(want.task).ok()?;
        let Task { place, domain, .. } = self.tasks[index];
        let is_queued = matches!(place, Place::Queue { .. }) && domain == want.domain;
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
            is_timed: want.is_timed,
        });
        self.outcomes.picked();
        Some(index)
    }
}

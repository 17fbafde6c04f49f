//! A plain scheduler: lists of tasks that are searched, sums that are taken when needed, and virtual times in
//! 128 bits, which never wrap.

use super::super::*;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Spot {
    Asleep,
    /// Deadline at insertion, and the order of insertions.
    Queue(i128, usize),
    Local(usize),
    Running,
}

#[derive(Clone, Debug)]
pub(super) struct Thread {
    pub(super) id: TaskId,
    pub(super) own_weight: u64,
    pub(super) group: Option<usize>,
    pub(super) spot: Spot,
    pub(super) cpu: usize,
    pub(super) domain: usize,
    pub(super) has_run: bool,
    pub(super) weight: u64,
    pub(super) vruntime: i128,
    pub(super) deadline: i128,
    pub(super) vlag: i128,
    pub(super) charged_ns: u64,
    pub(super) slice_ns: u64,
    pub(super) loan: Option<Loan>,
    pub(super) returns_ns: Option<u64>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Core {
    pub(super) current: Option<usize>,
    pub(super) want: Option<Want>,
    pub(super) deadline: i128,
    pub(super) since_ns: u64,
    pub(super) forced_ns: Option<u64>,
}

/// Groups are pairs of parent and weight; CPUs 0 and 1 share a cache, CPU 2 has its own.
#[derive(Debug)]
pub(super) struct Plain {
    pub(super) config: Config,
    pub(super) threads: Vec<Thread>,
    pub(super) groups: Vec<(Option<usize>, u64)>,
    pub(super) cores: [Core; 3],
    pub(super) last_average: [i128; 2],
    pub(super) inserted: usize,
    pub(super) allowed: Allowed,
    pub(super) counts: Vec<(Outcome, u64)>,
}

/// CPUs of each task, as bits.
#[derive(Clone, Debug)]
pub(super) struct Allowed(pub(super) Vec<u8>);

impl Affinity for Allowed {
    fn may_run(&self, task: TaskId, cpu: RqId) -> bool {
        self.0[task.slot()] & 1 << cpu.slot() != 0
    }

    fn is_pinned(&self, task: TaskId) -> bool {
        self.0[task.slot()].count_ones() == 1
    }
}

pub(super) fn domain_of(cpu: usize) -> usize {
    cpu / 2
}

fn virtual_ns(ns: u64, weight: u64) -> i128 {
    i128::from(ns) * (1 << 20) / i128::from(weight)
}

/// Sums and virtual times.
impl Plain {
    fn average(&self, domain: usize) -> i128 {
        let members = || {
            self.threads
                .iter()
                .filter(|t| t.domain == domain && t.weight > 0)
        };
        let total: i128 = members().map(|t| i128::from(t.weight)).sum();
        let sum: i128 = members().map(|t| i128::from(t.weight) * t.vruntime).sum();
        if total == 0 {
            self.last_average[domain]
        } else {
            sum.div_euclid(total)
        }
    }

    pub(super) fn lag(&self, index: usize) -> i128 {
        self.average(self.threads[index].domain) - self.threads[index].vruntime
    }

    fn is_due(&self, index: usize) -> bool {
        self.threads[index].weight > 0 && self.lag(index) >= 0
    }

    fn lies_in(&self, mut group: Option<usize>, wanted: usize) -> bool {
        while let Some(g) = group.filter(|g| *g != wanted) {
            group = self.groups[g].0;
        }
        group.is_some()
    }

    fn flat_weight(&self, index: usize) -> u64 {
        let awake = || self.threads.iter().filter(|t| t.spot != Spot::Asleep);
        let mut weight = self.threads[index].own_weight * (1 << 20) / 100;
        let mut group = self.threads[index].group;
        while let Some(g) = group {
            let tasks: u64 = awake()
                .filter(|t| t.group == group)
                .map(|t| t.own_weight)
                .sum();
            let active = |child: &usize| awake().any(|t| self.lies_in(t.group, *child));
            let children = (0..self.groups.len()).filter(|c| self.groups[*c].0 == group);
            let below: u64 = children.filter(active).map(|c| self.groups[c].1).sum();
            weight = weight * self.groups[g].1 / (tasks + below);
            group = self.groups[g].0;
        }
        weight.max(2)
    }

    fn bound(&self, index: usize) -> i128 {
        virtual_ns(
            self.config.slice_ns + self.config.tick_ns,
            self.threads[index].weight,
        )
    }

    fn next_request(&mut self, index: usize) {
        let thread = &mut self.threads[index];
        thread.deadline = thread.vruntime + virtual_ns(self.config.slice_ns, thread.weight);
    }

    fn charge(&mut self, index: usize, ns: u64) {
        let thread = &mut self.threads[index];
        thread.vruntime += virtual_ns(ns, thread.weight);
        if thread.vruntime >= thread.deadline {
            self.next_request(index);
        }
    }

    /// Service that it is owed and its request keep their worth in real time.
    fn reweight(&mut self, index: usize, weight: u64) {
        let (lag, average) = (self.lag(index), self.average(self.threads[index].domain));
        let thread = &mut self.threads[index];
        if thread.weight != weight {
            let scaled = |size: i128| size * i128::from(thread.weight) / i128::from(weight);
            let request = scaled((thread.deadline - thread.vruntime).max(0));
            thread.vruntime = average - scaled(lag);
            thread.deadline = thread.vruntime + request;
            thread.weight = weight;
        }
    }

    fn charge_running(&mut self, index: usize, now_ns: u64) {
        let thread = &mut self.threads[index];
        let ns = now_ns - thread.charged_ns;
        thread.charged_ns = now_ns;
        thread.slice_ns = thread.slice_ns.saturating_sub(ns);
        let mut lent_ns = 0;
        if let Some(loan) = thread.loan {
            let payer = self
                .threads
                .iter()
                .position(|t| t.id == loan.lender && t.weight > 0);
            if let Some(payer) = payer {
                lent_ns = ns.min(loan.left_ns);
                let left_ns = loan.left_ns - lent_ns;
                self.threads[index].loan = Some(Loan { left_ns, ..loan });
                self.charge(payer, lent_ns);
                self.count(Outcome::LentNs, lent_ns);
            }
        }
        self.charge(index, ns - lent_ns);
        self.reweight(index, self.flat_weight(index));
    }

    fn leave(&mut self, index: usize) {
        let (lag, bound) = (self.lag(index), self.bound(index));
        let domain = self.threads[index].domain;
        self.last_average[domain] = self.average(domain);
        self.threads[index].vlag = lag.clamp(-bound, bound);
        self.threads[index].weight = 0;
    }

    /// Keeps its lag, although its coming moves the average.
    fn join(&mut self, index: usize, weight: u64) {
        let domain = self.threads[index].domain;
        let average = self.average(domain);
        let others = self.threads.iter().filter(|t| t.domain == domain);
        let total: i128 = others.map(|t| i128::from(t.weight)).sum();
        let thread = &mut self.threads[index];
        let lag = match total {
            0 => thread.vlag,
            _ => thread.vlag * (total + i128::from(weight)) / total,
        };
        thread.vruntime = average - lag;
        thread.weight = weight;
        self.next_request(index);
    }

    fn count(&mut self, outcome: Outcome, count: u64) {
        let found = self.counts.iter_mut().find(|(known, _)| *known == outcome);
        found.expect("it is listed").1 += count;
    }
}

/// Callbacks.
impl Plain {
    pub(super) fn wake(&mut self, index: usize, cpu: usize, is_idle: bool, now_ns: u64) -> bool {
        let moved = self.threads[index].domain != domain_of(cpu);
        if !moved && self.threads[index].has_run && self.threads[index].vlag < 0 {
            let debt = self.lag(index).min(0).max(self.threads[index].vlag);
            self.threads[index].vlag = debt;
        }
        self.inserted += 1;
        let thread = &mut self.threads[index];
        (thread.cpu, thread.domain, thread.has_run) = (cpu, domain_of(cpu), true);
        thread.slice_ns = self.config.slice_ns;
        thread.spot = Spot::Local(self.inserted);
        self.join(index, self.flat_weight(index));
        let core = self.cores[cpu].clone();
        if is_idle && core.current.is_none() {
            return true;
        }
        let deadline = self.threads[index].deadline;
        self.threads[index].spot = Spot::Queue(deadline, self.inserted);
        let Some(current) = core.current else {
            return true;
        };
        let interrupts =
            deadline < core.deadline && now_ns - core.since_ns >= 700_000 && self.is_due(index);
        if interrupts {
            self.threads[current].slice_ns = 0;
        }
        interrupts
    }

    pub(super) fn sleep(&mut self, index: usize) {
        self.leave(index);
        self.threads[index].spot = Spot::Asleep;
        self.end(index);
    }

    /// The thread pays for itself.
    fn end(&mut self, index: usize) {
        (self.threads[index].loan, self.threads[index].returns_ns) = (None, None);
    }

    pub(super) fn block(&mut self, cpu: usize, now_ns: u64) {
        let index = self.cores[cpu].current.take().expect("it runs");
        self.charge_running(index, now_ns);
        self.sleep(index);
    }

    pub(super) fn tick(&mut self, cpu: usize, now_ns: u64) -> bool {
        let Some(index) = self.cores[cpu].current else {
            return false;
        };
        self.charge_running(index, now_ns);
        self.cores[cpu].deadline = self.threads[index].deadline;
        self.threads[index].slice_ns == 0
    }

    /// Tasks that wait for a domain, in order.
    fn queue(&self, domain: usize) -> Vec<usize> {
        let waits = |i: &usize| matches!(self.threads[*i].spot, Spot::Queue(..));
        let in_domain = |i: &usize| self.threads[*i].domain == domain && waits(i);
        let mut queue: Vec<usize> = (0..self.threads.len()).filter(in_domain).collect();
        queue.sort_by_key(|i| match self.threads[*i].spot {
            Spot::Queue(deadline, order) => (deadline, order),
            _ => unreachable!("it waits"),
        });
        queue
    }

    fn may_run(&self, index: usize, cpu: usize) -> bool {
        self.allowed
            .may_run(self.threads[index].id, RqId(cpu as u32))
    }

    fn wanted(&mut self, cpu: usize) -> Option<usize> {
        let want = self.cores[cpu].want.take()?;
        let index = self.threads.iter().position(|t| t.id == want.task)?;
        let waits = self.queue(want.domain).contains(&index) && self.may_run(index, cpu);
        if !waits || want.lender.is_none() && !self.is_due(index) {
            self.count(Outcome::WantMissed, 1);
            return None;
        }
        self.count(Outcome::WantPicked, 1);
        let thread = &mut self.threads[index];
        if want.slice_ns > 0 {
            thread.slice_ns = want.slice_ns;
        }
        let (left_ns, is_timed) = (want.slice_ns, want.is_timed);
        thread.loan = want.lender.map(|lender| Loan {
            lender,
            left_ns,
            is_timed,
        });
        Some(index)
    }

    fn request_left_ns(&self, index: usize) -> u64 {
        let thread = &self.threads[index];
        let rest = (thread.deadline - thread.vruntime).max(0);
        ((rest * i128::from(thread.weight)) >> 20) as u64
    }

    /// By deadline: of the first 16 that wait, one that is due; the current one competes.
    fn by_deadline(&mut self, cpu: usize, current: Option<usize>) -> Option<usize> {
        let mut queue = self.queue(domain_of(cpu));
        let first: Vec<usize> = queue.iter().copied().take(16).collect();
        queue.retain(|i| self.may_run(*i, cpu));
        let due = first
            .into_iter()
            .find(|i| self.may_run(*i, cpu) && self.is_due(*i));
        let Some(due) = due else {
            return queue.first().copied();
        };
        match current {
            Some(i) if self.is_due(i) && self.threads[i].deadline < self.threads[due].deadline => {
                self.threads[i].slice_ns = self.request_left_ns(i).max(100_000);
                current
            }
            _ => Some(due),
        }
    }

    fn dispatch(&mut self, cpu: usize, current: Option<usize>) -> Option<usize> {
        if let Some(index) = current {
            let loan = self.threads[index].loan;
            if let (
                Some(Loan {
                    lender, left_ns: 0, ..
                }),
                None,
            ) = (loan, self.cores[cpu].want)
            {
                self.want_back(cpu, lender, domain_of(cpu));
            }
            self.end(index);
        }
        if let Some(index) = self.wanted(cpu).or_else(|| self.by_deadline(cpu, current)) {
            return Some(index);
        }
        if let Some(index) = current {
            self.threads[index].slice_ns = self.config.slice_ns;
            return current;
        }
        let other = self.queue(1 - domain_of(cpu));
        other.into_iter().find(|i| self.may_run(*i, cpu))
    }

    pub(super) fn pick(&mut self, cpu: usize, now_ns: u64) -> Picked {
        let mut picked = Picked {
            task: None,
            from: None,
            requeued: None,
            loan_end_ns: None,
        };
        let former = self.cores[cpu].current;
        if let Some(index) = former {
            self.charge_running(index, now_ns);
        }
        let local = (0..self.threads.len()).filter_map(|i| match self.threads[i].spot {
            Spot::Local(order) if self.threads[i].cpu == cpu => Some((order, i)),
            _ => None,
        });
        let next = match former.filter(|i| self.threads[*i].slice_ns > 0) {
            Some(_) => former,
            None => local
                .min()
                .map(|(_, i)| i)
                .or_else(|| self.dispatch(cpu, former)),
        };
        let Some(index) = next else {
            return picked;
        };
        if next != former {
            let source = self.threads[index].cpu;
            picked.from = (source != cpu).then_some(RqId(source as u32));
            self.threads[index].spot = Spot::Running;
            if let Some(i) = former {
                self.inserted += 1;
                let thread = &mut self.threads[i];
                thread.spot = Spot::Queue(thread.deadline, self.inserted);
                thread.slice_ns = self.config.slice_ns;
                picked.requeued = Some(thread.id);
                self.end(i);
            }
            self.begin(index, cpu, now_ns);
        }
        let thread = &self.threads[index];
        picked.task = Some(thread.id);
        let loan = thread.loan.filter(|loan| loan.is_timed);
        let end_ns = loan.map(|loan| now_ns + loan.left_ns);
        picked.loan_end_ns = thread.returns_ns.or(end_ns);
        picked
    }

    fn begin(&mut self, index: usize, cpu: usize, now_ns: u64) {
        if self.threads[index].domain != domain_of(cpu) {
            let weight = self.threads[index].weight;
            self.leave(index);
            self.threads[index].domain = domain_of(cpu);
            self.join(index, weight);
        }
        let thread = &mut self.threads[index];
        (thread.cpu, thread.charged_ns) = (cpu, now_ns);
        if thread.slice_ns == 0 {
            thread.slice_ns = 20_000_000;
        }
        let core = &mut self.cores[cpu];
        core.current = Some(index);
        (core.deadline, core.since_ns) = (thread.deadline, now_ns);
    }

    pub(super) fn yield_task(&mut self, cpu: usize, now_ns: u64) {
        let index = self.cores[cpu].current.expect("it runs");
        self.charge_running(index, now_ns);
        if self.is_due(index) {
            let thread = &mut self.threads[index];
            thread.vruntime = thread.vruntime.max(thread.deadline);
            self.next_request(index);
        }
        self.threads[index].slice_ns = 0;
    }

    pub(super) fn end_loan(&mut self, cpu: usize, now_ns: u64) -> bool {
        let Some(index) = self.cores[cpu].current else {
            return false;
        };
        self.charge_running(index, now_ns);
        let thread = &self.threads[index];
        let ended =
            thread.returns_ns.is_some() || thread.loan.is_some_and(|loan| loan.left_ns == 0);
        if ended {
            self.threads[index].slice_ns = 0;
        }
        ended
    }

    fn want_back(&mut self, cpu: usize, task: TaskId, domain: usize) {
        self.cores[cpu].want = Some(Want {
            task,
            domain,
            lender: None,
            slice_ns: 0,
            is_timed: false,
        });
    }

    pub(super) fn answered(
        &mut self,
        sender: TaskId,
        receiver: usize,
        now_ns: u64,
    ) -> Option<(RqId, u64)> {
        let thread = &mut self.threads[receiver];
        let lent = thread.loan.is_some_and(|loan| loan.lender == sender);
        if thread.spot != Spot::Running || !lent {
            return None;
        }
        let (cpu, end_ns) = (thread.cpu, now_ns + self.config.answer_ns);
        thread.returns_ns = Some(end_ns);
        self.want_back(cpu, sender, domain_of(cpu));
        self.count(Outcome::LoansReturned, 1);
        Some((RqId(cpu as u32), end_ns))
    }
}

/// Directed yields.
impl Plain {
    fn waits(&self, index: usize) -> bool {
        matches!(self.threads[index].spot, Spot::Queue(..))
    }

    pub(super) fn yield_to(
        &mut self,
        cpu: usize,
        nominee: usize,
        awaits: Awaits,
        now_ns: u64,
    ) -> Yielded {
        let yielder = self.cores[cpu].current.expect("it runs");
        let answer = self.decide(cpu, yielder, nominee, awaits, now_ns);
        self.count(
            match answer {
                Yielded::Served { target, .. } => Outcome::Served(target),
                Yielded::Refused(reason) => Outcome::Refused(reason),
            },
            1,
        );
        answer
    }

    fn decide(
        &mut self,
        cpu: usize,
        yielder: usize,
        nominee: usize,
        awaits: Awaits,
        now_ns: u64,
    ) -> Yielded {
        if self.config.yields == Yields::Refuse {
            return Yielded::Refused(Refusal::Mode);
        }
        self.charge_running(yielder, now_ns);
        let (mut target, mut served, mut ends) = (nominee, Served::Nominee, false);
        match awaits {
            Awaits::Answered { at_ns } if self.is_near(cpu, at_ns, now_ns) => {
                return Yielded::Refused(Refusal::Answered);
            }
            Awaits::Receiver {
                task,
                sent_ns,
                shows_eoi,
            } if self.config.yields == Yields::Receiver => {
                let receiver = self.threads.iter().position(|t| t.id == task);
                if let Some(i) = receiver.filter(|i| self.waits(*i)) {
                    (target, served, ends) = (i, Served::Receiver, shows_eoi);
                }
                let runs = receiver.filter(|i| self.threads[*i].spot == Spot::Running);
                if runs.is_some_and(|i| self.is_near(self.threads[i].cpu, sent_ns, now_ns)) {
                    return Yielded::Refused(Refusal::ReceiverRuns);
                }
            }
            _ => {}
        }
        if !self.waits(target) {
            return Yielded::Refused(Refusal::NotQueued);
        }
        let gives = awaits == Awaits::NoIpi && self.config.yields == Yields::Receiver;
        self.serve(cpu, [yielder, target], served, ends, gives, now_ns)
    }

    fn is_near(&self, cpu: usize, ns: u64, now_ns: u64) -> bool {
        let began = self.cores[cpu].since_ns.max(ns);
        now_ns.saturating_sub(began) < self.config.spin_ns
    }

    /// Without a nominee.
    pub(super) fn pause(&mut self, cpu: usize, awaits: Awaits, now_ns: u64) -> Option<Yielded> {
        let yielder = self.cores[cpu].current.expect("it runs");
        let Awaits::Receiver {
            task, shows_eoi, ..
        } = awaits
        else {
            return None;
        };
        let receiver = self.threads.iter().position(|t| t.id == task);
        let receiver =
            receiver.filter(|i| self.waits(*i) && self.config.yields == Yields::Receiver)?;
        self.charge_running(yielder, now_ns);
        let pair = [yielder, receiver];
        let answer = self.serve(cpu, pair, Served::Receiver, shows_eoi, false, now_ns);
        if matches!(answer, Yielded::Served { .. }) {
            self.count(Outcome::PauseReceiver, 1);
        }
        Some(answer)
    }

    /// Service moves from a task that is due to one that is due by it.
    fn hand_over(&mut self, yielder: usize, index: usize, left_ns: u64) -> bool {
        let of = |thread: &Thread, ns: u64| virtual_ns(ns, thread.weight);
        let gain = of(&self.threads[index], left_ns);
        let is_near = self.threads[yielder].domain == self.threads[index].domain;
        if !is_near || left_ns == 0 || !self.is_due(yielder) || self.lag(index) + gain < 0 {
            return false;
        }
        let slice = of(&self.threads[yielder], self.config.slice_ns);
        let thread = &mut self.threads[yielder];
        thread.vruntime = thread.deadline;
        thread.deadline += slice;
        let thread = &mut self.threads[index];
        thread.vruntime -= gain;
        thread.deadline -= gain;
        self.count(Outcome::HandedOver, 1);
        true
    }

    fn serve(
        &mut self,
        cpu: usize,
        pair: [usize; 2],
        served: Served,
        shows_eoi: bool,
        gives: bool,
        now_ns: u64,
    ) -> Yielded {
        let [yielder, index] = pair;
        let ids = [yielder, index].map(|i| self.threads[i].id);
        let moves = self.may_run(index, cpu);
        if !moves && ids.iter().all(|id| self.allowed.is_pinned(*id)) {
            return Yielded::Refused(Refusal::Pinned);
        }
        let due = [yielder, index].map(|i| self.is_due(i));
        if due == [false, false] {
            self.threads[yielder].slice_ns = 0;
            return Yielded::Refused(Refusal::Guard);
        }
        let left_ns = self.request_left_ns(yielder);
        let mut slice_ns = left_ns.max(100_000);
        // A nominee that is due pays for itself, and so does a receiver that alone is.
        let borrows = match served {
            Served::Nominee if gives && self.hand_over(yielder, index, left_ns) => false,
            Served::Nominee => !due[1],
            Served::Receiver => due[0],
        };
        let is_timed = borrows && !shows_eoi;
        if is_timed && served == Served::Receiver {
            slice_ns = slice_ns.min(self.config.loan_ns);
        }
        let Thread {
            cpu: last, domain, ..
        } = self.threads[index];
        let number = if moves { cpu } else { last };
        let core = &mut self.cores[number];
        let lender = borrows.then_some(ids[0]);
        core.want = Some(Want {
            task: ids[1],
            domain,
            lender,
            slice_ns,
            is_timed,
        });
        let may_force = core
            .forced_ns
            .is_none_or(|ns| now_ns - ns >= self.config.force_interval_ns);
        let kicked = (!moves && may_force).then_some(RqId(number as u32));
        if kicked.is_some() {
            core.forced_ns = Some(now_ns);
            if let Some(current) = core.current {
                self.threads[current].slice_ns = 0;
            }
        }
        let excess = (self.lag(yielder) - self.bound(yielder)).max(0);
        let thread = &mut self.threads[yielder];
        thread.slice_ns = 0;
        thread.vruntime += excess;
        thread.deadline += excess;
        if borrows {
            self.count(Outcome::Loans, 1);
        }
        Yielded::Served {
            target: served,
            kicked,
        }
    }
}

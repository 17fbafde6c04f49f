//! The reference's joining, leaving, picking and switching, level by level.

use stealtime_hypervisor::fair::{Feature, Policy, WakeFlags};

use crate::model::{LAZY, Model, NOW};
use crate::sums::{before, dv};

/// Why a task joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Join {
    Initial,
    Wakeup,
    Change,
}

/// How an entity leaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leave {
    pub(crate) sleep: bool,
    pub(crate) special: bool,
    /// `DEQUEUE_THROTTLE`, which each level above has too.
    pub(crate) throttle: bool,
    pub(crate) last: bool,
}

/// For a change or a migration.
pub(crate) const CHANGE: Leave = Leave {
    sleep: false,
    special: false,
    throttle: false,
    last: false,
};

/// For a task that blocks.
pub(crate) const ASLEEP: Leave = Leave {
    sleep: true,
    ..CHANGE
};

/// For one that must not be woken twice, or exits.
pub(crate) const SPECIAL: Leave = Leave {
    special: true,
    ..ASLEEP
};

/// For one that is throttled with its group.
pub(crate) const THROTTLE: Leave = Leave {
    throttle: true,
    ..ASLEEP
};

/// What ends a delay.
pub(crate) const FINAL: Leave = Leave {
    last: true,
    ..ASLEEP
};

impl Model {
    pub(crate) fn join(&mut self, task: usize, why: Join) {
        if self.flat() {
            self.flat_join(task, why);
        } else {
            self.climb(task, why);
        }
        let cpu = self.entities[task].cpu;
        if let Some(c) = self.cpus[cpu].curr
            && self.cpus[cpu].hrtick == 0
        {
            self.arm(c);
        }
    }

    fn climb(&mut self, task: usize, why: Join) {
        let mut at = Some(task);
        while let Some(e) = at {
            if self.entities[e].on_rq {
                if self.entities[e].delayed {
                    self.mark("joined below a delayed group", true);
                    self.requeue(e);
                }
                break;
            }
            if e != task {
                let slice = self.min_slice(self.own_queue(e));
                (self.entities[e].slice, self.entities[e].custom) = (slice, true);
            }
            let q = self.level(e);
            // What has blocked is still current until the pick, and so are the groups above it.
            let current = self.queues[q].curr == Some(e);
            self.mark("joined while current", current);
            if current {
                self.place(q, e, why == Join::Initial && e == task);
            }
            self.update_curr(q);
            self.refresh(e);
            if !current {
                self.place(q, e, why == Join::Initial && e == task);
                self.queues[q].tree.push(e);
            }
            self.entities[e].on_rq = true;
            at = self.parent(e);
        }
        while let Some(e) = at {
            self.refresh(e);
            self.entities[e].slice = self.min_slice(self.own_queue(e));
            at = self.parent(e);
        }
    }

    /// A delayed entity becomes an ordinary one.
    pub(crate) fn requeue(&mut self, e: usize) {
        let q = self.arena(e);
        self.update_curr(q);
        let moves = self.update_lag(q, e);
        self.mark("requeued elsewhere", moves);
        self.mark("requeued in place", !moves);
        let current = self.queues[q].curr == Some(e);
        self.mark("requeued while current", current);
        if moves && current {
            // The sums count it, as where it is.
            self.place(q, e, false);
        } else if moves {
            self.leave_tree(q, e);
            self.place(q, e, false);
            self.queues[q].tree.push(e);
        }
        self.entities[e].delayed = false;
    }

    /// False if the entity stays, delayed.
    fn leave_one(&mut self, e: usize, how: Leave) -> bool {
        let q = self.level(e);
        self.update_curr(q);
        self.clear_buddy(q, e);
        let may_stay = how.sleep && !how.special && !how.throttle && !how.last;
        let may_stay = may_stay && self.has(Feature::DelayDequeue);
        if may_stay && !self.eligible(q, self.entities[e].vruntime) {
            self.update_lag(q, e);
            self.mark("task delayed", self.is_task(e));
            self.mark("group delayed", !self.is_task(e));
            self.entities[e].delayed = true;
            return false;
        }
        self.update_lag(q, e);
        let debt = self.entities[e].vlag < 0;
        self.mark(
            "task throttled in debt",
            how.throttle && self.is_task(e) && debt,
        );
        self.mark(
            "group throttled in debt",
            how.throttle && !self.is_task(e) && debt,
        );
        if !how.sleep && self.has(Feature::PlaceRelDeadline) {
            let ent = &mut self.entities[e];
            ent.deadline = ent.deadline.wrapping_sub(ent.vruntime);
            ent.rel = true;
        }
        if self.queues[q].curr != Some(e) {
            self.leave_tree(q, e);
        }
        let ent = &mut self.entities[e];
        ent.on_rq = false;
        ent.delayed &= !how.last;
        true
    }

    /// A task leaves, or a delayed group for good.
    pub(crate) fn leave(&mut self, entity: usize, how: Leave) {
        if self.flat() {
            self.flat_leave(entity, how);
            return;
        }
        let (mut e, mut level) = (entity, how);
        let (mut second, mut slice);
        loop {
            let left = self.leave_one(e, level);
            let q = self.level(e);
            slice = self.min_slice(q);
            if !left {
                if self.is_task(e) {
                    return;
                }
                // The second walk starts at the group that stays.
                self.mark("group stays as its task leaves awake", !how.sleep);
                second = Some(e);
                break;
            }
            second = self.parent(e);
            if self.load(q) != 0 {
                if how.sleep {
                    self.nominate(second);
                }
                break;
            }
            let Some(above) = second else { return };
            e = above;
            level = Leave {
                sleep: true,
                special: false,
                throttle: how.throttle,
                last: false,
            };
        }
        while let Some(e) = second {
            self.refresh(e);
            self.entities[e].slice = slice;
            slice = self.min_slice(self.level(e));
            second = self.parent(e);
        }
    }

    /// Makes buddies from `at` upwards.
    pub(crate) fn nominate(&mut self, mut at: Option<usize>) {
        while let Some(e) = at {
            if !self.entities[e].on_rq || self.is_idle(e) {
                self.mark(
                    "nomination stopped by an idle entity",
                    self.entities[e].on_rq,
                );
                return;
            }
            let q = self.arena(e);
            self.queues[q].next = Some(e);
            at = if self.flat() { None } else { self.parent(e) };
        }
    }

    pub(crate) fn clear_buddy(&mut self, mut q: usize, mut e: usize) {
        while self.queues[q].next == Some(e) {
            self.queues[q].next = None;
            match self.parent(e) {
                Some(above) if !self.flat() => (e, q) = (above, self.level(above)),
                _ => return,
            }
        }
    }

    /// The entity to run in one queue.
    fn pick_in(&self, q: usize, protect: bool) -> usize {
        let members = self.members(q);
        if let [only] = members[..] {
            self.mark("picked alone", true);
            return only;
        }
        let queue = &self.queues[q];
        let fits = |e: usize| self.eligible(q, self.entities[e].vruntime);
        let buddy = queue.next.filter(|b| fits(*b));
        self.mark(
            "buddy not eligible",
            queue.next.is_some() && buddy.is_none(),
        );
        self.mark("buddy without protection", buddy.is_some() && !protect);
        if let Some(buddy) = buddy.filter(|_| protect && self.has(Feature::PickBuddy)) {
            self.mark("buddy picked", true);
            return buddy;
        }
        let curr = self.running_in(q).filter(|c| fits(*c));
        if let Some(c) = curr
            && protect
            && before(self.entities[c].vruntime, self.entities[c].vprot)
        {
            self.mark("protected", true);
            return c;
        }
        let mut best: Option<usize> = None;
        for e in queue.tree.iter().copied().filter(|e| fits(*e)) {
            let deadline = self.entities[e].deadline;
            let tied = best.is_some_and(|b| deadline == self.entities[b].deadline);
            self.mark("equal deadlines", tied);
            if best.is_none_or(|b| before(deadline, self.entities[b].deadline)) {
                best = Some(e);
            }
        }
        match (best, curr) {
            (Some(b), Some(c)) => {
                let wins = before(self.entities[c].deadline, self.entities[b].deadline);
                self.mark("running one wins by its deadline", wins);
                if wins { c } else { b }
            }
            (best, curr) => best.or(curr).expect("an entity is always eligible"),
        }
    }

    fn pick_task(&mut self, cpu: usize) -> Option<usize> {
        'again: loop {
            let mut q = self.q(cpu, 0);
            if self.members(q).is_empty() {
                return None;
            }
            loop {
                if self.running_in(q).is_some() {
                    self.update_curr(q);
                }
                let e = self.pick_in(q, true);
                if self.entities[e].delayed {
                    self.mark("delayed task picked", self.is_task(e));
                    self.mark("delayed group picked", !self.is_task(e));
                    self.leave(e, FINAL);
                    continue 'again;
                }
                if self.is_task(e) {
                    return Some(e);
                }
                q = self.own_queue(e);
            }
        }
    }

    /// Picks and switches: the task that runs now.
    pub(crate) fn schedule(&mut self, cpu: usize) -> i64 {
        let next = self.pick_task(cpu);
        let prev = self.cpus[cpu].curr;
        if next != prev {
            if let Some(prev) = prev {
                self.put(prev, next);
                if self.entities[prev].state == crate::model::State::Exiting {
                    self.entities[prev].state = crate::model::State::Gone;
                }
            }
            if let Some(next) = next {
                self.set(next, true);
            }
        }
        let c = &mut self.cpus[cpu];
        (c.curr, c.resched, c.announced) = (next, 0, false);
        if next.is_none() {
            c.hrtick = 0;
        }
        next.map_or(0, |e| self.entities[e].id)
    }

    fn chain(&self, e: usize) -> Vec<usize> {
        let mut chain = vec![e];
        while let Some(above) = self.parent(chain[chain.len() - 1]) {
            chain.push(above);
        }
        chain
    }

    /// The entities of both chains that are in one queue.
    fn siblings(&self, a: usize, b: usize) -> (usize, usize) {
        let theirs = self.chain(b);
        for e in self.chain(a) {
            let found = theirs.iter().find(|o| self.level(**o) == self.level(e));
            if let Some(other) = found {
                return (e, *other);
            }
        }
        unreachable!("all are in the root at last")
    }

    pub(crate) fn put(&mut self, prev: usize, next: Option<usize>) {
        let (chain, last) = if self.flat() {
            (vec![prev], None)
        } else {
            let last = next.map(|n| self.level(self.siblings(prev, n).0));
            (self.chain(prev), last)
        };
        for e in chain {
            let q = self.arena(e);
            if self.entities[e].on_rq {
                self.update_curr(q);
                self.queues[q].tree.push(e);
            }
            self.queues[q].curr = None;
            if Some(q) == last {
                return;
            }
        }
    }

    pub(crate) fn set(&mut self, next: usize, first: bool) {
        let chain = if self.flat() {
            vec![next]
        } else {
            self.chain(next)
        };
        for e in chain {
            let q = self.arena(e);
            if self.queues[q].curr.is_some() {
                break;
            }
            self.clear_buddy(q, e);
            if self.entities[e].on_rq {
                self.leave_tree(q, e);
            }
            self.entities[e].exec = self.now;
            let rest = self.min_slice(q);
            self.queues[q].curr = Some(e);
            if self.flat() {
                self.flat_reweigh_curr(e);
            }
            if first {
                self.protect(e, rest);
            }
        }
        if first {
            self.arm(next);
        }
    }

    /// Starts an entity's protected period; `rest` is the shortest slice of the others.
    fn protect(&mut self, e: usize, rest: u64) {
        let parity = self.has(Feature::RunToParity);
        let ent = &mut self.entities[e];
        let slice = if parity { rest } else { 700_000 };
        ent.vprot = ent.deadline;
        if slice < ent.slice {
            let end = ent.vruntime.wrapping_add(dv(slice, ent.weight));
            if before(end, ent.vprot) {
                ent.vprot = end;
            }
        }
    }

    /// Arms the slice timer for a task.
    fn arm(&mut self, e: usize) {
        let ent = &self.entities[e];
        let cpu = ent.cpu;
        if !self.has(Feature::Hrtick) || self.nr_running(cpu) < 2 {
            return;
        }
        let ahead = crate::sums::from(ent.deadline, ent.vruntime);
        self.mark("timer behind its time", ahead < 0);
        if ahead < 0 {
            if self.cpus[cpu].curr == Some(e) {
                self.request(cpu, NOW);
            }
            return;
        }
        let real = (ahead * i128::from(ent.weight)) >> 20;
        self.mark("timer at its floor", real < 10_000);
        let expiry = self.now + (real as u64).max(10_000);
        let timer = self.cpus[cpu].hrtick;
        let near = timer != 0 && timer.abs_diff(expiry) <= 5_000;
        self.mark("timer left where it was", near);
        if !near {
            self.cpus[cpu].hrtick = expiry;
        }
    }

    /// Whether `p`, just queued, is to preempt.
    pub(crate) fn check(&mut self, p: usize, fork: bool, flags: WakeFlags) {
        let cpu = self.entities[p].cpu;
        let Some(curr) = self.cpus[cpu].curr else {
            if !self.cpus[cpu].announced {
                self.cpus[cpu].announced = true;
                self.request(cpu, NOW);
            }
            return;
        };
        if p == curr || self.cpus[cpu].resched == NOW || !self.has(Feature::WakeupPreemption) {
            return;
        }
        let (se, pse) = if self.flat() {
            (curr, p)
        } else {
            self.siblings(curr, p)
        };
        match (self.is_idle(se), self.is_idle(pse)) {
            (true, false) => {
                // The buddy is looked for in the running task's own queue.
                self.mark("idle one preempted", true);
                self.mark("idle group preempted", se != curr);
                self.preempt_short(self.arena(curr), se);
                return;
            }
            (false, true) => return,
            _ => {}
        }
        if self.entities[p].policy != Policy::Normal {
            return;
        }
        let q = self.arena(se);
        self.update_curr(q);
        let shorter = self.entities[pse].slice < self.entities[se].slice;
        let short = shorter && self.has(Feature::PreemptShort);
        if !short && (fork || self.entities[pse].delayed) {
            self.mark("check ends at a delayed one", !fork);
            return;
        }
        if !short && self.has(Feature::NextBuddy) && self.suggest(q, pse) && flags.sync {
            let cost = self.setup.migration_cost_ns >> if flags.rq_selected { 2 } else { 0 };
            let (s, w) = (&self.entities[se], &self.entities[pse]);
            let preempts = before(w.deadline, s.deadline) && self.now - s.exec >= cost;
            self.mark("synchronous wakeup preempts", preempts);
            self.mark("synchronous wakeup waits", !preempts);
            if preempts {
                self.request(cpu, LAZY);
            }
            return;
        }
        while !self.members(q).is_empty() {
            let e = self.pick_in(q, !short);
            if self.entities[e].delayed {
                self.mark("check dequeues a delayed one", true);
                self.mark("check dequeues the one it is for", e == pse);
                self.leave(e, FINAL);
                continue;
            }
            self.mark("preempted by a shorter slice", e == pse && short);
            self.mark("preempted", e == pse && !short);
            if e == pse {
                if short {
                    self.preempt_short(q, se);
                } else {
                    self.request(cpu, LAZY);
                }
                return;
            }
            break;
        }
        if self.has(Feature::RunToParity) {
            let slice = self.min_slice(q);
            let ent = &mut self.entities[se];
            let end = ent.vruntime.wrapping_add(dv(slice, ent.weight));
            let cut = before(end, ent.vprot);
            if cut {
                ent.vprot = end;
            }
            self.mark("protection cut", cut);
        }
    }

    /// Makes one that wakes the buddy, unless the one that is has an earlier deadline.
    fn suggest(&mut self, q: usize, pse: usize) -> bool {
        let deadline = self.entities[pse].deadline;
        let next = self.queues[q].next;
        if next.is_some_and(|b| before(self.entities[b].deadline, deadline)) {
            self.mark("an earlier buddy stays", true);
            return false;
        }
        self.nominate(Some(pse));
        true
    }

    fn preempt_short(&mut self, buddy_queue: usize, se: usize) {
        let ent = &mut self.entities[se];
        if before(ent.vruntime, ent.vprot) {
            ent.vprot = ent.vruntime;
        }
        self.clear_buddy(buddy_queue, se);
        self.request(self.entities[se].cpu, LAZY);
    }
}

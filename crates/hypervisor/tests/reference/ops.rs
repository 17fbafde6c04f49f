//! The reference's operations from outside: the lives of tasks, ticks, yields, changes.

use stealtime_hypervisor::fair::{Feature, Policy, WakeFlags};

use crate::model::{Entity, LAZY, Model, N0, NOW, State, weight_of};
use crate::op::Op;
use crate::walk::{CHANGE, Join, Leave};

impl Model {
    pub(crate) fn fork(&mut self, cpu: usize, op: Op) {
        let Op::Fork {
            id,
            nice,
            policy,
            slice,
            group,
        } = op
        else {
            return;
        };
        let mut e = Entity::blank(id, cpu, group);
        (e.policy, e.nice, e.prio) = (policy, nice, nice);
        (e.load, e.weight) = (weight_of(policy, nice), weight_of(policy, nice));
        e.custom = slice != 0;
        e.slice = match slice {
            0 => self.setup.base_slice_ns,
            asked => asked.clamp(100_000, 100_000_000),
        };
        let gone = self.entities.iter().position(|e| e.state == State::Gone);
        let index = gone.unwrap_or(self.entities.len());
        if index == self.entities.len() {
            self.entities.push(e);
        } else {
            self.tasks.remove(&self.entities[index].id);
            self.entities[index] = e;
        }
        assert!(self.tasks.insert(id, index).is_none(), "task {id} twice");
        self.join(index, Join::Initial);
        self.check(index, true, WakeFlags::default());
    }

    pub(crate) fn wake(&mut self, cpu: usize, id: i64, flags: WakeFlags) {
        let e = self.tasks[&id];
        assert_eq!(self.entities[e].state, State::Asleep);
        if self.entities[e].on_rq {
            assert_eq!(self.entities[e].cpu, cpu);
            self.requeue(e);
        } else {
            self.rehome(e, cpu);
            self.join(e, Join::Wakeup);
        }
        self.entities[e].state = State::Runnable;
        self.check(e, false, flags);
    }

    pub(crate) fn block(&mut self, cpu: usize, how: Leave, state: State) {
        let e = self.cpus[cpu].curr.expect("a task runs");
        self.leave(e, how);
        self.entities[e].state = state;
        if state == State::Throttled {
            self.request(cpu, NOW);
        }
    }

    /// Queued as by a wakeup, but without its check: an idle CPU alone reschedules.
    pub(crate) fn unthrottle(&mut self, id: i64) {
        let e = self.tasks[&id];
        assert_eq!(self.entities[e].state, State::Throttled);
        self.join(e, Join::Wakeup);
        self.entities[e].state = State::Runnable;
        let cpu = self.entities[e].cpu;
        if self.cpus[cpu].curr.is_none() {
            self.request(cpu, NOW);
        }
    }

    pub(crate) fn tick(&mut self, cpu: usize) {
        let lazy = self.setup.preempt == stealtime_hypervisor::fair::Preempt::Lazy;
        if lazy && self.cpus[cpu].resched == LAZY {
            self.cpus[cpu].resched = NOW;
        }
        self.walk_tick(cpu, false);
    }

    pub(crate) fn hrtick(&mut self, cpu: usize) {
        self.cpus[cpu].hrtick = 0;
        self.walk_tick(cpu, true);
    }

    fn walk_tick(&mut self, cpu: usize, timer: bool) {
        let Some(curr) = self.cpus[cpu].curr else {
            return;
        };
        let mut at = Some(curr);
        while let Some(e) = at {
            if !self.flat() || e == curr {
                self.update_curr(self.arena(e));
            }
            self.refresh(e);
            if timer {
                self.request(cpu, NOW);
            }
            at = self.parent(e);
        }
        if self.flat() {
            self.flat_reweigh_curr(curr);
        }
    }

    pub(crate) fn account(&mut self, cpu: usize) {
        if let Some(c) = self.cpus[cpu].curr {
            self.update_curr(self.arena(c));
        }
    }

    pub(crate) fn yield_step(&mut self, cpu: usize) {
        let e = self.cpus[cpu].curr.expect("a task runs");
        if self.nr_running(cpu) == 1 {
            return;
        }
        let q = self.arena(e);
        self.clear_buddy(q, e);
        self.update_curr(q);
        let forfeits = self.eligible(q, self.entities[e].vruntime);
        self.mark("yield forfeits", forfeits);
        self.mark("yield costs nothing", !forfeits);
        if forfeits {
            self.entities[e].vruntime = self.entities[e].deadline;
            self.expire(q, e);
        }
    }

    pub(crate) fn yield_to(&mut self, cpu: usize, to: i64) -> i64 {
        let p = self.tasks[&to];
        let there = self.entities[p].cpu;
        if self.nr_running(cpu) == 1 && self.nr_running(there) == 1 {
            self.mark("yield_to alone", true);
            return -3;
        }
        let ent = &self.entities[p];
        let waits = ent.on_rq && ent.state == State::Runnable && self.cpus[there].curr != Some(p);
        if !waits {
            self.mark("yield_to refused", true);
            return 0;
        }
        self.nominate(Some(p));
        if there == cpu && self.has(Feature::YieldToLagCredit) {
            self.credited_yield(cpu, p);
        } else {
            self.yield_step(cpu);
        }
        self.mark("yield_to in a group", self.parent(p).is_some());
        if there != cpu {
            self.mark("yield_to another CPU", true);
            self.request(there, NOW);
        }
        1
    }

    /// Takes a task off for a change: whether it was queued, and running.
    fn take_off(&mut self, e: usize) -> (bool, bool) {
        let queued = self.entities[e].on_rq;
        let runs = self.cpus[self.entities[e].cpu].curr == Some(e);
        self.mark("changed while delayed", self.entities[e].delayed);
        self.mark("changed while running", runs);
        if queued {
            self.leave(e, CHANGE);
        }
        if runs {
            self.put(e, None);
        }
        (queued, runs)
    }

    fn put_back(&mut self, e: usize, (queued, runs): (bool, bool)) {
        if queued {
            self.join(e, Join::Change);
        }
        if runs {
            self.set(e, false);
        }
    }

    fn set_weight(&mut self, e: usize) {
        let weight = weight_of(self.entities[e].policy, self.entities[e].nice);
        self.entities[e].load = weight;
        if !self.flat() {
            self.reweigh(e, weight);
        }
    }

    /// What follows a change that began with priority `old`.
    fn changed(&mut self, e: usize, (queued, runs): (bool, bool), old: i8) {
        let (cpu, new) = (self.entities[e].cpu, self.entities[e].prio);
        let apart = self.entities[e].nice != new || self.entities[e].nice != old;
        self.mark("priority apart from nice", queued && apart);
        if !queued || old == new || self.members(self.q(cpu, 0)).len() == 1 {
            return;
        }
        if !runs {
            self.check(e, false, WakeFlags::default());
        } else if new > old {
            self.request(cpu, NOW);
        }
    }

    pub(crate) fn set_affinity(&mut self, id: i64) {
        let e = self.tasks[&id];
        let was = self.take_off(e);
        self.put_back(e, was);
    }

    pub(crate) fn set_nice(&mut self, id: i64, nice: i8) {
        let e = self.tasks[&id];
        if nice == self.entities[e].nice {
            return;
        }
        let old = self.entities[e].prio;
        let was = self.take_off(e);
        let ent = &mut self.entities[e];
        (ent.nice, ent.prio) = (nice, nice);
        self.set_weight(e);
        self.put_back(e, was);
        self.changed(e, was, old);
    }

    pub(crate) fn set_attr(&mut self, id: i64, policy: Policy, nice: i8, slice: u64) -> bool {
        let e = self.tasks[&id];
        let ent = &self.entities[e];
        let same = policy == Policy::Idle || (nice == ent.nice && slice == ent.slice);
        if policy == ent.policy && same {
            return false;
        }
        let old = ent.prio;
        let was = self.take_off(e);
        let base = self.setup.base_slice_ns;
        let ent = &mut self.entities[e];
        (ent.policy, ent.prio) = (policy, nice);
        if policy != Policy::Idle {
            ent.nice = nice;
            ent.custom = slice != 0;
            ent.slice = match slice {
                0 => base,
                asked => asked.clamp(100_000, 100_000_000),
            };
        }
        self.set_weight(e);
        self.put_back(e, was);
        self.changed(e, was, old);
        true
    }

    pub(crate) fn move_task(&mut self, id: i64, group: usize) {
        let e = self.tasks[&id];
        if self.entities[e].group == group {
            return;
        }
        let was = self.take_off(e);
        self.entities[e].group = group;
        self.put_back(e, was);
        if was.1 {
            self.request(self.entities[e].cpu, NOW);
        } else if was.0 {
            self.check(e, false, WakeFlags::default());
        }
    }

    pub(crate) fn set_shares(&mut self, group: usize, shares: u64) -> i64 {
        if self.groups[group].idle {
            return -22;
        }
        self.apply_shares(group, shares.clamp(2 << 10, 1 << 28));
        0
    }

    fn apply_shares(&mut self, group: usize, shares: u64) {
        if self.groups[group].shares == shares {
            return;
        }
        self.groups[group].shares = shares;
        for cpu in 0..self.cpus.len() {
            let mut at = Some(self.group_entity(cpu, group));
            while let Some(e) = at {
                self.refresh(e);
                at = self.parent(e);
            }
        }
    }

    pub(crate) fn set_idle(&mut self, group: usize, idle: bool) {
        if self.groups[group].idle == idle {
            return;
        }
        self.groups[group].idle = idle;
        self.apply_shares(group, if idle { 3 << 10 } else { N0 });
    }

    pub(crate) fn detach(&mut self, id: i64) {
        let e = self.tasks[&id];
        assert!(self.entities[e].on_rq && self.cpus[self.entities[e].cpu].curr != Some(e));
        self.leave(e, CHANGE);
    }

    pub(crate) fn attach(&mut self, cpu: usize, id: i64) {
        let e = self.tasks[&id];
        self.rehome(e, cpu);
        self.join(e, Join::Change);
        self.check(e, false, WakeFlags::default());
    }

    fn rehome(&mut self, e: usize, cpu: usize) {
        self.entities[e].cpu = cpu;
    }
}

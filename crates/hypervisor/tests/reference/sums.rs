//! The reference's arithmetic: averages, eligibility, lag, placement, weights.

use stealtime_hypervisor::fair::{CgroupMode, Feature, OtherLoad};

use crate::model::{LAZY, Model, N0};

/// Distance between two virtual times.
pub(crate) fn from(a: u64, b: u64) -> i128 {
    i128::from(a.wrapping_sub(b) as i64)
}

/// Whether virtual time `a` is before `b`.
pub(crate) fn before(a: u64, b: u64) -> bool {
    from(a, b) < 0
}

/// `a * b / c` toward zero, or the nearest that 64 bits hold: there the kernel's own product has
/// overflowed, and nothing says what is right.
fn scaled(a: i64, b: u64, c: u64) -> i64 {
    let exact = i128::from(a) * i128::from(b) / i128::from(c);
    exact.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
}

/// Virtual time of `ns` at a weight.
pub(crate) fn dv(ns: u64, weight: u64) -> u64 {
    if weight == N0 {
        return ns;
    }
    (u128::from(ns) * u128::from(N0) / u128::from(weight)) as u64
}

impl Model {
    /// Competing entities of a queue.
    pub(crate) fn members(&self, q: usize) -> Vec<usize> {
        let queue = &self.queues[q];
        let mut all = queue.tree.clone();
        all.extend(queue.curr.filter(|c| self.entities[*c].on_rq));
        all
    }

    /// Weighted sum of distances from the base, and sum of weights, over the tree and `curr`.
    pub(crate) fn sums(&self, q: usize, curr: Option<usize>) -> (i128, u64) {
        let queue = &self.queues[q];
        let (mut sum, mut weight) = (0, 0);
        for e in queue.tree.iter().copied().chain(curr) {
            let e = &self.entities[e];
            sum += from(e.vruntime, queue.zero) * i128::from(e.weight);
            weight += e.weight;
        }
        (sum, weight)
    }

    /// The running entity of a queue if it is a member.
    pub(crate) fn running_in(&self, q: usize) -> Option<usize> {
        self.queues[q].curr.filter(|c| self.entities[*c].on_rq)
    }

    /// V.
    pub(crate) fn average(&self, q: usize) -> u64 {
        let curr = self.running_in(q);
        let queue = &self.queues[q];
        if queue.tree.is_empty() {
            return curr.map_or(queue.zero, |c| self.entities[c].vruntime);
        }
        let (sum, weight) = self.sums(q, curr);
        queue
            .zero
            .wrapping_add(sum.div_euclid(i128::from(weight)) as u64)
    }

    /// V, which becomes the base.
    pub(crate) fn touch(&mut self, q: usize) -> u64 {
        let v = self.average(q);
        self.queues[q].zero = v;
        v
    }

    pub(crate) fn eligible(&self, q: usize, vruntime: u64) -> bool {
        let (sum, weight) = self.sums(q, self.running_in(q));
        sum >= from(vruntime, self.queues[q].zero) * i128::from(weight)
    }

    fn slices(&self, q: usize) -> impl Iterator<Item = u64> {
        self.members(q).into_iter().map(|e| self.entities[e].slice)
    }

    pub(crate) fn min_slice(&self, q: usize) -> u64 {
        self.slices(q).min().unwrap_or(u64::MAX)
    }

    /// How far from the average a lag may be.
    pub(crate) fn lag_bound(&self, q: usize, e: usize) -> u64 {
        let longest = self.slices(q).max().unwrap_or(0);
        dv(longest + self.setup.tick_ns, self.entities[e].weight)
    }

    fn lag(&self, q: usize, e: usize, v: u64) -> i64 {
        let bound = i128::from(self.lag_bound(q, e));
        from(v, self.entities[e].vruntime).clamp(-bound, bound) as i64
    }

    /// Stores an entity's lag: true if it is not where that lag would put it.
    pub(crate) fn update_lag(&mut self, q: usize, e: usize) -> bool {
        let v = self.touch(q);
        let mut lag = self.lag(q, e, v);
        let far = v.wrapping_sub(self.entities[e].vruntime) as i64;
        self.mark("lag at its bound", lag != far);
        if self.entities[e].delayed {
            lag = lag.max(self.entities[e].vlag);
            if self.has(Feature::DelayZero) {
                lag = lag.min(0);
            }
        }
        self.entities[e].vlag = lag;
        v.wrapping_sub(lag as u64) != self.entities[e].vruntime
    }

    /// Gives an entity that is not counted its place.
    pub(crate) fn place(&mut self, q: usize, e: usize, initial: bool) {
        let v = self.touch(q);
        let others = self.members(q).iter().filter(|m| **m != e).count();
        let (_, load) = self.sums(q, self.running_in(q));
        let base = self.setup.base_slice_ns;
        let (lags, keeps) = (
            self.has(Feature::PlaceLag),
            self.has(Feature::PlaceRelDeadline),
        );
        let halves = self.has(Feature::PlaceDeadlineInitial) && initial;
        let ent = &mut self.entities[e];
        if !ent.custom {
            ent.slice = base;
        }
        ent.vruntime = v;
        let mut heavy = false;
        if lags && others > 0 && ent.vlag != 0 {
            let lag = scaled(ent.vlag, load + ent.weight, load);
            ent.vruntime = v.wrapping_sub(lag as u64);
            heavy = ent.weight > load;
        }
        let vruntime = ent.vruntime;
        let (lag, kept) = (vruntime != v, keeps && ent.rel);
        if keeps && ent.rel {
            ent.rel = false;
            ent.deadline = vruntime.wrapping_add(ent.deadline);
        } else {
            let vs = dv(ent.slice, ent.weight);
            ent.deadline = vruntime.wrapping_add(if halves { vs / 2 } else { vs });
        }
        if heavy {
            self.queues[q].zero = vruntime;
        }
        self.mark("placed with lag", lag);
        self.mark("placed heavier than all others", heavy);
        self.mark("placed with its old deadline", kept);
        self.mark("placed with half a slice", !kept && halves);
    }

    /// Ends a request that is used up and starts the next.
    pub(crate) fn expire(&mut self, q: usize, e: usize) -> bool {
        let base = self.setup.base_slice_ns;
        let ent = &mut self.entities[e];
        if before(ent.vruntime, ent.deadline) {
            return false;
        }
        if !ent.custom {
            ent.slice = base;
        }
        ent.deadline = ent.vruntime.wrapping_add(dv(ent.slice, ent.weight));
        self.touch(q);
        true
    }

    /// Charges the running entity of a queue.
    pub(crate) fn update_curr(&mut self, q: usize) {
        let Some(c) = self.queues[q].curr else { return };
        let ent = &mut self.entities[c];
        if self.now <= ent.exec {
            return;
        }
        let ran = self.now - ent.exec;
        ent.exec = self.now;
        ent.vruntime = ent.vruntime.wrapping_add(dv(ran, ent.weight));
        let expired = self.expire(q, c);
        if self.members(q).len() == 1 {
            return;
        }
        let ent = &self.entities[c];
        let ended = !before(ent.vruntime, ent.vprot);
        self.mark("expired", expired);
        self.mark("protection over", ended && !expired);
        if expired || ended {
            self.request(self.entities[c].cpu, LAZY);
            self.clear_buddy(q, c);
        }
    }

    /// Weight of a group's entity as it should be; `None` to leave it.
    fn group_weight(&self, e: usize) -> Option<u64> {
        let (own, q) = (self.entities[e].own?, self.own_queue(e));
        let unscaled = |load: u64| match load {
            0 => 0,
            load => (load >> 10).max(2),
        };
        let here = self.load(q);
        if here == 0 {
            return None;
        }
        let mut other = self.queues[q].ext_load;
        if self.setup.other_load == OtherLoad::Instantaneous {
            let rest = (0..self.cpus.len()).filter(|c| *c != self.entities[e].cpu);
            other += rest.map(|c| self.load(self.q(c, own))).sum::<u64>() >> 10;
        }
        let runnable: i64 = (0..self.cpus.len())
            .map(|c| self.counts(self.q(c, own))[1])
            .sum();
        let (tasks, cpus) = (runnable.max(1) as u64, self.cpus.len() as u64);
        let shares = self.groups[own].shares;
        let (times, most) = match self.setup.cgroup_mode {
            CgroupMode::Up => return Some(shares),
            CgroupMode::Smp => (1, shares),
            CgroupMode::Concur => (tasks.min(cpus), shares * tasks.min(cpus)),
            CgroupMode::Max => (cpus, 88_761 << 10),
            CgroupMode::Tasks => (tasks, shares * tasks),
        };
        let load = unscaled(here);
        let part = u128::from(shares * times) * u128::from(load) / u128::from(other + load);
        self.mark("weight at its floor", part < 2);
        Some((part.min(u128::from(most)) as u64).max(2))
    }

    /// Brings a group entity's weight up to date.
    pub(crate) fn refresh(&mut self, e: usize) {
        let Some(weight) = self.group_weight(e) else {
            return;
        };
        if weight == self.entities[e].load {
            return;
        }
        if self.flat() {
            self.entities[e].load = weight;
            return;
        }
        if self.entities[e].on_rq {
            self.update_curr(self.level(e));
        }
        self.entities[e].load = weight;
        self.reweigh(e, weight);
    }

    /// Changes the weight at which an entity competes; its virtual times keep their real length.
    pub(crate) fn reweigh(&mut self, e: usize, weight: u64) {
        let q = self.arena(e);
        let old = self.entities[e].weight;
        let scale = |x: i64| scaled(x, old, weight);
        if !self.entities[e].on_rq {
            let ent = &mut self.entities[e];
            ent.vlag = scale(ent.vlag);
            if ent.rel {
                ent.deadline = scale(ent.deadline as i64) as u64;
            }
            ent.weight = weight;
            self.mark("reweighed off the queue", true);
            return;
        }
        let v = self.touch(q);
        let lag = scale(self.lag(q, e, v));
        let runs = self.queues[q].curr == Some(e);
        let ent = &mut self.entities[e];
        ent.vlag = lag;
        ent.deadline = v.wrapping_add(scale(ent.deadline.wrapping_sub(v) as i64) as u64);
        let protected = runs && before(ent.vruntime, ent.vprot);
        if protected {
            ent.vprot = v.wrapping_add(scale(ent.vprot.wrapping_sub(v) as i64) as u64);
        }
        ent.vruntime = v.wrapping_sub(lag as u64);
        ent.weight = weight;
        self.mark("reweighed while protected", protected);
        self.mark("reweighed in the tree", !runs);
        if !runs {
            self.leave_tree(q, e);
            self.queues[q].tree.push(e);
        }
    }

    pub(crate) fn leave_tree(&mut self, q: usize, e: usize) {
        let tree = &mut self.queues[q].tree;
        let before = tree.len();
        tree.retain(|other| *other != e);
        assert_eq!(tree.len() + 1, before, "not in the tree once");
    }
}

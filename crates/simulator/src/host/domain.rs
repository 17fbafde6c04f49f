//! The scheduling domains, and how many tasks each part of the host has. Kept as tasks come and go:
//! placement and balancing look at few words instead of all CPUs.

use crate::config::Topology;
use crate::ids::{CpuNr, Number};

use super::task::CpuSet;

/// A level of the domains: what its groups are compared within.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// Threads of a core.
    Smt,
    /// Cores that share a last-level cache.
    Cache,
    /// All caches of the host.
    Host,
}

/// A set of CPUs, a bit each.
#[derive(Clone, Debug, Default)]
struct Bits(Vec<u64>);

impl Bits {
    fn set(&mut self, cpu: u32, enabled: bool) {
        let Some(word) = self.0.get_mut(cpu as usize / 64) else {
            debug_assert!(false, "CPU {cpu} is beyond the set");
            return;
        };
        let bit = 1 << (cpu % 64);
        if enabled {
            *word |= bit;
        } else {
            *word &= !bit;
        }
    }
}

/// Which CPUs have what to do.
#[derive(Clone, Debug)]
pub(crate) struct Domains {
    topology: Topology,
    /// CPUs that load balancing may use.
    balanced: Bits,
    /// CPUs without a task.
    idle: Bits,
    /// CPUs of cores without a task.
    idle_cores: Bits,
    /// CPUs with several tasks.
    overloaded: Bits,
    overloaded_cpus: u32,
    /// Some CPU had several tasks since a search of all last found none with several.
    seems_overloaded: bool,
    /// Of each last-level cache: tasks, idle CPUs, idle cores.
    caches: Vec<CacheLoad>,
    /// Tasks of each CPU.
    tasks: Vec<u32>,
}

/// The load of a last-level cache's CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CacheLoad {
    pub(crate) tasks: u32,
    pub(crate) idle_cpus: u32,
    pub(crate) idle_cores: u32,
    pub(crate) overloaded: u32,
}

impl Domains {
    pub(crate) fn new(topology: Topology, isolated: &[u32]) -> Self {
        let cpus = topology.cpus();
        let words = cpus.div_ceil(64) as usize;
        let mut full = Bits(vec![0; words]);
        (0..cpus).for_each(|cpu| full.set(cpu, true));
        let mut balanced = full.clone();
        isolated.iter().for_each(|&cpu| balanced.set(cpu, false));
        let load = CacheLoad {
            tasks: 0,
            idle_cpus: topology.cores_per_llc * topology.threads_per_core,
            idle_cores: topology.cores_per_llc,
            overloaded: 0,
        };
        Self {
            topology,
            balanced,
            idle: full.clone(),
            idle_cores: full,
            overloaded: Bits(vec![0; words]),
            overloaded_cpus: 0,
            seems_overloaded: false,
            caches: vec![load; (topology.sockets * topology.llcs_per_socket) as usize],
            tasks: vec![0; cpus as usize],
        }
    }

    /// A CPU has so many tasks now.
    pub(crate) fn changed(&mut self, cpu: CpuNr, now: u32) {
        let previous = core::mem::replace(&mut self.tasks[cpu.index()], now);
        let cache = &mut self.caches[self.topology.llc_of(cpu.0) as usize];
        cache.tasks = cache.tasks + now - previous;
        if (previous == 0) != (now == 0) {
            let idle = now == 0;
            self.idle.set(cpu.0, idle);
            cache.idle_cpus = cache.idle_cpus + u32::from(idle) - u32::from(!idle);
            let sibling = self.topology.sibling_of(cpu.0);
            if sibling.is_none_or(|s| self.tasks[s as usize] == 0) {
                cache.idle_cores = cache.idle_cores + u32::from(idle) - u32::from(!idle);
                self.idle_cores.set(cpu.0, idle);
                sibling
                    .into_iter()
                    .for_each(|s| self.idle_cores.set(s, idle));
            }
        }
        if (previous > 1) != (now > 1) {
            let overloads = now > 1;
            self.overloaded.set(cpu.0, overloads);
            cache.overloaded = cache.overloaded + u32::from(overloads) - u32::from(!overloads);
            self.overloaded_cpus =
                self.overloaded_cpus + u32::from(overloads) - u32::from(!overloads);
            self.seems_overloaded |= overloads;
        }
    }

    /// Whether any CPU has several tasks.
    pub(crate) const fn overloaded(&self) -> bool {
        self.overloaded_cpus > 0
    }

    /// Whether one had since the last search of all (`rd->overloaded`).
    pub(crate) const fn seems_overloaded(&self) -> bool {
        self.seems_overloaded
    }

    /// All CPUs were searched for several tasks (`set_rd_overloaded`).
    pub(crate) const fn searched(&mut self) {
        self.seems_overloaded = self.overloaded();
    }

    pub(crate) fn tasks_of(&self, cpu: u32) -> u32 {
        self.tasks.get(cpu as usize).copied().unwrap_or(0)
    }

    pub(crate) fn cache_load(&self, cache: u32) -> CacheLoad {
        self.caches.get(cache as usize).copied().unwrap_or_default()
    }

    pub(crate) fn caches(&self) -> u32 {
        self.caches.len() as u32
    }

    /// CPUs of a last-level cache.
    pub(crate) const fn cache_size(&self) -> u32 {
        self.topology.cores_per_llc * self.topology.threads_per_core
    }

    /// Ranges of CPU numbers that a cache spans, in order; the second is empty without SMT.
    fn ranges(&self, cache: u32) -> [(u32, u32); 2] {
        let (per, cores) = (self.topology.cores_per_llc, self.topology.cores());
        let first = cache * per;
        let second = match self.topology.threads_per_core {
            2 => (cores + first, cores + first + per),
            _ => (0, 0),
        };
        [(first, first + per), second]
    }

    /// CPUs of a cache.
    pub(crate) fn cpus_of(&self, cache: u32) -> impl Iterator<Item = u32> + use<> {
        let [(first, last), (sibling, end)] = self.ranges(cache);
        (first..last).chain(sibling..end)
    }

    /// The same from the CPU after `start` on, wrapped around.
    fn wrapped(&self, cache: u32, start: u32) -> [(u32, u32); 4] {
        let [a, b] = self.ranges(cache);
        let after = start + 1;
        let tail = |(low, high): (u32, u32)| (low.max(after).min(high), high);
        let head = |(low, high): (u32, u32)| (low, high.min(after).max(low));
        [tail(a), tail(b), head(a), head(b)]
    }

    /// The first CPU after `start` on an idle core.
    pub(crate) fn idle_core(&self, allowed: &CpuSet, start: u32) -> Option<CpuNr> {
        let cache = self.topology.llc_of(start);
        self.scan(cache, start, u32::MAX, |word| {
            self.idle_cores.0[word] & self.usable(allowed, word)
        })
    }

    /// The first idle CPU from the one after `start` on, if there is one among `most` CPUs.
    pub(crate) fn idle_cpu(&self, allowed: &CpuSet, start: u32, maximum: u32) -> Option<CpuNr> {
        let cache = self.topology.llc_of(start);
        self.scan(cache, start, maximum, |word| {
            self.idle.0[word] & self.usable(allowed, word)
        })
    }

    /// Any idle CPU that takes part in balancing, those that share `near`'s cache first.
    pub(crate) fn any_idle(&self, near: CpuNr) -> Option<CpuNr> {
        let own_cache = self.topology.llc_of(near.0);
        let caches = (0..self.caches()).map(|step| (own_cache + step) % self.caches());
        for cache in caches.filter(|&c| self.cache_load(c).idle_cpus > 0) {
            let start = if cache == own_cache {
                near.0
            } else {
                u32::MAX - 1
            };
            let found = self.scan(cache, start, u32::MAX, |word| {
                self.idle.0[word] & self.balanced.0[word]
            });
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// The CPU of `cache`, or of the core of `cpu` at [`Level::Smt`], with the most tasks among
    /// those that have several.
    pub(crate) fn busiest(&self, cpu: CpuNr, level: Level, cache: u32) -> Option<CpuNr> {
        if level == Level::Smt {
            let sibling = self.topology.sibling_of(cpu.0)?;
            let usable = self.balanced.0[sibling as usize / 64] >> (sibling % 64) & 1 == 1;
            return (usable && self.tasks_of(sibling) > 1).then_some(CpuNr(sibling));
        }
        if self.cache_load(cache).overloaded == 0 {
            return None;
        }
        let mut best: Option<CpuNr> = None;
        for (low, high) in self.ranges(cache) {
            self.each(
                low,
                high,
                |word| self.overloaded.0[word] & self.balanced.0[word],
                |found| {
                    let is_less_busy =
                        best.is_none_or(|b| self.tasks_of(b.0) < self.tasks_of(found));
                    if found != cpu.0 && is_less_busy {
                        best = Some(CpuNr(found));
                    }
                },
            );
        }
        best
    }

    fn usable(&self, allowed: &CpuSet, word: usize) -> u64 {
        self.balanced.0[word] & allowed.word(word)
    }

    /// The first CPU set in `bits` among the first `most` of a cache, from the one after `start`.
    fn scan(
        &self,
        cache: u32,
        start: u32,
        maximum: u32,
        bits: impl Fn(usize) -> u64,
    ) -> Option<CpuNr> {
        let mut remaining = maximum;
        for (low, high) in self.wrapped(cache, start) {
            let high = high.min(low.saturating_add(remaining));
            let mut bit = low;
            while bit < high {
                let word = bits(bit as usize / 64) >> (bit % 64);
                let found = bit + word.trailing_zeros();
                if word != 0 && found < high {
                    return Some(CpuNr(found));
                }
                bit = (bit / 64 + 1) * 64;
            }
            remaining -= high.max(low) - low;
        }
        None
    }

    fn each(&self, low: u32, high: u32, bits: impl Fn(usize) -> u64, mut f: impl FnMut(u32)) {
        let mut bit = low;
        while bit < high {
            let mut word = bits(bit as usize / 64) >> (bit % 64) << (bit % 64);
            let base = bit / 64 * 64;
            while word != 0 {
                let cpu = base + word.trailing_zeros();
                if cpu >= high {
                    break;
                }
                f(cpu);
                word &= word - 1;
            }
            bit = base + 64;
        }
    }

    /// How many CPUs a wakeup may look at for an idle one (`update_idle_cpu_scan`): the fewer the
    /// busier the cache.
    pub(crate) fn scan_limit(&self, cache: u32) -> u32 {
        let size = u64::from(self.cache_size().max(1));
        let idle = u64::from(self.cache_load(cache).idle_cpus);
        let busy = (size - idle.min(size)) * 1024 / size;
        let squared = busy * busy * IMBALANCE_PCT * IMBALANCE_PCT / (10_000 * 1024);
        ((1024 - squared.min(1024)) * size / 1024) as u32
    }
}

/// `sd->imbalance_pct` of the domains that share a cache.
pub(crate) const IMBALANCE_PCT: u64 = 117;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TOPOLOGY: Topology = Topology {
        sockets: 2,
        llcs_per_socket: 2,
        cores_per_llc: 20,
        threads_per_core: 2,
    };

    proptest! {
        /// Against looking at each CPU.
        #[test]
        fn finds_what_a_plain_search_does(
            steps in prop::collection::vec((0..160u32, 0..4u32), 1..300),
            start in 0..160u32,
            most in 0..50u32,
        ) {
            let mut domains = Domains::new(TOPOLOGY, &[3, 83]);
            let mut tasks = [0u32; 160];
            for (cpu, n) in steps {
                domains.changed(CpuNr(cpu), n);
                tasks[cpu as usize] = n;
            }
            let cache = TOPOLOGY.llc_of(start);
            let all: Vec<u32> = (0..160).filter(|&c| TOPOLOGY.llc_of(c) == cache).collect();
            let after = all.iter().filter(|&&c| c > start).chain(all.iter().filter(|&&c| c <= start));
            let order: Vec<u32> = after.copied().collect();
            let idle = |c: u32| tasks[c as usize] == 0;
            let fine = |c: u32| c != 3 && c != 83;
            let expected = order.iter().take(most as usize).find(|&&c| idle(c) && fine(c));
            let found = domains.idle_cpu(&CpuSet::ALL, start, most);
            prop_assert_eq!(found.map(|c| c.0), expected.copied());
            let core = |c: u32| idle(c) && idle(TOPOLOGY.sibling_of(c).unwrap());
            let expected = order.iter().find(|&&c| core(c) && fine(c));
            let found = domains.idle_core(&CpuSet::ALL, start);
            prop_assert_eq!(found.map(|c| c.0), expected.copied());
            let load = domains.cache_load(cache);
            let sum: u32 = all.iter().map(|&c| tasks[c as usize]).sum();
            let cores = all.iter().filter(|&&c| core(c)).count() as u32 / 2;
            let idle_cpus = all.iter().filter(|&&c| idle(c)).count() as u32;
            prop_assert_eq!((load.tasks, load.idle_cpus, load.idle_cores), (sum, idle_cpus, cores));
            let most_tasks = all.iter().filter(|&&c| fine(c) && c != start && tasks[c as usize] > 1)
                .map(|&c| tasks[c as usize]).max();
            let busiest = domains.busiest(CpuNr(start), Level::Cache, cache);
            prop_assert_eq!(busiest.map(|c| tasks[c.index()]), most_tasks);
        }
    }

    #[test]
    fn a_busy_cache_is_searched_less() {
        let mut domains = Domains::new(TOPOLOGY, &[]);
        assert_eq!(domains.scan_limit(0), 40);
        (0..20).for_each(|cpu| domains.changed(CpuNr(cpu), 1));
        assert_eq!(domains.scan_limit(0), 26);
        (80..100).for_each(|cpu| domains.changed(CpuNr(cpu), 1));
        assert_eq!(domains.scan_limit(0), 0);
    }
}

//! How many CPUs a wakeup may look at, by how busy the CPUs of the cache were lately
//! (`update_idle_cpu_scan` with `cpu_util_cfs`).

use super::domain::IMBALANCE_PCT;
use crate::config::Config;
use crate::ids::CpuNr;

/// The period of PELT, in ns.
const PERIOD_NS: u64 = 1 << 20;
/// Decay over a period: 32 of them halve an average. In 2^-32.
const DECAY: u64 = 4_202_935_003;
/// An average after so many periods of one state is that state.
const ALL_PERIODS: u64 = 32 * 20;
/// The average of a CPU that is always busy.
const FULL: u64 = 1 << 20;
/// `SCHED_CAPACITY_SCALE`.
const SCALE: u64 = 1024;

/// The average of a CPU's busy time.
#[derive(Clone, Copy, Debug, Default)]
struct Average {
    value: u64,
    /// Begin of the current period, in ns.
    period_ns: u64,
    /// Busy time in it, in ns.
    busy_ns: u64,
    /// Up to when busy time is counted, in ns.
    counted_ns: u64,
    is_busy: bool,
}

impl Average {
    /// Counts time up to `now_ns`.
    fn advance(&mut self, now_ns: u64) {
        let end_ns = self.period_ns + PERIOD_NS;
        if now_ns < end_ns {
            self.count(now_ns);
            return;
        }
        self.count(end_ns);
        self.value = decayed(self.value) + share(self.busy_ns);
        let periods = (now_ns - end_ns) / PERIOD_NS;
        let state = share(if self.is_busy { PERIOD_NS } else { 0 });
        if periods >= ALL_PERIODS {
            self.value = if self.is_busy { FULL } else { 0 };
        } else {
            for _ in 0..periods {
                self.value = decayed(self.value) + state;
            }
        }
        self.period_ns = end_ns + periods * PERIOD_NS;
        self.counted_ns = self.period_ns;
        self.busy_ns = 0;
        self.count(now_ns);
    }

    fn count(&mut self, now_ns: u64) {
        if self.is_busy {
            self.busy_ns += now_ns.saturating_sub(self.counted_ns);
        }
        self.counted_ns = now_ns;
    }
}

const fn decayed(value: u64) -> u64 {
    (value * DECAY) >> 32
}

/// What a period with so much busy time adds to the average.
const fn share(busy_ns: u64) -> u64 {
    // FULL and PERIOD_NS are the same number.
    busy_ns - decayed(busy_ns)
}

/// How far wakeups search a cache for an idle CPU.
#[derive(Clone, Debug)]
pub(crate) struct Search {
    cpus: Vec<Average>,
    /// Of each cache: until when its limit counts, in ns, and the limit.
    limits: Vec<(u64, u32)>,
}

impl Search {
    /// `None` where the number of idle CPUs decides.
    pub(crate) fn of_host(cfg: &Config) -> Option<Self> {
        let topology = &cfg.host.topology;
        let caches = topology.sockets * topology.llcs_per_socket;
        (cfg.scripts.searches_by_utilization).then(|| Self {
            cpus: vec![Average::default(); topology.cpus() as usize],
            limits: vec![(0, 0); caches as usize],
        })
    }

    /// A CPU has a task from now on, or none.
    pub(crate) fn changed(&mut self, cpu: CpuNr, is_busy: bool, now_ns: u64) {
        if let Some(average) = self.cpus.get_mut(cpu.0 as usize) {
            average.advance(now_ns);
            average.is_busy = is_busy;
        }
    }

    /// How many CPUs of a cache a wakeup looks at. As in the kernel, balancing counts anew: each
    /// millisecond for each CPU of the cache.
    pub(crate) fn limit(
        &mut self,
        cache: u32,
        cpus: impl Iterator<Item = u32>,
        now_ns: u64,
    ) -> u32 {
        let Some(&(valid_ns, limit)) = self.limits.get(cache as usize) else {
            return u32::MAX;
        };
        if now_ns < valid_ns {
            return limit;
        }
        let (mut size, mut sum) = (0, 0);
        for cpu in cpus {
            if let Some(average) = self.cpus.get_mut(cpu as usize) {
                average.advance(now_ns);
                sum += average.value * SCALE / FULL;
                size += 1;
            }
        }
        let limit = scan(size, sum);
        if let Some(entry) = self.limits.get_mut(cache as usize) {
            *entry = (now_ns + size * 1_000_000, limit);
        }
        limit
    }
}

/// CPUs to look at in a cache of `size` CPUs with this utilization together, 1024 for one CPU.
fn scan(size: u64, sum: u64) -> u32 {
    let x = sum / size.max(1);
    let squared = x * x * IMBALANCE_PCT * IMBALANCE_PCT / (10_000 * SCALE);
    (SCALE.saturating_sub(squared) * size / SCALE) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn averages_follow_what_a_cpu_does() {
        let mut average = Average {
            is_busy: true,
            ..Average::default()
        };
        average.advance(32 * PERIOD_NS);
        assert!(
            average.value.abs_diff(FULL / 2) < FULL / 200,
            "{}",
            average.value
        );
        average.advance(1_000 * MS);
        assert!(average.value > FULL * 99 / 100);
        average.is_busy = false;
        average.advance(1_000 * MS + 32 * PERIOD_NS);
        assert!(
            average.value.abs_diff(FULL / 2) < FULL / 100,
            "{}",
            average.value
        );
        // Three of ten milliseconds.
        let mut part = Average::default();
        for ms in 0..1_000 {
            part.advance(ms * MS);
            part.is_busy = ms % 10 < 3;
        }
        assert!(
            part.value.abs_diff(FULL * 3 / 10) < FULL / 20,
            "{}",
            part.value
        );
    }

    #[test]
    fn a_busy_cache_is_not_searched() {
        // `y = SCHED_CAPACITY_SCALE - x^2 * pct^2 / 10000 / SCHED_CAPACITY_SCALE`, times CPUs.
        assert_eq!(scan(2, 0), 2);
        assert_eq!(scan(2, 2 * 512), 1);
        assert_eq!(scan(2, 2 * 700), 0);
        assert_eq!(scan(16, 16 * 512), 10);
        assert_eq!(scan(16, 16 * 1024), 0);
    }
}

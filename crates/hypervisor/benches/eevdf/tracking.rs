//! Load tracking as the kernel's functions do it on every enqueue, dequeue, put and set.
//!
//! Geometric sums over periods of 1024 us, halved every 32 periods, for load, runnable time and
//! running time. This crate has none; the peer can be run with it, because the kernel's functions
//! cannot be run without.

/// The limit of a geometric sum of 1024 each.
const MAX: u64 = 47_742;

/// Sums and averages of an entity or a queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct Average {
    last: u64,
    part: u64,
    sums: [u64; 3],
    averages: [u64; 3],
}

/// `2^32 * 2^(-n/32)`.
static FACTORS: std::sync::LazyLock<[u64; 32]> = std::sync::LazyLock::new(|| {
    std::array::from_fn(|n| (4_294_967_295.0 * 0.5f64.powf(n as f64 / 32.0)) as u64)
});

fn decay(value: u64, periods: u64) -> u64 {
    if periods > 2016 {
        return 0;
    }
    ((value >> (periods / 32)) * FACTORS[(periods % 32) as usize]) >> 32
}

impl Average {
    /// Brings the sums up to `now`, in ns, for a load, a number of runnable and whether it runs.
    pub(crate) fn update(&mut self, now: u64, load: u64, runnable: u64, running: bool) {
        let delta = now.wrapping_sub(self.last) >> 10;
        if delta == 0 {
            return;
        }
        self.last = self.last.wrapping_add(delta << 10);
        let whole = delta + self.part;
        let periods = whole / 1024;
        let mut contribution = delta;
        if periods > 0 {
            for sum in &mut self.sums {
                *sum = decay(*sum, periods);
            }
            let first = decay(1024 - self.part, periods);
            contribution = first + MAX - decay(MAX, periods) - 1024 + whole % 1024;
        }
        self.part = whole % 1024;
        self.sums[0] += load * contribution;
        self.sums[1] += (runnable * contribution) << 10;
        self.sums[2] += (u64::from(running) * contribution) << 10;
        if periods > 0 {
            let divider = MAX - 1024 + self.part;
            for (average, sum) in self.averages.iter_mut().zip(self.sums) {
                *average = sum / divider;
            }
        }
    }
}

//! A thread's latest stretches on a CPU: how much of a halt was polling.

/// Stretches that are remembered. Of a vCPU that is preempted more often while it polls, the earliest ones
/// count as exit handling, so that memory is bounded.
const STRETCHES: usize = 8;

/// A stretch of a thread on a CPU, in ns of the trace's clock.
#[derive(Debug, Clone, Copy, Default)]
struct Stretch {
    start: u64,
    end: u64,
    cpu: u16,
}

/// The latest stretches of a thread on a CPU, at most eight.
///
/// ```
/// let mut stretches = stealtime_track::Stretches::default();
/// stretches.push(100, 200, 0);
/// stretches.push(300, 400, 1);
/// assert_eq!(stretches.within(150, 350, |start, end, _cpu| end - start), 100);
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct Stretches {
    ring: [Stretch; STRETCHES],
    /// Stretches since it was empty.
    pushed: usize,
}

impl Stretches {
    /// Adds the latest, `[start, end)`.
    pub fn push(&mut self, start: u64, end: u64, cpu: u16) {
        if let Some(slot) = self.ring.get_mut(self.pushed % STRETCHES) {
            *slot = Stretch { start, end, cpu };
        }
        self.pushed += 1;
    }

    /// Forgets all.
    pub const fn clear(&mut self) {
        self.pushed = 0;
    }

    /// The sum of `measure` over the parts of stretches within `[start, end)`. It gets the start, the end and
    /// the CPU of each part, which is never empty.
    pub fn within(&self, start: u64, end: u64, measure: impl Fn(u64, u64, u16) -> u64) -> u64 {
        let parts = self.ring.iter().take(self.pushed).map(|stretch| {
            let (begin, finish) = (stretch.start.max(start), stretch.end.min(end));
            if begin < finish {
                measure(begin, finish, stretch.cpu)
            } else {
                0
            }
        });
        parts.sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn length(start: u64, end: u64, _cpu: u16) -> u64 {
        end - start
    }

    #[test]
    fn parts_outside_the_span_do_not_count() {
        let mut stretches = Stretches::default();
        stretches.push(0, 10, 0);
        stretches.push(20, 30, 1);
        stretches.push(40, 50, 0);
        assert_eq!(stretches.within(5, 45, length), 5 + 10 + 5);
        assert_eq!(stretches.within(10, 20, length), 0);
        let on_first = |start, end, cpu| if cpu == 0 { end - start } else { 0 };
        assert_eq!(stretches.within(0, 100, on_first), 20);
    }

    #[test]
    fn the_earliest_are_forgotten() {
        let mut stretches = Stretches::default();
        for start in 0..10 {
            stretches.push(10 * start, 10 * start + 1, 0);
        }
        assert_eq!(stretches.within(0, 1000, length), 8);
        assert_eq!(stretches.within(0, 20, length), 0);
        stretches.clear();
        assert_eq!(stretches.within(0, 1000, length), 0);
    }
}

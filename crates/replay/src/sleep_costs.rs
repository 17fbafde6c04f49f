//! CPU time that sleeps in halts take.

/// What sleeps in halts take of a vCPU's CPU time, in ns of each.
#[derive(Clone, Debug, Default)]
pub(crate) struct SleepCosts {
    /// From the begin of the halt to being off the CPU: polling, and the way to sleep.
    pub(crate) block: Vec<u32>,
    /// From being on a CPU again to the end of the halt.
    pub(crate) wake: Vec<u32>,
}

impl SleepCosts {
    /// Adds those of another vCPU.
    pub(crate) fn add(&mut self, costs: &Self) {
        self.block.extend(&costs.block);
        self.wake.extend(&costs.wake);
    }

    /// The way to sleep, and the one back, in ns. Where one in four did not poll, the former shows;
    /// it is believed to be no longer than the way back.
    pub(crate) fn typical(mut self) -> (u32, u32) {
        let percentile = |costs: &mut Vec<u32>, percent: usize| {
            costs.sort_unstable();
            costs.get(costs.len() * percent / 100).copied().unwrap_or(0)
        };
        let wake = percentile(&mut self.wake, 50);
        (percentile(&mut self.block, 25).min(wake), wake)
    }
}

#[cfg(test)]
mod tests {
    use super::SleepCosts;

    #[test]
    fn going_to_sleep_is_separate_from_polling() {
        let costs = |block: &[u32], wake: u32| SleepCosts {
            block: block.to_vec(),
            wake: vec![wake; block.len()],
        };
        // One in four did not poll.
        let mixed = costs(&[40, 41, 200, 200, 200, 200, 200], 60);
        assert_eq!(mixed.typical(), (41, 60));
        // All did: no longer than the way back.
        assert_eq!(costs(&[200, 210, 220], 60).typical(), (60, 60));
        assert_eq!(SleepCosts::default().typical(), (0, 0));
    }
}

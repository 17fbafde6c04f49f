//! The occupants of the CPU while a runnable vCPU waits for it.

use stealtime_track::{Cause, IntMap};

/// Most tasks with a sum of their own per waiting vCPU; the rest is [`Cause::OTHERS`].
const MAX_CAUSES: usize = 512;

/// Adds time to a cause.
pub(crate) fn add(table: &mut IntMap<Cause, u64>, cause: Cause, ns: u64) {
    if let Some(sum) = table.get_mut(&cause) {
        *sum += ns;
    } else if table.len() < MAX_CAUSES || cause.thread().is_none() {
        table.insert(cause, ns);
    } else {
        *table.entry(Cause::OTHERS).or_default() += ns;
    }
}

/// Takes time back that was added to a cause.
pub(crate) fn take_back(table: &mut IntMap<Cause, u64>, cause: Cause, ns: u64) {
    let key = match table.contains_key(&cause) {
        true => cause,
        false => Cause::OTHERS,
    };
    if let Some(sum) = table.get_mut(&key) {
        *sum = sum.saturating_sub(ns);
    }
}

#[cfg(test)]
mod tests {
    use stealtime_track::ThreadIndex;

    use super::*;

    #[test]
    fn time_of_too_many_tasks_is_kept_under_others() {
        let mut table = IntMap::default();
        for task in 0..2000 {
            add(&mut table, Cause::task(ThreadIndex(task)), 3);
        }
        assert_eq!(table.values().sum::<u64>(), 6000);
        assert!(table.len() <= MAX_CAUSES + 1);
        assert!(table.contains_key(&Cause::OTHERS));
    }
}

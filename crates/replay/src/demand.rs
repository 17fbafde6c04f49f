//! How far what a VM demands in a recording may be from what it demands in a longer one.
//!
//! Work comes by chance: a recording of some bursts has more or fewer than usual, or larger ones. Copies
//! repeat what is recorded, so that seeds do not show it. Parts of the recording differ by as much.

use crate::copied::run_ns;
use crate::recording::{RecordedTask, Recording};

/// Parts that are compared. In a recording of 2 s each is as long as the period of slow timers: what follows
/// from each other is in one part.
const PARTS: usize = 20;

/// CPU time and time without contention of a VM, both in ns.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    run_ns: u64,
    time_ns: u64,
}

/// By how much the CPU time of a VM differs in each part of the recording from its usual share, in ns. Then
/// its CPU time in all of it, in ns. From the end of a wait to that of the next one is in one part.
#[must_use]
pub fn demand_deviations(recording: &Recording, vm: usize) -> (Vec<f64>, u64) {
    let mut deviations = vec![0.0; PARTS];
    let mut total_ns = 0;
    let is_vcpu = |task: &&RecordedTask| task.vcpu.is_some_and(|vcpu| vcpu.0 == vm);
    for task in recording.tasks.iter().filter(is_vcpu) {
        let parts = parts(task, recording.span_ns);
        let run_ns: u64 = parts.iter().map(|part| part.run_ns).sum();
        let time_ns: u64 = parts.iter().map(|part| part.time_ns).sum();
        let share = run_ns as f64 / time_ns.max(1) as f64;
        for (deviation, part) in deviations.iter_mut().zip(parts) {
            *deviation += part.run_ns as f64 - share * part.time_ns as f64;
        }
        total_ns += run_ns;
    }
    (deviations, total_ns)
}

fn parts(task: &RecordedTask, span_ns: u64) -> [Part; PARTS] {
    let mut parts = [Part::default(); PARTS];
    let mut step = 0;
    for wait in task.waits.iter() {
        let end = wait.step as usize;
        let steps = task.steps.get(step..end).unwrap_or_default();
        step = end;
        let run_ns: u64 = steps.iter().map(|step| run_ns(*step)).sum();
        let place = u128::from(wait.ended_ns) * PARTS as u128 / u128::from(span_ns.max(1));
        let place = usize::try_from(place).unwrap_or(PARTS).min(PARTS - 1);
        if let Some(part) = parts.get_mut(place) {
            part.run_ns += run_ns;
            part.time_ns += run_ns + wait.ended_ns.saturating_sub(wait.began_ns);
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use stealtime_simulator::script::{Spent, Step};

    use super::*;
    use crate::clocked::tests::{ARMED, MS, recording, task};
    use crate::recording::Wait;

    /// A vCPU that halts for 1 ms after work of these lengths, in ms.
    fn worked(lengths: impl Iterator<Item = u64>) -> (RecordedTask, u64) {
        let (mut steps, mut waits, mut now) = (Vec::new(), Vec::new(), 0);
        for length in lengths {
            let spent = Spent::Guest;
            steps.push(Step::Run {
                ns: length * MS,
                spent,
            });
            now += length * MS;
            waits.push(Wait {
                step: steps.len() as u32,
                began_ns: now,
                ended_ns: now + MS,
                late_us: 0,
                caller: None,
            });
            now += MS;
            steps.push(Step::Halt(ARMED));
        }
        let task = RecordedTask {
            waits: Arc::from(waits),
            steps: Arc::from(steps),
            ..task(ARMED)
        };
        (task, now)
    }

    #[test]
    fn what_is_always_the_same_has_no_deviation() {
        let (even, span_ns) = worked(std::iter::repeat_n(2, 200));
        let parts = super::parts(&even, span_ns);
        assert!(parts.iter().all(|part| part.run_ns * 3 == part.time_ns * 2));
        assert!(parts.iter().all(|part| part.run_ns > 0));
        let (uneven, span_ns) = worked((0..200).map(|number| 1 + number % 37 / 18));
        let parts = super::parts(&uneven, span_ns);
        assert!(parts.iter().any(|part| part.run_ns * 3 < part.time_ns * 2));
        let run_ns: u64 = parts.iter().map(|part| part.run_ns).sum();
        assert_eq!(run_ns + 200 * MS, span_ns);
    }

    /// CPU time beyond the usual share in one part is missing in others.
    #[test]
    fn deviations_of_a_vm_add_up_to_nothing() {
        let recording = |length: fn(u64) -> u64| {
            let (task, span_ns) = worked((0..200).map(length));
            Recording {
                span_ns,
                ..recording(vec![task])
            }
        };
        let uneven = recording(|number| 1 + number % 37 / 18);
        let (deviations, total_ns) = demand_deviations(&uneven, 0);
        assert_eq!(total_ns, uneven.span_ns - 200 * MS);
        assert_eq!(deviations.len(), PARTS);
        assert!(deviations.iter().any(|ns| ns.abs() > MS as f64));
        assert!(deviations.iter().sum::<f64>().abs() < 1.0);
        let (deviations, _) = demand_deviations(&recording(|_| 2), 0);
        assert!(deviations.iter().all(|ns| ns.abs() < 1.0));
        // Another VM has no task.
        assert_eq!(demand_deviations(&uneven, 1), (vec![0.0; PARTS], 0));
    }
}

//! When a recording is made: conditions on samples, and at most so many recordings in a time.
//!
//! Time is that of the trace's clock. So a replay decides as the live host did.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use serde::Serialize;
use stealtime_collector::{Ready, Sample, Stall, Vm};
use stealtime_whatif::{Condition, Met, Watched};

/// VMs and conditions of one trigger that are listed; further ones are counted.
const MAX_SEEN: usize = 20;

/// A VM that meets a condition.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Seen {
    #[serde(flatten)]
    pub(super) met: Met,
    /// Its longest wait for a CPU that ended in the interval or goes on.
    pub(super) longest_wait: Option<Stall>,
    /// The VM's ready time in the interval, in ns.
    pub(super) ready_ns: u64,
    /// The same by cause.
    pub(super) ready: Ready,
}

/// A reason to record.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Trigger {
    /// End of the sample, in ns of the trace's clock.
    pub(super) time_ns: u64,
    /// The same since the begin of the first sample.
    pub(super) offset_ns: u64,
    /// What was seen, with what came until the recording was made.
    pub(super) seen: Vec<Seen>,
    /// VMs and conditions beyond [`MAX_SEEN`].
    pub(super) further: usize,
    /// Events of the sample were lost: its figures are lower bounds.
    pub(super) partial: bool,
    /// As many recordings are made in this time as are allowed.
    #[serde(skip)]
    pub(super) is_held: bool,
}

/// At most so many in a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AtMost {
    pub(super) count: usize,
    pub(super) time: Duration,
}

/// Why a text is no rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a rate: give 6/h, 1/m or 20/d")]
pub(super) struct NotARate;

/// `6/h`: a number in a minute, an hour or a day.
pub(super) fn at_most(text: &str) -> Result<AtMost, NotARate> {
    let (count, unit) = text.split_once('/').ok_or(NotARate)?;
    let seconds = match unit {
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(NotARate),
    };
    let count = count.parse().ok().filter(|count| *count > 0);
    Ok(AtMost {
        count: count.ok_or(NotARate)?,
        time: Duration::from_secs(seconds),
    })
}

/// Conditions, and which VMs meet them.
#[derive(Debug)]
pub(super) struct Triggers {
    conditions: Vec<Condition>,
    at_most: AtMost,
    /// A recording has this time after its trigger, in ns.
    after_ns: u64,
    /// Conditions by number, and VMs that met them in the latest sample.
    met: BTreeSet<(usize, String)>,
    /// Times of the recordings that count for `at_most`, in ns.
    recorded: VecDeque<u64>,
    /// A trigger of which the recording is due later.
    pending: Option<Trigger>,
    first_ns: Option<u64>,
    /// VMs of conditions that no sample had.
    unknown: BTreeSet<String>,
    /// VMs of the latest sample, for a note on unknown ones.
    running: Vec<String>,
}

impl Triggers {
    pub(super) fn new(conditions: Vec<Condition>, at_most: AtMost, after: Duration) -> Self {
        let unknown = conditions
            .iter()
            .filter_map(|condition| condition.vm.clone());
        Self {
            unknown: unknown.collect(),
            conditions,
            at_most,
            after_ns: u64::try_from(after.as_nanos()).unwrap_or(u64::MAX),
            met: BTreeSet::new(),
            recorded: VecDeque::new(),
            pending: None,
            first_ns: None,
            running: Vec::new(),
        }
    }

    /// Takes a sample. A trigger that is returned is due: it is recorded, or held back.
    pub(super) fn sample(&mut self, sample: &Sample) -> Option<Trigger> {
        let first = *self.first_ns.get_or_insert(sample.start_ns);
        self.running = sample.vms.iter().map(|vm| vm.vm.clone()).collect();
        self.unknown.retain(|vm| !self.running.contains(vm));
        let (findings, further) = self.newly_met(sample);
        if let Some(pending) = &mut self.pending {
            let room = MAX_SEEN.saturating_sub(pending.seen.len());
            pending.further += further + findings.len().saturating_sub(room);
            pending.seen.extend(findings.into_iter().take(room));
            pending.partial |= sample.partial;
            let due = pending.time_ns.saturating_add(self.after_ns);
            // Or the clock was set back, and the time does not come for hours.
            let is_past = sample.end_ns < pending.time_ns;
            return self.pending.take_if(|_| is_past || due <= sample.end_ns);
        }
        if findings.is_empty() {
            return None;
        }
        let trigger = Trigger {
            time_ns: sample.end_ns,
            offset_ns: sample.end_ns.saturating_sub(first),
            seen: findings,
            further,
            partial: sample.partial,
            is_held: !self.is_allowed(sample.end_ns),
        };
        if trigger.is_held || self.after_ns == 0 {
            return Some(trigger);
        }
        self.pending = Some(trigger);
        None
    }

    /// A trigger of which the recording was due later: now is the end.
    pub(super) fn finish(&mut self) -> Option<Trigger> {
        self.pending.take()
    }

    /// VMs of conditions that were in no sample so far, with the VMs of the latest one. They are returned
    /// once.
    pub(super) fn unknown(&mut self) -> Option<(Vec<String>, &[String])> {
        let unknown: Vec<String> = std::mem::take(&mut self.unknown).into_iter().collect();
        (!unknown.is_empty()).then_some((unknown, &self.running))
    }

    /// VMs that meet a condition, and did not in the former sample. And how many there are beyond the bound.
    fn newly_met(&mut self, sample: &Sample) -> (Vec<Seen>, usize) {
        let (mut met, mut findings, mut further) = (BTreeSet::new(), Vec::new(), 0);
        for (number, condition) in self.conditions.iter().enumerate() {
            for vm in &sample.vms {
                let Some(found) = condition.met_by(&vm.vm, |figure| value(figure, vm)) else {
                    continue;
                };
                let pair = (number, vm.vm.clone());
                match (self.met.contains(&pair), findings.len() < MAX_SEEN) {
                    (true, _) => {}
                    (false, false) => further += 1,
                    (false, true) => findings.push(Seen {
                        met: found,
                        longest_wait: vm.stalls.first().cloned(),
                        ready_ns: vm.times.ready_ns,
                        ready: vm.times.ready,
                    }),
                }
                met.insert(pair);
            }
        }
        self.met = met;
        (findings, further)
    }

    /// Whether one more recording is allowed; it counts from here on.
    fn is_allowed(&mut self, now: u64) -> bool {
        let window = u64::try_from(self.at_most.time.as_nanos()).unwrap_or(u64::MAX);
        // Times of the future are from before the clock was set back.
        self.recorded
            .retain(|time| now.checked_sub(*time).is_some_and(|ago| ago < window));
        let is_allowed = self.recorded.len() < self.at_most.count;
        if is_allowed {
            self.recorded.push_back(now);
        }
        is_allowed
    }
}

/// A VM's figure in a sample, in percent or us. `None` without a vCPU or a wakeup.
fn value(figure: Watched, vm: &Vm) -> Option<f64> {
    let times = &vm.times;
    let span = times.total_ns();
    let share = |ns: u64| (span > 0).then(|| 100.0 * ns as f64 / span as f64);
    let wakeups = (vm.wakeups.count > 0).then_some(&vm.wakeups);
    let micros = |ns: u64| ns as f64 / 1_000.0;
    match figure {
        Watched::Ready => share(times.ready_ns),
        Watched::Throttled => share(times.ready.throttled),
        Watched::WakeupP50 => wakeups.map(|wakeups| micros(wakeups.p50_ns)),
        Watched::WakeupP99 => wakeups.map(|wakeups| micros(wakeups.p99_ns)),
        Watched::Stall => vm.stalls.first().map(|stall| micros(stall.ns)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn triggers(conditions: &[&str], rate: &str, after: Duration) -> Triggers {
        let conditions = conditions.iter().map(|text| Condition::parse(text));
        let conditions: Result<Vec<Condition>, _> = conditions.collect();
        let at_most = at_most(rate).expect(rate);
        Triggers::new(conditions.expect("conditions"), at_most, after)
    }

    /// A second in which VMs have these longest waits, in ms.
    fn second(number: u64, waits: &[(&str, u64)]) -> Sample {
        let vm = |&(name, ms): &(&str, u64)| Vm {
            vm: name.to_owned(),
            stalls: vec![Stall {
                ns: ms * 1_000_000,
                ..Stall::default()
            }],
            ..Vm::default()
        };
        Sample {
            start_ns: number * SECOND,
            end_ns: (number + 1) * SECOND,
            vms: waits.iter().map(vm).collect(),
            ..Sample::default()
        }
    }

    #[test]
    fn a_condition_triggers_once_until_it_is_no_longer_met() {
        let mut triggers = triggers(&["stall>20ms", "vm.db.stall>50ms"], "9/h", Duration::ZERO);
        let waits = [10, 30, 60, 60, 5, 30].map(|ms| [("db", ms)]);
        let samples = (0..)
            .zip(&waits)
            .map(|(number, waits)| second(number, waits));
        let found = samples.map(|sample| triggers.sample(&sample));
        let counts: Vec<usize> = found
            .map(|trigger| trigger.map_or(0, |trigger| trigger.seen.len()))
            .collect();
        assert_eq!(counts, [0, 1, 1, 0, 0, 1]);
    }

    #[test]
    fn what_comes_until_the_recording_is_part_of_it() {
        let mut triggers = triggers(&["stall>20ms"], "9/h", Duration::from_secs(2));
        assert!(triggers.sample(&second(0, &[("db", 30)])).is_none());
        assert!(triggers.sample(&second(1, &[("web", 30)])).is_none());
        let trigger = triggers.sample(&second(2, &[])).expect("it is due");
        let vms: Vec<&str> = trigger.seen.iter().map(|seen| &*seen.met.vm).collect();
        assert_eq!((vms, trigger.offset_ns), (vec!["db", "web"], SECOND));
        assert!(triggers.sample(&second(3, &[("db", 30)])).is_none());
        assert_eq!(triggers.finish().map(|trigger| trigger.seen.len()), Some(1));
    }

    #[test]
    fn a_rate_counts_the_latest_recordings() {
        let mut triggers = triggers(&["stall>20ms"], "2/m", Duration::ZERO);
        let mut held = Vec::new();
        for number in [0, 2, 4, 59, 61, 62] {
            triggers.sample(&second(number - number.min(1), &[]));
            let trigger = triggers.sample(&second(number, &[("db", 30)]));
            held.push(trigger.expect("it is met").is_held);
        }
        assert_eq!(held, [false, false, true, true, false, false]);
        for text in ["", "6", "6/s", "0/h", "-1/h", "x/h", "6/h "] {
            assert_eq!(at_most(text), Err(NotARate), "{text}");
        }
    }

    #[test]
    fn a_clock_that_is_set_back_holds_no_recording_for_hours() {
        let mut triggers = triggers(&["stall>20ms"], "1/h", Duration::from_secs(1));
        assert!(triggers.sample(&second(7200, &[("db", 30)])).is_none());
        // The recording that is due is made at once, and the next one by the new time.
        let trigger = triggers.sample(&second(3, &[])).expect("it is due");
        assert!(!trigger.is_held && trigger.time_ns == 7201 * SECOND);
        assert!(triggers.sample(&second(4, &[("db", 30)])).is_none());
        let trigger = triggers.sample(&second(5, &[])).expect("it is due");
        assert_eq!((trigger.is_held, trigger.offset_ns), (false, 0));
        let held = triggers.sample(&second(6, &[("db", 30)]));
        assert!(held.is_some_and(|trigger| trigger.is_held));
    }

    #[test]
    fn many_vms_are_counted() {
        let mut triggers = triggers(
            &["stall>20ms", "vm.nowhere.ready>1%"],
            "9/h",
            Duration::ZERO,
        );
        let names: Vec<String> = (0..500).map(|number| format!("vm-{number}")).collect();
        let waits: Vec<(&str, u64)> = names.iter().map(|name| (&**name, 30)).collect();
        let trigger = triggers.sample(&second(0, &waits)).expect("all meet it");
        assert_eq!((trigger.seen.len(), trigger.further), (20, 480));
        let (unknown, running) = triggers.unknown().expect("one is not there");
        assert_eq!((unknown[0].as_str(), running.len()), ("nowhere", 500));
        assert!(triggers.unknown().is_none());
    }
}

//! Where guest time goes, interval by interval, from an endless stream of events.
//!
//! ```text
//!  events, live or recorded ──▶ Collector ──▶ Sample ──▶ top, metrics
//! ```
//!
//! The [`Collector`] does no I/O. It feeds the analysis's tracker, and its sums follow the analysis's
//! rules: for a given second both give the same numbers. Three differences remain, all at the edges of an
//! interval:
//!
//! - A wait that goes on at the end of an interval has no cause for its idle time yet. It counts as throttled
//!   if it looks so until there.
//! - A loss that shows later cannot take back what a former sample has.
//! - Until the polling window of a vCPU changes for the first time, time before a sleep counts as exit.
//!
//! Memory is bounded by the numbers of CPUs, live threads and vCPUs, whatever the length of the stream.

mod account;
mod histogram;
mod meter;
mod row;
mod sample;
mod vms;

use std::collections::{BTreeSet, VecDeque};

use stealtime_events::{Event, Kind, Names};
use stealtime_track::{LONGEST_SILENCE_NS, Run, Tracker, VcpuIndex};

pub use histogram::{Buckets, Classes, EDGES_NS};
pub use sample::{Cpu, Exits, Ready, Sample, Stall, Times, Vcpu, Vm, Wakeups};
pub use vms::KnownVm;

use meter::Meter;
use row::{Live, Row};
use vms::KnownVms;

/// Rows of vCPUs that end within one interval; of further ones, only their VM's sums are kept.
const MAX_ENDED: usize = 4096;
/// Samples that wait for their reader. An older one is dropped for a newer one, which is marked.
const MAX_WAITING: usize = 64;
/// Readers merge events by time. So an event that comes later than its time by more than this, in ns, shows a
/// clock that was set back. This is 1 % of the shortest interval of `top`.
const LATE_NS: u64 = 1_000_000;

/// Events in, samples out.
#[derive(Debug)]
pub struct Collector {
    tracker: Tracker<Meter>,
    /// Length of an interval, in ns.
    interval: u64,
    /// End of the interval under way, in ns of the trace's clock; `None` before the first event.
    next: Option<u64>,
    /// The tracker's time never goes back. It is so much later than the trace's clock, in ns: by so much the
    /// clock was set back.
    ahead: u64,
    vms: KnownVms,
    /// vCPUs that have ended in this interval.
    ended: Vec<Row>,
    samples: VecDeque<Sample>,
}

impl Collector {
    /// A collector that gives a sample each `interval_ns`, at least 1 ms.
    #[must_use]
    pub fn new(interval_ns: u64) -> Self {
        Self {
            tracker: Tracker::new(Meter::default()),
            interval: interval_ns.max(1_000_000),
            next: None,
            ahead: 0,
            vms: KnownVms::default(),
            ended: Vec::new(),
            samples: VecDeque::new(),
        }
    }

    /// What the host knows of its VMs, as of now.
    pub fn set_vms(&mut self, vms: &[KnownVm]) {
        self.vms.set(vms);
    }

    /// Processes with vCPUs that no [`KnownVm`] has.
    #[must_use]
    pub fn unnamed(&self) -> BTreeSet<i32> {
        let running = self.vms.running.iter().copied();
        running.filter(|&pid| !self.vms.has_name(pid)).collect()
    }

    /// Takes the next event in the order of time.
    pub fn event(&mut self, event: &Event, names: &dyn Names) {
        let time_ns = event.time_ns.saturating_add(self.ahead);
        match event.kind.is_host_event() && time_ns.saturating_add(LATE_NS) < self.tracker.now() {
            true => self.late_event(&Event { time_ns, ..*event }, names),
            false if self.ahead > 0 => self.take(&Event { time_ns, ..*event }, names),
            false => self.take(event, names),
        }
    }

    /// An event by which the clock was set back.
    #[cold]
    fn late_event(&mut self, event: &Event, names: &dyn Names) {
        let now = self.tracker.now();
        let late = now.saturating_sub(event.time_ns);
        self.tracker.observer_mut().has_jump = true;
        if self.next.is_none() || late <= self.interval {
            // The clock comes to the same time again within the sample, or soon after it.
            return self.take(event, names);
        }
        self.tracker.forget_states();
        self.sample(now, names);
        self.ahead = self.ahead.saturating_add(late);
        self.next = Some(now.saturating_add(self.interval));
        let time_ns = now;
        self.take(&Event { time_ns, ..*event }, names);
    }

    /// Takes an event with the tracker's time.
    fn take(&mut self, event: &Event, names: &dyn Names) {
        let is_timed = event.kind.is_host_event() || matches!(event.kind, Kind::Lost { .. });
        if is_timed {
            match self.next {
                Some(next) if event.time_ns >= next => self.advance_to(event.time_ns, names),
                None if event.kind.is_host_event() => {
                    self.next = Some(event.time_ns.saturating_add(self.interval));
                    self.tracker.observer_mut().since = event.time_ns;
                }
                _ => {}
            }
        }
        self.tracker.event(event, names);
        if !self.tracker.observer().ended.is_empty() {
            self.take_ended(names);
        }
    }

    /// The clock of the trace is at `now`, in ns, and all events before are given.
    pub fn advance(&mut self, now: u64, names: &dyn Names) {
        self.advance_to(now.saturating_add(self.ahead), names);
    }

    /// The same with the tracker's time.
    fn advance_to(&mut self, now: u64, names: &dyn Names) {
        while let Some(next) = self.next.filter(|&next| next <= now) {
            let is_jump = now - next > LONGEST_SILENCE_NS;
            if is_jump {
                // No host is silent for so long: a clock that jumps, or a suspend.
                self.tracker.forget_states();
                self.tracker.observer_mut().has_jump = true;
            }
            self.sample(next, names);
            let mut begin = next;
            if is_jump {
                self.tracker.report_until(now);
                self.tracker.observer_mut().clear(now);
                begin = now;
            }
            self.next = Some(begin.saturating_add(self.interval));
        }
    }

    /// The stream is over: the interval under way ends with its last event.
    pub fn finish(&mut self, names: &dyn Names) {
        let end = self.tracker.now();
        let begin = self.tracker.observer().since;
        if self.next.take().is_some() && end > begin {
            self.sample(end, names);
        }
    }

    /// The next sample.
    pub fn next_sample(&mut self) -> Option<Sample> {
        self.samples.pop_front()
    }

    /// Ends the interval at `end`, in ns of the tracker's time.
    fn sample(&mut self, end: u64, names: &dyn Names) {
        self.tracker.report_until(end);
        self.tracker.observer_mut().settle(end);
        let live = self.live();
        let mut processes: Vec<i32> = live.iter().filter_map(|vcpu| vcpu.key.process()).collect();
        processes.dedup();
        self.vms.running = processes.into_iter().collect();
        let ended = std::mem::take(&mut self.ended);
        let (known, tracker) = (&self.vms, &self.tracker);
        let cause = |cause, key| known.cause(cause, key, tracker, names);
        let name = |key| known.name(key, tracker, names);
        let occupant = |cause, key| known.occupant(cause, key, tracker, names);
        let mut vms = row::vms(ended, live, tracker, cause, name, occupant);
        let stalls = vms.iter_mut().flat_map(|vm| &mut vm.stalls);
        stalls.for_each(|stall| stall.start_ns = stall.start_ns.saturating_sub(self.ahead));
        let meter = self.tracker.observer_mut();
        let sample = Sample {
            start_ns: meter.since.saturating_sub(self.ahead),
            end_ns: end.saturating_sub(self.ahead),
            partial: meter.has_jump || meter.lost > 0 || meter.lost_gaps > 0,
            events: meter.events,
            lost: meter.lost,
            lost_gaps: meter.lost_gaps,
            cpus: meter.cpus.clone(),
            vms,
        };
        meter.clear(end);
        if self.samples.len() >= MAX_WAITING {
            self.samples.pop_front();
            // What was dropped is in no sum of the reader.
            self.samples
                .front_mut()
                .into_iter()
                .for_each(|next| next.partial = true);
        }
        self.samples.push_back(sample);
    }

    /// vCPUs that are shown, and have not ended.
    fn live(&self) -> Vec<Live> {
        let vcpus = (0..).map(VcpuIndex).zip(self.tracker.vcpus());
        let live = vcpus.filter(|(_, vcpu)| vcpu.run() != Run::Dead);
        let live = live.filter(|(vcpu, _)| self.vms.is_shown(&self.tracker, *vcpu));
        let keyed = live.map(|(vcpu, _)| Live {
            key: self.vms.key(&self.tracker, vcpu),
            vcpu,
        });
        keyed.collect()
    }

    /// Keeps the sums of vCPUs that have ended, before their numbers go to others.
    #[cold]
    fn take_ended(&mut self, names: &dyn Names) {
        let ended = std::mem::take(&mut self.tracker.observer_mut().ended);
        for vcpu in ended {
            if self.vms.is_shown(&self.tracker, vcpu) {
                let now = self.tracker.now();
                let meter = self.tracker.observer_mut();
                let bandwidth = meter.bandwidth;
                meter.accounts[vcpu.index()].settle(now, bandwidth);
                let (known, tracker) = (&self.vms, &self.tracker);
                let key = known.key(tracker, vcpu);
                let cause = |cause| known.cause(cause, key, tracker, names);
                let occupant = |cause| known.occupant(cause, key, tracker, names);
                let row = Row::ended(key, vcpu, tracker, cause, occupant);
                match self.ended.len() < MAX_ENDED {
                    true => self.ended.push(row),
                    false => row::join(&mut self.ended, row),
                }
            }
            self.tracker.observer_mut().accounts[vcpu.index()].clear();
        }
    }
}

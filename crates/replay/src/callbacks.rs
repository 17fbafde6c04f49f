//! hrtimers: of the host's slices and ticks, of guests, and of what tasks wait for.

use stealtime_events::Event;
use stealtime_track::{Place, ThreadIndex, TimerExpiry, TimerReport, TimerStart, TimerUse};

use crate::scripts::Scripts;
use crate::wake::Origin;

impl Scripts {
    /// What happens to an hrtimer.
    pub(crate) fn on_timer(&mut self, event: &Event, place: &Place, report: TimerReport) {
        match report {
            TimerReport::Started(start) => self.timer_starts(&start),
            TimerReport::Expired(expiry) => {
                self.timer_expires(&Origin::new(event, place), &expiry);
            }
            TimerReport::Cancelled { hrtimer, owner } => self.timer_unset(hrtimer, owner),
        }
    }

    fn timer_starts(&mut self, start: &TimerStart) {
        let now = self.now;
        if start.ends_slice {
            self.cpus[usize::from(start.cpu)].next_slice(now);
            if let Some(ns) = start.slice_ns {
                self.slices.set(ns);
            }
        }
        if start.purpose == TimerUse::Task {
            if start.in_task {
                self.task(start.thread).arm(now);
            }
            self.timer_set(start);
        }
    }

    fn timer_expires(&mut self, origin: &Origin, expiry: &TimerExpiry) {
        let (now, cpu) = (self.now, usize::from(origin.cpu));
        if expiry.ends_period {
            self.period_over(expiry.hrtimer);
        }
        if let Some(late_ns) = expiry.slice_late_ns {
            let stalled_ns = self.stalls(cpu, late_ns);
            self.cpus[cpu].slice_ends(now, late_ns, stalled_ns);
        }
        if let Some(late_ns) = expiry.tick_late_ns {
            let stalled_ns = self.stalls(cpu, late_ns);
            self.cpus[cpu].ticks(now, late_ns, stalled_ns);
        }
        if let Some(owner) = expiry.owner {
            self.guest_ticks(owner);
            self.poll_ended(origin, owner);
        }
        self.timer_unset(expiry.hrtimer, expiry.owner);
    }

    /// A timer of a CPU was late by so much: for how long of it the CPU was stalled, in ns. The stall is part
    /// of what the current task computed.
    fn stalls(&mut self, cpu: usize, late_ns: u64) -> u64 {
        let now = self.now;
        let due = now.saturating_sub(late_ns);
        let current = self.cpus[cpu].current;
        let current = current.filter(|current| !current.tid.is_idle());
        let (Some(current), Some(quiet)) = (current, self.cpus[cpu].stall(due)) else {
            return 0;
        };
        match self.task(current).stalls(now, quiet) {
            true => quiet.end.saturating_sub(due),
            false => 0,
        }
    }

    /// A vCPU that is at work is interrupted by its guest's timer.
    fn guest_ticks(&mut self, owner: ThreadIndex) {
        let now = self.now;
        let task = self.tasks.get_mut(owner);
        if let Some(task) = task.filter(|task| task.vcpu.is_some()) {
            task.settle(now);
            task.ticks(now);
        }
    }

    /// A timer of a task is set: if that is a vCPU, it is its guest's.
    fn timer_set(&mut self, start: &TimerStart) {
        debug_assert!(start.owner.is_some(), "a task's own timer has an owner");
        let task = start.owner.and_then(|owner| self.tasks.get_mut(owner));
        if let Some(task) = task.filter(|task| task.vcpu.is_some()) {
            task.timer = start.expires.map(|expires| (start.hrtimer, expires));
        }
    }

    /// It is cancelled, or expires.
    fn timer_unset(&mut self, hrtimer: u64, owner: Option<ThreadIndex>) {
        if let Some(task) = owner.and_then(|owner| self.tasks.get_mut(owner)) {
            task.timer.take_if(|&mut (set, _)| set == hrtimer);
        }
    }
}

//! hrtimers: of the host's slices and ticks, of guests, and of what tasks wait for.

use stealtime_events::{Event, Kind, Names};
use stealtime_track::{Place, ThreadIndex};

use crate::quota::PERIOD_TIMER;
use crate::scripts::Scripts;
use crate::timers::{Setter, bare};
use crate::wake::Origin;

impl Scripts {
    /// What happens to an hrtimer.
    pub(crate) fn on_timer(&mut self, event: &Event, place: &Place, names: &dyn Names) {
        let origin = || Origin::new(event, place);
        match event.kind {
            Kind::HrtimerStart {
                hrtimer,
                expires_ns,
                function,
            } => {
                let function = names.name(function);
                self.timer_starts(&origin(), hrtimer, expires_ns, function);
            }
            Kind::HrtimerExpireEntry {
                hrtimer,
                now_ns,
                function,
            } => {
                let function = names.name(function);
                self.timer_expires(&origin(), hrtimer, now_ns, function);
            }
            Kind::HrtimerCancel { hrtimer } => self.timer_unset(hrtimer),
            Kind::HrtimerExpireExit { .. } => self.cpus[usize::from(place.cpu)].expiring = None,
            _ => {}
        }
    }

    fn timer_starts(&mut self, origin: &Origin, hrtimer: u64, expires_ns: u64, function: &str) {
        let (now, cpu) = (self.now, usize::from(origin.cpu));
        let in_task = self.may_be_task(origin);
        let setter = Setter {
            thread: origin.thread.index,
            in_task,
            time: now,
            in_callback: self.cpus[cpu].expiring == Some(hrtimer),
        };
        let is_own = self.timers.start(hrtimer, expires_ns, function, setter);
        if self.timers.ends_slices(hrtimer) {
            self.cpus[cpu].next_slice(now);
            if let Some(ns) = self.timers.slice_ahead(hrtimer, now) {
                self.slices.set(ns);
            }
        }
        if is_own {
            if in_task {
                self.task(origin.thread).arm(now);
            }
            self.timer_set(hrtimer);
        }
    }

    fn timer_expires(&mut self, origin: &Origin, hrtimer: u64, timer_now: u64, function: &str) {
        let (now, cpu) = (self.now, usize::from(origin.cpu));
        self.timers.expire(now, timer_now);
        if bare(function) == PERIOD_TIMER {
            self.period_over(hrtimer);
        }
        if let Some(late) = self.timers.slice_late(hrtimer, timer_now) {
            self.cpus[cpu].slice_ends(now, late);
        }
        if let Some(late) = self.timers.tick_late(hrtimer, timer_now) {
            self.cpus[cpu].ticks(now, late);
        }
        self.cpus[cpu].expiring = Some(hrtimer);
        if let Some(owner) = self.timers.owner(hrtimer) {
            self.guest_ticks(owner);
            self.poll_ended(origin, owner);
        }
        self.timer_unset(hrtimer);
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
    fn timer_set(&mut self, hrtimer: u64) {
        let Some(owner) = self.timers.owner(hrtimer) else {
            debug_assert!(false, "a task's own timer has an owner");
            return;
        };
        let expires = self.timers.expires_for(hrtimer, owner);
        let task = self.tasks.get_mut(owner);
        if let Some(task) = task.filter(|task| task.vcpu.is_some()) {
            task.timer = expires.map(|expires| (hrtimer, expires));
        }
    }

    /// It is cancelled, or expires.
    fn timer_unset(&mut self, hrtimer: u64) {
        let owner = self.timers.owner(hrtimer);
        if let Some(task) = owner.and_then(|owner| self.tasks.get_mut(owner)) {
            task.timer.take_if(|&mut (set, _)| set == hrtimer);
        }
    }
}

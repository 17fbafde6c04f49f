//! What woke a task, or made an interrupt pending at it.

use stealtime_events::Event;
use stealtime_simulator::script::{Step, Until};

use crate::extract::Extractor;
use crate::task::Cause;

impl Extractor {
    /// The cause of what this event does to another task: a point of the script of the task in
    /// whose context it happened, a timer of its own, or else the time.
    pub(crate) fn cause(&mut self, event: &Event, of: i32) -> Cause {
        let from = event.tid.0;
        let at = self.now.saturating_sub(self.first);
        let expiring = self
            .cpus
            .get(event.cpu.0 as usize)
            .and_then(|cpu| cpu.expiring);
        if let Some(hrtimer) = expiring {
            self.resolved.timers += 1;
            return match self.timers.expires_for(hrtimer, of) {
                Some(expires) => Cause::Timer { expires },
                None => Cause::Known(Until::Time(at)),
            };
        }
        let in_task = event.context.in_task() && from != 0 && from != of;
        if !in_task {
            self.resolved.unknown += 1;
            return Cause::Known(Until::Time(at));
        }
        self.resolved.edges += 1;
        let now = self.now;
        let edge = self.new_edge();
        let waker = self.task(from);
        waker.settle(now);
        waker.steps.push(Step::Reach(edge));
        Cause::Known(Until::Edge(edge))
    }
}

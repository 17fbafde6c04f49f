//! What woke a task, or made an interrupt pending at it.

use stealtime_events::Event;
use stealtime_simulator::script::{Step, Until};

use crate::extract::Extractor;

impl Extractor {
    /// The cause of what this event does to another task: a point of the script of the task in
    /// whose context it happened, or else the time.
    pub(crate) fn cause(&mut self, event: &Event, of: i32) -> Until {
        let from = event.tid.0;
        let in_task = event.context.in_task() && from != 0 && from != of;
        if !in_task {
            let cpu = self.cpus.get(event.cpu.0 as usize);
            if cpu.is_some_and(|cpu| cpu.in_hrtimer) {
                self.resolved.timers += 1;
            } else {
                self.resolved.unknown += 1;
            }
            return Until::Time(self.now - self.first);
        }
        self.resolved.edges += 1;
        let now = self.now;
        let edge = self.new_edge();
        let waker = self.task(from);
        waker.settle(now);
        waker.steps.push(Step::Reach(edge));
        Until::Edge(edge)
    }
}

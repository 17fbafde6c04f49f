//! What tasks do where events were lost.

use stealtime_events::Event;

use crate::extract::Extractor;
use crate::task::{Left, State, Task};

impl Extractor {
    /// Events of this CPU were lost since its last one: what its tasks did since is not known, and
    /// they wait until they are seen again.
    pub(crate) fn lost(&mut self, cpu: usize) {
        self.quotas.lost();
        self.lossy = true;
        let (since, now) = (self.cpus[cpu].last, self.now);
        for task in self.tasks.values_mut() {
            if task.cpu().is_some_and(|at| at as usize == cpu) {
                task.lost(since, now);
            }
        }
        self.cpus[cpu].lost.push((since.max(self.first), now));
        self.cpus[cpu].current = None;
        self.cpus[cpu].expiring = None;
    }

    /// After a loss: the task that is seen first has got its CPU in the gap.
    pub(crate) fn seen_again(&mut self, event: &Event, cpu: usize) {
        let tid = event.tid.0;
        let after_loss = self.cpus[cpu].current.is_none() && self.cpus[cpu].last > 0;
        if !after_loss || tid <= 0 || !event.kind.is_host_event() {
            return;
        }
        self.left_unseen(cpu, tid);
        let asleep = |task: &Task| matches!(task.state, State::Asleep { .. });
        if self.tasks.get(&tid).is_some_and(asleep) {
            let prio = self.tasks.get(&tid).map_or(120, |task| task.prio);
            self.switch(cpu, 0, tid, Left::Asleep, prio);
        }
    }

    /// A task that is seen here has left another CPU, whose events since were lost.
    pub(crate) fn left_unseen(&mut self, cpu: usize, tid: i32) {
        let now = self.now;
        let Some(task) = self.tasks.get_mut(&tid) else {
            return;
        };
        let running = matches!(task.state, State::Running { .. });
        // Not where it was moved to: it is moved away from a CPU in a gap before it is seen elsewhere.
        let Some(other) = task.ran_on.filter(|_| running).map(usize::from) else {
            return;
        };
        let Some(left) = self.cpus.get_mut(other).filter(|_| other != cpu) else {
            return;
        };
        task.lost(left.last, now);
        if left.current == Some(tid) {
            left.current = None;
        }
    }
}

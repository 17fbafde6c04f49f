//! What tasks do where events were lost.

use stealtime_track::{SwitchOut, ThreadIndex, ThreadRef};

use crate::scripts::{IDLE, Scripts};
use crate::task::{State, Task};

impl Scripts {
    /// Events of this CPU were lost since its latest one: what its tasks did since is not known, and
    /// they wait until they are seen again.
    pub(crate) fn on_loss(&mut self, cpu: usize, since: u64) {
        self.quotas.lost();
        self.is_lossy = true;
        let now = self.now;
        for task in self.tasks.iter_mut() {
            if task.cpu().is_some_and(|target| target as usize == cpu) {
                task.lost(since, now);
            }
        }
        self.cpus[cpu].lost.push((since.max(self.first), now));
        self.cpus[cpu].current = None;
        self.cpus[cpu].expiring = None;
    }

    /// After a loss: the task that is seen first has got its CPU in the gap.
    pub(crate) fn seen_again(&mut self, cpu: usize, thread: ThreadRef) {
        self.left_unseen(cpu, thread.index);
        let asleep = |task: &Task| matches!(task.state, State::Asleep { .. });
        if self.tasks.get(thread.index).is_some_and(asleep) {
            let prio = self.prio(thread);
            self.switch_tasks(cpu, IDLE, SwitchOut::Asleep, thread, prio);
        }
    }

    /// A task that is seen here has left another CPU, whose events since were lost.
    pub(crate) fn left_unseen(&mut self, cpu: usize, index: ThreadIndex) {
        let now = self.now;
        let Some(task) = self.tasks.get_mut(index) else {
            // It is seen for the first time.
            return;
        };
        let running = matches!(task.state, State::Running { .. });
        // Not where it was moved to: it is moved away from a CPU in a gap before it is seen elsewhere.
        let previous = task.ran_on.filter(|_| running).map(usize::from);
        let Some(previous) = previous.filter(|&previous| previous != cpu) else {
            return;
        };
        // A task runs on CPUs that are in the table.
        let left = &mut self.cpus[previous];
        task.lost(left.last, now);
        if left.current.is_some_and(|current| current.index == index) {
            left.current = None;
        }
    }
}

//! What tasks do where events were lost.

use stealtime_track::{SwitchOut, ThreadIndex, ThreadRef};

use crate::coupled::Stretch;
use crate::scripts::{IDLE, Scripts};
use crate::task::{State, Task};

impl Scripts {
    /// Events of this CPU were lost from its latest one to `gap_end`. What its tasks did meanwhile is not
    /// known, and they wait until they are seen again.
    pub(crate) fn on_loss(&mut self, cpu: usize, gap_start: u64, gap_end: u64) {
        self.quotas.lost();
        self.is_lossy = true;
        for task in self.tasks.iter_mut() {
            if task.cpu().is_some_and(|target| target as usize == cpu) {
                task.lost(gap_start, gap_end);
            }
        }
        self.cpus[cpu].lost.push(Stretch {
            start: gap_start.max(self.first),
            end: gap_end,
        });
        self.cpus[cpu].current = None;
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

    /// A task that is seen on `cpu` has left another CPU, of which the later events were lost.
    pub(crate) fn left_unseen(&mut self, cpu: usize, index: ThreadIndex) {
        // A task that is seen for the first time has left none. Where it was moved to does not count: it is
        // moved away from a CPU in a gap before it is seen elsewhere.
        let running = |task: &Task| matches!(task.state, State::Running { .. });
        let task = self.tasks.get(index).filter(|task| running(task));
        let previous = task.and_then(|task| task.ran_on).map(usize::from);
        if let Some(previous) = previous.filter(|&previous| previous != cpu) {
            self.leaves_in_gap(previous, index);
        }
    }

    fn leaves_in_gap(&mut self, cpu: usize, index: ThreadIndex) {
        let now = self.now;
        // A task runs on CPUs that are in the table.
        let cpu = &mut self.cpus[cpu];
        if let Some(task) = self.tasks.get_mut(index) {
            task.lost(cpu.last, now);
        }
        if cpu.current.is_some_and(|current| current.index == index) {
            cpu.current = None;
        }
    }
}

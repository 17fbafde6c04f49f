//! The clock of the guest's scheduler.

use crate::ids::{VcpuNr, VmNr};
use crate::machine::Machine;

/// A run queue's clock without the time that was stolen from its vCPU (`rq->clock_task`).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TaskClock {
    /// When it was last read. It shows that less what was stolen.
    read_ns: u64,
    /// Stolen time that has been taken off.
    stolen_ns: u64,
}

impl TaskClock {
    /// Brings the clock up to `now` (`update_rq_clock_task`): of what passed, stolen time is taken
    /// off, at most all of it. What was stolen in all is known from the steal-time page.
    pub(crate) fn read(&mut self, now: u64, stolen_in_all: u64) -> u64 {
        let passed = now - self.read_ns;
        let stolen = (stolen_in_all - self.stolen_ns).min(passed);
        self.stolen_ns += stolen;
        self.read_ns = now;
        self.read_ns - self.stolen_ns
    }
}

impl Machine<'_> {
    /// The time as the run queue of a vCPU has it.
    pub(crate) fn guest_clock(&mut self, vm: VmNr, index: u32) -> u64 {
        if !self.vms[vm].cfg.guest.steal_time {
            return self.now;
        }
        let vcpu = self.vcpu_of(vm, index);
        let task = self.vcpus[vcpu].task;
        let stolen = self.tasks[task].books.run_delay_ns;
        self.vcpus[vcpu].guest.clock.read(self.now, stolen)
    }

    /// `vcpu_is_preempted`, as the guest knows it from the steal-time page: KVM sets the flag for
    /// every vCPU whose thread leaves its CPU, halted ones too.
    pub(crate) fn guest_sees_preempted(&self, vcpu: VcpuNr) -> bool {
        let v = &self.vcpus[vcpu];
        self.vms[v.vm].cfg.guest.steal_time
            && self.tasks[v.task].state != crate::machine::TaskState::Running
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_taken_off_once_and_never_runs_back() {
        let mut clock = TaskClock::default();
        assert_eq!(clock.read(1000, 0), 1000);
        // Read while the vCPU waits: what is stolen is not known yet.
        assert_eq!(clock.read(3000, 0), 3000);
        // 2 500 ns were stolen, but 500 ns passed: the rest comes off later.
        assert_eq!(clock.read(3500, 2500), 3000);
        assert_eq!(clock.read(6000, 2500), 3500);
        assert_eq!(clock.read(7000, 2500), 4500);
    }
}

//! The clock of the guest's scheduler.

use super::Guests;
use crate::host::Host;
use crate::ids::{VcpuNr, VmNr};

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

/// A guest's thread reads the clock on this vCPU: in ns.
pub(crate) fn read_clock(guests: &mut Guests, host: &mut Host<'_>, vcpu: VcpuNr) -> u64 {
    let v = &guests.cpus[vcpu];
    let (now, index) = (host.now(), v.index as usize);
    match &mut guests.vms[v.vm].clock {
        Some(clock) => clock.read(index, now),
        None => now,
    }
}

/// The time as the run queue of a vCPU has it.
pub(crate) fn task_clock(guests: &mut Guests, host: &mut Host<'_>, vm: VmNr, index: u32) -> u64 {
    if !guests.vms[vm].cfg.guest.steal_time {
        return host.now();
    }
    let vcpu = guests.vcpu_of(vm, index);
    let task = guests.task_of(vcpu);
    let stolen = host.tasks()[task].books.run_delay_ns;
    guests.cpus[vcpu].clock.read(host.now(), stolen)
}

/// `vcpu_is_preempted`, as the guest knows it from the steal-time page: KVM sets the flag
/// whenever a vCPU's thread leaves its CPU, at halts too.
pub(crate) fn is_preempted(guests: &Guests, host: &Host<'_>, vcpu: VcpuNr) -> bool {
    let v = &guests.cpus[vcpu];
    guests.vms[v.vm].cfg.guest.steal_time
        && host.tasks()[guests.task_of(vcpu)].state != crate::host::TaskState::Running
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

//! Where a machine's memory is, so that a large one's can be in huge pages.

use super::Machine;
use crate::huge_pages::HugePages;

/// With fewer vCPUs than this pages of 4 KiB cost nothing that can be measured.
const MANY_VCPUS: usize = 4096;

/// After so many events most lists have been allocated that are allocated as they are first used, and
/// a run is long enough for it to pay.
const ENOUGH_EVENTS: u64 = 1 << 17;

impl Machine<'_> {
    /// Called now and then while it runs.
    pub(super) fn move_to_huge_pages(&mut self) {
        let is_large = self.vcpus.len() >= MANY_VCPUS;
        if is_large && !self.in_huge_pages && self.stats.events >= ENOUGH_EVENTS {
            self.in_huge_pages = true;
            self.memory().ask();
        }
    }

    /// Its tables, and of each CPU, vCPU and thread what it reads most: what they have beyond lies
    /// between those.
    fn memory(&self) -> HugePages {
        let mut pages = HugePages::default();
        pages.add(&self.what);
        pages.add(self.cpus.as_slice());
        pages.add(self.tasks.as_slice());
        pages.add(self.timers.as_slice());
        pages.add(self.vms.as_slice());
        pages.add(self.vcpus.as_slice());
        pages.add(&self.by_slot);
        pages.add_range(self.queue.memory());
        let guests = self.vms.iter().map(|vm| &vm.kernel.fair);
        for fair in core::iter::once(&self.fair).chain(guests) {
            for table in fair.memory() {
                pages.add_range(table);
            }
        }
        for cpu in self.cpus.iter() {
            pages.add(cpu.hrtimers.as_slices().0);
        }
        for vcpu in self.vcpus.iter() {
            vcpu.guest.base.add_to(&mut pages);
            vcpu.guest.irq.add_to(&mut pages);
            pages.add_room(&vcpu.guest.sleepers);
        }
        for vm in self.vms.iter() {
            pages.add(vm.kernel.threads.as_slice());
            for thread in vm.kernel.threads.iter() {
                pages.add_value(&*thread.program);
                thread.saved.add_to(&mut pages);
            }
        }
        pages
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may fail")]
mod tests {
    use super::*;
    use crate::swarm;

    /// What a run says, and whether it was asked to be in huge pages, if that is tried before it.
    fn run(vms: u32, events: Option<u64>) -> (String, bool) {
        let mut sink = ();
        let mut machine = Machine::new(&swarm::ticking(vms, 64, 1_200_000), &mut sink).unwrap();
        machine.set_checks(false);
        if let Some(events) = events {
            machine.stats.events = events;
            machine.move_to_huge_pages();
            machine.stats.events = 0;
        }
        let outcome = machine.run(&|| false).unwrap();
        (format!("{outcome:?}"), machine.in_huge_pages)
    }

    #[test]
    fn a_large_host_moves_once_it_pays_and_runs_as_before() {
        let (before, moved) = run(256, None);
        assert!(!moved, "the run has become too long for this test");
        assert_eq!(run(256, Some(ENOUGH_EVENTS)), (before.clone(), true));
        assert_eq!(run(256, Some(ENOUGH_EVENTS - 1)), (before, false));
        assert!(!run(2, Some(ENOUGH_EVENTS)).1);
    }
}

//! The counters of an arm64 guest that is moved. As in the posted series, the virtual and the
//! physical counter have an offset each. They are attributes of one vCPU, broadcast to all.

use stealtime_hypervisor::counter::arm64::{
    Counter, CounterMigrationError, CounterSide, PostedVcpu, guest_count, migrate,
};
use stealtime_hypervisor::counter::kvm_clock::KvmClockData;

use crate::config::ClockMethod;

/// A guest's counters. The host's count is what its clocks call the TSC.
#[derive(Clone, Debug)]
pub(super) struct Counters {
    vcpus: Vec<PostedVcpu>,
}

/// What a VMM has read of one vCPU.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Saved {
    /// By value the counter, else its offset.
    pub(super) virtual_counter: u64,
    pub(super) physical_offset: u64,
}

/// What is known when a vCPU is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Move {
    pub(super) method: ClockMethod,
    /// Host's count and wall clock at the save.
    pub(super) source: KvmClockData,
    /// The same on the destination.
    pub(super) destination: KvmClockData,
    pub(super) source_khz: u32,
    pub(super) destination_khz: u32,
    /// How wrong the destination's frequency can be.
    pub(super) frequency_error_ppb: u32,
    /// What the two wall clocks differ by, at most.
    pub(super) realtime_skew_ns: u64,
}

impl Counters {
    /// vCPUs that are created when the host's counter reads `host_count`. The virtual counter
    /// begins at 0 with the last of them; the physical one is the host's.
    pub(super) fn created(vcpus: usize, host_count: u64) -> Self {
        let vcpu = PostedVcpu {
            virtual_offset: host_count,
            physical_offset: 0,
        };
        Self {
            vcpus: vec![vcpu; vcpus],
        }
    }

    /// The offset of one vCPU's counter.
    pub(super) fn offset(&self, vcpu: usize, counter: Counter) -> u64 {
        self.vcpus.get(vcpu).map_or(0, |vcpu| vcpu.offset(counter))
    }

    /// What one vCPU reads.
    pub(super) fn count(&self, vcpu: usize, counter: Counter, host_count: u64) -> u64 {
        guest_count(host_count, self.offset(vcpu, counter))
    }

    /// The VMM reads a vCPU.
    pub(super) fn save(&self, vcpu: usize, method: ClockMethod, host_count: u64) -> Saved {
        Saved {
            virtual_counter: match method {
                ClockMethod::Value => self.count(vcpu, Counter::Virtual, host_count),
                ClockMethod::Documented | ClockMethod::Offset => {
                    self.offset(vcpu, Counter::Virtual)
                }
            },
            physical_offset: self.offset(vcpu, Counter::Physical),
        }
    }

    /// The VMM writes an attribute of one vCPU; KVM gives it to all.
    pub(super) fn write(&mut self, vcpu: usize, counter: Counter, offset: u64) {
        let split = self.vcpus.split_at_mut_checked(vcpu);
        let written = split.and_then(|(previous, rest)| Some((previous, rest.split_first_mut()?)));
        debug_assert!(written.is_some(), "an attribute of vCPU {vcpu} is written");
        if let Some((previous, (written, after))) = written {
            PostedVcpu::set_offset(written, previous.iter_mut().chain(after), counter, offset);
        }
    }

    /// The VMM writes what it has saved of a vCPU. The bound that the method states, in ns.
    ///
    /// By value only the virtual counter has a register to be written: the physical one becomes that of
    /// the new host.
    ///
    /// # Errors
    /// [`CounterMigrationError`]: nothing scales a generic timer.
    pub(super) fn restore(
        &mut self,
        vcpu: usize,
        saved: Saved,
        value: u64,
        host_count: u64,
        transfer: &Move,
    ) -> Result<u64, CounterMigrationError> {
        if transfer.method == ClockMethod::Value {
            let offset = host_count.wrapping_sub(value);
            self.write(vcpu, Counter::Virtual, offset);
            return Ok(0);
        }
        let side = |clock: &KvmClockData, khz: u32| CounterSide {
            count: clock.host_tsc,
            hz: khz.saturating_mul(1000),
        };
        let elapsed = transfer.destination.realtime_ns;
        let elapsed_ns = elapsed.saturating_sub(transfer.source.realtime_ns);
        let mut bound_ns = 0;
        for (counter, offset) in [
            (Counter::Virtual, saved.virtual_counter),
            (Counter::Physical, saved.physical_offset),
        ] {
            let moved = migrate(
                side(&transfer.source, transfer.source_khz),
                side(&transfer.destination, transfer.destination_khz),
                offset,
                elapsed_ns,
                transfer.frequency_error_ppb,
            )?;
            self.write(vcpu, counter, moved.offset);
            bound_ns = bound_ns.max(moved.bound_ns);
        }
        Ok(bound_ns.saturating_add(transfer.realtime_skew_ns))
    }
}

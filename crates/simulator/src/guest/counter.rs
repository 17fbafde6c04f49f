//! The physical counter of an arm64 guest.

use stealtime_hypervisor::counter::arm64::{guest_count, traps};

use super::Micro;
use crate::fault::Sim;
use crate::ids::VcpuNr;
use crate::machine::Machine;

/// `ESR_EL2` of a trapped `mrs x0, cntpct_el0`: class, a 32-bit instruction, Op0 3, Op2 1, Op1 3,
/// CRn 14, a read.
const ESR_READ: u64 = traps::EC_SYS64 << 26 | 1 << 25 | 3 << 20 | 1 << 17 | 3 << 14 | 14 << 10 | 1;

impl Machine<'_> {
    /// What an entry into this vCPU programs: whether its reads of the counter trap.
    fn counter_entry(&self, vcpu: VcpuNr) -> traps::Entry {
        let cpu = traps::Cpu {
            mode: self.cfg.knobs.kvm.arm_mode,
            ecv_cntpoff: self.cfg.host.profile.features.ecv_cntpoff,
            broken_cntvoff: false,
        };
        traps::on_entry(cpu, 0, self.physical_counter(vcpu).0)
    }

    /// The offset of this vCPU's physical counter, and the host's count now. A guest that was moved has
    /// both of its new host.
    fn physical_counter(&self, vcpu: VcpuNr) -> (u64, u64) {
        let v = &self.vcpus[vcpu];
        let vm = &self.vms[v.vm];
        let moved = vm.clock.as_ref();
        let moved = moved.and_then(|clock| clock.physical(v.index as usize, self.now));
        moved.unwrap_or_else(|| (vm.cfg.physical_counter_offset, self.tsc(self.now)))
    }

    /// A read takes `ns`, and the way to EL2 and back where it traps. No host code outside EL2
    /// knows of that, nor does a trace.
    pub(super) fn spell_out_counter(&mut self, vcpu: VcpuNr, ns: u64) {
        let trap = match self.counter_entry(vcpu).physical_counter_traps {
            true => u64::from(self.costs.counter_trap_ns),
            false => 0,
        };
        let g = &mut self.vcpus[vcpu].guest;
        g.push(Micro::Run {
            ns: ns + trap,
            kernel: true,
        });
        g.push(Micro::ReadCounter);
    }

    /// What the guest reads now.
    pub(super) fn read_guest_counter(&mut self, vcpu: VcpuNr) -> Sim<u64> {
        let (offset, host) = self.physical_counter(vcpu);
        if !self.counter_entry(vcpu).physical_counter_traps {
            return Ok(guest_count(host, offset));
        }
        self.stats.counter_traps += 1;
        match traps::serve_read(ESR_READ, false, host, 0, offset) {
            Some(read) => Ok(read.value),
            None => self.broken("a read of the counter was not served at EL2"),
        }
    }
}

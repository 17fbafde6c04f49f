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
        let offset = self.vms[self.vcpus[vcpu].vm].cfg.physical_counter_offset;
        traps::on_entry(cpu, 0, offset)
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
        let host = self.tsc(self.now);
        let offset = self.vms[self.vcpus[vcpu].vm].cfg.physical_counter_offset;
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

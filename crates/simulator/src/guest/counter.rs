//! The physical counter of an arm64 guest.

use stealtime_hypervisor::counter::arm64::{guest_count, traps};

use super::{Guests, Micro};
use crate::fault::Sim;
use crate::host::Host;
use crate::ids::VcpuNr;

/// `ESR_EL2` of a trapped `mrs x0, cntpct_el0`: class, a 32-bit instruction, Op0 3, Op2 1, Op1 3,
/// CRn 14, a read.
const ESR_READ: u64 = traps::EC_SYS64 << 26 | 1 << 25 | 3 << 20 | 1 << 17 | 3 << 14 | 14 << 10 | 1;

/// What an entry into this vCPU programs: whether its reads of the counter trap.
fn counter_entry(guests: &Guests, host: &Host<'_>, vcpu: VcpuNr) -> traps::Entry {
    let cpu = traps::Cpu {
        mode: host.cfg().knobs.kvm.arm_mode,
        ecv_cntpoff: host.cfg().host.profile.features.ecv_cntpoff,
        broken_cntvoff: false,
    };
    traps::on_entry(cpu, 0, physical_counter(guests, host, vcpu).0)
}

/// The offset of this vCPU's physical counter, and the host's count now. A guest that was moved has
/// both of its new host.
fn physical_counter(guests: &Guests, host: &Host<'_>, vcpu: VcpuNr) -> (u64, u64) {
    let v = &guests.cpus[vcpu];
    let vm = &guests.vms[v.vm];
    let moved = vm.clock.as_ref();
    let moved = moved.and_then(|clock| clock.physical(v.index as usize, host.now()));
    moved.unwrap_or_else(|| (vm.cfg.physical_counter_offset, host.costs().tsc(host.now())))
}

/// A read takes `ns`, and the way to EL2 and back where it traps. No host code outside EL2
/// knows of that, nor does a trace.
pub(super) fn spell_out_counter(guests: &mut Guests, host: &mut Host<'_>, vcpu: VcpuNr, ns: u64) {
    let trap = match counter_entry(guests, host, vcpu).physical_counter_traps {
        true => u64::from(host.costs().counter_trap_ns),
        false => 0,
    };
    let g = &mut guests.cpus[vcpu];
    g.push(Micro::Run {
        ns: ns + trap,
        kernel: true,
    });
    g.push(Micro::ReadCounter);
}

/// What the guest reads now.
pub(super) fn read_counter(guests: &mut Guests, host: &mut Host<'_>, vcpu: VcpuNr) -> Sim<u64> {
    let (offset, count) = physical_counter(guests, host, vcpu);
    if !counter_entry(guests, host, vcpu).physical_counter_traps {
        return Ok(guest_count(count, offset));
    }
    host.stats_mut().counter_traps += 1;
    match traps::serve_read(ESR_READ, false, count, 0, offset) {
        Some(read) => Ok(read.value),
        None => host.broken("a read of the counter was not served at EL2"),
    }
}

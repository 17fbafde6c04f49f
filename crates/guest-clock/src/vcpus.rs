//! Whether the vCPUs given are those of the VM, each once.
//!
//! One given twice leaves another with a TSC of its own; one left out, or one of another VM, keeps
//! the master clock off. KVM accepts each of the three.

use crate::device::{Vcpu, Vm};
use crate::error::WrongVcpus;

/// Checks as much as can be found out; what cannot is taken for right.
pub(crate) fn check<V: Vm, C: Vcpu>(vm: &V, vcpus: &[C]) -> Result<(), WrongVcpus> {
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    {
        let fds: Option<Vec<_>> = vcpus.iter().map(Vcpu::descriptor).collect();
        if fds.is_some_and(|fds| crate::kvm::are_all_of_the_process(&fds)) {
            return Ok(());
        }
    }
    // A few thousand at most: a map costs a VMM more text than comparisons cost time.
    let mut known: Vec<(u32, usize)> = Vec::with_capacity(vcpus.len());
    let mut expected = vm.identity();
    let mut unknown = false;
    for (vcpu, device) in vcpus.iter().enumerate() {
        let Some(identity) = device.identity() else {
            unknown = true;
            continue;
        };
        let id = identity.id;
        if *expected.get_or_insert(identity.vm) != identity.vm {
            return Err(WrongVcpus::AnotherVm { vcpu, id });
        }
        if let Some((_, first)) = known.iter().find(|(earlier, _)| *earlier == id) {
            return Err(WrongVcpus::Twice {
                first: *first,
                again: vcpu,
                id,
            });
        }
        known.push((id, vcpu));
    }
    // A vCPU without an identity may be the one that seems to be missing.
    let Some(identity) = expected.filter(|_| !unknown) else {
        return Ok(());
    };
    let ids: Vec<u32> = known.into_iter().map(|(id, _)| id).collect();
    match vm.another_vcpu(identity, &ids) {
        Some(id) => Err(WrongVcpus::LeftOut {
            id,
            given: vcpus.len(),
        }),
        None => Ok(()),
    }
}

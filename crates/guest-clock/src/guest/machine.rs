//! What guests of both architectures share: a VM around their memory, and `KVM_RUN` until the program
//! stops.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::{VcpuExit, VcpuFd, VmFd};

use super::error::GuestError;
use super::memory::Memory;
use crate::error::Errno;
use crate::save::of;

pub(super) fn errno(error: kvm_ioctls::Error) -> Errno {
    Errno(error.errno())
}

/// A VM with this memory at `base`, and `count` vCPUs.
pub(super) fn create(
    memory: &Memory,
    base: u64,
    count: usize,
    limit: usize,
    vcpu: fn(&VmFd, usize) -> Result<VcpuFd, GuestError>,
) -> Result<(VmFd, Vec<VcpuFd>), GuestError> {
    if !(1..=limit).contains(&count) {
        return Err(GuestError::Vcpus {
            given: count,
            most: limit,
        });
    }
    let vm = crate::kvm::open()?.create_vm();
    let vm = vm.map_err(|e| of("KVM_CREATE_VM", None)(errno(e)))?;
    let region = kvm_userspace_memory_region {
        slot: 0,
        flags: 0,
        guest_phys_addr: base,
        memory_size: memory.len() as u64,
        userspace_addr: memory.address(),
    };
    // SAFETY: the region is `memory`'s own mapping, which lives as long as the VM (field order in `Guest`)
    // and is accessed atomically only. Needed: so says `kvm-ioctls`.
    let set = unsafe { vm.set_user_memory_region(region) };
    set.map_err(|e| of("KVM_SET_USER_MEMORY_REGION", None)(errno(e)))?;
    let vcpus: Result<Vec<VcpuFd>, GuestError> = (0..count).map(|index| vcpu(&vm, index)).collect();
    Ok((vm, vcpus?))
}

/// Time after which a vCPU that is still interrupted counts as stuck.
const STUCK: Duration = Duration::from_secs(60);

/// Runs a vCPU until its program stops.
/// `on_exit` has nothing for exits that are not of the program.
pub(super) fn run(
    index: usize,
    vcpu: &mut VcpuFd,
    mut on_exit: impl FnMut(&mut VcpuExit<'_>) -> Option<ControlFlow<()>>,
) -> Result<(), GuestError> {
    let deadline = Instant::now() + STUCK;
    let unexpected = |exit| GuestError::Exit { vcpu: index, exit };
    loop {
        match vcpu.run() {
            // A signal, or nothing that concerns the program.
            Ok(VcpuExit::Intr) => {}
            Err(error) if [libc::EINTR, libc::EAGAIN].contains(&error.errno()) => {}
            Err(error) => return Err(of("KVM_RUN", Some(index))(errno(error)).into()),
            Ok(mut exit) => match on_exit(&mut exit) {
                Some(ControlFlow::Break(())) => return Ok(()),
                Some(ControlFlow::Continue(())) => {}
                None => return Err(unexpected(format!("{exit:?}"))),
            },
        }
        if Instant::now() > deadline {
            return Err(unexpected("interrupted for a minute".to_owned()));
        }
    }
}

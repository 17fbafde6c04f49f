//! Which VM a vCPU belongs to. KVM has no call for it.
//!
//! Every vCPU of a VM maps the VM's one page for coalesced MMIO (`struct
//! kvm_coalesced_mmio_ring`). Its 170 entries of 24 bytes after 8 of indices leave 8 bytes that
//! belong to none. A number there, written once, names the VM.

use std::fs;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use super::host;
use crate::device::VcpuIdentity;

/// `PAGE_SIZE` of every x86.
const PAGE: usize = 4096;
/// `KVM_COALESCED_MMIO_PAGE_OFFSET`: which of the pages that a vCPU maps.
const RING: usize = kvm_bindings::KVM_COALESCED_MMIO_PAGE_OFFSET as usize;

/// A vCPU's mapping of its VM's page.
struct Ring(*mut libc::c_void);

impl Ring {
    /// `None` where the kernel refuses the mapping.
    fn map(vcpu: BorrowedFd<'_>) -> Option<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let offset = (RING * PAGE) as libc::off_t;
        // SAFETY: a new mapping, at an address of the kernel's choice, aliases nothing of ours.
        // Needed: there is no safe one.
        let mapped = unsafe {
            let fd = vcpu.as_raw_fd();
            libc::mmap(
                std::ptr::null_mut(),
                PAGE,
                access,
                libc::MAP_SHARED,
                fd,
                offset,
            )
        };
        (mapped != libc::MAP_FAILED).then_some(Self(mapped))
    }

    /// The 8 bytes that no entry has.
    fn spare(&self) -> &AtomicU64 {
        // SAFETY: the last 8 bytes of a page of the caller's vCPU, aligned to 8 and mapped for as
        // long as `self` lives. The kernel never touches them; other mappings of them are atomics
        // like this one. Needed: memory that is shared with the kernel is a pointer.
        unsafe { AtomicU64::from_ptr(self.0.cast::<u64>().add(PAGE / 8 - 1)) }
    }

    /// The VM's number, given now if it has none.
    fn vm(&self) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let known = self.spare().load(Ordering::Relaxed);
        if let Some(known) = NonZeroU64::new(known) {
            return known.get();
        }
        let new = NEXT.fetch_add(1, Ordering::Relaxed);
        let number = self.spare();
        match number.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => new,
            Err(known) => known,
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, with this length, and no borrow is left. Needed: there
        // is no safe one.
        unsafe { libc::munmap(self.0, PAGE) };
    }
}

/// The id in the name that KVM gives a vCPU's file; `None` for anything else, and before Linux 4.16.
fn id(fd: RawFd) -> Option<u32> {
    let name = fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
    let id = name.to_str()?.strip_prefix("anon_inode:kvm-vcpu:")?;
    id.parse().ok()
}

/// Which vCPU a descriptor is of.
pub(super) fn of(vcpu: BorrowedFd<'_>) -> Option<VcpuIdentity> {
    // By its name first: another file's third page is not ours to write to.
    let id = id(vcpu.as_raw_fd())?;
    let vm = Ring::map(vcpu)?.vm();
    Some(VcpuIdentity { vm, id })
}

fn descriptors() -> Option<Vec<RawFd>> {
    let entries = fs::read_dir("/proc/self/fd").ok()?;
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    // Read as a whole, before any are made.
    Some(numbers.collect())
}

/// Whether these are all of the vCPUs that this process has, each once: then they cannot be of
/// another VM. The common case, and some 50 us a vCPU quicker than [`of`] on some hosts.
pub(crate) fn are_all_of_the_process(vcpus: &[RawFd]) -> bool {
    let mut listed: Vec<u32> = vcpus.iter().map(|fd| fd.cast_unsigned()).collect();
    listed.sort_unstable();
    let Some(open) = descriptors() else {
        return false;
    };
    let mut ids: Vec<u32> = Vec::with_capacity(vcpus.len());
    for fd in open {
        let is_listed = listed.binary_search(&fd.cast_unsigned()).is_ok();
        match id(fd) {
            Some(id) if is_listed => ids.push(id),
            Some(_) if host().is_ok_and(|host| host.is_own_vcpu(fd)) => {}
            None if !is_listed => {}
            _ => return false,
        }
    }
    // An id twice is a copy, or a vCPU of another VM.
    ids.sort_unstable();
    let has_each_once = ids.windows(2).all(|pair| pair.first() != pair.last());
    has_each_once && ids.len() == vcpus.len()
}

/// The id of a vCPU of this process that belongs to the VM of this number and is none of `ids`.
pub(super) fn another_of(vm: u64, ids: &[u32]) -> Option<u32> {
    let open = descriptors().unwrap_or_default();
    // Most VMs number their vCPUs alike: what is mapped are few.
    let candidates = open
        .into_iter()
        .filter(|fd| id(*fd).is_some_and(|id| !ids.contains(&id)));
    let mut candidates = candidates.filter_map(|fd| {
        // Another thread may close the number and open something else: what is looked at is a
        // copy, which stays what it is.
        //
        // SAFETY: not -1, and only copied; a number that was closed meanwhile fails. Needed: the
        // descriptor is another owner's.
        let copy = unsafe { BorrowedFd::borrow_raw(fd) }
            .try_clone_to_owned()
            .ok()?;
        of(copy.as_fd())
    });
    Some(
        candidates
            .find(|identity| identity.vm == vm && !ids.contains(&identity.id))?
            .id,
    )
}

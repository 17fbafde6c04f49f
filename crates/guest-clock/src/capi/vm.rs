//! `struct guest_clock_vm`: a VM of the caller's, its vCPUs, and the way to their threads.

use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::structures::{of_vcpus, read};
use super::{Failure, argument};
use crate::device::Stopping;
use crate::error::Errno;

/// What a vCPU's thread has to call, with its argument.
pub type Work = unsafe extern "C" fn(argument: *mut c_void);

/// Calls `work(argument)` in the thread of the vCPU at this position, and returns when it has returned.
pub type OnVcpu =
    unsafe extern "C" fn(context: *mut c_void, vcpu: usize, work: Work, argument: *mut c_void);

/// `struct guest_clock_vm`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CVm {
    /// Bytes of the caller's structure.
    pub size: usize,
    /// Descriptors of all its vCPUs.
    pub vcpus: *const c_int,
    /// How many.
    pub count: usize,
    /// The VM's descriptor.
    pub vm: c_int,
    /// How long vCPUs that leave `KVM_RUN` are waited for, in ms; 0: all are stopped.
    pub patience_ms: u32,
    /// Null, or the way to the threads of the vCPUs: then these make the ioctls.
    pub on_vcpu: Option<OnVcpu>,
    /// Handed to `on_vcpu`.
    pub context: *mut c_void,
}

/// A [`CVm`] with its descriptors borrowed.
pub(super) struct Machine<'a> {
    pub(super) vm: BorrowedFd<'a>,
    pub(super) vcpus: Vec<BorrowedFd<'a>>,
    pub(super) stopping: Stopping,
    pub(super) threads: Threads,
}

impl Machine<'_> {
    /// Reads the caller's structure.
    ///
    /// # Safety
    /// `vm` is null or points to a `size_t` and to as many readable bytes as that says. Its `vcpus` points to
    /// `count` descriptors that stay open for the life of the result, and so does the VM's.
    pub(super) unsafe fn read(vm: *const CVm) -> Result<Self, Failure> {
        // SAFETY: the caller vouches for the structure.
        let caller = unsafe { read("vm", vm)? };
        // SAFETY: the caller vouches for the array.
        let fds = unsafe { of_vcpus(caller.vcpus, caller.count) };
        let Some(fds) = fds.filter(|_| caller.vm >= 0) else {
            return Err(argument(
                "give the VM's descriptor and those of 1 to 4096 vCPUs",
            ));
        };
        if fds.iter().any(|fd| *fd < 0) {
            return Err(argument("a vCPU's descriptor is negative"));
        }
        if caller.on_vcpu.is_some() && caller.patience_ms != 0 {
            return Err(argument(
                "patience_ms and on_vcpu: the program itself waits for its threads, pass a patience_ms of 0",
            ));
        }
        // SAFETY: not -1, and the caller vouches that they stay open. Needed: C has no borrows.
        let (vm, vcpus) = unsafe {
            let vcpus = fds.iter().map(|fd| BorrowedFd::borrow_raw(*fd));
            (BorrowedFd::borrow_raw(caller.vm), vcpus.collect())
        };
        let stopping = match caller.patience_ms {
            0 => Stopping::Done,
            ms => Stopping::Within(Duration::from_millis(ms.into())),
        };
        let threads = Threads {
            on_vcpu: caller.on_vcpu,
            context: caller.context,
        };
        Ok(Self {
            vm,
            vcpus,
            stopping,
            threads,
        })
    }
}

/// The way to the threads of the vCPUs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Threads {
    on_vcpu: Option<OnVcpu>,
    context: *mut c_void,
}

impl Threads {
    /// Whether the vCPUs' own threads make the ioctls.
    #[cfg(target_arch = "x86_64")]
    pub(super) const fn make_calls(self) -> bool {
        self.on_vcpu.is_some()
    }

    /// Acts in the thread of a vCPU, or directly. `ESRCH`: the program did not call the work.
    pub(super) fn call<T>(
        self,
        vcpu: usize,
        act: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let Some(on_vcpu) = self.on_vcpu else {
            return act();
        };
        let mut outcome = Err(Errno(libc::ESRCH));
        let mut act = Some(act);
        let mut once = || {
            if let Some(act) = act.take() {
                outcome = act();
            }
        };
        let mut work: &mut dyn FnMut() = &mut once;
        let argument = std::ptr::from_mut(&mut work).cast();
        // SAFETY: `argument` is a `&mut dyn FnMut()` that lives over the call. By the header the program
        // calls the work at most until it returns. Needed: C's functions are pointers.
        unsafe { on_vcpu(self.context, vcpu, make, argument) };
        outcome
    }
}

/// Calls the `&mut dyn FnMut()` that `argument` points to.
unsafe extern "C" fn make(argument: *mut c_void) {
    // SAFETY: `Threads::call` has made the pointer, of this type, and waits. Needed: C's work has a pointer
    // as argument.
    let work = unsafe { &mut *argument.cast::<&mut dyn FnMut()>() };
    work();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program with a thread for each call, and one that forgets the work.
    unsafe extern "C" fn in_a_thread(
        context: *mut c_void,
        vcpu: usize,
        work: Work,
        argument: *mut c_void,
    ) {
        let (calls, argument) = (context.expose_provenance(), argument.expose_provenance());
        // SAFETY: the test's counter lives over the calls, and one thread at a time adds to it.
        unsafe { *std::ptr::with_exposed_provenance_mut::<usize>(calls) += 1 + vcpu };
        let thread = std::thread::spawn(move || {
            // SAFETY: the argument is valid until this function returns, which waits for the thread.
            unsafe { work(std::ptr::with_exposed_provenance_mut(argument)) };
        });
        thread.join().expect("no panic");
    }
    unsafe extern "C" fn forgetful(_: *mut c_void, _: usize, _: Work, _: *mut c_void) {}

    #[test]
    fn calls_are_made_in_the_programs_thread_and_a_forgotten_one_is_an_error() {
        let mut calls = 0usize;
        let context = std::ptr::from_mut(&mut calls).cast();
        let thread = || Ok(std::thread::current().id());
        let threads = |on_vcpu| Threads { on_vcpu, context };
        let this = thread().expect("an id");
        assert_eq!(threads(None).call(3, thread), Ok(this));
        let other = threads(Some(in_a_thread)).call(3, thread);
        assert!(other.is_ok() && other != Ok(this), "{other:?}");
        let failed = threads(Some(in_a_thread)).call::<()>(3, || Err(Errno(5)));
        assert_eq!(failed, Err(Errno(5)));
        let gone = threads(Some(forgetful)).call(3, thread);
        assert_eq!(gone, Err(Errno(libc::ESRCH)));
        assert_eq!(calls, 8);
    }
}

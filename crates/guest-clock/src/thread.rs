//! vCPUs with descriptors that belong to threads of the VMM.
//!
//! In many VMMs a vCPU's descriptor never leaves the thread that runs it. Such a thread keeps a
//! [`VcpuThread`]. The thread that saves or restores has its [`ThreadVcpu`], a [`Vcpu`] with calls that
//! run in the vCPU's thread.
//!
//! ```
//! use guest_clock::{GuestClocks, fake::FakeHost, vcpu_of_thread};
//!
//! let (vm, vcpus) = FakeHost::new(2_500_000).vm(4);
//! let mut handles = Vec::new();
//! let mut threads = Vec::new();
//! for vcpu in vcpus {
//!     let (handle, calls) = vcpu_of_thread();
//!     handles.push(handle);
//!     threads.push(std::thread::spawn(move || {
//!         // Out of KVM_RUN, because the VMM has sent a message for it.
//!         calls.serve(&vcpu);
//!         // The handle is dropped: on to KVM_RUN.
//!     }));
//! }
//! let saved = GuestClocks::save(&vm, &handles)?;
//! assert_eq!(saved.vcpus(), 4);
//! drop(handles);
//! for thread in threads {
//!     thread.join().unwrap();
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::os::fd::RawFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Instant;

use crate::device::{MsrValue, NoAnswer, Stopping, Vcpu, VcpuIdentity};
use crate::error::Errno;

type Call = Box<dyn FnOnce(&dyn Vcpu) + Send>;

/// The vCPU of another thread. A call waits for that thread; it fails with `ESRCH` where the thread's
/// [`VcpuThread`] is gone.
#[derive(Debug)]
pub struct ThreadVcpu {
    calls: Sender<Call>,
}

/// The vCPU's thread's side.
pub struct VcpuThread {
    calls: Receiver<Call>,
}

impl std::fmt::Debug for VcpuThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VcpuThread").finish_non_exhaustive()
    }
}

/// Both sides of a vCPU: the handle for the thread that saves and restores, and the calls for the vCPU's own.
#[must_use]
pub fn vcpu_of_thread() -> (ThreadVcpu, VcpuThread) {
    let (sender, receiver) = channel();
    (ThreadVcpu { calls: sender }, VcpuThread { calls: receiver })
}

impl VcpuThread {
    /// Makes the calls for this vCPU until its handle is dropped.
    pub fn serve(&self, vcpu: &dyn Vcpu) {
        while let Ok(call) = self.calls.recv() {
            call(vcpu);
        }
    }
}

/// Fails where the thread is gone.
const GONE: Errno = Errno(libc::ESRCH);

impl ThreadVcpu {
    /// Sends a call; its result comes through the receiver.
    fn send<T: Send + 'static>(
        &self,
        act: impl FnOnce(&dyn Vcpu) -> T + Send + 'static,
    ) -> Result<Receiver<T>, Errno> {
        let (sender, receiver) = channel();
        let call = move |vcpu: &dyn Vcpu| {
            // A caller that no longer waits has no use for the result.
            let _ = sender.send(act(vcpu));
        };
        self.calls.send(Box::new(call)).map_err(|_| GONE)?;
        Ok(receiver)
    }

    fn call<T: Send + 'static>(
        &self,
        act: impl FnOnce(&dyn Vcpu) -> Result<T, Errno> + Send + 'static,
    ) -> Result<T, Errno> {
        self.send(act)?.recv().map_err(|_| GONE)?
    }
}

impl Vcpu for ThreadVcpu {
    fn tsc_offset(&self) -> Result<u64, Errno> {
        self.call(|vcpu| vcpu.tsc_offset())
    }

    fn set_tsc_offset(&self, offset: u64) -> Result<(), Errno> {
        self.call(move |vcpu| vcpu.set_tsc_offset(offset))
    }

    fn tsc_khz(&self) -> Result<u32, Errno> {
        self.call(|vcpu| vcpu.tsc_khz())
    }

    fn set_tsc_khz(&self, khz: u32) -> Result<(), Errno> {
        self.call(move |vcpu| vcpu.set_tsc_khz(khz))
    }

    fn msr(&self, index: u32) -> Result<Option<u64>, Errno> {
        self.call(move |vcpu| vcpu.msr(index))
    }

    fn two_msrs(&self, indices: [u32; 2]) -> Result<[Option<u64>; 2], Errno> {
        self.call(move |vcpu| vcpu.two_msrs(indices))
    }

    fn set_msr(&self, index: u32, value: u64) -> Result<bool, Errno> {
        self.call(move |vcpu| vcpu.set_msr(index, value))
    }

    fn set_two_msrs(&self, registers: [MsrValue; 2]) -> Result<usize, Errno> {
        self.call(move |vcpu| vcpu.set_two_msrs(registers))
    }

    fn kvmclock_ctrl(&self) -> Result<(), Errno> {
        self.call(|vcpu| vcpu.kvmclock_ctrl())
    }

    fn descriptor(&self) -> Option<RawFd> {
        self.call(|vcpu| Ok(vcpu.descriptor())).ok()?
    }

    fn identity(&self) -> Option<VcpuIdentity> {
        self.call(|vcpu| Ok(vcpu.identity())).ok()?
    }

    /// All threads are asked at once. One that does not serve in time is busy.
    fn frequencies(vcpus: &[Self], stopping: Stopping) -> Result<Vec<u32>, NoAnswer> {
        let start = Instant::now();
        let failed = |vcpu, errno| NoAnswer::Failed { vcpu, errno };
        let sent = vcpus.iter().enumerate().map(|(vcpu, handle)| {
            let answer = handle.send(|vcpu| vcpu.tsc_khz());
            answer.map_err(|errno| failed(vcpu, errno))
        });
        let answers: Vec<_> = sent.collect::<Result<_, _>>()?;
        let wait = |(vcpu, answer): (usize, &Receiver<Result<u32, Errno>>)| {
            let khz = match stopping {
                Stopping::Done => answer.recv().map_err(|_| failed(vcpu, GONE))?,
                Stopping::Within(time) => {
                    let remaining = time.saturating_sub(start.elapsed());
                    answer
                        .recv_timeout(remaining)
                        .map_err(|error| match error {
                            RecvTimeoutError::Timeout => NoAnswer::Busy { vcpu },
                            RecvTimeoutError::Disconnected => failed(vcpu, GONE),
                        })?
                }
            };
            khz.map_err(|errno| failed(vcpu, errno))
        };
        answers.iter().enumerate().map(wait).collect()
    }
}

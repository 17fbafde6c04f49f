//! Small guests of our own on `/dev/kvm`, to see what a guest sees.

mod memory;
pub mod program;
mod readers;
mod registers;

use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, Instant};

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::{VcpuExit, VcpuFd, VmFd};

use crate::device::{MSR_KVM_SYSTEM_TIME_NEW, Vcpu};
use crate::error::{Errno, HostError, IoctlError};
use crate::kvm::rdtsc;
use crate::save::of;
use program::{
    BLOCK_BYTES, BLOCKS, Block, CODE, COUNTER_PORT, DONE_PORT, LATEST_CLOCK, LATEST_TSC,
    MEMORY_BYTES, MOST_VCPUS, PAGE_BYTES, PAGES,
};

pub use memory::Memory;
pub use readers::Reader;
pub use registers::Registers;

/// A guest could not be made or run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GuestError {
    /// The host.
    #[error(transparent)]
    Host(#[from] HostError),
    /// An ioctl.
    #[error("a guest of our own: {0}")]
    Ioctl(#[from] IoctlError),
    /// Too many or too few vCPUs.
    #[error("{given} vCPUs: a guest of our own has from 1 to {most}")]
    Vcpus {
        /// Asked for.
        given: usize,
        /// The most.
        most: usize,
    },
    /// A vCPU left its program.
    #[error("vCPU {vcpu} left its program: {exit} (does this KVM run real-mode code?)")]
    Exit {
        /// Its position.
        vcpu: usize,
        /// How.
        exit: String,
    },
    /// A vCPU's thread was not started.
    #[error("no thread for vCPU {vcpu}: {errno}; raise the limit of threads (pids)")]
    NoThread {
        /// Its position.
        vcpu: usize,
        /// What the kernel said.
        errno: Errno,
    },
    /// A vCPU's thread panicked.
    #[error("the thread of vCPU {vcpu} panicked")]
    Thread {
        /// Its position.
        vcpu: usize,
    },
}

/// What the guest saw, over all its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Seen {
    /// Rounds of all vCPUs, each a reading of both clocks.
    pub rounds: u64,
    /// Largest step back of the TSC, within or between vCPUs, in cycles.
    pub tsc_back: u64,
    /// Largest step back of the kvmclock, in ns.
    pub clock_back_ns: u64,
    /// Rounds in which the kvmclock was not marked stable.
    pub unstable: u64,
    /// Latest TSC.
    pub latest_tsc: u64,
    /// Latest kvmclock, in ns.
    pub latest_clock_ns: u64,
}

/// A VM with the program of [`program`] in its memory.
#[derive(Debug)]
pub struct Guest {
    /// The VM.
    pub vm: VmFd,
    /// Its vCPUs.
    pub vcpus: Vec<VcpuFd>,
    // After the VM: memory outlives what maps it.
    memory: Arc<Memory>,
}

fn errno(error: kvm_ioctls::Error) -> Errno {
    Errno(error.errno())
}

impl Guest {
    /// A new guest.
    ///
    /// # Errors
    /// [`GuestError`].
    pub fn new(vcpus: usize) -> Result<Self, GuestError> {
        let memory = Memory::new(MEMORY_BYTES).map_err(of("mmap", None))?;
        memory.copy_in(CODE, program::code());
        Self::with_memory(Arc::new(memory), vcpus)
    }

    /// A guest with one vCPU that only reads a counter, to be timed.
    ///
    /// # Errors
    /// [`GuestError`].
    pub fn reading(reader: Reader) -> Result<Self, GuestError> {
        let memory = Memory::new(MEMORY_BYTES).map_err(of("mmap", None))?;
        memory.copy_in(CODE, reader.code());
        Self::with_memory(Arc::new(memory), 1)
    }

    /// A guest that begins where another ended: its latest TSC and kvmclock (ns) count as seen.
    ///
    /// # Errors
    /// [`GuestError`].
    pub fn after(vcpus: usize, latest_tsc: u64, latest_clock_ns: u64) -> Result<Self, GuestError> {
        let guest = Self::new(vcpus)?;
        guest.memory.write(LATEST_TSC, latest_tsc);
        guest.memory.write(LATEST_CLOCK, latest_clock_ns);
        Ok(guest)
    }

    /// A new VM for a guest whose memory is there: what a restore begins with. Registers are at
    /// the program's beginning, clocks as KVM makes them.
    ///
    /// # Errors
    /// [`GuestError`].
    pub fn with_memory(memory: Arc<Memory>, vcpus: usize) -> Result<Self, GuestError> {
        if !(1..=MOST_VCPUS).contains(&vcpus) {
            return Err(GuestError::Vcpus {
                given: vcpus,
                most: MOST_VCPUS,
            });
        }
        let kvm = crate::kvm::open()?;
        let vm = kvm.create_vm();
        let vm = vm.map_err(|e| of("KVM_CREATE_VM", None)(errno(e)))?;
        let region = kvm_userspace_memory_region {
            slot: 0,
            flags: 0,
            guest_phys_addr: 0,
            memory_size: memory.len() as u64,
            userspace_addr: memory.address(),
        };
        // SAFETY: the region is `memory`'s own mapping, which lives as long as the VM (field
        // order in `Guest`) and is accessed atomically only. Needed: so says `kvm-ioctls`.
        let set = unsafe { vm.set_user_memory_region(region) };
        set.map_err(|e| of("KVM_SET_USER_MEMORY_REGION", None)(errno(e)))?;
        let fds: Result<Vec<VcpuFd>, GuestError> = (0..vcpus).map(|at| vcpu(&vm, at)).collect();
        Ok(Self {
            vm,
            vcpus: fds?,
            memory,
        })
    }

    /// The memory, for the next VM.
    #[must_use]
    pub fn memory(&self) -> Arc<Memory> {
        Arc::clone(&self.memory)
    }

    /// Runs all vCPUs at once, for this many rounds each; returns when all have stopped.
    ///
    /// # Errors
    /// [`GuestError`].
    pub fn run(&mut self, rounds: u32) -> Result<(), GuestError> {
        for at in 0..self.vcpus.len() as u64 {
            self.memory
                .write(field(at, Block::Rounds), u64::from(rounds));
        }
        // One vCPU needs no thread of its own.
        if let [vcpu] = self.vcpus.as_mut_slice() {
            return run_one(0, vcpu);
        }
        std::thread::scope(|scope| {
            let started = (0..).zip(&mut self.vcpus).map(|(at, vcpu)| {
                let thread = Builder::new().spawn_scoped(scope, move || run_one(at, vcpu));
                Ok((at, thread.map_err(|error| no_thread(at, &error))?))
            });
            // Those that were started run to their end before an error leaves this scope.
            let threads: Result<Vec<_>, GuestError> = started.collect();
            for (vcpu, thread) in threads? {
                thread.join().map_err(|_| GuestError::Thread { vcpu })??;
            }
            Ok(())
        })
    }

    /// Runs all vCPUs for this long, over and over; each stops where it next leaves its program
    /// for the VMM, and its [registers](Guest::registers) say where that is.
    ///
    /// # Errors
    /// [`GuestError`].
    pub fn run_for(&mut self, time: Duration) -> Result<(), GuestError> {
        const BETWEEN_LOOKS: u32 = 8;
        for at in 0..self.vcpus.len() as u64 {
            let rounds = u64::from(BETWEEN_LOOKS);
            self.memory.write(field(at, Block::Rounds), rounds);
        }
        let until = Instant::now() + time;
        std::thread::scope(|scope| {
            let started = (0..).zip(&mut self.vcpus).map(|(at, vcpu)| {
                let thread = Builder::new().spawn_scoped(scope, move || run_until(at, vcpu, until));
                Ok((at, thread.map_err(|error| no_thread(at, &error))?))
            });
            let threads: Result<Vec<_>, GuestError> = started.collect();
            for (vcpu, thread) in threads? {
                thread.join().map_err(|_| GuestError::Thread { vcpu })??;
            }
            Ok(())
        })
    }

    /// Where each vCPU is in its program.
    ///
    /// # Errors
    /// [`GuestError::Ioctl`].
    pub fn registers(&self) -> Result<Vec<Registers>, GuestError> {
        let read = |(at, vcpu): (usize, &VcpuFd)| {
            let regs = vcpu.get_regs();
            let regs = regs.map_err(|e| of("KVM_GET_REGS", Some(at))(errno(e)))?;
            Ok(Registers::from(regs))
        };
        self.vcpus.iter().enumerate().map(read).collect()
    }

    /// Sets each vCPU to where it was.
    ///
    /// # Errors
    /// [`GuestError`]; [`GuestError::Vcpus`] for another number of them.
    pub fn set_registers(&self, registers: &[Registers]) -> Result<(), GuestError> {
        if registers.len() != self.vcpus.len() {
            return Err(GuestError::Vcpus {
                given: registers.len(),
                most: self.vcpus.len(),
            });
        }
        for (at, (vcpu, registers)) in self.vcpus.iter().zip(registers).enumerate() {
            let set = vcpu.set_regs(&registers.into());
            set.map_err(|e| of("KVM_SET_REGS", Some(at))(errno(e)))?;
        }
        Ok(())
    }

    /// What the guest saw so far.
    #[must_use]
    pub fn seen(&self) -> Seen {
        let mut seen = Seen {
            latest_tsc: self.memory.read(LATEST_TSC),
            latest_clock_ns: self.memory.read(LATEST_CLOCK),
            ..Seen::default()
        };
        for at in 0..self.vcpus.len() as u64 {
            let read = |what| self.memory.read(field(at, what));
            seen.rounds += read(Block::Done);
            seen.tsc_back = seen.tsc_back.max(read(Block::TscBack));
            seen.clock_back_ns = seen.clock_back_ns.max(read(Block::ClockBack));
            seen.unstable += read(Block::Unstable);
        }
        seen
    }

    /// What one vCPU read last: TSC and kvmclock in ns.
    #[must_use]
    pub fn last(&self, vcpu: usize) -> (u64, u64) {
        let read = |what| self.memory.read(field(vcpu as u64, what));
        (read(Block::LastTsc), read(Block::LastClock))
    }

    /// Forgets what was seen, but not the latest readings.
    pub fn forget(&self) {
        for at in 0..self.vcpus.len() as u64 {
            for what in [
                Block::Done,
                Block::TscBack,
                Block::ClockBack,
                Block::Unstable,
            ] {
                self.memory.write(field(at, what), 0);
            }
        }
    }
}

fn no_thread(vcpu: usize, error: &std::io::Error) -> GuestError {
    let errno = Errno(error.raw_os_error().unwrap_or(libc::EAGAIN));
    GuestError::NoThread { vcpu, errno }
}

fn field(vcpu: u64, what: Block) -> u64 {
    BLOCKS + vcpu * BLOCK_BYTES + what as u64
}

/// A vCPU at the program's beginning, with its kvmclock enabled.
fn vcpu(vm: &VmFd, at: usize) -> Result<VcpuFd, GuestError> {
    let named = |call| move |e| of(call, Some(at))(errno(e));
    let fd = vm
        .create_vcpu(at as u64)
        .map_err(named("KVM_CREATE_VCPU"))?;
    let mut sregs = fd.get_sregs().map_err(named("KVM_GET_SREGS"))?;
    for segment in [&mut sregs.cs, &mut sregs.ds, &mut sregs.es, &mut sregs.ss] {
        segment.base = 0;
        segment.selector = 0;
    }
    fd.set_sregs(&sregs).map_err(named("KVM_SET_SREGS"))?;
    let mut regs = fd.get_regs().map_err(named("KVM_GET_REGS"))?;
    regs.rip = CODE;
    regs.rflags = 2;
    regs.rdi = BLOCKS + at as u64 * BLOCK_BYTES;
    regs.rsi = PAGES + at as u64 * PAGE_BYTES;
    fd.set_regs(&regs).map_err(named("KVM_SET_REGS"))?;
    let page = regs.rsi | 1;
    fd.set_msr(MSR_KVM_SYSTEM_TIME_NEW, page)
        .map_err(of("KVM_SET_MSRS(SYSTEM_TIME_NEW)", Some(at)))?;
    Ok(fd)
}

/// Runs to the end of the rounds again and again, and leaves nothing half done: KVM finishes an
/// `OUT` at the next entry, and only then are the registers behind it.
fn run_until(at: usize, vcpu: &mut VcpuFd, until: Instant) -> Result<(), GuestError> {
    while Instant::now() < until {
        run_one(at, vcpu)?;
    }
    vcpu.set_kvm_immediate_exit(1);
    let finished = vcpu.run().map(|exit| format!("{exit:?}"));
    vcpu.set_kvm_immediate_exit(0);
    match finished {
        Err(error) if error.errno() == libc::EINTR => Ok(()),
        Err(error) => Err(of("KVM_RUN", Some(at))(errno(error)).into()),
        Ok(exit) => Err(GuestError::Exit { vcpu: at, exit }),
    }
}

/// A vCPU that does not come back within this is stuck, not slow.
const STUCK: Duration = Duration::from_secs(60);

fn run_one(at: usize, vcpu: &mut VcpuFd) -> Result<(), GuestError> {
    let until = Instant::now() + STUCK;
    loop {
        match vcpu.run() {
            Ok(VcpuExit::IoOut(DONE_PORT, _)) => return Ok(()),
            Ok(VcpuExit::IoIn(COUNTER_PORT, data)) => {
                for (to, from) in data.iter_mut().zip(rdtsc().to_le_bytes()) {
                    *to = from;
                }
            }
            // A signal, or nothing that concerns the program.
            Ok(VcpuExit::Intr) => {}
            Err(error) if [libc::EINTR, libc::EAGAIN].contains(&error.errno()) => {}
            Ok(other) => {
                return Err(GuestError::Exit {
                    vcpu: at,
                    exit: format!("{other:?}"),
                });
            }
            Err(error) => return Err(of("KVM_RUN", Some(at))(errno(error)).into()),
        }
        if Instant::now() > until {
            return Err(GuestError::Exit {
                vcpu: at,
                exit: "interrupted for a minute".to_owned(),
            });
        }
    }
}

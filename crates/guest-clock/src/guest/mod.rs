//! Small guests of our own on `/dev/kvm`, to see what a guest sees.
//!
//! ```no_run
//! # #[cfg(target_arch = "x86_64")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use guest_clock::guest::{Guest, program};
//!
//! // Two vCPUs read both clocks 1000 times each, and look for steps back.
//! let mut guest = Guest::new(2)?;
//! guest.run(1000)?;
//! assert_eq!(guest.seen().tsc_back, 0);
//! assert!(guest.memory().read(program::LATEST_TSC) > 0);
//! # Ok(())
//! # }
//! # #[cfg(not(target_arch = "x86_64"))]
//! # fn main() {}
//! ```

mod error;
mod machine;
mod memory;
pub mod program;
mod readers;
mod registers;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, Instant};

use kvm_ioctls::{VcpuExit, VcpuFd, VmFd};

use crate::device::{MSR_KVM_SYSTEM_TIME_NEW, Vcpu};
use crate::error::Errno;
use crate::fake::GuestReading;
use crate::kvm::rdtsc;
use crate::save::of;
use machine::errno;
use program::{
    BLOCK_BYTES, BLOCKS, Block, CODE, COUNTER_PORT, DONE_PORT, LATEST_CLOCK, LATEST_TSC,
    MEMORY_BYTES, MOST_VCPUS, PAGE_BYTES, PAGES,
};

pub use error::GuestError;
pub use memory::Memory;
pub use readers::Reader;
pub use registers::Registers;

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

    /// Cycles of `times` single readings by a guest of one vCPU. `reader` times each.
    ///
    /// # Errors
    /// [`GuestError`].
    #[cfg(feature = "bench")]
    pub(crate) fn each(reader: Reader, times: usize) -> Result<Vec<u64>, GuestError> {
        // What fits between the first block and the pages.
        const AT_ONCE: u32 = 2_000;
        let mut guest = Self::reading(reader)?;
        let mut cycles = Vec::with_capacity(times);
        while cycles.len() < times {
            guest.run(AT_ONCE)?;
            let pairs =
                (0..u64::from(AT_ONCE) / 2).map(|n| guest.memory.read(program::EACH + 8 * n));
            cycles.extend(pairs.flat_map(|pair| [pair & 0xffff_ffff, pair >> 32]));
        }
        cycles.truncate(times);
        Ok(cycles)
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

    /// A new VM around a guest's existing memory, for a restore. Registers are at the program's beginning,
    /// clocks as KVM makes them.
    ///
    /// # Errors
    /// [`GuestError`].
    pub fn with_memory(memory: Arc<Memory>, vcpus: usize) -> Result<Self, GuestError> {
        let (vm, vcpus) = machine::create(&memory, 0, vcpus, MOST_VCPUS, vcpu)?;
        Ok(Self { vm, vcpus, memory })
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
        for index in 0..self.vcpus.len() as u64 {
            self.memory
                .write(field(index, Block::Rounds), u64::from(rounds));
        }
        // One vCPU needs no thread of its own.
        if let [vcpu] = self.vcpus.as_mut_slice() {
            return run_one(0, vcpu);
        }
        std::thread::scope(|scope| {
            let started = (0..).zip(&mut self.vcpus).map(|(index, vcpu)| {
                let thread = Builder::new().spawn_scoped(scope, move || run_one(index, vcpu));
                Ok((index, thread.map_err(|error| no_thread(index, &error))?))
            });
            // The scope joins the started threads before it returns an error.
            let threads: Result<Vec<_>, GuestError> = started.collect();
            for (vcpu, thread) in threads? {
                thread.join().map_err(|_| GuestError::Thread { vcpu })??;
            }
            Ok(())
        })
    }

    /// Runs each vCPU for one round, one after the other, and returns their readings.
    ///
    /// # Errors
    /// [`GuestError`].
    pub fn read_in_turn(&mut self) -> Result<Vec<GuestReading>, GuestError> {
        for (index, vcpu) in self.vcpus.iter_mut().enumerate() {
            self.memory.write(field(index as u64, Block::Rounds), 1);
            run_one(index, vcpu)?;
        }
        let read = |index: usize| {
            let (tsc, kvmclock_ns) = self.last(index);
            // The flags are byte 29 of the page (`pvclock_vcpu_time_info`).
            let page = PAGES + index as u64 * PAGE_BYTES;
            let [.., flags, _, _] = self.memory.read(page + 24).to_le_bytes();
            GuestReading {
                tsc,
                kvmclock_ns,
                stable: flags & 1 != 0,
                stopped: flags & 2 != 0,
            }
        };
        Ok((0..self.vcpus.len()).map(read).collect())
    }

    /// Runs all vCPUs for this long, in repeated rounds. Each stops when it next leaves its program for
    /// the VMM; its [registers](Guest::registers) have the place.
    ///
    /// # Errors
    /// [`GuestError`].
    pub fn run_for(&mut self, time: Duration) -> Result<(), GuestError> {
        const BETWEEN_LOOKS: u32 = 8;
        for index in 0..self.vcpus.len() as u64 {
            let rounds = u64::from(BETWEEN_LOOKS);
            self.memory.write(field(index, Block::Rounds), rounds);
        }
        let deadline = Instant::now() + time;
        std::thread::scope(|scope| {
            let started = (0..).zip(&mut self.vcpus).map(|(index, vcpu)| {
                let thread =
                    Builder::new().spawn_scoped(scope, move || run_until(index, vcpu, deadline));
                Ok((index, thread.map_err(|error| no_thread(index, &error))?))
            });
            let threads: Result<Vec<_>, GuestError> = started.collect();
            for (vcpu, thread) in threads? {
                thread.join().map_err(|_| GuestError::Thread { vcpu })??;
            }
            Ok(())
        })
    }

    /// The registers of each vCPU.
    ///
    /// # Errors
    /// [`GuestError::Ioctl`].
    pub fn registers(&self) -> Result<Vec<Registers>, GuestError> {
        let read = |(index, vcpu): (usize, &VcpuFd)| {
            let regs = vcpu.get_regs();
            let regs = regs.map_err(|e| of("KVM_GET_REGS", Some(index))(errno(e)))?;
            Ok(Registers::from(regs))
        };
        self.vcpus.iter().enumerate().map(read).collect()
    }

    /// Sets the registers of each vCPU.
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
        for (index, (vcpu, registers)) in self.vcpus.iter().zip(registers).enumerate() {
            let set = vcpu.set_regs(&registers.into());
            set.map_err(|e| of("KVM_SET_REGS", Some(index))(errno(e)))?;
        }
        Ok(())
    }

    /// The observations of the guest so far.
    #[must_use]
    pub fn seen(&self) -> Seen {
        let mut observed = Seen {
            latest_tsc: self.memory.read(LATEST_TSC),
            latest_clock_ns: self.memory.read(LATEST_CLOCK),
            ..Seen::default()
        };
        for index in 0..self.vcpus.len() as u64 {
            let read = |block| self.memory.read(field(index, block));
            observed.rounds += read(Block::Done);
            observed.tsc_back = observed.tsc_back.max(read(Block::TscBack));
            observed.clock_back_ns = observed.clock_back_ns.max(read(Block::ClockBack));
            observed.unstable += read(Block::Unstable);
        }
        observed
    }

    /// The last readings of a vCPU: TSC, and kvmclock in ns.
    #[must_use]
    pub fn last(&self, vcpu: usize) -> (u64, u64) {
        let read = |block| self.memory.read(field(vcpu as u64, block));
        (read(Block::LastTsc), read(Block::LastClock))
    }

    /// Resets the observations, but not the latest readings.
    pub fn forget(&self) {
        for index in 0..self.vcpus.len() as u64 {
            for block in [
                Block::Done,
                Block::TscBack,
                Block::ClockBack,
                Block::Unstable,
            ] {
                self.memory.write(field(index, block), 0);
            }
        }
    }
}

fn no_thread(vcpu: usize, error: &std::io::Error) -> GuestError {
    let errno = Errno(error.raw_os_error().unwrap_or(libc::EAGAIN));
    GuestError::NoThread { vcpu, errno }
}

fn field(vcpu: u64, block: Block) -> u64 {
    BLOCKS + vcpu * BLOCK_BYTES + block as u64
}

/// A vCPU at the program's beginning, with its kvmclock enabled.
fn vcpu(vm: &VmFd, index: usize) -> Result<VcpuFd, GuestError> {
    let named = |call| move |e| of(call, Some(index))(errno(e));
    let fd = vm
        .create_vcpu(index as u64)
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
    regs.rdi = BLOCKS + index as u64 * BLOCK_BYTES;
    regs.rsi = PAGES + index as u64 * PAGE_BYTES;
    fd.set_regs(&regs).map_err(named("KVM_SET_REGS"))?;
    let page = regs.rsi | 1;
    fd.set_msr(MSR_KVM_SYSTEM_TIME_NEW, page)
        .map_err(of("KVM_SET_MSRS(SYSTEM_TIME_NEW)", Some(index)))?;
    Ok(fd)
}

/// Repeats the rounds until the deadline, and completes the last `OUT`. KVM completes it at the next entry
/// (`complete_userspace_io`), and then the registers are behind it.
fn run_until(index: usize, vcpu: &mut VcpuFd, deadline: Instant) -> Result<(), GuestError> {
    while Instant::now() < deadline {
        run_one(index, vcpu)?;
    }
    vcpu.set_kvm_immediate_exit(1);
    let finished = vcpu.run().map(|exit| format!("{exit:?}"));
    vcpu.set_kvm_immediate_exit(0);
    match finished {
        Err(error) if error.errno() == libc::EINTR => Ok(()),
        Err(error) => Err(of("KVM_RUN", Some(index))(errno(error)).into()),
        Ok(exit) => Err(GuestError::Exit { vcpu: index, exit }),
    }
}

fn run_one(index: usize, vcpu: &mut VcpuFd) -> Result<(), GuestError> {
    machine::run(index, vcpu, |exit| match exit {
        VcpuExit::IoOut(DONE_PORT, _) => Some(ControlFlow::Break(())),
        VcpuExit::IoIn(COUNTER_PORT, data) => {
            for (target, byte) in data.iter_mut().zip(rdtsc().to_le_bytes()) {
                *target = byte;
            }
            Some(ControlFlow::Continue(()))
        }
        _ => None,
    })
}

//! Small arm64 guests of our own on `/dev/kvm`, to see what a guest sees.
//!
//! A guest reads both counters in turn, and keeps the largest step back of each. Its vCPUs share one
//! record and run one after the other on the calling thread: with the MMU off, memory has no atomics.
//!
//! | address | holds |
//! |---|---|
//! | `BASE` | the program |
//! | `BASE + BLOCK` | the record: rounds to do, rounds done, last readings, steps back |
//! | `BASE + READINGS` | the time of each single reading, in ticks |
//!
//! `x0` points to the record. After its rounds the program stores to an address without memory.

mod error;
mod machine;
mod memory;

use std::ops::ControlFlow;
use std::sync::Arc;

use kvm_bindings::kvm_vcpu_init;
use kvm_ioctls::{VcpuExit, VcpuFd, VmFd};

use crate::save::of;
use machine::errno;

pub use error::GuestError;
pub use memory::Memory;

/// Where the guest's memory begins.
const BASE: u64 = 0x8000_0000;
/// Bytes from there to the record.
const BLOCK: u64 = 0x1000;
/// Bytes from there to the single readings.
const READINGS: u64 = 0x2000;
/// All of the guest's memory.
const MEMORY_BYTES: usize = 0x1_0000;
/// The most vCPUs: no limit of the program, but of patience.
const MOST_VCPUS: usize = 128;
/// Single readings that the memory has room for.
pub const MOST_READINGS: u32 = 10_000;

/// Fields of the record, as bytes from its beginning.
#[derive(Clone, Copy, Debug)]
#[repr(u64)]
enum Field {
    Rounds = 0,
    Done = 8,
    LastVirtual = 16,
    LastPhysical = 24,
    VirtualBack = 32,
    PhysicalBack = 40,
}

/// `KVM_REG_ARM64 | KVM_REG_SIZE_U64 | KVM_REG_ARM_CORE`, and the register's place in `struct kvm_regs`
/// in words of 32 bits.
const CORE_REGISTER: u64 = 0x6030_0000_0010_0000;
const X0: u64 = CORE_REGISTER;
const PC: u64 = CORE_REGISTER | (32 * 8 / 4);

core::arch::global_asm!(
    r#"
    .pushsection .rodata.guest_clock_program, "a"
    .balign 16
    // Reads a counter and keeps its largest step back.
    .macro gc_read counter, last, back
    isb
    mrs x2, \counter
    ldr x3, [x0, #\last]
    str x2, [x0, #\last]
    subs x4, x3, x2
    b.ls 9f
    ldr x5, [x0, #\back]
    cmp x4, x5
    csel x5, x4, x5, hi
    str x5, [x0, #\back]
9:
    .endm
    // Stores where no memory is: the VMM's turn.
    .macro gc_done
    mov x7, #0x10000000
    str x1, [x7]
    .endm
    // Times each reading of a counter by the virtual one.
    .macro gc_each counter
1:  ldr x1, [x0]
    add x6, x0, #0x1000
2:  isb
    mrs x2, cntvct_el0
    isb
    mrs x3, \counter
    isb
    mrs x4, cntvct_el0
    sub x4, x4, x2
    str w4, [x6], #4
    subs x1, x1, #1
    b.ne 2b
    gc_done
    b 1b
    .endm
    .globl guest_clock_program_begin
    .globl guest_clock_program_virtual
    .globl guest_clock_program_physical
    .globl guest_clock_program_end
guest_clock_program_begin:
1:  ldr x1, [x0]
2:  gc_read cntvct_el0, 16, 32
    gc_read cntpct_el0, 24, 40
    ldr x6, [x0, #8]
    add x6, x6, #1
    str x6, [x0, #8]
    subs x1, x1, #1
    b.ne 2b
    gc_done
    b 1b
guest_clock_program_virtual:
    gc_each cntvct_el0
guest_clock_program_physical:
    gc_each cntpct_el0
guest_clock_program_end:
    .purgem gc_read
    .purgem gc_done
    .purgem gc_each
    .popsection
    "#
);

// SAFETY: labels of the assembly above, in a read-only section of this binary, in this order.
// Needed: Rust has no other way to take assembled code as data.
unsafe extern "C" {
    static guest_clock_program_begin: u8;
    static guest_clock_program_virtual: u8;
    static guest_clock_program_physical: u8;
    static guest_clock_program_end: u8;
}

fn code(begin: *const u8, end: *const u8) -> &'static [u8] {
    let length = end.addr().saturating_sub(begin.addr());
    // SAFETY: from label to label there are `length` bytes of initialised, read-only, never freed data
    // of this binary. Needed: labels have no length.
    unsafe { core::slice::from_raw_parts(begin, length) }
}

/// A counter of the architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// `CNTVCT_EL0`, which KVM never traps.
    Virtual,
    /// `CNTPCT_EL0`. KVM traps it where the VM has an offset and the CPU no `CNTPOFF_EL2`.
    Physical,
}

/// What the guest saw, over all its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Seen {
    /// Rounds of all vCPUs, each a reading of both counters.
    pub rounds: u64,
    /// Largest step back of the virtual counter, within or between vCPUs, in ticks.
    pub virtual_back: u64,
    /// Likewise of the physical counter.
    pub physical_back: u64,
    /// Last reading of the virtual counter.
    pub last_virtual: u64,
    /// Last reading of the physical counter.
    pub last_physical: u64,
}

/// A VM with the program in its memory.
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
        let begin = &raw const guest_clock_program_begin;
        Self::with_code(code(begin, &raw const guest_clock_program_virtual), vcpus)
    }

    fn with_code(code: &[u8], vcpus: usize) -> Result<Self, GuestError> {
        let memory = Memory::new(MEMORY_BYTES).map_err(of("mmap", None))?;
        memory.copy_in(0, code);
        Self::with_memory(Arc::new(memory), vcpus)
    }

    /// A new VM around a guest's existing memory, for a restore.
    ///
    /// # Errors
    /// [`GuestError`].
    pub fn with_memory(memory: Arc<Memory>, vcpus: usize) -> Result<Self, GuestError> {
        let (vm, vcpus) = machine::create(&memory, BASE, vcpus, MOST_VCPUS, vcpu)?;
        Ok(Self { vm, vcpus, memory })
    }

    /// The memory, for the next VM.
    #[must_use]
    pub fn memory(&self) -> Arc<Memory> {
        Arc::clone(&self.memory)
    }

    /// Runs the vCPUs one after the other, for this many rounds each.
    ///
    /// # Errors
    /// [`GuestError`].
    pub fn run(&mut self, rounds: u32) -> Result<(), GuestError> {
        self.write(Field::Rounds, rounds.into());
        for (index, vcpu) in self.vcpus.iter_mut().enumerate() {
            run_one(index, vcpu)?;
        }
        Ok(())
    }

    /// Times of single readings of a counter, in ticks: each from one reading of the virtual counter to
    /// the next. With an offset KVM emulates the physical counter where the CPU cannot subtract it.
    ///
    /// # Errors
    /// [`GuestError`]; `offset` needs Linux 6.4.
    pub fn readings(counter: Counter, offset: Option<u64>) -> Result<Vec<u64>, GuestError> {
        let begin = &raw const guest_clock_program_virtual;
        let middle = &raw const guest_clock_program_physical;
        let end = &raw const guest_clock_program_end;
        let code = match counter {
            Counter::Virtual => code(begin, middle),
            Counter::Physical => code(middle, end),
        };
        let mut guest = Self::with_code(code, 1)?;
        if let Some(offset) = offset {
            let vm = crate::kvm::KvmArm64Vm::of(&guest.vm, &guest.vcpus);
            let set = crate::arm64::Arm64Vm::set_counter_offset(&vm, offset);
            set.map_err(of("KVM_ARM_SET_COUNTER_OFFSET", None))?;
        }
        guest.run(MOST_READINGS)?;
        let pairs = (0..u64::from(MOST_READINGS) / 2).map(|n| guest.memory.read(READINGS + 8 * n));
        Ok(pairs
            .flat_map(|pair| [pair & 0xffff_ffff, pair >> 32])
            .collect())
    }

    /// The observations of the guest so far.
    #[must_use]
    pub fn seen(&self) -> Seen {
        Seen {
            rounds: self.read(Field::Done),
            virtual_back: self.read(Field::VirtualBack),
            physical_back: self.read(Field::PhysicalBack),
            last_virtual: self.read(Field::LastVirtual),
            last_physical: self.read(Field::LastPhysical),
        }
    }

    /// Resets the observations with the last readings.
    pub fn forget(&self) {
        for field in [
            Field::Done,
            Field::LastVirtual,
            Field::LastPhysical,
            Field::VirtualBack,
            Field::PhysicalBack,
        ] {
            self.write(field, 0);
        }
    }

    fn read(&self, field: Field) -> u64 {
        self.memory.read(BLOCK + field as u64)
    }

    fn write(&self, field: Field, value: u64) {
        self.memory.write(BLOCK + field as u64, value);
    }
}

/// A vCPU at the program's beginning: EL1 with the MMU off, as after a reset.
fn vcpu(vm: &VmFd, index: usize) -> Result<VcpuFd, GuestError> {
    let named = |call| move |e| of(call, Some(index))(errno(e));
    let fd = vm
        .create_vcpu(index as u64)
        .map_err(named("KVM_CREATE_VCPU"))?;
    let mut target = kvm_vcpu_init::default();
    vm.get_preferred_target(&mut target)
        .map_err(named("KVM_ARM_PREFERRED_TARGET"))?;
    fd.vcpu_init(&target).map_err(named("KVM_ARM_VCPU_INIT"))?;
    for (register, value) in [(X0, BASE + BLOCK), (PC, BASE)] {
        fd.set_one_reg(register, &value.to_le_bytes())
            .map_err(named("KVM_SET_ONE_REG"))?;
    }
    Ok(fd)
}

fn run_one(index: usize, vcpu: &mut VcpuFd) -> Result<(), GuestError> {
    let stops = |exit: &mut VcpuExit<'_>| {
        matches!(exit, VcpuExit::MmioWrite(..)).then_some(ControlFlow::Break(()))
    };
    machine::run(index, vcpu, stops)
}

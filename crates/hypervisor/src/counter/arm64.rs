//! arm64 generic timer: virtual and physical counter offsets, as posted and as merged since.
//!
//! The sign is the other way round than on x86: `guest count = host count − offset`.
//!
//! | | as posted (v3, 2021) | as merged (7.2) |
//! |---|---|---|
//! | set by | vCPU attributes 2 and 3 of group 1 | VM ioctl `KVM_ARM_SET_COUNTER_OFFSET` |
//! | offsets | virtual and physical apart | one, for both counters |
//! | reaches | all vCPUs there are, and the written one | the VM, so later vCPUs too |
//! | afterwards | – | writes of the counter registers are ignored, successfully |
//! | meanwhile | VM lock | `EBUSY` while any vCPU ioctl is in flight |
//!
//! [`traps`] holds what must be programmed at *every* entry: two VMs that share a CPU may differ.
//!
//! ```
//! use stealtime_hypervisor::counter::arm64::{Counter, CounterOffset, MergedVm, guest_count, traps};
//!
//! let mut vm = MergedVm::default();
//! vm.vcpu_created(1_000);
//! assert_eq!(guest_count(1_500, vm.offset(Counter::Virtual)), 500);
//! // The VMM's offset is for both counters.
//! vm.set_counter_offset(CounterOffset { counter_offset: 200, reserved: 0 }, None)?;
//! assert_eq!(guest_count(1_500, vm.offset(Counter::Physical)), 1_300);
//! // A CPU that cannot subtract it from the physical counter traps that one.
//! let cpu = traps::Cpu { mode: traps::Mode::Vhe, ecv_cntpoff: false, broken_cntvoff: false };
//! assert!(traps::on_entry(cpu, 200, 200).physical_counter_traps);
//! # Ok::<(), stealtime_hypervisor::counter::arm64::CounterOffsetError>(())
//! ```

use crate::wide;

/// A vCPU's counter offsets in the posted series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PostedVcpu {
    /// `KVM_ARM_VCPU_TIMER_OFFSET_VTIMER`, in counter ticks.
    pub virtual_offset: u64,
    /// `KVM_ARM_VCPU_TIMER_OFFSET_PTIMER`, in counter ticks.
    pub physical_offset: u64,
}

/// Which counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Counter {
    /// `CNTVCT_EL0`.
    Virtual,
    /// `CNTPCT_EL0`.
    Physical,
}

impl PostedVcpu {
    /// The attribute as read back. (The posted getter returned the physical offset for both; this
    /// returns the one asked for.)
    #[must_use]
    pub const fn offset(&self, counter: Counter) -> u64 {
        match counter {
            Counter::Virtual => self.virtual_offset,
            Counter::Physical => self.physical_offset,
        }
    }

    fn set(&mut self, counter: Counter, offset: u64) {
        match counter {
            Counter::Virtual => self.virtual_offset = offset,
            Counter::Physical => self.physical_offset = offset,
        }
    }

    /// Writes the attribute, with the VM lock held: to `written`, which may not be among the
    /// VM's vCPUs yet (creation), and to all `peers`.
    pub fn set_offset<'a>(
        written: &mut Self,
        peers: impl IntoIterator<Item = &'a mut Self>,
        counter: Counter,
        offset: u64,
    ) {
        written.set(counter, offset);
        for vcpu in peers {
            vcpu.set(counter, offset);
        }
    }
}

/// A VM's counter offsets as merged: they live in the VM, each vCPU uses the VM's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MergedVm {
    /// In counter ticks.
    pub virtual_offset: u64,
    /// In counter ticks.
    pub physical_offset: u64,
    /// The ioctl was used: the counter registers cannot be written any more.
    pub offset_set_by_user: bool,
    /// A protected VM's counters are not the host's to move.
    pub protected: bool,
}

/// `struct kvm_arm_counter_offset`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CounterOffset {
    /// Subtracted from both counters, in ticks.
    pub counter_offset: u64,
    /// Must be 0.
    pub reserved: u64,
}

/// Why the offset was not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CounterOffsetError {
    /// `EINVAL`: the reserved field is not 0. Clear it.
    Reserved {
        /// The argument of the ioctl.
        offset: CounterOffset,
    },
    /// `EINVAL`: the VM is protected.
    Protected {
        /// The argument of the ioctl.
        offset: CounterOffset,
    },
    /// `EBUSY`: vCPU ioctls are in flight. Stop the vCPUs and try again.
    Busy {
        /// The argument of the ioctl.
        offset: CounterOffset,
        /// A vCPU with its lock taken.
        vcpu: u32,
    },
}

impl core::fmt::Display for CounterOffsetError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Reserved { offset } => write!(
                f,
                "counter offset {:#x} with reserved field {:#x}: it must be 0",
                offset.counter_offset, offset.reserved
            ),
            Self::Protected { offset } => write!(
                f,
                "counter offset {:#x}: the VM is protected from its host",
                offset.counter_offset
            ),
            Self::Busy { offset, vcpu } => write!(
                f,
                "counter offset {:#x}: vCPU {vcpu} has an ioctl in flight; stop the vCPUs first",
                offset.counter_offset
            ),
        }
    }
}

impl core::error::Error for CounterOffsetError {}

/// Whether a write of a counter register had an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RegisterWrite {
    /// The VM's offset was recomputed.
    Applied,
    /// Success is reported and nothing done: the VM's offset is the user's.
    Ignored,
}

impl MergedVm {
    /// A vCPU is created: until the user sets an offset, the virtual counter restarts at 0 with
    /// each creation, for the whole VM.
    pub fn vcpu_created(&mut self, host_count: u64) {
        if !self.offset_set_by_user {
            self.virtual_offset = host_count;
            self.physical_offset = 0;
        }
    }

    /// `KVM_ARM_SET_COUNTER_OFFSET`. `busy` is a vCPU that another thread has locked, if any.
    ///
    /// # Errors
    /// [`CounterOffsetError`]; nothing was changed.
    pub fn set_counter_offset(
        &mut self,
        offset: CounterOffset,
        busy: Option<u32>,
    ) -> Result<(), CounterOffsetError> {
        if offset.reserved != 0 {
            return Err(CounterOffsetError::Reserved { offset });
        }
        if self.protected {
            return Err(CounterOffsetError::Protected { offset });
        }
        if let Some(vcpu) = busy {
            return Err(CounterOffsetError::Busy { offset, vcpu });
        }
        self.virtual_offset = offset.counter_offset;
        self.physical_offset = offset.counter_offset;
        self.offset_set_by_user = true;
        Ok(())
    }

    /// `KVM_SET_ONE_REG` of `CNTVCT_EL0` or `CNTPCT_EL0` with `value`.
    pub fn set_counter(&mut self, counter: Counter, value: u64, host_count: u64) -> RegisterWrite {
        if self.offset_set_by_user {
            return RegisterWrite::Ignored;
        }
        let offset = host_count.wrapping_sub(value);
        match counter {
            Counter::Virtual => self.virtual_offset = offset,
            Counter::Physical => self.physical_offset = offset,
        }
        RegisterWrite::Applied
    }

    /// The offset of one counter.
    #[must_use]
    pub const fn offset(&self, counter: Counter) -> u64 {
        match counter {
            Counter::Virtual => self.virtual_offset,
            Counter::Physical => self.physical_offset,
        }
    }
}

/// What the guest reads when the host's counter is `host_count`. Mind the minus.
#[must_use]
pub const fn guest_count(host_count: u64, offset: u64) -> u64 {
    host_count.wrapping_sub(offset)
}

/// What is to be programmed around the guest, and what a trap returns.
pub mod traps {
    use super::guest_count;

    /// Where the hypervisor runs.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Mode {
        /// The host kernel runs at EL2; `CNTHCTL_EL2`'s bits lie 10 higher.
        Vhe,
        /// A small EL2 part runs the guest.
        Nvhe,
    }

    /// What the CPU can do.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Cpu {
        /// VHE or not.
        pub mode: Mode,
        /// `FEAT_ECV` with `CNTPOFF_EL2`. Used with VHE only.
        pub ecv_cntpoff: bool,
        /// `CNTVOFF_EL2` does not work (an erratum): the virtual counter is trapped as well.
        pub broken_cntvoff: bool,
    }

    /// Registers at guest entry.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Entry {
        /// `CNTVOFF_EL2`.
        pub cntvoff_el2: u64,
        /// `CNTPOFF_EL2`, if there is one.
        pub cntpoff_el2: Option<u64>,
        /// `CNTHCTL_EL2` bits to set; those of [`Entry::cnthctl_clear`] are cleared first.
        pub cnthctl_set: u64,
        /// `CNTHCTL_EL2` bits to clear.
        pub cnthctl_clear: u64,
        /// Reads of the physical counter leave the guest.
        pub physical_counter_traps: bool,
        /// Accesses to the physical timer leave the guest.
        pub physical_timer_traps: bool,
        /// Reads of the virtual counter and accesses to its timer leave the guest.
        pub virtual_traps: bool,
        /// Added to the guest's `CNTP_CVAL_EL0` when the hardware holds it.
        pub cntp_cval_add: u64,
        /// Added to the guest's `CNTV_CVAL_EL0` when the hardware holds it.
        pub cntv_cval_add: u64,
    }

    /// `CNTHCTL_EL2.EL1PCTEN`: EL1 may read the physical counter.
    pub const EL1PCTEN: u64 = 1;
    /// `CNTHCTL_EL2.EL1PCEN`: EL1 may use the physical timer.
    pub const EL1PCEN: u64 = 1 << 1;
    /// How much higher both lie with `HCR_EL2.E2H`.
    pub const VHE_SHIFT: u32 = 10;
    /// `CNTHCTL_EL2.ECV`: `CNTPOFF_EL2` applies.
    pub const ECV: u64 = 1 << 12;
    /// `CNTHCTL_EL2.EL1TVT`: EL1's virtual timer traps (`FEAT_ECV`).
    pub const EL1TVT: u64 = 1 << 13;
    /// `CNTHCTL_EL2.EL1TVCT`: EL1's virtual counter traps (`FEAT_ECV`).
    pub const EL1TVCT: u64 = 1 << 14;

    /// What an entry into a guest with these offsets needs, whatever guest ran before.
    #[must_use]
    pub fn on_entry(cpu: Cpu, virtual_offset: u64, physical_offset: u64) -> Entry {
        let by_hardware = cpu.ecv_cntpoff && cpu.mode == Mode::Vhe;
        let counter_traps = physical_offset != 0 && !by_hardware;
        // Without VHE the physical timer is the host's own, so that it is always emulated.
        let timer_traps = counter_traps || cpu.mode == Mode::Nvhe;
        let mut entry = Entry {
            cntvoff_el2: if cpu.broken_cntvoff {
                0
            } else {
                virtual_offset
            },
            cntpoff_el2: by_hardware.then_some(physical_offset),
            cnthctl_set: if by_hardware { ECV } else { 0 },
            cnthctl_clear: 0,
            physical_counter_traps: counter_traps,
            physical_timer_traps: timer_traps,
            virtual_traps: cpu.broken_cntvoff,
            cntp_cval_add: if counter_traps { physical_offset } else { 0 },
            cntv_cval_add: if cpu.broken_cntvoff {
                virtual_offset
            } else {
                0
            },
        };
        let shift = if cpu.mode == Mode::Vhe { VHE_SHIFT } else { 0 };
        entry.enable_or_trap(EL1PCTEN << shift, counter_traps);
        entry.enable_or_trap(EL1PCEN << shift, timer_traps);
        // These two are the other way round: set, they trap.
        entry.enable_or_trap(EL1TVT | EL1TVCT, !cpu.broken_cntvoff);
        entry
    }

    impl Entry {
        fn enable_or_trap(&mut self, bits: u64, clear: bool) {
            if clear {
                self.cnthctl_clear |= bits;
            } else {
                self.cnthctl_set |= bits;
            }
        }
    }

    /// `CNTP_CVAL_EL0` while the host runs on a CPU with `CNTPOFF_EL2`. The offset does not apply
    /// while `HCR_EL2.TGE` is set, so the comparator includes it for that time.
    #[must_use]
    pub const fn cval_in_host(guest_cval: u64, physical_offset: u64) -> u64 {
        guest_cval.wrapping_add(physical_offset)
    }

    /// The reverse of [`cval_in_host`], at entry.
    #[must_use]
    pub const fn cval_in_guest(host_cval: u64, physical_offset: u64) -> u64 {
        host_cval.wrapping_sub(physical_offset)
    }

    /// Exception class of a trapped 64-bit system register access (`ESR_EL2.EC`).
    pub const EC_SYS64: u64 = 0x18;

    /// A counter register as the syndrome names it: Op0, Op1, CRn, CRm, Op2, and the direction.
    const SYSREG_MASK: u64 = 3 << 20 | 7 << 17 | 7 << 14 | 0xf << 10 | 0xf << 1 | 1;

    const fn sys_reg_read(op2: u64) -> u64 {
        // Op0 3, Op1 3, CRn 14, CRm 0; bit 0: a read.
        3 << 20 | op2 << 17 | 3 << 14 | 14 << 10 | 1
    }

    /// A trapped read of a counter, served without leaving EL2.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct TrappedRead {
        /// The general register to write, 0–31; 31 is the zero register.
        pub rt: u8,
        /// What it gets.
        pub value: u64,
    }

    /// Serves a trap in the exit path if it is a read of a counter by a 64-bit guest; `None`
    /// takes the long way. The caller then skips the instruction and enters the guest again.
    ///
    /// The exception class is tested before the syndrome is taken for a register's name (the
    /// posted handler did not).
    #[must_use]
    pub fn serve_read(
        esr_el2: u64,
        aarch32: bool,
        host_count: u64,
        virtual_offset: u64,
        physical_offset: u64,
    ) -> Option<TrappedRead> {
        if aarch32 || esr_el2 >> 26 & 0x3f != EC_SYS64 {
            return None;
        }
        let offset = match esr_el2 & SYSREG_MASK {
            // CNTPCT_EL0 and its self-synchronising twin.
            reg if reg == sys_reg_read(1) || reg == sys_reg_read(5) => physical_offset,
            // CNTVCT_EL0 and its twin.
            reg if reg == sys_reg_read(2) || reg == sys_reg_read(6) => virtual_offset,
            _ => return None,
        };
        Some(TrappedRead {
            rt: (esr_el2 >> 5 & 0x1f) as u8,
            value: guest_count(host_count, offset),
        })
    }
}

/// The offset for a destination host, and what it adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MigratedCounter {
    /// In ticks; wraps.
    pub offset: u64,
    /// Ticks that the guest's counter advances over the blackout.
    pub added_ticks: u128,
    /// Largest error of the guest's counter against the elapsed time passed in, in ns: one tick,
    /// and the frequency error over the blackout.
    pub bound_ns: u64,
}

/// Why no offset was computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CounterMigrationError {
    /// The counters tick at different rates, and nothing scales a generic timer.
    FrequencyMismatch {
        /// `CNTFRQ_EL0` of the source, in Hz.
        source_hz: u32,
        /// … of the destination.
        destination_hz: u32,
    },
    /// The frequency is 0: firmware did not program `CNTFRQ_EL0`.
    FrequencyZero {
        /// The frequency given, in Hz.
        hz: u32,
    },
}

impl core::fmt::Display for CounterMigrationError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::FrequencyMismatch {
                source_hz,
                destination_hz,
            } => write!(
                f,
                "counters of {source_hz} Hz (source) and {destination_hz} Hz (destination): a \
                 generic timer is not scaled, migrate between hosts of one frequency"
            ),
            Self::FrequencyZero { hz } => {
                write!(f, "counter of {hz} Hz: firmware must program CNTFRQ_EL0")
            }
        }
    }
}

impl core::error::Error for CounterMigrationError {}

/// Host counter and frequency at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CounterSide {
    /// The physical counter.
    pub count: u64,
    /// `CNTFRQ_EL0` in Hz.
    pub hz: u32,
}

/// The offset with which a guest's counter goes on after `elapsed_ns`.
///
/// `ofs_dst = ofs_src + (count_dst − count_src) − elapsed·freq`: the signs of the x86 form
/// reversed, since the offset is subtracted.
///
/// # Errors
/// [`CounterMigrationError`].
pub fn migrate(
    source: CounterSide,
    destination: CounterSide,
    source_offset: u64,
    elapsed_ns: u64,
    frequency_error_ppb: u32,
) -> Result<MigratedCounter, CounterMigrationError> {
    if source.hz == 0 {
        return Err(CounterMigrationError::FrequencyZero { hz: source.hz });
    }
    if source.hz != destination.hz {
        return Err(CounterMigrationError::FrequencyMismatch {
            source_hz: source.hz,
            destination_hz: destination.hz,
        });
    }
    let second_ns = 1_000_000_000;
    let added_ticks = wide::div(u128::from(elapsed_ns) * u128::from(source.hz), second_ns);
    let tick_ns = u128::from(second_ns.div_ceil(u64::from(source.hz)));
    let drift = u128::from(elapsed_ns) * u128::from(frequency_error_ppb);
    let drift_ns = wide::div_ceil(drift, second_ns);
    Ok(MigratedCounter {
        offset: source_offset
            .wrapping_add(destination.count.wrapping_sub(source.count))
            .wrapping_sub(added_ticks as u64),
        added_ticks,
        bound_ns: u64::try_from(tick_ns + drift_ns).unwrap_or(u64::MAX),
    })
}

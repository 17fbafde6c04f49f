//! Reads of clocks that exit: a guest with such a clock leaves guest mode for each look at the time.

use stealtime_events::Kind;

use crate::keys::MMIO_READ;

/// `HV_X64_MSR_TIME_REF_COUNT` (Hyper-V TLFS): the reference counter, without its page.
const HV_TIME_REF_COUNT: u32 = 0x4000_0020;
/// The ACPI PM timer of QEMU's Q35 and i440FX: `PM_TMR` is 8 behind the base, 0x600.
const ACPI_PM_TIMER: u16 = 0x608;
/// The HPET's main counter register (IA-PC HPET 1.0a, 2.3.7), at the base that PCs use.
const HPET_COUNTER: std::ops::Range<u64> = 0xfed0_00f0..0xfed0_00f8;

/// A clock of which reads exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Clock {
    /// As a sentence has it.
    pub(crate) name: &'static str,
    /// Where it is read.
    pub(crate) place: &'static str,
    /// What makes the guest use another one.
    pub(crate) next: &'static str,
}

/// All of them, in the order of [`ClockReads::counts`].
pub(crate) const CLOCKS: [Clock; 3] = [
    Clock {
        name: "Hyper-V reference counter",
        place: "MSR 0x40000020",
        next: "Give the Windows guest the reference TSC page (libvirt: <timer name='hypervclock' \
               present='yes'/>, QEMU: hv-time), and see that the host's TSC counts as stable.",
    },
    Clock {
        name: "ACPI PM timer",
        place: "port 0x608",
        next: "Look at the guest's clocksource: kvm-clock or tsc do not exit. Windows needs hv-time, Linux \
               loses tsc where it is marked unstable.",
    },
    Clock {
        name: "HPET",
        place: "MMIO 0xfed000f0",
        next: "Take the HPET away (libvirt: <timer name='hpet' present='no'/>, QEMU: hpet=off), so that \
               the guest uses kvm-clock, tsc or hv-time.",
    },
];

/// Reads of each of [`CLOCKS`] by one vCPU.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ClockReads {
    pub(crate) counts: [u64; CLOCKS.len()],
}

impl ClockReads {
    /// Counts an access to an MSR, a port or memory-mapped I/O if it reads a clock.
    #[inline]
    pub(crate) fn count(&mut self, kind: Kind, counts: bool) {
        let clock = match kind {
            Kind::KvmMsr {
                write: false,
                ecx: HV_TIME_REF_COUNT,
                ..
            } => Some(0),
            Kind::KvmPio {
                write: false,
                port: ACPI_PM_TIMER,
                ..
            } => Some(1),
            Kind::KvmMmio {
                mmio_type: MMIO_READ,
                gpa,
                ..
            } if HPET_COUNTER.contains(&gpa) => Some(2),
            _ => None,
        };
        if let Some(clock) = clock {
            self.counts[clock] += u64::from(counts);
        }
    }
}

//! VMCS fields and control bits that the mechanisms of this crate need on VT-x, as data.
//!
//! The crate accesses no VMCS. A hypervisor writes these fields around the calls of the mechanisms:
//!
//! | mechanism | controls | fields | when |
//! |---|---|---|---|
//! | [`posted_interrupt`](crate::posted_interrupt) | [`POSTING`] | [`field::POSTED_INTERRUPT_VECTOR`], [`field::POSTED_INTERRUPT_DESCRIPTOR`], [`field::VIRTUAL_APIC_PAGE`], [`field::EOI_EXIT_BITMAP`] | as the vCPU is created |
//! | | | [`field::GUEST_INTERRUPT_STATUS`] from [`Lapic::interrupt_status`](crate::lapic::Lapic::interrupt_status) | after [`PostedVcpu::enter`](crate::posted_interrupt::PostedVcpu::enter) or `reenter`, directly before the VM entry |
//! | | | the same into [`Lapic::read_back`](crate::lapic::Lapic::read_back) | directly after the VM exit |
//! | [`lapic_timer`](crate::lapic_timer) | [`PREEMPTION_TIMER`] | [`field::PREEMPTION_TIMER_VALUE`] from [`LapicTimer::hv_value_at_entry`](crate::lapic_timer::LapicTimer::hv_value_at_entry) | before each VM entry for which that returns a value |
//! | [`directed_yield`](crate::directed_yield) | [`PAUSE_LOOPS`] | [`field::PLE_GAP`], [`field::PLE_WINDOW`] | at creation; the window when it is adapted |
//! | [`counter`](crate::counter) | [`TSC`] | [`field::TSC_OFFSET`], [`field::TSC_MULTIPLIER`] | when offset or ratio change |
//!
//! Sources: Intel SDM vol. 3, "VM-execution control fields" and appendices A and B.
//!
//! ```
//! use stealtime_hypervisor::vmx::{self, apic_page, exit_reason, field};
//!
//! // Controls of a vCPU with posted interrupts and the preemption timer.
//! let controls = vmx::POSTING.and(vmx::PREEMPTION_TIMER);
//! assert_eq!(controls.pin_based, 0b1100_0001);
//! // What a hypervisor writes and reads around an entry.
//! let written = [field::GUEST_INTERRUPT_STATUS, field::PREEMPTION_TIMER_VALUE];
//! assert_eq!(written, [0x0810, 0x482e]);
//! assert_eq!((exit_reason::PREEMPTION_TIMER, apic_page::TPR), (52, 0x80));
//! ```

/// Encodings of VMCS fields.
pub mod field {
    /// Notification vector of posted interrupts (16 bits).
    pub const POSTED_INTERRUPT_VECTOR: u32 = 0x0002;
    /// Guest interrupt status: RVI in bits 7:0, SVI in bits 15:8 (16 bits).
    pub const GUEST_INTERRUPT_STATUS: u32 = 0x0810;
    /// Offset of the guest's TSC (64 bits).
    pub const TSC_OFFSET: u32 = 0x2010;
    /// Physical address of the virtual-APIC page (64 bits).
    pub const VIRTUAL_APIC_PAGE: u32 = 0x2012;
    /// Physical address of the posted-interrupt descriptor (64 bits).
    pub const POSTED_INTERRUPT_DESCRIPTOR: u32 = 0x2016;
    /// EOI-exit bitmap, vectors 0 to 63, 64 to 127 and so on (64 bits each).
    pub const EOI_EXIT_BITMAP: [u32; 4] = [0x201c, 0x201e, 0x2020, 0x2022];
    /// Ratio of the guest's TSC, 48 fraction bits (64 bits).
    pub const TSC_MULTIPLIER: u32 = 0x2032;
    /// Longest gap between two PAUSEs of one loop, in TSC ticks (32 bits).
    pub const PLE_GAP: u32 = 0x4020;
    /// Longest PAUSE loop without an exit, in TSC ticks (32 bits).
    pub const PLE_WINDOW: u32 = 0x4022;
    /// Value of the preemption timer (32 bits).
    pub const PREEMPTION_TIMER_VALUE: u32 = 0x482e;
}

/// Bits of the VM-execution and VM-exit controls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Controls {
    /// Pin-based controls (field 0x4000).
    pub pin_based: u32,
    /// Primary processor-based controls (field 0x4002).
    pub primary: u32,
    /// Secondary processor-based controls (field 0x401e).
    pub secondary: u32,
    /// VM-exit controls (field 0x400c).
    pub exit: u32,
}

/// Posted interrupts: external-interrupt exiting, process posted interrupts; TPR shadow, secondary
/// controls; virtualize x2APIC mode, APIC-register virtualization, virtual-interrupt delivery;
/// acknowledge interrupt on exit.
pub const POSTING: Controls = Controls {
    pin_based: 1 << 0 | 1 << 7,
    primary: 1 << 21 | 1 << 31,
    secondary: 1 << 4 | 1 << 8 | 1 << 9,
    exit: 1 << 15,
};

/// The preemption timer: it is activated. Its value is not saved at exits, because each entry computes
/// it from the deadline.
pub const PREEMPTION_TIMER: Controls = Controls {
    pin_based: 1 << 6,
    primary: 0,
    secondary: 0,
    exit: 0,
};

/// PAUSE-loop exiting: secondary controls; PAUSE-loop exiting.
pub const PAUSE_LOOPS: Controls = Controls {
    pin_based: 0,
    primary: 1 << 31,
    secondary: 1 << 10,
    exit: 0,
};

/// TSC offset and scaling: use TSC offsetting, secondary controls; use TSC scaling.
pub const TSC: Controls = Controls {
    pin_based: 0,
    primary: 1 << 3 | 1 << 31,
    secondary: 1 << 25,
    exit: 0,
};

impl Controls {
    /// The bits of both.
    #[must_use]
    pub const fn and(self, added: Self) -> Self {
        Self {
            pin_based: self.pin_based | added.pin_based,
            primary: self.primary | added.primary,
            secondary: self.secondary | added.secondary,
            exit: self.exit | added.exit,
        }
    }
}

/// Offsets of registers in the virtual-APIC page. IRR, ISR and TMR have eight registers of 32 bits,
/// 16 bytes apart ([`VectorSet::to_registers`](crate::lapic::VectorSet::to_registers)).
pub mod apic_page {
    /// Task priority.
    pub const TPR: usize = 0x80;
    /// In-service register.
    pub const ISR: usize = 0x100;
    /// Interrupt request register.
    pub const IRR: usize = 0x200;
    /// Distance of the eight registers of a set.
    pub const STRIDE: usize = 16;
}

/// Basic exit reasons (field 0x4402, bits 15:0).
pub mod exit_reason {
    /// A physical interrupt that is not the notification vector.
    pub const EXTERNAL_INTERRUPT: u16 = 1;
    /// Shutdown of the guest.
    pub const TRIPLE_FAULT: u16 = 2;
    /// CPUID.
    pub const CPUID: u16 = 10;
    /// HLT.
    pub const HLT: u16 = 12;
    /// VMCALL.
    pub const VMCALL: u16 = 18;
    /// WRMSR.
    pub const WRMSR: u16 = 32;
    /// PAUSE, or a PAUSE loop.
    pub const PAUSE: u16 = 40;
    /// An EOI of a vector in the EOI-exit bitmap.
    pub const VIRTUALIZED_EOI: u16 = 45;
    /// The preemption timer.
    pub const PREEMPTION_TIMER: u16 = 52;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Masks of the SDM's bit positions, as a debugger shows these fields.
    #[test]
    fn controls_have_the_bits_of_the_manual() {
        let bits = |c: Controls| [c.pin_based, c.primary, c.secondary, c.exit];
        assert_eq!(bits(POSTING), [0x81, 0x8020_0000, 0x310, 0x8000]);
        assert_eq!(bits(PREEMPTION_TIMER), [0x40, 0, 0, 0]);
        assert_eq!(bits(PAUSE_LOOPS), [0, 0x8000_0000, 0x400, 0]);
        assert_eq!(bits(TSC), [0, 0x8000_0008, 0x200_0000, 0]);
        let every = POSTING.and(PREEMPTION_TIMER).and(PAUSE_LOOPS).and(TSC);
        assert_eq!(bits(every), [0xc1, 0x8020_0008, 0x200_0710, 0x8000]);
        assert_eq!(every.and(every), every);
    }
}

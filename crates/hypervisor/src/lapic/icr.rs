//! The interrupt command register, and an interrupt on its way.

use core::fmt;

/// Delivery mode, ICR bits 10:8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DeliveryMode {
    /// To every destination.
    Fixed = 0,
    /// To one of the destinations.
    LowestPriority = 1,
    /// System-management interrupt.
    Smi = 2,
    /// Reserved by today's processors; KVM uses it for its own wakeup ("remote read").
    RemoteRead = 3,
    /// Non-maskable interrupt.
    Nmi = 4,
    /// INIT.
    Init = 5,
    /// Start-up (SIPI).
    Startup = 6,
    /// As if from an external controller. Reserved in the ICR.
    ExtInt = 7,
}

impl DeliveryMode {
    /// From three bits; higher bits are ignored.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        match bits & 7 {
            0 => Self::Fixed,
            1 => Self::LowestPriority,
            2 => Self::Smi,
            3 => Self::RemoteRead,
            4 => Self::Nmi,
            5 => Self::Init,
            6 => Self::Startup,
            _ => Self::ExtInt,
        }
    }
}

/// Destination shorthand, ICR bits 19:18.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Shorthand {
    /// The destination field counts.
    None = 0,
    /// The sender alone.
    SelfOnly = 1,
    /// Everybody.
    All = 2,
    /// Everybody but the sender.
    AllButSelf = 3,
}

impl Shorthand {
    /// From two bits; higher bits are ignored.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        match bits & 3 {
            0 => Self::None,
            1 => Self::SelfOnly,
            2 => Self::All,
            _ => Self::AllButSelf,
        }
    }
}

/// An interrupt on its way: from an ICR write, an MSI or the I/O APIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Interrupt {
    /// The vector.
    pub vector: u8,
    /// How it is delivered.
    pub delivery: DeliveryMode,
    /// Logical destination mode; physical otherwise.
    pub logical: bool,
    /// Level: assert (ICR bit 14). Only de-asserts when level-triggered.
    pub assert: bool,
    /// Level-triggered (ICR bit 15).
    pub level_triggered: bool,
    /// Shorthand, which overrides the destination.
    pub shorthand: Shorthand,
    /// Destination: 8 bits from xAPIC, 32 from x2APIC.
    pub dest: u32,
    /// An MSI's redirection hint: lowest priority whatever the delivery mode.
    pub redirection_hint: bool,
}

/// A fixed or lowest-priority interrupt with a vector that the architecture reserves.
///
/// Hardware does not send it and sets "send illegal vector" in the error status register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IllegalVector {
    /// The vector, 0–15.
    pub vector: u8,
    /// The delivery mode that it was to be sent with.
    pub delivery: DeliveryMode,
}

impl IllegalVector {
    /// Error status register bit "send illegal vector".
    pub const ESR_SEND: u32 = 1 << 5;
    /// Error status register bit "received illegal vector".
    pub const ESR_RECEIVE: u32 = 1 << 6;
}

impl fmt::Display for IllegalVector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "vector {} cannot be sent as {:?}: vectors below 16 are reserved; send 16-255",
            self.vector, self.delivery
        )
    }
}

impl core::error::Error for IllegalVector {}

impl Interrupt {
    /// Decodes a write of the ICR. `high` is bits 63:32 of the x2APIC MSR, or the xAPIC register
    /// at 0x310, with the destination in its upper byte.
    #[must_use]
    #[inline]
    pub const fn from_icr(low: u32, high: u32, x2apic: bool) -> Self {
        Self {
            vector: low as u8,
            delivery: DeliveryMode::from_bits(low >> 8),
            logical: low & (1 << 11) != 0,
            assert: low & (1 << 14) != 0,
            level_triggered: low & (1 << 15) != 0,
            shorthand: Shorthand::from_bits(low >> 18),
            dest: if x2apic { high } else { high >> 24 },
            redirection_hint: false,
        }
    }

    /// The ICR write that sends this interrupt: (low, high). The redirection hint, which no ICR
    /// can express, and for xAPIC all but the low byte of the destination are lost.
    #[must_use]
    pub const fn to_icr(&self, x2apic: bool) -> (u32, u32) {
        let low = self.vector as u32
            | (self.delivery as u32) << 8
            | (self.logical as u32) << 11
            | (self.assert as u32) << 14
            | (self.level_triggered as u32) << 15
            | (self.shorthand as u32) << 18;
        let high = if x2apic { self.dest } else { self.dest << 24 };
        (low, high)
    }

    /// A write of the x2APIC SELF IPI register: bits 7:0 are the vector.
    #[must_use]
    pub const fn from_self_ipi(value: u32) -> Self {
        Self::from_icr((value & 0xff) | (1 << 18), 0, true)
    }

    /// Whether exactly one of the destinations is to get it.
    #[must_use]
    pub const fn is_lowest_priority(&self) -> bool {
        matches!(self.delivery, DeliveryMode::LowestPriority) || self.redirection_hint
    }

    /// Refuses what hardware would not send: a reserved vector in a mode that delivers vectors.
    ///
    /// # Errors
    /// [`IllegalVector`] for vectors 0–15 with fixed or lowest-priority delivery.
    pub const fn check_vector(&self) -> Result<(), IllegalVector> {
        let delivers = matches!(
            self.delivery,
            DeliveryMode::Fixed | DeliveryMode::LowestPriority
        );
        if delivers && self.vector < 16 {
            return Err(IllegalVector {
                vector: self.vector,
                delivery: self.delivery,
            });
        }
        Ok(())
    }
}

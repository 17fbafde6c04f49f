//! VT-d interrupt posting: the remapping entry and the post itself.
//!
//! VT-d specification 5.2.3; field positions Linux `include/linux/dmar.h`.

use core::fmt;

use super::descriptor::Descriptor;
use crate::events::Events;
use crate::word::AtomicWord;

/// An interrupt message that hardware sends to a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NotificationIpi {
    /// The host vector (NV).
    pub vector: u8,
    /// The destination as it stands in the descriptor, see [`ndst`](super::ndst).
    pub ndst: u32,
}

/// An interrupt remapping table entry in posted format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PostedIrte {
    /// Present.
    pub present: bool,
    /// Fault processing disable.
    pub fault_processing_disable: bool,
    /// Urgent: notifies even under SN. KVM never sets it.
    pub urgent: bool,
    /// The guest's vector.
    pub vector: u8,
    /// Physical address of the descriptor, 64-byte aligned.
    pub descriptor: u64,
    /// Validation of the requester: source id, qualifier and validation type (bits 83:64).
    pub source: u32,
}

/// The descriptor's address is not aligned to 64 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MisalignedDescriptor {
    /// The address.
    pub address: u64,
}

impl fmt::Display for MisalignedDescriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "posted-interrupt descriptor at {:#x}: align it to 64 bytes",
            self.address
        )
    }
}

impl core::error::Error for MisalignedDescriptor {}

const PRESENT: u128 = 1 << 0;
const FPD: u128 = 1 << 1;
const URGENT: u128 = 1 << 14;
const POSTED: u128 = 1 << 15;

impl PostedIrte {
    /// Decodes an entry; `None` if it is in remapped format.
    #[must_use]
    pub const fn decode(entry: u128) -> Option<Self> {
        if entry & POSTED == 0 {
            return None;
        }
        let low = (entry >> 38) as u64 & 0x3ff_ffff;
        let high = (entry >> 96) as u64 & 0xffff_ffff;
        Some(Self {
            present: entry & PRESENT != 0,
            fault_processing_disable: entry & FPD != 0,
            urgent: entry & URGENT != 0,
            vector: (entry >> 16) as u8,
            descriptor: high << 32 | low << 6,
            source: (entry >> 64) as u32 & 0xf_ffff,
        })
    }

    /// Encodes the entry.
    ///
    /// # Errors
    /// [`MisalignedDescriptor`] unless the descriptor is aligned to 64 bytes.
    pub const fn encode(&self) -> Result<u128, MisalignedDescriptor> {
        if self.descriptor & 0x3f != 0 {
            return Err(MisalignedDescriptor {
                address: self.descriptor,
            });
        }
        let low = (self.descriptor >> 6 & 0x3ff_ffff) as u128;
        let high = (self.descriptor >> 32) as u128;
        let flags = if self.present { PRESENT } else { 0 }
            | if self.fault_processing_disable {
                FPD
            } else {
                0
            }
            | if self.urgent { URGENT } else { 0 };
        let source = (self.source & 0xf_ffff) as u128;
        Ok(flags | POSTED | (self.vector as u128) << 16 | low << 38 | source << 64 | high << 96)
    }
}

/// Posts an interrupt of a device, in one atomic step on the descriptor's cache line. Returns the
/// notification to send, if any.
///
/// `urgent` overrides SN, but never ON. With SN = 1 and not urgent, only PIR is set.
pub fn post<W: AtomicWord>(
    desc: &Descriptor<W>,
    vector: u8,
    urgent: bool,
    events: &impl Events,
) -> Option<NotificationIpi> {
    desc.one_step(|| {
        desc.test_and_set_pir(vector);
        desc.fence_after_rmw();
        set_on_and_notify(desc, vector, urgent, events)
    })
}

/// If neither ON nor (unless urgent) SN is set, sets ON and notifies.
pub(super) fn set_on_and_notify<W: AtomicWord>(
    desc: &Descriptor<W>,
    vector: u8,
    urgent: bool,
    events: &impl Events,
) -> Option<NotificationIpi> {
    let quiet = |c: super::Control| c.on() || (c.sn() && !urgent);
    let written = desc.update_control(|old| (!quiet(old)).then(|| old.with_on()));
    match written {
        Some(control) => {
            debug_assert!(control.on(), "a notification without ON");
            events.hw_post_notified(vector);
            Some(NotificationIpi {
                vector: control.nv(),
                ndst: control.ndst(),
            })
        }
        None => {
            if desc.test_on() {
                events.hw_post_on_already_set(vector);
            } else {
                events.hw_post_suppressed(vector);
            }
            None
        }
    }
}

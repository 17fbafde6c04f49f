//! The posted-interrupt descriptor: 512 bits, one cache line.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::lapic::{VectorSet, bit_of, word_of};
use crate::word::AtomicWord;

const ON: u64 = 1 << 0;
const SN: u64 = 1 << 1;
const NV_SHIFT: u32 = 16;
const NDST_SHIFT: u32 = 32;

/// An image of bits 319:256, which software updates as one word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Control(pub u64);

impl Control {
    /// Outstanding notification (bit 256).
    #[must_use]
    pub const fn on(self) -> bool {
        self.0 & ON != 0
    }
    /// Suppress notification (bit 257).
    #[must_use]
    pub const fn sn(self) -> bool {
        self.0 & SN != 0
    }
    /// Notification vector (bits 279:272).
    #[must_use]
    pub const fn nv(self) -> u8 {
        (self.0 >> NV_SHIFT) as u8
    }
    /// Notification destination (bits 319:288), see [`ndst`].
    #[must_use]
    pub const fn ndst(self) -> u32 {
        (self.0 >> NDST_SHIFT) as u32
    }
    /// With ON set.
    #[must_use]
    pub const fn with_on(self) -> Self {
        Self(self.0 | ON)
    }
    /// With SN as given.
    #[must_use]
    pub const fn with_sn(self, sn: bool) -> Self {
        Self(self.0 & !SN | if sn { SN } else { 0 })
    }
    /// With the notification vector given.
    #[must_use]
    pub const fn with_nv(self, nv: u8) -> Self {
        Self(self.0 & !(0xff << NV_SHIFT) | (nv as u64) << NV_SHIFT)
    }
    /// With the notification destination given.
    #[must_use]
    pub const fn with_ndst(self, ndst: u32) -> Self {
        Self(self.0 & 0xffff_ffff | (ndst as u64) << NDST_SHIFT)
    }
}

/// The notification destination of a CPU: its x2APIC id, or its xAPIC id in bits 15:8. An xAPIC
/// host has ids of 8 bits; of others the low 8 bits count, as in the hardware register.
#[must_use]
pub const fn ndst(apic_id: u32, x2apic: bool) -> u32 {
    if x2apic {
        apic_id
    } else {
        (apic_id << 8) & 0xff00
    }
}

/// A posted-interrupt descriptor. With [`AtomicU64`](core::sync::atomic::AtomicU64) it has the
/// layout that the hardware reads.
///
/// ON = 1 means that a notification is in flight or that PIR must be read. Only the poster that
/// changes ON from 0 to 1 must notify. With SN = 1, PIR may have bits while ON = 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Descriptor<W: AtomicWord> {
    pir: [W; 4],
    control: W,
    reserved: [W; 3],
    line: [W::Line; 0],
}

const _: () = {
    use core::sync::atomic::AtomicU64;
    assert!(size_of::<Descriptor<AtomicU64>>() == 64);
    assert!(align_of::<Descriptor<AtomicU64>>() == 64);
};

impl<W: AtomicWord> Default for Descriptor<W> {
    /// As a vCPU is created: PIR empty, SN set, NV the posted-interrupt vector.
    fn default() -> Self {
        let control = Control(0).with_sn(true).with_nv(super::POSTED_INTR_VECTOR);
        Self::from_image([0, 0, 0, 0, control.0, 0, 0, 0])
    }
}

impl<W: AtomicWord> Descriptor<W> {
    /// From eight little-endian words, bits 63:0 first.
    #[must_use]
    pub fn from_image(image: [u64; 8]) -> Self {
        let [p0, p1, p2, p3, control, r0, r1, r2] = image;
        Self {
            pir: [p0, p1, p2, p3].map(W::new),
            control: W::new(control),
            reserved: [r0, r1, r2].map(W::new),
            line: [],
        }
    }

    /// The eight words, read one after the other.
    #[must_use]
    pub fn image(&self) -> [u64; 8] {
        let [p0, p1, p2, p3] = self.pir().0;
        let [r0, r1, r2] = [0, 1, 2].map(|i: usize| self.reserved[i].load(Relaxed));
        [p0, p1, p2, p3, self.control().0, r0, r1, r2]
    }

    /// The 64 bytes as hardware sees them.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(self.image()) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The PIR, read word by word.
    #[inline]
    #[must_use]
    pub fn pir(&self) -> VectorSet {
        VectorSet([0, 1, 2, 3].map(|i: usize| self.pir[i].load(Relaxed)))
    }

    /// Whether no vector is posted.
    #[inline]
    #[must_use]
    pub fn is_pir_empty(&self) -> bool {
        self.pir().is_empty()
    }

    /// Whether a vector is posted.
    #[must_use]
    pub fn test_pir(&self, vector: u8) -> bool {
        self.pir[word_of(vector)].load(Relaxed) & bit_of(vector) != 0
    }

    /// Posts a vector; whether it was posted already. A full barrier.
    #[inline]
    pub fn test_and_set_pir(&self, vector: u8) -> bool {
        let bit = bit_of(vector);
        self.pir[word_of(vector)].fetch_or(bit, SeqCst) & bit != 0
    }

    /// Takes the posted vectors. Only words with a bit are exchanged after a load, so that an empty
    /// PIR costs four loads and leaves the cache line shared.
    #[inline]
    pub fn harvest(&self) -> VectorSet {
        let mut bits = self.pir();
        if bits.is_empty() {
            return bits;
        }
        for (word, bits) in self.pir.iter().zip(&mut bits.0) {
            if *bits != 0 {
                // The exchange may find bits that were posted after the load.
                *bits = word.swap(0, SeqCst);
            }
        }
        bits
    }

    /// The control word.
    #[inline]
    #[must_use]
    pub fn control(&self) -> Control {
        Control(self.control.load(Relaxed))
    }

    /// Outstanding notification.
    #[inline]
    #[must_use]
    pub fn test_on(&self) -> bool {
        self.control().on()
    }
    /// Suppress notification.
    #[inline]
    #[must_use]
    pub fn test_sn(&self) -> bool {
        self.control().sn()
    }
    /// Sets ON; whether it was set. A full barrier.
    #[inline]
    pub fn test_and_set_on(&self) -> bool {
        self.control.fetch_or(ON, SeqCst) & ON != 0
    }
    /// Clears ON; whether it was set. A full barrier.
    #[inline]
    pub fn test_and_clear_on(&self) -> bool {
        self.control.fetch_and(!ON, SeqCst) & ON != 0
    }
    /// Sets ON.
    #[inline]
    pub fn set_on(&self) {
        self.control.fetch_or(ON, SeqCst);
    }
    /// Clears ON.
    #[inline]
    pub fn clear_on(&self) {
        self.control.fetch_and(!ON, SeqCst);
    }
    /// Sets SN.
    #[inline]
    pub fn set_sn(&self) {
        self.control.fetch_or(SN, SeqCst);
    }
    /// Clears SN.
    #[inline]
    pub fn clear_sn(&self) {
        self.control.fetch_and(!SN, SeqCst);
    }
    /// Clears SN; whether it was set. A full barrier.
    #[inline]
    pub fn test_and_clear_sn(&self) -> bool {
        self.control.fetch_and(!SN, SeqCst) & SN != 0
    }

    /// Changes the control word as a whole, and returns the written image. `change` receives a new
    /// image on each attempt, because hardware may set ON at any time. It returns `None` to leave
    /// the word unchanged.
    #[inline]
    pub fn update_control(&self, change: impl Fn(Control) -> Option<Control>) -> Option<Control> {
        let mut old = self.control.load(Relaxed);
        loop {
            let new = change(Control(old))?;
            match self.control.compare_exchange(old, new.0, SeqCst, Relaxed) {
                Ok(_) => return Some(new),
                Err(found) => old = found,
            }
        }
    }

    /// Whether a posted interrupt may be unnoticed (`pi_has_pending_interrupt`): ON, or SN and PIR
    /// not empty. Used by directed yield.
    #[must_use]
    pub fn has_pending(&self) -> bool {
        let control = self.control();
        control.on() || (control.sn() && !self.is_pir_empty())
    }

    /// A full fence that follows one of the operations above.
    #[inline]
    pub(super) fn fence_after_rmw(&self) {
        self.control.fence_after_rmw();
    }

    /// One atomic step of hardware that owns the whole line.
    pub(super) fn one_step<R>(&self, body: impl FnOnce() -> R) -> R {
        self.control.one_step(body)
    }
}

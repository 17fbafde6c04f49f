//! IPI tracking: the vCPU that a spinning vCPU probably waits for.
//!
//! Each vCPU has a record of the last unicast fixed IPI that it sent, and the sender of the last
//! one that it received. A vCPU that spins soon after sending is likely to wait for the receiver.
//! All records are hints: words are read and written without a lock, and a half-written pair reads
//! as no record.
//!
//! ```text
//!  sender's context                        receiver's context
//!  outgoing: receiver, vector, pending ──▶ sender ──┐
//!  time_ns                                          │ EOI of that vector
//!      ▲──────────────── clears pending ────────────┘
//! ```
//!
//! Directed-yield series v3, patches 6–8 (not merged), with the EOI rules of its second version,
//! which clears too much, and of its third.
//!
//! # Example
//!
//! ```
//! use std::sync::atomic::AtomicU64;
//! use stealtime_hypervisor::ipi_tracking::{
//!     IpiContext, IpiKnobs, NotRecorded, Unicast, confirmed_receiver, eoi, record,
//! };
//!
//! let contexts = [(); 2].map(|()| IpiContext::<AtomicU64>::new());
//! let knobs = IpiKnobs::default();
//!
//! // vCPU 0 sends vector 0xfb to vCPU 1 and spins for the answer.
//! let ipi = Unicast { sender: 0, receiver: 1, vector: 0xfb };
//! record(&contexts, &knobs, &ipi, 1_000, &())?;
//! let awaited = confirmed_receiver(&contexts, &knobs, 0, 2_000);
//! assert_eq!(awaited.map(|awaited| awaited.receiver), Some(1));
//!
//! // The end of the interrupt on vCPU 1 settles the record.
//! eoi(&contexts, &knobs, 1, Some(0xfb), 3_000, &())?;
//! assert_eq!(confirmed_receiver(&contexts, &knobs, 0, 4_000), None);
//! # Ok::<(), NotRecorded>(())
//! ```

use core::sync::atomic::Ordering;

use crate::events::Events;
use crate::word::AtomicWord;

/// Vectors below this one are illegal in a fixed IPI (Intel SDM vol. 3, "Valid Interrupt
/// Vectors"): the LAPIC reports an error and sends nothing.
pub const FIRST_LEGAL_VECTOR: u8 = 16;

/// Largest number of vCPUs that a context can name.
pub const MAX_VCPUS: u32 = (1 << 24) - 1;

/// The records that an EOI clears.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EoiRule {
    /// Version 3: only the record of its vector.
    #[default]
    VectorMatched,
    /// Version 2: the receiver's whole context, including its outgoing record, regardless of the
    /// vector. Exists to show the cost.
    AnyVector,
}

/// Parameters of module `kvm`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IpiKnobs {
    /// `kvm.ipi_tracking_enabled`.
    pub ipi_tracking_enabled: bool,
    /// `kvm.ipi_window_ns`: longest age of a valid record.
    pub ipi_window_ns: u64,
    /// `kvm.ipi_eoi_rule` (no upstream name).
    pub eoi_rule: EoiRule,
    /// `kvm.guest_yield_hint` (no upstream name): a guest may name the vCPU that it waits for.
    pub guest_yield_hint: bool,
}

impl Default for IpiKnobs {
    fn default() -> Self {
        Self {
            ipi_tracking_enabled: true,
            ipi_window_ns: 50_000_000,
            eoi_rule: EoiRule::VectorMatched,
            guest_yield_hint: false,
        }
    }
}

/// The source of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HintSource {
    /// An IPI that software delivered.
    Ipi {
        /// Its vector.
        vector: u8,
    },
    /// A hint of the guest.
    Guest,
}

/// A record: the vCPU that its owner waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Awaited {
    /// The vCPU that the owner waits for.
    pub receiver: u32,
    /// The source of the record.
    pub source: HintSource,
    /// Time of the record, in ns.
    pub time_ns: u64,
}

/// A unicast fixed IPI between vCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Unicast {
    /// The vCPU that sends it.
    pub sender: u32,
    /// The only vCPU that accepts it.
    pub receiver: u32,
    /// Its vector.
    pub vector: u8,
}

/// The VM has no vCPU of this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NoSuchVcpu {
    /// The number.
    pub vcpu: u32,
    /// Number of vCPUs of the VM.
    pub vcpus: usize,
}

impl core::fmt::Display for NoSuchVcpu {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "no vCPU {} in a VM of {}: use an index below that",
            self.vcpu, self.vcpus
        )
    }
}

impl core::error::Error for NoSuchVcpu {}

const RECEIVER_MASK: u64 = (1 << 24) - 1;
const NO_VCPU: u64 = RECEIVER_MASK;
const VECTOR_SHIFT: u32 = 24;
const PENDING: u64 = 1 << 32;
const FROM_GUEST: u64 = 1 << 33;
const TAG_SHIFT: u32 = 40;
const TAG_MASK: u64 = (1 << 24) - 1;

/// One vCPU's context.
///
/// `outgoing` packs receiver (bits 0–23), vector (24–31), pending (32), source (33) and the low 24
/// bits of the time (40–63). By this tag a reader detects a time of another record, and an EOI
/// does not clear a record that is newer than its load. A context has a cache line of its own,
/// because its vCPU writes it with every IPI.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[repr(align(64))]
pub struct IpiContext<W> {
    outgoing: W,
    time_ns: W,
    sender: W,
}

impl<W: AtomicWord> Default for IpiContext<W> {
    fn default() -> Self {
        Self::new()
    }
}

impl<W: AtomicWord> IpiContext<W> {
    /// A context without records.
    #[must_use]
    pub fn new() -> Self {
        Self {
            outgoing: W::new(NO_VCPU),
            time_ns: W::new(0),
            sender: W::new(NO_VCPU),
        }
    }

    /// The vCPU is created or destroyed, or receives an INIT: clears all records and the time.
    /// Upstream keeps the time at INIT, which nothing reads without a record.
    pub fn reset(&self) {
        self.clear();
        self.time_ns.store(0, Ordering::Relaxed);
    }

    fn clear(&self) {
        self.outgoing.store(NO_VCPU, Ordering::Relaxed);
        self.sender.store(NO_VCPU, Ordering::Relaxed);
    }

    /// The vCPU that sent the last recorded IPI to this one.
    #[must_use]
    pub fn last_sender(&self) -> Option<u32> {
        named(self.sender.load(Ordering::Relaxed))
    }

    /// The vCPU that this one waits for, regardless of the record's age.
    #[must_use]
    pub fn awaited(&self) -> Option<Awaited> {
        // Pairs with the release in `store`: the time is at least as new as the record.
        let outgoing = self.outgoing.load(Ordering::Acquire);
        let time_ns = self.time_ns.load(Ordering::Relaxed);
        let receiver = named(outgoing)?;
        // A newer time than the record's: the pair is half-written.
        if outgoing & PENDING == 0 || outgoing >> TAG_SHIFT != time_ns & TAG_MASK {
            return None;
        }
        let source = if outgoing & FROM_GUEST == 0 {
            HintSource::Ipi {
                vector: (outgoing >> VECTOR_SHIFT) as u8,
            }
        } else {
            HintSource::Guest
        };
        Some(Awaited {
            receiver,
            source,
            time_ns,
        })
    }

    fn store(&self, receiver: u32, bits: u64, now_ns: u64) {
        self.time_ns.store(now_ns, Ordering::Relaxed);
        let tag = (now_ns & TAG_MASK) << TAG_SHIFT;
        let outgoing = u64::from(receiver) & RECEIVER_MASK | PENDING | bits | tag;
        self.outgoing.store(outgoing, Ordering::Release);
    }

    /// Clears the pending record of this sender if it `matches`; true if it did.
    ///
    /// A concurrent newer record stays: the exchange fails.
    fn settle(&self, matches: impl FnOnce(u64) -> bool) -> bool {
        let outgoing = self.outgoing.load(Ordering::Relaxed);
        outgoing & PENDING != 0
            && matches(outgoing)
            && self
                .outgoing
                .compare_exchange(
                    outgoing,
                    outgoing & !PENDING,
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                )
                .is_ok()
    }

    /// Clears the pending record of an IPI with this receiver and vector; true if there was one.
    fn settle_ipi(&self, receiver: u32, vector: u8) -> bool {
        self.settle(|outgoing| {
            outgoing & FROM_GUEST == 0
                && named(outgoing) == Some(receiver)
                && (outgoing >> VECTOR_SHIFT) as u8 == vector
        })
    }
}

fn named(word: u64) -> Option<u32> {
    let index = word & RECEIVER_MASK;
    (index != NO_VCPU).then_some(index as u32)
}

fn context<W>(contexts: &[IpiContext<W>], vcpu: u32) -> Result<&IpiContext<W>, NoSuchVcpu> {
    // A record has 24 bits for the number: a larger one would read as another vCPU.
    let vcpus = contexts.len().min(MAX_VCPUS as usize);
    match contexts.get(vcpu as usize) {
        Some(context) if (vcpu as usize) < vcpus => Ok(context),
        _ => Err(NoSuchVcpu { vcpu, vcpus }),
    }
}

/// Why an IPI leaves no record: the usual case for all but unicast fixed IPIs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NotRecorded {
    /// Tracking is off.
    Disabled,
    /// It has no sending vCPU: an I/O APIC, an MSI, the kernel.
    NoSender,
    /// Its delivery mode is not fixed (lowest priority, SMI, NMI, INIT, startup).
    NotFixed,
    /// It uses a shorthand.
    Shorthand,
    /// Its vector is below 16: hardware sends nothing.
    IllegalVector,
    /// No vCPU accepted it.
    NoReceiver,
    /// Several vCPUs accepted it.
    SeveralReceivers,
    /// Its only receiver is its sender.
    ToSelf,
    /// Its sender or receiver has no context.
    NoSuchVcpu(NoSuchVcpu),
}

impl From<NoSuchVcpu> for NotRecorded {
    fn from(error: NoSuchVcpu) -> Self {
        Self::NoSuchVcpu(error)
    }
}

impl core::fmt::Display for NotRecorded {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Disabled => "IPI tracking is off",
            Self::NoSender => "the interrupt has no sending vCPU",
            Self::NotFixed => "the delivery mode is not fixed",
            Self::Shorthand => "the destination is a shorthand",
            Self::IllegalVector => "the vector is below 16",
            Self::NoReceiver => "no vCPU accepted the IPI",
            Self::SeveralReceivers => "several vCPUs accepted the IPI",
            Self::ToSelf => "the sender is the only receiver",
            Self::NoSuchVcpu(error) => return error.fmt(f),
        })
    }
}

impl core::error::Error for NotRecorded {}

/// Watches the delivery of one interrupt, in the fast and in the slow path.
///
/// Report the result of each `set_irq` by [`destination`](Self::destination), then call
/// [`finish`](Self::finish).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Delivery {
    sender: Option<u32>,
    icr_low: u32,
    receivers: u32,
    last: u32,
}

impl Delivery {
    /// An interrupt that `sender` sends by writing `icr_low`; `None` for devices and the kernel.
    #[must_use]
    pub const fn new(sender: Option<u32>, icr_low: u32) -> Self {
        Self {
            sender,
            icr_low,
            receivers: 0,
            last: 0,
        }
    }

    /// Reports the `result` of a destination's `set_irq`: above 0 if it accepted the interrupt,
    /// even if the vector was pending.
    pub const fn destination(&mut self, vcpu: u32, result: i32) {
        if result > 0 {
            self.receivers = self.receivers.saturating_add(1);
            self.last = vcpu;
        }
    }

    /// The IPI to record.
    ///
    /// # Errors
    /// [`NotRecorded`] for all but unicast fixed IPIs.
    pub fn recordable(&self) -> Result<Unicast, NotRecorded> {
        let vector = self.icr_low as u8;
        let Some(sender) = self.sender else {
            return Err(NotRecorded::NoSender);
        };
        // ICR bits 10:8 are the delivery mode, bits 19:18 the shorthand.
        if self.icr_low >> 8 & 7 != 0 {
            Err(NotRecorded::NotFixed)
        } else if self.icr_low >> 18 & 3 != 0 {
            Err(NotRecorded::Shorthand)
        } else if vector < FIRST_LEGAL_VECTOR {
            Err(NotRecorded::IllegalVector)
        } else if self.receivers == 0 {
            Err(NotRecorded::NoReceiver)
        } else if self.receivers > 1 {
            Err(NotRecorded::SeveralReceivers)
        } else if self.last == sender {
            Err(NotRecorded::ToSelf)
        } else {
            Ok(Unicast {
                sender,
                receiver: self.last,
                vector,
            })
        }
    }

    /// Records the IPI if its sender may wait for its receiver.
    ///
    /// # Errors
    /// [`NotRecorded`]; no context has changed.
    pub fn finish<W: AtomicWord, E: Events>(
        &self,
        contexts: &[IpiContext<W>],
        knobs: &IpiKnobs,
        now_ns: u64,
        events: &E,
    ) -> Result<(), NotRecorded> {
        record(contexts, knobs, &self.recordable()?, now_ns, events)
    }
}

/// Records an IPI that is sent at `now_ns`, in place of the sender's last record.
///
/// # Errors
/// [`NotRecorded`]; no context has changed.
pub fn record<W: AtomicWord, E: Events>(
    contexts: &[IpiContext<W>],
    knobs: &IpiKnobs,
    ipi: &Unicast,
    now_ns: u64,
    events: &E,
) -> Result<(), NotRecorded> {
    let Unicast {
        sender,
        receiver,
        vector,
    } = *ipi;
    let source = context(contexts, sender)?;
    let target = context(contexts, receiver)?;
    if !knobs.ipi_tracking_enabled {
        return Err(NotRecorded::Disabled);
    }
    if sender == receiver {
        return Err(NotRecorded::ToSelf);
    }
    if vector < FIRST_LEGAL_VECTOR {
        return Err(NotRecorded::IllegalVector);
    }
    source.store(receiver, u64::from(vector) << VECTOR_SHIFT, now_ns);
    target
        .sender
        .store(u64::from(sender) & RECEIVER_MASK, Ordering::Relaxed);
    events.ipi_recorded(sender, receiver, vector);
    Ok(())
}

/// Records a hint of the guest that `waiter` waits for `holder`. No EOI clears it, only its age,
/// [`withdraw_hint`] or the next record. False where the knob is off.
///
/// # Errors
/// [`NoSuchVcpu`]: the guest may give any number.
pub fn guest_hint<W: AtomicWord, E: Events>(
    contexts: &[IpiContext<W>],
    knobs: &IpiKnobs,
    waiter: u32,
    holder: u32,
    now_ns: u64,
    events: &E,
) -> Result<bool, NoSuchVcpu> {
    let source = context(contexts, waiter)?;
    context(contexts, holder)?;
    if !knobs.guest_yield_hint || waiter == holder {
        return Ok(false);
    }
    source.store(holder, FROM_GUEST, now_ns);
    events.guest_hint(waiter, holder);
    Ok(true)
}

/// Clears a hint of the guest; false if there is none.
///
/// # Errors
/// [`NoSuchVcpu`].
pub fn withdraw_hint<W: AtomicWord>(
    contexts: &[IpiContext<W>],
    waiter: u32,
) -> Result<bool, NoSuchVcpu> {
    Ok(context(contexts, waiter)?.settle(|outgoing| outgoing & FROM_GUEST != 0))
}

/// Resets the context of a destroyed vCPU, and clears it from all other contexts, so that no hint
/// names it.
///
/// Call this when nothing can be delivered to `vcpu` and pending deliveries have ended (the
/// kernel's grace period): a later delivery would record it again. Upstream resets only the vCPU's
/// own context, and a sender's hint names the destroyed vCPU for one more window.
///
/// # Errors
/// [`NoSuchVcpu`].
pub fn forget<W: AtomicWord>(contexts: &[IpiContext<W>], vcpu: u32) -> Result<(), NoSuchVcpu> {
    context(contexts, vcpu)?.reset();
    for context in contexts {
        // A concurrent record names another vCPU: no IPI reaches the destroyed one.
        context.settle(|outgoing| named(outgoing) == Some(vcpu));
        let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
        let _ = context
            .sender
            .compare_exchange(u64::from(vcpu), NO_VCPU, success, failure);
    }
    Ok(())
}

/// The vCPU that `sender` waits for, if the record is within the window. Costs two loads.
#[must_use]
pub fn confirmed_receiver<W: AtomicWord>(
    contexts: &[IpiContext<W>],
    knobs: &IpiKnobs,
    sender: u32,
    now_ns: u64,
) -> Option<Awaited> {
    let awaited = contexts.get(sender as usize)?.awaited()?;
    let enabled = match awaited.source {
        HintSource::Ipi { .. } => knobs.ipi_tracking_enabled,
        HintSource::Guest => knobs.guest_yield_hint,
    };
    // The age of a record in the future wraps, beyond any window.
    let recent = now_ns.wrapping_sub(awaited.time_ns) <= knobs.ipi_window_ns;
    (enabled && recent).then_some(awaited)
}

/// Whether `sender` waits for `candidate` (`kvm_vcpu_is_ipi_receiver`).
#[must_use]
pub fn is_ipi_receiver<W: AtomicWord>(
    contexts: &[IpiContext<W>],
    knobs: &IpiKnobs,
    sender: u32,
    candidate: u32,
    now_ns: u64,
) -> bool {
    confirmed_receiver(contexts, knobs, sender, now_ns)
        .is_some_and(|awaited| awaited.receiver == candidate)
}

/// Settles a sender's record as `receiver` ends an interrupt, and returns whether it did. `vector`
/// is `None` for an EOI without an interrupt in service.
///
/// # Errors
/// [`NoSuchVcpu`].
pub fn eoi<W: AtomicWord, E: Events>(
    contexts: &[IpiContext<W>],
    knobs: &IpiKnobs,
    receiver: u32,
    vector: Option<u8>,
    now_ns: u64,
    events: &E,
) -> Result<bool, NoSuchVcpu> {
    let target = context(contexts, receiver)?;
    let Some(sender) = target.last_sender() else {
        if knobs.eoi_rule == EoiRule::AnyVector {
            target.clear();
        }
        return Ok(false);
    };
    debug_assert_ne!(sender, receiver, "an IPI to itself is not recorded");
    let source = contexts.get(sender as usize);
    debug_assert!(source.is_some(), "the recorded sender has no context");
    let settled = match knobs.eoi_rule {
        EoiRule::VectorMatched => {
            let Some(vector) = vector else {
                return Ok(false);
            };
            let settled = source.is_some_and(|source| source.settle_ipi(receiver, vector));
            if settled {
                // Fails if another vCPU has sent an IPI since: its record stays.
                let _ = target.sender.compare_exchange(
                    u64::from(sender),
                    NO_VCPU,
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                );
            }
            settled
        }
        EoiRule::AnyVector => {
            target.clear();
            source.is_some_and(|source| {
                let age = now_ns.wrapping_sub(source.time_ns.load(Ordering::Relaxed));
                source.settle(|outgoing| {
                    named(outgoing) == Some(receiver) && age <= knobs.ipi_window_ns
                })
            })
        }
    };
    if settled {
        events.ipi_settled(sender, receiver);
    }
    Ok(settled)
}

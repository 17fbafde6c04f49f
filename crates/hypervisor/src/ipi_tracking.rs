//! IPI tracking: which vCPU a spinning vCPU probably waits for.
//!
//! Each vCPU remembers the last unicast fixed IPI that it sent and who sent it the last one. A
//! vCPU that spins soon after sending is likely to wait for its receiver. Everything here is a
//! hint: words are read and written without a lock, and a reader that meets a half-written pair
//! gets "nothing known".
//!
//! ```text
//!  sender's context                        receiver's context
//!  outgoing: receiver, vector, pending ──▶ sender ──┐
//!  time_ns                                          │ EOI of that vector
//!      ▲──────────────── clears pending ────────────┘
//! ```
//!
//! Directed-yield series v3, patches 6–8 (not merged). Two rules for the EOI are there: the second
//! version's, which wipes more than it should, and the third's.

use core::sync::atomic::Ordering;

use crate::events::Events;
use crate::word::AtomicWord;

/// Vectors below this one are illegal in a fixed IPI (Intel SDM vol. 3, "Valid Interrupt
/// Vectors"): the LAPIC reports an error and sends nothing.
pub const FIRST_LEGAL_VECTOR: u8 = 16;

/// The most vCPUs that a context can name.
pub const MAX_VCPUS: u32 = (1 << 24) - 1;

/// What an EOI clears.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EoiRule {
    /// Version 3: only the record whose vector it ends.
    #[default]
    VectorMatched,
    /// Version 2: the receiver's whole context, its own outgoing record included, whatever
    /// vector ended. Kept to show what that costs.
    AnyVector,
}

/// Parameters of module `kvm`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IpiKnobs {
    /// `kvm.ipi_tracking_enabled`.
    pub ipi_tracking_enabled: bool,
    /// `kvm.ipi_window_ns`: a record is believed for so long, the bound included.
    pub ipi_window_ns: u64,
    /// `kvm.ipi_eoi_rule` (no upstream name).
    pub eoi_rule: EoiRule,
    /// `kvm.guest_yield_hint` (no upstream name): a guest may name the vCPU it waits for.
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

/// Where the content of a slot comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HintSource {
    /// An IPI that software delivered.
    Ipi {
        /// Its vector.
        vector: u8,
    },
    /// The guest itself.
    Guest,
}

/// The content of a slot: whom its owner waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Awaited {
    /// The vCPU waited for.
    pub receiver: u32,
    /// How that is known.
    pub source: HintSource,
    /// Since when, in ns.
    pub time_ns: u64,
}

/// A vCPU that does not exist was named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NoSuchVcpu {
    /// The vCPU named.
    pub vcpu: u32,
    /// How many there are.
    pub vcpus: usize,
}

impl core::fmt::Display for NoSuchVcpu {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "vCPU {} of a VM that has {}: use an index below that",
            self.vcpu, self.vcpus
        )
    }
}

impl core::error::Error for NoSuchVcpu {}

const RECEIVER_MASK: u64 = (1 << 24) - 1;
const NOBODY: u64 = RECEIVER_MASK;
const VECTOR_SHIFT: u32 = 24;
const PENDING: u64 = 1 << 32;
const FROM_GUEST: u64 = 1 << 33;
const TAG_SHIFT: u32 = 40;
const TAG_MASK: u64 = (1 << 24) - 1;

/// One vCPU's context.
///
/// `outgoing` packs receiver (bits 0–23), vector (24–31), pending (32), source (33) and the low 24
/// bits of the time (40–63). The tag lets a reader see that record and time belong together, and
/// keeps an EOI from clearing a record made since it looked. A context has a cache line of its
/// own, since its vCPU writes it with every IPI.
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
    /// A context that knows nothing.
    #[must_use]
    pub fn new() -> Self {
        Self {
            outgoing: W::new(NOBODY),
            time_ns: W::new(0),
            sender: W::new(NOBODY),
        }
    }

    /// The vCPU is created or destroyed, or gets an INIT: all is forgotten, the time included. Upstream
    /// keeps the time at INIT; without a relation nothing reads it.
    pub fn reset(&self) {
        self.clear();
        self.time_ns.store(0, Ordering::Relaxed);
    }

    fn clear(&self) {
        self.outgoing.store(NOBODY, Ordering::Relaxed);
        self.sender.store(NOBODY, Ordering::Relaxed);
    }

    /// The vCPU that sent the last recorded IPI to this one.
    #[must_use]
    pub fn last_sender(&self) -> Option<u32> {
        named(self.sender.load(Ordering::Relaxed))
    }

    /// Whom this vCPU waits for, however long ago that was recorded.
    #[must_use]
    pub fn awaited(&self) -> Option<Awaited> {
        let outgoing = self.outgoing.load(Ordering::Acquire);
        let time_ns = self.time_ns.load(Ordering::Relaxed);
        let receiver = named(outgoing)?;
        // A time of another record: nothing is known.
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

    /// Clears the pending record of this sender if `ends` says so; true if it did.
    ///
    /// A record made meanwhile is left alone.
    fn settle(&self, ends: impl FnOnce(u64) -> bool) -> bool {
        let outgoing = self.outgoing.load(Ordering::Relaxed);
        outgoing & PENDING != 0
            && ends(outgoing)
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
}

fn named(word: u64) -> Option<u32> {
    let index = word & RECEIVER_MASK;
    (index != NOBODY).then_some(index as u32)
}

fn context<W>(contexts: &[IpiContext<W>], vcpu: u32) -> Result<&IpiContext<W>, NoSuchVcpu> {
    // A number that a record cannot hold would come back as another vCPU's.
    let vcpus = contexts.len().min(MAX_VCPUS as usize);
    match contexts.get(vcpu as usize) {
        Some(context) if (vcpu as usize) < vcpus => Ok(context),
        _ => Err(NoSuchVcpu { vcpu, vcpus }),
    }
}

/// Why an IPI leaves no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NotRecorded {
    /// Tracking is off.
    Disabled,
    /// It has no sending vCPU: an IOAPIC, an MSI, the kernel.
    NoSender,
    /// Its delivery mode is not fixed (lowest priority, SMI, NMI, INIT, startup).
    NotFixed,
    /// It uses a shorthand.
    Shorthand,
    /// Its vector is below 16: hardware sends nothing.
    IllegalVector,
    /// No vCPU accepted it.
    NoReceiver,
    /// Several accepted it.
    SeveralReceivers,
    /// Its only receiver is its sender.
    ToSelf,
}

/// Watches the delivery of one interrupt, in the fast and in the slow path alike.
///
/// Tell it the result of each `set_irq`, then [`finish`](Self::finish).
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

    /// A destination's `set_irq` returned `result`. Above 0 is accepted, also where the vector
    /// was pending already.
    pub const fn destination(&mut self, vcpu: u32, result: i32) {
        if result > 0 {
            self.receivers = self.receivers.saturating_add(1);
            self.last = vcpu;
        }
    }

    /// Whom to record, or why nobody.
    ///
    /// # Errors
    /// [`NotRecorded`]; that is the usual case for anything but a unicast fixed IPI.
    pub fn recordable(&self) -> Result<(u32, u32, u8), NotRecorded> {
        let vector = self.icr_low as u8;
        let Some(sender) = self.sender else {
            return Err(NotRecorded::NoSender);
        };
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
            Ok((sender, self.last, vector))
        }
    }

    /// Records the IPI if it is one that tells whom the sender waits for.
    ///
    /// # Errors
    /// [`NoSuchVcpu`] for a sender or receiver without a context.
    pub fn finish<W: AtomicWord, E: Events>(
        &self,
        contexts: &[IpiContext<W>],
        knobs: &IpiKnobs,
        now_ns: u64,
        events: &E,
    ) -> Result<Result<(), NotRecorded>, NoSuchVcpu> {
        match self.recordable() {
            Ok((sender, receiver, vector)) => {
                record(contexts, knobs, sender, receiver, vector, now_ns, events)
            }
            Err(why) => Ok(Err(why)),
        }
    }
}

/// Records that `sender` sent `vector` to `receiver` at `now_ns`. One slot: an earlier record of
/// the sender is replaced.
///
/// # Errors
/// [`NoSuchVcpu`]; nothing was recorded.
pub fn record<W: AtomicWord, E: Events>(
    contexts: &[IpiContext<W>],
    knobs: &IpiKnobs,
    sender: u32,
    receiver: u32,
    vector: u8,
    now_ns: u64,
    events: &E,
) -> Result<Result<(), NotRecorded>, NoSuchVcpu> {
    let from = context(contexts, sender)?;
    let to = context(contexts, receiver)?;
    let refused = if !knobs.ipi_tracking_enabled {
        Some(NotRecorded::Disabled)
    } else if sender == receiver {
        Some(NotRecorded::ToSelf)
    } else if vector < FIRST_LEGAL_VECTOR {
        Some(NotRecorded::IllegalVector)
    } else {
        None
    };
    if let Some(why) = refused {
        return Ok(Err(why));
    }
    from.store(receiver, u64::from(vector) << VECTOR_SHIFT, now_ns);
    to.sender
        .store(u64::from(sender) & RECEIVER_MASK, Ordering::Relaxed);
    events.ipi_recorded(sender, receiver, vector);
    Ok(Ok(()))
}

/// The guest says that `waiter` waits for `holder`. It enters the slot of a confirmed receiver;
/// no EOI clears it, only age, [`withdraw_hint`] or the next record. False where the knob is off.
///
/// # Errors
/// [`NoSuchVcpu`]: the guest's number is checked, not believed.
pub fn guest_hint<W: AtomicWord, E: Events>(
    contexts: &[IpiContext<W>],
    knobs: &IpiKnobs,
    waiter: u32,
    holder: u32,
    now_ns: u64,
    events: &E,
) -> Result<bool, NoSuchVcpu> {
    let from = context(contexts, waiter)?;
    context(contexts, holder)?;
    if !knobs.guest_yield_hint || waiter == holder {
        return Ok(false);
    }
    from.store(holder, FROM_GUEST, now_ns);
    events.guest_hint(waiter, holder);
    Ok(true)
}

/// The guest takes its hint back; false if the slot holds none.
///
/// # Errors
/// [`NoSuchVcpu`].
pub fn withdraw_hint<W: AtomicWord>(
    contexts: &[IpiContext<W>],
    waiter: u32,
) -> Result<bool, NoSuchVcpu> {
    Ok(context(contexts, waiter)?.settle(|outgoing| outgoing & FROM_GUEST != 0))
}

/// `vcpu` is destroyed: its context is reset, and no other context names it any more, so that no
/// later hint does.
///
/// To be called when nothing can be delivered to `vcpu` any more and deliveries under way have
/// ended (the kernel's grace period): one that ends later would record it again. Upstream resets
/// only the context itself, and a sender's hint names the vCPU that is gone for a window more.
///
/// # Errors
/// [`NoSuchVcpu`].
pub fn forget<W: AtomicWord>(contexts: &[IpiContext<W>], vcpu: u32) -> Result<(), NoSuchVcpu> {
    context(contexts, vcpu)?.reset();
    for other in contexts {
        // A record made meanwhile is of another vCPU: nothing can be sent to this one.
        other.settle(|outgoing| named(outgoing) == Some(vcpu));
        let (gone, nobody) = (u64::from(vcpu), NOBODY);
        let (ok, fail) = (Ordering::Relaxed, Ordering::Relaxed);
        let _ = other.sender.compare_exchange(gone, nobody, ok, fail);
    }
    Ok(())
}

/// Whom `sender` waits for, if that is recent enough to believe. Costs two loads.
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
    // A time in the future wraps to an age beyond any window.
    let recent = now_ns.wrapping_sub(awaited.time_ns) <= knobs.ipi_window_ns;
    (enabled && recent).then_some(awaited)
}

/// Whether `candidate` is whom `sender` waits for (`kvm_vcpu_is_ipi_receiver`).
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

/// `receiver` ends an interrupt; `None` is an EOI while none was in service. True if a sender's
/// record was settled.
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
    let own = context(contexts, receiver)?;
    let Some(sender) = own.last_sender() else {
        if knobs.eoi_rule == EoiRule::AnyVector {
            own.clear();
        }
        return Ok(false);
    };
    let from = contexts.get(sender as usize);
    let settled = match knobs.eoi_rule {
        EoiRule::VectorMatched => {
            let Some(vector) = vector else {
                return Ok(false);
            };
            let settled = from.is_some_and(|from| {
                from.settle(|outgoing| {
                    outgoing & FROM_GUEST == 0
                        && named(outgoing) == Some(receiver)
                        && (outgoing >> VECTOR_SHIFT) as u8 == vector
                })
            });
            if settled {
                // Unless somebody else has sent an IPI since.
                let _ = own.sender.compare_exchange(
                    u64::from(sender),
                    NOBODY,
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                );
            }
            settled
        }
        EoiRule::AnyVector => {
            own.clear();
            from.is_some_and(|from| {
                let age = now_ns.wrapping_sub(from.time_ns.load(Ordering::Relaxed));
                from.settle(|outgoing| {
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

//! Batched vCPU wakeups: raise softirqs on many CPUs first, send the IPIs afterwards.
//!
//! ```text
//!  begin ─▶ raise(cpu a) ─▶ raise(cpu b) ─▶ … ─▶ finish
//!             set bit          set bit             drop those with word 0
//!             note a           note b              one multicast to the rest
//!             │
//!             └─ a CPU in MWAIT on its word wakes by the store: never noted
//! ```
//!
//! Between the two, CPUs may notice their bits by MWAIT, by the IPI of another CPU, or by passing
//! the check. In cluster mode the rest costs one ICR write for each 16.
//!
//! | module | is |
//! |---|---|
//! | [`softirq`] | the word of pending bits and the MWAIT promise |
//! | [`mask`] | sets of CPUs |
//! | [`icr`] | ICR writes by APIC mode |
//! | [`multicast`] | which guest IPIs open a batch |
//! | [`policy`] | when batching pays |
//!
//! ```
//! use std::sync::atomic::AtomicU64;
//! use stealtime_hypervisor::wakeup_batch::icr::{ApicMode, CpuApic, IcrWrite, Topology};
//! use stealtime_hypervisor::wakeup_batch::softirq::SoftirqWord;
//! use stealtime_hypervisor::wakeup_batch::{Batch, Context, Cpus};
//!
//! // Eight CPUs in one x2APIC cluster. CPU 3 idles in MWAIT.
//! let apics = [0, 1, 2, 3, 4, 5, 6, 7].map(|id| CpuApic::new(id, true));
//! let topology = Topology::new(ApicMode::X2apicCluster, apics)?;
//! let words = [(); 8].map(|()| SoftirqWord::<AtomicU64>::new());
//! assert!(words[3].announce_mwait(true));
//! let cpus = Cpus { words: &words, topology: &topology };
//! let here = Context { cpu: 0, in_irq: false, in_nmi: false, irqs_on: true, hotplug: false };
//!
//! let mut written = Vec::new();
//! let mut icr = |write| written.push(write);
//! let mut batch = Batch::new(0, [0; 1]);
//! batch.begin()?;
//! for cpu in [1, 2, 3] {
//!     batch.raise(cpus, here, cpu, 5, &mut icr, &())?;
//! }
//! words[1].take(u32::MAX); // CPU 1 passes the check meanwhile.
//! let finished = batch.finish(cpus, here, &mut icr, &())?;
//! assert_eq!((finished.noted, finished.noticed, finished.icr_writes), (2, 1, 1));
//! // To CPU 2 alone: bit 2 of cluster 0, logical, vector 0xfc.
//! assert_eq!(written, [IcrWrite::X2apic(4 << 32 | 0x8fc)]);
//! # Ok::<(), stealtime_hypervisor::wakeup_batch::RaiseError>(())
//! ```
//!
//! A [`Batch`] belongs to one CPU and is touched by it alone, outside interrupt handlers: its set
//! changes by plain stores. Interrupt handlers use [`raise_now`] and [`raise_mask_now`], also when
//! they interrupt a batch. Xen: `common/softirq.c`.

pub mod icr;
pub mod mask;
pub mod multicast;
pub mod policy;
pub mod softirq;

use self::icr::{CpuApic, IcrError, IcrWrite, Topology};
use self::mask::{CpuMask, MaskStorage};
use self::softirq::{NR_SOFTIRQS, SetPending, SoftirqWord};
use crate::events::Events;
use crate::word::AtomicWord;

/// The vector of a handler that only passes the softirq check.
pub const EVENT_CHECK_VECTOR: u8 = 0xfc;

/// All CPUs' words and LAPICs.
#[derive(Debug)]
pub struct Cpus<'a, W, T> {
    /// By CPU number.
    pub words: &'a [SoftirqWord<W>],
    /// By CPU number.
    pub topology: &'a Topology<T>,
}

impl<W, T> Clone for Cpus<'_, W, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W, T> Copy for Cpus<'_, W, T> {}

/// On which CPU, and in which context, softirqs are raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Context {
    /// This CPU.
    pub cpu: u32,
    /// Inside a hard interrupt handler (its nesting count is not 0). Interrupts that are merely
    /// disabled do not count.
    pub in_irq: bool,
    /// Inside an NMI or machine check handler.
    pub in_nmi: bool,
    /// Interrupts are enabled.
    pub irqs_on: bool,
    /// A CPU is being brought up or taken down, or the other CPUs still boot (`get_cpu_maps`
    /// fails).
    pub hotplug: bool,
}

impl Context {
    /// The shorthand needs a context that hotplug and other senders cannot interrupt.
    const fn may_use_shorthand(&self) -> bool {
        self.irqs_on && !self.in_irq && !self.in_nmi && !self.hotplug
    }
}

/// A request that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RaiseError {
    /// The CPU does not exist, or its LAPIC cannot be addressed.
    Icr(IcrError),
    /// No such softirq.
    NoSuchSoftirq {
        /// The number given; 0 up to 31 exist.
        nr: u32,
    },
    /// The CPU has no place in the batch's set: make its storage larger.
    BeyondMask {
        /// The CPU.
        cpu: u32,
        /// How many CPUs the set can hold.
        capacity: usize,
    },
    /// A finish without a begin.
    NotBatching {
        /// The CPU of the batch.
        cpu: u32,
    },
    /// More begins than a count holds: one is never finished.
    TooDeep {
        /// The CPU of the batch.
        cpu: u32,
        /// The count.
        batching: u32,
    },
}

impl From<IcrError> for RaiseError {
    fn from(error: IcrError) -> Self {
        Self::Icr(error)
    }
}

impl core::fmt::Display for RaiseError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Icr(error) => error.fmt(f),
            Self::NoSuchSoftirq { nr } => {
                write!(
                    f,
                    "softirq {nr}: there are {NR_SOFTIRQS}, use a lower number"
                )
            }
            Self::BeyondMask { cpu, capacity } => write!(
                f,
                "CPU {cpu} does not fit a batch of {capacity} CPUs: give it more storage"
            ),
            Self::NotBatching { cpu } => {
                write!(f, "batch of CPU {cpu} finished without having begun")
            }
            Self::TooDeep { cpu, batching } => write!(
                f,
                "batch of CPU {cpu} begun {batching} times and never finished: pair each begin"
            ),
        }
    }
}

impl core::error::Error for RaiseError {}

impl<W, T: AsRef<[CpuApic]>> Cpus<'_, W, T> {
    fn word(&self, cpu: u32) -> Result<&SoftirqWord<W>, RaiseError> {
        self.topology.check(cpu)?;
        let cpus = self.words.len();
        let word = self.words.get(cpu as usize);
        Ok(word.ok_or(IcrError::NoSuchCpu { cpu, cpus })?)
    }
}

/// Whether softirq `nr` can be raised on all of `mask`.
fn check_all<W, T: AsRef<[CpuApic]>, S: MaskStorage>(
    cpus: Cpus<'_, W, T>,
    mask: &CpuMask<S>,
    nr: u32,
) -> Result<(), RaiseError> {
    if nr >= NR_SOFTIRQS {
        return Err(RaiseError::NoSuchSoftirq { nr });
    }
    mask.highest()
        .map_or(Ok(()), |cpu| cpus.word(cpu).map(|_| ()))
}

/// Sets bit `nr` of `cpu`; true if the CPU needs an IPI.
fn mark<W: AtomicWord, T: AsRef<[CpuApic]>, E: Events>(
    cpus: Cpus<'_, W, T>,
    sender: u32,
    cpu: u32,
    nr: u32,
    events: &E,
) -> Result<bool, RaiseError> {
    if nr >= NR_SOFTIRQS {
        return Err(RaiseError::NoSuchSoftirq { nr });
    }
    let word = cpus.word(cpu)?;
    let set = word.set_pending(nr);
    events.softirq_raised(cpu, nr, set);
    Ok(set == SetPending::NeedsIpi && cpu != sender)
}

/// Sends the event check to `targets`, which is emptied; returns the ICR writes made.
fn send<W, T: AsRef<[CpuApic]>, S: MaskStorage, E: Events>(
    cpus: Cpus<'_, W, T>,
    context: Context,
    targets: &mut CpuMask<S>,
    icr: &mut impl FnMut(IcrWrite),
    events: &E,
) -> Result<u32, RaiseError> {
    let writes =
        if context.may_use_shorthand() && cpus.topology.is_all_but_self(targets, context.cpu) {
            icr(Topology::<T>::all_but_self(EVENT_CHECK_VECTOR));
            targets.clear();
            1
        } else {
            cpus.topology
                .send(context.cpu, EVENT_CHECK_VECTOR, targets, icr)?
        };
    events.event_check_sent(context.cpu, writes);
    Ok(writes)
}

/// Raises softirq `nr` on `cpu` without a batch, as interrupt handlers must.
///
/// # Errors
/// [`RaiseError`] for a CPU or softirq that does not exist; nothing was set.
pub fn raise_now<W: AtomicWord, T: AsRef<[CpuApic]>, E: Events>(
    cpus: Cpus<'_, W, T>,
    context: Context,
    cpu: u32,
    nr: u32,
    icr: &mut impl FnMut(IcrWrite),
    events: &E,
) -> Result<(), RaiseError> {
    if mark(cpus, context.cpu, cpu, nr, events)? {
        let topology = cpus.topology;
        let write = if context.may_use_shorthand() && topology.is_only_other(cpu, context.cpu) {
            Some(Topology::<T>::all_but_self(EVENT_CHECK_VECTOR))
        } else {
            topology.unicast(cpu, EVENT_CHECK_VECTOR)
        };
        events.event_check_sent(context.cpu, u32::from(write.is_some()));
        if let Some(write) = write {
            icr(write);
        }
    }
    Ok(())
}

/// Raises softirq `nr` on the CPUs in `mask` without a batch (`cpumask_raise_softirq`). Empties
/// `mask`: a handler has no memory for a set of its own.
///
/// # Errors
/// [`RaiseError`] for a CPU or softirq that does not exist; nothing was set.
pub fn raise_mask_now<W: AtomicWord, T: AsRef<[CpuApic]>, S: MaskStorage, E: Events>(
    cpus: Cpus<'_, W, T>,
    context: Context,
    mask: &mut CpuMask<S>,
    nr: u32,
    icr: &mut impl FnMut(IcrWrite),
    events: &E,
) -> Result<(), RaiseError> {
    check_all(cpus, mask, nr)?;
    mask.retain(|cpu| mark(cpus, context.cpu, cpu, nr, events) == Ok(true));
    send(cpus, context, mask, icr, events)?;
    Ok(())
}

/// One CPU's batch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Batch<S> {
    cpu: u32,
    batching: u32,
    batch_mask: CpuMask<S>,
    fault_of_2014: bool,
}

/// What a finish did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Finished {
    /// CPUs that had been noted.
    pub noted: u32,
    /// Those of them that had nothing pending any more: IPIs spared.
    pub noticed: u32,
    /// ICR writes made for the rest.
    pub icr_writes: u32,
}

impl<S: MaskStorage> Batch<S> {
    /// The batch of CPU `cpu`, not begun; `storage` holds one bit for each CPU.
    #[must_use]
    pub fn new(cpu: u32, storage: S) -> Self {
        Self {
            cpu,
            batching: 0,
            batch_mask: CpuMask::empty(storage),
            fault_of_2014: false,
        }
    }

    /// With the fault of the patch of 2014, for a checker to find. [`raise`](Self::raise) notes
    /// the softirq's number in place of the CPU's (fixed by Xen 5dbdf33c57).
    #[must_use]
    pub fn with_fault_of_2014(mut self) -> Self {
        self.fault_of_2014 = true;
        self
    }

    /// How deep it is nested; 0: raising sends at once.
    #[must_use]
    pub const fn batching(&self) -> u32 {
        self.batching
    }

    /// The CPUs noted.
    #[must_use]
    pub const fn batch_mask(&self) -> &CpuMask<S> {
        &self.batch_mask
    }

    /// Begins a batch, or nests one.
    ///
    /// # Errors
    /// [`RaiseError::TooDeep`].
    pub fn begin(&mut self) -> Result<(), RaiseError> {
        self.batching = self.batching.checked_add(1).ok_or(RaiseError::TooDeep {
            cpu: self.cpu,
            batching: self.batching,
        })?;
        Ok(())
    }

    const fn notes(&self, context: &Context) -> bool {
        // A handler's wakeups must not wait for the loop that it interrupted.
        self.batching != 0 && !context.in_irq
    }

    /// Raises softirq `nr` on `cpu`, or notes that it needs an IPI.
    ///
    /// # Errors
    /// [`RaiseError`] for a CPU or softirq that does not exist; nothing was set.
    pub fn raise<W: AtomicWord, T: AsRef<[CpuApic]>, E: Events>(
        &mut self,
        cpus: Cpus<'_, W, T>,
        context: Context,
        cpu: u32,
        nr: u32,
        icr: &mut impl FnMut(IcrWrite),
        events: &E,
    ) -> Result<(), RaiseError> {
        if !self.notes(&context) {
            return raise_now(cpus, context, cpu, nr, icr, events);
        }
        self.check_room(cpu)?;
        if mark(cpus, context.cpu, cpu, nr, events)? {
            // The CPU's number, not the softirq's: the 2014 patch mixed them up.
            self.batch_mask
                .insert(if self.fault_of_2014 { nr } else { cpu });
        }
        Ok(())
    }

    /// Raises softirq `nr` on the CPUs in `mask`, or notes those that need an IPI. Empties `mask`.
    ///
    /// # Errors
    /// [`RaiseError`] for a CPU or softirq that does not exist; nothing was set.
    pub fn raise_mask<W: AtomicWord, T: AsRef<[CpuApic]>, M: MaskStorage, E: Events>(
        &mut self,
        cpus: Cpus<'_, W, T>,
        context: Context,
        mask: &mut CpuMask<M>,
        nr: u32,
        icr: &mut impl FnMut(IcrWrite),
        events: &E,
    ) -> Result<(), RaiseError> {
        if !self.notes(&context) {
            return raise_mask_now(cpus, context, mask, nr, icr, events);
        }
        if let Some(highest) = mask.highest() {
            self.check_room(highest)?;
        }
        check_all(cpus, mask, nr)?;
        for cpu in mask.iter() {
            if mark(cpus, context.cpu, cpu, nr, events)? {
                self.batch_mask.insert(cpu);
            }
        }
        mask.clear();
        Ok(())
    }

    /// Tells the noted CPUs that have not noticed yet, whatever the nesting, and leaves one level.
    ///
    /// # Errors
    /// [`RaiseError::NotBatching`] without a begin.
    pub fn finish<W: AtomicWord, T: AsRef<[CpuApic]>, E: Events>(
        &mut self,
        cpus: Cpus<'_, W, T>,
        context: Context,
        icr: &mut impl FnMut(IcrWrite),
        events: &E,
    ) -> Result<Finished, RaiseError> {
        let outer = self
            .batching
            .checked_sub(1)
            .ok_or(RaiseError::NotBatching { cpu: self.cpu })?;
        let noted = self.batch_mask.count();
        // Any pending softirq counts, not only the one raised here: its raiser may rely on us.
        self.batch_mask.retain(|cpu| {
            let word = cpus.words.get(cpu as usize);
            word.is_some_and(|word| word.pending() != 0)
        });
        let notified = self.batch_mask.count();
        let icr_writes = send(cpus, context, &mut self.batch_mask, icr, events)?;
        self.batching = outer;
        let finished = Finished {
            noted,
            noticed: noted - notified,
            icr_writes,
        };
        events.batch_finished(self.cpu, finished);
        Ok(finished)
    }

    fn check_room(&self, cpu: u32) -> Result<(), RaiseError> {
        let capacity = self.batch_mask.capacity();
        if (cpu as usize) < capacity {
            Ok(())
        } else {
            Err(RaiseError::BeyondMask { cpu, capacity })
        }
    }
}

//! Guest IPI destinations by Xen's rules (`vlapic.c`: `is_multicast_dest`, `vlapic_match_dest`,
//! `vlapic_ipi`).
//!
//! They differ from KVM's: there is no map, no logical broadcast as such, and lowest priority is
//! round robin over the processor priority.
//!
//! ```
//! use stealtime_hypervisor::lapic::Interrupt;
//! use stealtime_hypervisor::lapic::xen::{Vlapic, ipi};
//!
//! let vlapics = [0, 1, 2].map(|id| Vlapic {
//!     x2apic: true,
//!     id,
//!     ldr: 1 << id,
//!     dfr: u32::MAX,
//!     enabled: true,
//!     ppr: 0,
//! });
//! // Vector 0x31, fixed, logical, to the vCPUs 1 and 2.
//! let interrupt = Interrupt::from_icr(0x4831, 0b110, true);
//! let (mut handed, mut round_robin) = (Vec::new(), 0);
//! let sent = ipi(&vlapics, &mut round_robin, 0, &interrupt, &(), |vcpu| handed.push(vcpu))?;
//! assert_eq!((handed, sent.multicast), (vec![1, 2], true));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use super::NoSuchVcpu;
use super::destination::{BROADCAST, DFR_CLUSTER, DFR_FLAT, X2APIC_BROADCAST};
use super::icr::{DeliveryMode, IllegalVector, Interrupt, Shorthand};
use crate::events::Events;
use crate::wakeup_batch::multicast::GuestIpi;

/// What of a vlapic decides whether an IPI reaches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Vlapic {
    /// In x2APIC mode.
    pub x2apic: bool,
    /// ID register: in xAPIC mode the id is its top byte.
    pub id: u32,
    /// Logical destination register.
    pub ldr: u32,
    /// Destination format register.
    pub dfr: u32,
    /// Enabled, in hardware and in software.
    pub enabled: bool,
    /// Processor priority, which arbitrates lowest priority.
    pub ppr: u8,
}

/// What became of an IPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VlapicIpi {
    /// How many vlapics were handed it.
    pub handed: u32,
    /// Whether it may reach several, so that the wakeups are worth batching.
    pub multicast: bool,
    /// A reserved vector: the vlapic logs it in its error status register.
    pub error: Option<IllegalVector>,
    /// INIT or start-up, which Xen defers to a tasklet; no vCPU is handed it here.
    pub init_sipi: bool,
}

/// Whether an ICR write may reach several vCPUs.
#[must_use]
pub fn is_multicast(vlapics: &[Vlapic], source: usize, interrupt: &Interrupt) -> bool {
    let Some(sender) = vlapics.get(source) else {
        return false;
    };
    let form = GuestIpi {
        shorthand: interrupt.shorthand as u8,
        logical: interrupt.logical,
        dest: interrupt.dest,
        x2apic: sender.x2apic,
        dfr: sender.dfr,
    };
    form.is_multicast(u32::try_from(vlapics.len()).unwrap_or(u32::MAX))
}

impl Vlapic {
    fn named_by(&self, dest: u32, logical: bool) -> bool {
        match (logical, self.x2apic) {
            (false, true) => dest == X2APIC_BROADCAST || dest == self.id,
            (false, false) => dest == BROADCAST || dest == self.id >> 24,
            (true, true) => self.ldr >> 16 == dest >> 16 && self.ldr & dest & 0xffff != 0,
            (true, false) => {
                let (mda, id) = (dest & 0xff, self.ldr >> 24);
                match self.dfr {
                    DFR_FLAT => id & mda != 0,
                    DFR_CLUSTER => id >> 4 == mda >> 4 && id & mda & 0xf != 0,
                    _ => false,
                }
            }
        }
    }
}

/// Whether an ICR write of `source` is for `target`.
#[must_use]
pub fn matches(vlapics: &[Vlapic], target: usize, source: usize, interrupt: &Interrupt) -> bool {
    let Some(vlapic) = vlapics.get(target) else {
        return false;
    };
    match interrupt.shorthand {
        Shorthand::None => vlapic.named_by(interrupt.dest, interrupt.logical),
        Shorthand::SelfOnly => target == source,
        Shorthand::All => true,
        Shorthand::AllButSelf => target != source,
    }
}

/// The winner of a lowest-priority IPI: the least PPR, scanning once around from the one after
/// the last winner.
#[must_use]
pub fn arbitrate(
    vlapics: &[Vlapic],
    round_robin: usize,
    source: usize,
    interrupt: &Interrupt,
) -> Option<usize> {
    let count = vlapics.len();
    let around = (1..=count).filter_map(|n| round_robin.wrapping_add(n).checked_rem(count));
    around
        .filter(|&t| matches(vlapics, t, source, interrupt))
        .filter_map(|t| vlapics.get(t).filter(|v| v.enabled).map(|v| (v.ppr, t)))
        .min_by_key(|&(ppr, _)| ppr)
        .map(|(_, target)| target)
}

/// Sends an IPI (`vlapic_ipi`). `round_robin` is the domain's and moves with each lowest-priority
/// winner. `hand` is called for each vlapic that gets the interrupt, in order; that loop is what
/// batched wakeups bracket when the IPI is multicast.
///
/// # Errors
/// [`NoSuchVcpu`] for a source that does not exist.
pub fn ipi(
    vlapics: &[Vlapic],
    round_robin: &mut usize,
    source: usize,
    interrupt: &Interrupt,
    events: &impl Events,
    mut hand: impl FnMut(usize),
) -> Result<VlapicIpi, NoSuchVcpu> {
    let vcpus = vlapics.len();
    if source >= vcpus {
        return Err(NoSuchVcpu {
            vcpu: source,
            vcpus,
        });
    }
    let mut sent = VlapicIpi {
        handed: 0,
        multicast: is_multicast(vlapics, source, interrupt),
        error: None,
        init_sipi: false,
    };
    let mut hand_over = |target: usize, sent: &mut VlapicIpi| {
        sent.handed += 1;
        events.interrupt_accepted(interrupt.vector, true);
        hand(target);
    };
    match interrupt.delivery {
        DeliveryMode::Init | DeliveryMode::Startup => {
            sent.init_sipi = true;
            return Ok(sent);
        }
        DeliveryMode::LowestPriority => {
            // Arbitration comes first and moves the round robin even for a vector that is then
            // refused; the vector is judged even without a winner.
            let winner = arbitrate(vlapics, *round_robin, source, interrupt);
            *round_robin = winner.unwrap_or(*round_robin);
            sent.error = interrupt.check_vector().err();
            if let Some(winner) = winner.filter(|_| sent.error.is_none()) {
                hand_over(winner, &mut sent);
            }
        }
        _ => {
            sent.error = interrupt.check_vector().err();
            for target in 0..vcpus {
                if sent.error.is_none() && matches(vlapics, target, source, interrupt) {
                    hand_over(target, &mut sent);
                }
            }
        }
    }
    if sent.handed == 0 {
        events.ipi_reached_nobody(interrupt.vector);
    }
    Ok(sent)
}

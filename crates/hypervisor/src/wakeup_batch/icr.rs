//! ICR writes: how many, and what, by the host's APIC mode.
//!
//! | mode | writes for n targets | waits for the ICR |
//! |---|---|---|
//! | xAPIC flat | 1 (at most 8 CPUs) | once |
//! | xAPIC physical | n | n times, as long as each target takes to accept |
//! | x2APIC physical | n | never |
//! | x2APIC cluster | 1 for each cluster of 16 | never |
//! | any, to all but self | 1 | once in xAPIC mode |
//!
//! Xen: `genapic/x2apic.c`, `smp.c`. Intel SDM vol. 3, "Interrupt Command Register".

use super::mask::{CpuMask, MaskStorage, Taking};
use crate::ipi_tracking::FIRST_LEGAL_VECTOR;

/// How the host's LAPICs are addressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ApicMode {
    /// Memory-mapped, one bit for each of at most 8 CPUs.
    XapicFlat,
    /// Memory-mapped, one destination a write.
    XapicPhysical,
    /// By MSR, one destination a write.
    X2apicPhysical,
    /// By MSR, any members of one cluster of 16 a write.
    X2apicCluster,
}

impl ApicMode {
    /// Whether each ICR write must wait until the last one was accepted.
    #[must_use]
    pub const fn waits_for_icr_idle(self) -> bool {
        matches!(self, Self::XapicFlat | Self::XapicPhysical)
    }
}

/// One write of the ICR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IcrWrite {
    /// The 64-bit MSR.
    X2apic(u64),
    /// The two registers, the high one first, after waiting for the ICR to be idle.
    Xapic {
        /// `APIC_ICR2`.
        high: u32,
        /// `APIC_ICR`.
        low: u32,
    },
    /// The shorthand "all but self"; the destination does not matter.
    AllButSelf {
        /// The low half.
        low: u32,
    },
}

const LOGICAL: u32 = 0x800;
const ALL_BUT_SELF: u32 = 3 << 18;
const LAST_OF_CLUSTER: u32 = u32::MAX;

/// One CPU's place among the LAPICs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CpuApic {
    apic_id: u32,
    online: bool,
    /// The next higher CPU of the same x2APIC cluster.
    next_in_cluster: u32,
}

impl CpuApic {
    /// A CPU with a physical APIC id.
    #[must_use]
    pub const fn new(apic_id: u32, online: bool) -> Self {
        Self {
            apic_id,
            online,
            next_in_cluster: LAST_OF_CLUSTER,
        }
    }

    const fn cluster(&self) -> u32 {
        self.apic_id >> 4
    }

    const fn member(&self) -> u32 {
        1 << (self.apic_id & 15)
    }
}

/// CPUs that a shorthand reaches and a list of targets leaves out, as in Xen's `send_IPI_mask`
/// (`arch/x86/smp.c`). An IPI to a CPU that was never set up, or that waits for INIT, can hang it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Bystanders {
    /// The machine has CPUs without a place in the topology (`unaccounted_cpus`).
    pub unaccounted: bool,
    /// How many CPUs the firmware lists as disabled (`disabled_cpus`).
    pub disabled: u32,
    /// Offline CPUs were brought up once and are parked (`park_offline_cpus`): an IPI does no harm.
    pub parked: bool,
}

/// A machine that cannot be, or a request that cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IcrError {
    /// Two CPUs have one APIC id.
    DuplicateApicId {
        /// The id.
        apic_id: u32,
        /// The lower CPU.
        first: u32,
        /// The higher CPU.
        second: u32,
    },
    /// The id is the broadcast id of the mode, or beyond what it can address.
    ApicIdOutOfRange {
        /// The CPU.
        cpu: u32,
        /// Its id.
        apic_id: u32,
        /// The mode.
        mode: ApicMode,
    },
    /// More CPUs than the mode can address.
    TooManyCpus {
        /// How many there are.
        cpus: usize,
        /// The mode.
        mode: ApicMode,
    },
    /// The vector is below 16: the LAPIC would send nothing and report an error.
    IllegalVector {
        /// The vector.
        vector: u8,
    },
    /// The CPU does not exist.
    NoSuchCpu {
        /// The CPU named.
        cpu: u32,
        /// How many there are.
        cpus: usize,
    },
}

impl core::fmt::Display for IcrError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::DuplicateApicId {
                apic_id,
                first,
                second,
            } => write!(
                f,
                "CPUs {first} and {second} both have APIC id {apic_id:#x}: give each its own"
            ),
            Self::ApicIdOutOfRange { cpu, apic_id, mode } => write!(
                f,
                "CPU {cpu} has APIC id {apic_id:#x}, which {mode:?} cannot address: use {}",
                if mode.waits_for_icr_idle() {
                    "x2APIC"
                } else {
                    "X2apicPhysical and ids below 2^32-1"
                }
            ),
            Self::TooManyCpus { cpus, mode } => {
                write!(f, "{cpus} CPUs are more than {mode:?} can address")
            }
            Self::IllegalVector { vector } => {
                write!(
                    f,
                    "vector {vector:#x} is below 0x10: a LAPIC does not send it"
                )
            }
            Self::NoSuchCpu { cpu, cpus } => {
                write!(
                    f,
                    "CPU {cpu} of a machine that has {cpus}: use a number below that"
                )
            }
        }
    }
}

impl core::error::Error for IcrError {}

/// The machine's LAPICs, by CPU number.
#[derive(Clone, Debug)]
pub struct Topology<T> {
    mode: ApicMode,
    cpus: T,
    online: u32,
    bystanders: Bystanders,
}

impl<T: AsRef<[CpuApic]>> Topology<T> {
    /// Checks the ids and links the members of each cluster. There are no [`Bystanders`].
    ///
    /// # Errors
    /// [`IcrError`] for ids that clash or that the mode cannot address.
    pub fn new(mode: ApicMode, mut cpus: T) -> Result<Self, IcrError>
    where
        T: AsMut<[CpuApic]>,
    {
        let apics = cpus.as_mut();
        let beyond = match mode {
            ApicMode::XapicFlat => apics.len() > 8,
            _ => u32::try_from(apics.len()).is_err(),
        };
        if beyond {
            let cpus = apics.len();
            return Err(IcrError::TooManyCpus { cpus, mode });
        }
        let limit = match mode {
            ApicMode::XapicFlat | ApicMode::XapicPhysical => 0xff,
            ApicMode::X2apicPhysical => u32::MAX,
            // A logical id has 16 bits for the cluster's number: an id beyond would be another's.
            ApicMode::X2apicCluster => 1 << 20,
        };
        let mut online = 0;
        for index in 0..apics.len() {
            let (lower, rest) = apics.split_at_mut(index);
            let Some(apic) = rest.first_mut() else { break };
            apic.next_in_cluster = LAST_OF_CLUSTER;
            online += u32::from(apic.online);
            let (cpu, apic_id) = (index as u32, apic.apic_id);
            if apic_id >= limit {
                return Err(IcrError::ApicIdOutOfRange { cpu, apic_id, mode });
            }
            link(lower, cpu, apic)?;
        }
        Ok(Self {
            mode,
            cpus,
            online,
            bystanders: Bystanders::default(),
        })
    }

    /// The same machine with CPUs that the topology does not list.
    #[must_use]
    pub fn with_bystanders(mut self, bystanders: Bystanders) -> Self {
        self.bystanders = bystanders;
        self
    }

    /// The mode.
    #[must_use]
    pub const fn mode(&self) -> ApicMode {
        self.mode
    }

    /// How many CPUs there are, offline ones included.
    #[must_use]
    pub fn cpus(&self) -> usize {
        self.cpus.as_ref().len()
    }

    /// How many of them are online.
    #[must_use]
    pub const fn online(&self) -> u32 {
        self.online
    }

    fn get(&self, cpu: u32) -> Option<&CpuApic> {
        self.cpus.as_ref().get(cpu as usize)
    }

    pub(super) fn check(&self, cpu: u32) -> Result<&CpuApic, IcrError> {
        self.get(cpu).ok_or(IcrError::NoSuchCpu {
            cpu,
            cpus: self.cpus(),
        })
    }

    /// Whether all-but-self reaches no CPU beyond the online ones, but for parked ones.
    fn shorthand_is_exact(&self) -> bool {
        let Bystanders {
            unaccounted,
            disabled,
            parked,
        } = self.bystanders;
        let all_online = self.online as usize == self.cpus();
        !unaccounted && disabled == 0 && (parked || all_online)
    }

    /// Whether the shorthand from `sender` reaches `targets` and no other CPU.
    pub(super) fn is_all_but_self<S: MaskStorage>(
        &self,
        targets: &CpuMask<S>,
        sender: u32,
    ) -> bool {
        let remote = targets.count() - u32::from(targets.contains(sender));
        // Counting is cheap and nearly always decides; equal counts may still hide an offline CPU.
        self.shorthand_is_exact()
            && self.is_online(sender)
            && remote + 1 == self.online
            && targets.iter().all(|cpu| self.is_online(cpu))
    }

    /// Whether the shorthand from `sender` reaches `cpu` and no other CPU.
    pub(super) fn is_only_other(&self, cpu: u32, sender: u32) -> bool {
        let remote = u32::from(cpu != sender);
        self.shorthand_is_exact()
            && self.is_online(sender)
            && self.is_online(cpu)
            && remote + 1 == self.online
    }

    fn is_online(&self, cpu: u32) -> bool {
        self.get(cpu).is_some_and(|apic| apic.online)
    }

    /// The one write that sends `vector` to `cpu`; `None` if it is offline or does not exist.
    #[must_use]
    pub fn unicast(&self, cpu: u32, vector: u8) -> Option<IcrWrite> {
        let apic = self.get(cpu).filter(|apic| apic.online)?;
        let (id, low) = (apic.apic_id, u32::from(vector));
        Some(match self.mode {
            ApicMode::X2apicPhysical => x2apic(id, low),
            ApicMode::X2apicCluster => x2apic(apic.cluster() << 16 | apic.member(), LOGICAL | low),
            ApicMode::XapicPhysical => IcrWrite::Xapic {
                high: id << 24,
                low,
            },
            ApicMode::XapicFlat => IcrWrite::Xapic {
                high: 1u32.wrapping_shl(cpu) << 24,
                low: LOGICAL | low,
            },
        })
    }

    /// The one write that reaches all other CPUs.
    pub(super) fn all_but_self(vector: u8) -> IcrWrite {
        IcrWrite::AllButSelf {
            low: ALL_BUT_SELF | u32::from(vector),
        }
    }

    /// The ICR writes that send `vector` to `targets` without `this` and without offline CPUs, in
    /// the order in which they are made. Empties `targets`. Returns how many writes.
    ///
    /// # Errors
    /// [`IcrError`] for a vector below 16; nothing is sent.
    pub fn send<S: MaskStorage>(
        &self,
        sender: u32,
        vector: u8,
        targets: &mut CpuMask<S>,
        icr: &mut impl FnMut(IcrWrite),
    ) -> Result<u32, IcrError> {
        if vector < FIRST_LEGAL_VECTOR {
            return Err(IcrError::IllegalVector { vector });
        }
        targets.remove(sender);
        let writes = match self.mode {
            ApicMode::X2apicCluster => self.send_clusters(vector, targets, icr),
            ApicMode::XapicFlat => self.send_flat(vector, targets, icr),
            ApicMode::X2apicPhysical | ApicMode::XapicPhysical => {
                self.send_each(vector, targets, icr)
            }
        };
        targets.clear();
        Ok(writes)
    }

    fn send_each<S: MaskStorage>(
        &self,
        vector: u8,
        targets: &CpuMask<S>,
        icr: &mut impl FnMut(IcrWrite),
    ) -> u32 {
        let mut writes = 0;
        for write in targets.iter().filter_map(|cpu| self.unicast(cpu, vector)) {
            icr(write);
            writes += 1;
        }
        writes
    }

    /// One write for all.
    fn send_flat<S: MaskStorage>(
        &self,
        vector: u8,
        targets: &CpuMask<S>,
        icr: &mut impl FnMut(IcrWrite),
    ) -> u32 {
        let online = targets.iter().filter(|&cpu| self.is_online(cpu));
        let members = online.fold(0u32, |members, cpu| members | 1u32.wrapping_shl(cpu));
        if members == 0 {
            return 0;
        }
        icr(IcrWrite::Xapic {
            high: members << 24,
            low: LOGICAL | u32::from(vector),
        });
        1
    }

    /// One write for each cluster, in the order of its lowest CPU.
    fn send_clusters<S: MaskStorage>(
        &self,
        vector: u8,
        targets: &mut CpuMask<S>,
        icr: &mut impl FnMut(IcrWrite),
    ) -> u32 {
        let (mut writes, mut cursor) = (0, 0);
        let mut targets = Taking::from(targets);
        // Members that an earlier write of their cluster reached are gone by now.
        while let Some(first) = targets.next_from(cursor) {
            cursor = first;
            let Some(apic) = self.get(first).filter(|apic| apic.online) else {
                targets.take(first);
                continue;
            };
            let (cluster, mut members, mut cpu) = (apic.cluster(), 0, first);
            while let Some(apic) = self.get(cpu) {
                if targets.take(cpu) && apic.online {
                    members |= apic.member();
                }
                cpu = apic.next_in_cluster;
            }
            icr(x2apic(cluster << 16 | members, LOGICAL | u32::from(vector)));
            writes += 1;
        }
        writes
    }
}

/// The low half with the vector, the high half with the destination.
fn x2apic(destination: u32, low: u32) -> IcrWrite {
    IcrWrite::X2apic(u64::from(destination) << 32 | u64::from(low))
}

/// Links a CPU behind the highest lower one of its cluster.
fn link(lower: &mut [CpuApic], cpu: u32, joining: &CpuApic) -> Result<(), IcrError> {
    let mut linked = false;
    for (index, peer) in lower.iter_mut().enumerate().rev() {
        if peer.cluster() != joining.cluster() {
            continue;
        }
        if peer.apic_id == joining.apic_id {
            return Err(IcrError::DuplicateApicId {
                apic_id: joining.apic_id,
                first: index as u32,
                second: cpu,
            });
        }
        if !linked {
            peer.next_in_cluster = cpu;
            linked = true;
        }
    }
    Ok(())
}

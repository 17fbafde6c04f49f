//! A machine that records its ICR writes.

use std::cell::Cell;

use stealtime_hypervisor::wakeup_batch::icr::{ApicMode, CpuApic, IcrWrite, Topology};
use stealtime_hypervisor::wakeup_batch::mask::CpuMask;
use stealtime_hypervisor::wakeup_batch::softirq::SoftirqWord;
use stealtime_hypervisor::wakeup_batch::{
    Batch, Context, Cpus, Finished, raise_mask_now, raise_now,
};

pub(crate) const SCHEDULE: u32 = 3;
pub(crate) const ALL_BUT_SELF: IcrWrite = IcrWrite::AllButSelf { low: 0xc_00fc };

pub(crate) struct Machine {
    pub(crate) words: Vec<SoftirqWord<Cell<u64>>>,
    pub(crate) topology: Topology<Vec<CpuApic>>,
    pub(crate) batch: Batch<Vec<u64>>,
    pub(crate) context: Context,
    pub(crate) icr: Vec<IcrWrite>,
}

pub(crate) fn mask(cpus: impl IntoIterator<Item = u32>) -> CpuMask<Vec<u64>> {
    let mut mask = CpuMask::empty(vec![0; 64]);
    for cpu in cpus {
        assert!(mask.insert(cpu));
    }
    mask
}

impl Machine {
    /// CPU 0 acts; APIC ids are CPU numbers.
    pub(crate) fn new(cpus: u32, mode: ApicMode) -> Self {
        let apics = (0..cpus).map(|cpu| CpuApic::new(cpu, true));
        Self {
            words: (0..cpus).map(|_| SoftirqWord::new()).collect(),
            topology: Topology::new(mode, apics.collect()).unwrap(),
            batch: Batch::new(0, vec![0; (cpus as usize).div_ceil(64)]),
            context: Context {
                cpu: 0,
                in_irq: false,
                in_nmi: false,
                irqs_on: true,
                hotplug: false,
            },
            icr: Vec::new(),
        }
    }

    pub(crate) fn raise(&mut self, cpu: u32, nr: u32) {
        let Self {
            words,
            topology,
            batch,
            context,
            icr,
        } = self;
        let cpus = Cpus { words, topology };
        let mut write = |w| icr.push(w);
        batch
            .raise(cpus, *context, cpu, nr, &mut write, &())
            .unwrap();
    }

    /// What an interrupt handler does, which has no batch at hand.
    pub(crate) fn raise_in_irq(&mut self, targets: &[u32], nr: u32) {
        let cpus = Cpus {
            words: &self.words,
            topology: &self.topology,
        };
        let context = Context {
            in_irq: true,
            ..self.context
        };
        let icr = &mut self.icr;
        let mut write = |w| icr.push(w);
        match targets {
            [cpu] => raise_now(cpus, context, *cpu, nr, &mut write, &()),
            _ => {
                let mut targets = mask(targets.iter().copied());
                raise_mask_now(cpus, context, &mut targets, nr, &mut write, &())
            }
        }
        .unwrap();
    }

    pub(crate) fn finish(&mut self) -> Finished {
        let Self {
            words,
            topology,
            batch,
            context,
            icr,
        } = self;
        let cpus = Cpus { words, topology };
        let mut write = |w| icr.push(w);
        batch.finish(cpus, *context, &mut write, &()).unwrap()
    }

    pub(crate) fn noted(&self) -> Vec<u32> {
        self.batch.batch_mask().iter().collect()
    }

    /// The ICR writes since the last call.
    pub(crate) fn sent(&mut self) -> Vec<IcrWrite> {
        std::mem::take(&mut self.icr)
    }
}

/// An event check to one CPU of an x2APIC machine in physical mode.
pub(crate) fn to(cpu: u32) -> IcrWrite {
    IcrWrite::X2apic(u64::from(cpu) << 32 | 0xfc)
}

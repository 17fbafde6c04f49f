//! Batches over 64 and 4096 CPUs.
//!
//! A finish needs raised softirqs, so it is measured together with raising and handling them, and
//! the cost of those alone is taken off.

use std::hint::black_box;
use std::sync::atomic::AtomicU64;

use stealtime_hypervisor::wakeup_batch::icr::{ApicMode, CpuApic, IcrWrite, Topology};
use stealtime_hypervisor::wakeup_batch::mask::CpuMask;
use stealtime_hypervisor::wakeup_batch::softirq::SoftirqWord;
use stealtime_hypervisor::wakeup_batch::{Batch, Context, Cpus};

use crate::Operation;

struct Machine {
    words: Vec<SoftirqWord<AtomicU64>>,
    topology: Topology<Vec<CpuApic>>,
    batch: Batch<Vec<u64>>,
    targets: CpuMask<Vec<u64>>,
    /// Filled before each raise, which empties it.
    raised: CpuMask<Vec<u64>>,
    context: Context,
}

impl Machine {
    /// All CPUs but 0 are targets; CPU 1 is left out, so that no shorthand fits.
    fn new(cpus: u32, mode: ApicMode) -> Option<Self> {
        let apics: Vec<_> = (0..cpus).map(|cpu| CpuApic::new(cpu, true)).collect();
        let storage = vec![0; (cpus as usize).div_ceil(64)];
        let mut targets = CpuMask::empty(storage.clone());
        for cpu in 2..cpus {
            targets.insert(cpu);
        }
        Some(Self {
            words: (0..cpus).map(|_| SoftirqWord::new()).collect(),
            topology: Topology::new(mode, apics).ok()?,
            raised: targets.clone(),
            batch: Batch::new(0, storage),
            targets,
            context: Context {
                cpu: 0,
                in_irq: false,
                in_nmi: false,
                irqs_on: true,
                hotplug: false,
            },
        })
    }

    fn raise(&mut self) {
        let cpus = Cpus {
            words: &self.words,
            topology: &self.topology,
        };
        let mut icr = |write: IcrWrite| {
            black_box(write);
        };
        self.raised.clone_from(&self.targets);
        let targets = &mut self.raised;
        let raised = self
            .batch
            .raise_mask(cpus, self.context, targets, 3, &mut icr, &());
        let _ = black_box(raised);
    }

    fn handle(&self) {
        for word in &self.words[2..] {
            black_box(word.take(u32::MAX));
        }
    }

    fn finish(&mut self) {
        let cpus = Cpus {
            words: &self.words,
            topology: &self.topology,
        };
        let mut icr = |write: IcrWrite| {
            black_box(write);
        };
        let _ = black_box(self.batch.finish(cpus, self.context, &mut icr, &()));
    }
}

fn batch(cpus: u32, mode: ApicMode) -> Option<[Operation; 3]> {
    let iterations = 400_000 / u64::from(cpus);
    let [mut raising, mut noticed, mut notified] = [
        Machine::new(cpus, mode)?,
        Machine::new(cpus, mode)?,
        Machine::new(cpus, mode)?,
    ];
    raising.batch.begin().ok()?;
    let of = |what: &str| format!("batch-{what}-{mode:?}-{cpus}").to_lowercase();
    Some([
        Operation::new(of("raise-and-handle"), move |_| {
            raising.raise();
            raising.handle();
        })
        .iterations(iterations),
        Operation::new(of("finish-noticed"), move |_| {
            let _ = noticed.batch.begin();
            noticed.raise();
            noticed.handle();
            noticed.finish();
        })
        .iterations(iterations)
        .without(of("raise-and-handle")),
        Operation::new(of("finish-notified"), move |_| {
            let _ = notified.batch.begin();
            notified.raise();
            notified.finish();
            notified.handle();
        })
        .iterations(iterations)
        .without(of("raise-and-handle")),
    ])
}

pub(crate) fn operations() -> Vec<Operation> {
    let modes = [ApicMode::X2apicCluster, ApicMode::X2apicPhysical];
    let sizes = [64, 4096];
    sizes
        .into_iter()
        .flat_map(|cpus| modes.map(|mode| batch(cpus, mode)))
        .flatten()
        .flatten()
        .collect()
}

//! What a user of a real host could switch, by its real name.

use stealtime_hypervisor::counter::arm64::traps::Mode;
use stealtime_hypervisor::directed_yield::YieldKnobs;
use stealtime_hypervisor::directed_yield::ple::PleKnobs;
use stealtime_hypervisor::fair::weights::base_slice_ns;
use stealtime_hypervisor::fair::{Cfs, Features, PickMode, Preempt};
use stealtime_hypervisor::halt_poll::HaltPollKnobs;
use stealtime_hypervisor::ipi_tracking::IpiKnobs;
use stealtime_hypervisor::lag_credit::LagCredit;
use stealtime_hypervisor::lapic_timer::TimerPolicy;
use stealtime_hypervisor::posted_interrupt::Suppression;
use stealtime_hypervisor::scx::{self, Yields};
use stealtime_hypervisor::wakeup_batch::policy::BatchPolicy;

use super::Config;
use super::profile::Features as HostFeatures;

/// When the L1 data cache is emptied before a VM entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum L1dFlush {
    /// Never: the machine need not, or the guests are trusted.
    #[default]
    Never,
    /// After what may have brought secrets in: interrupts of the host, another task, page faults.
    Cond,
    /// Before each entry.
    Always,
}

/// Module parameters of kvm and `kvm_intel`, and the switches of what is not merged.
#[derive(Clone, Debug, PartialEq)]
pub struct KvmKnobs {
    /// `kvm.pi_inject_timer`: -1 (by housekeeping), 0 or 1.
    pub pi_inject_timer: i8,
    /// Which of the three rules says when a timer may be posted (ours; 7.2 has the third).
    pub timer_policy: TimerPolicy,
    /// `kvm.lapic_timer_advance`: whether timers fire early by what delivery takes.
    pub lapic_timer_advance: bool,
    /// `kvm.halt_poll_ns` and its growth.
    pub halt_poll: HaltPollKnobs,
    /// `kvm_intel.ple_gap`, `ple_window` and its growth; `kvm_amd.pause_filter_thresh`,
    /// `pause_filter_count` and its growth on an SVM host.
    pub ple: PleKnobs,
    /// How a spinning vCPU looks for one to yield to (`kvm.enable_relaxed_boost` and ours).
    pub directed_yield: YieldKnobs,
    /// `kvm.suppress_notification` (ours): when SN is set.
    pub suppress_notification: Suppression,
    /// `kvm_intel.enable_apicv`.
    pub enable_apicv: bool,
    /// `kvm_intel.enable_ipiv`.
    pub enable_ipiv: bool,
    /// `kvm_intel.preemption_timer`.
    pub preemption_timer: bool,
    /// `kvm_intel.vmentry_l1d_flush`.
    pub vmentry_l1d_flush: L1dFlush,
    /// `kvm-arm.mode`: whether the host's kernel runs at EL2.
    pub arm_mode: Mode,
}

/// Tunables of CFS; `None`: by the number of CPUs, as the kernel does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CfsKnobs {
    /// `sched.latency_ns`.
    pub latency_ns: Option<u64>,
    /// `sched.min_granularity_ns`.
    pub min_granularity_ns: Option<u64>,
    /// `sched.wakeup_granularity_ns`.
    pub wakeup_granularity_ns: Option<u64>,
}

impl CfsKnobs {
    /// What they come to on a host with so many CPUs.
    #[must_use]
    pub fn on(&self, cpus: u32) -> Cfs {
        let usual = Cfs::linux_6_1(cpus);
        Cfs {
            latency_ns: self.latency_ns.unwrap_or(usual.latency_ns),
            min_granularity_ns: self.min_granularity_ns.unwrap_or(usual.min_granularity_ns),
            wakeup_granularity_ns: self
                .wakeup_granularity_ns
                .unwrap_or(usual.wakeup_granularity_ns),
        }
    }
}

/// Options of `scx_stealtime`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScxKnobs {
    /// `sched.scx.yield`: what a directed yield runs.
    pub yields: Yields,
    /// `sched.scx.spin_ns`: how long a vCPU spins on while the receiver of its IPI runs.
    pub spin_ns: u64,
    /// `sched.scx.answer_ns`: how long the receiver of an IPI runs on after its EOI.
    pub answer_ns: u64,
}

impl Default for ScxKnobs {
    fn default() -> Self {
        let usual = scx::Config::default();
        Self {
            yields: usual.yields,
            spin_ns: usual.spin_ns,
            answer_ns: usual.answer_ns,
        }
    }
}

impl ScxKnobs {
    /// The options on a host.
    pub(crate) fn on(self, config: &Config) -> scx::Config {
        let sched = &config.knobs.sched;
        let cpus = config.host.topology.cpus();
        scx::Config {
            slice_ns: sched.base_slice_ns.unwrap_or_else(|| base_slice_ns(cpus)),
            tick_ns: 1_000_000_000 / u64::from(sched.hz),
            yields: self.yields,
            spin_ns: self.spin_ns,
            answer_ns: self.answer_ns,
            ..scx::Config::default()
        }
    }
}

/// Which scheduler has the host's tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SchedPolicy {
    /// The fair class.
    #[default]
    Fair,
    /// `scx_stealtime` of sched_ext.
    ScxStealtime(ScxKnobs),
}

/// The scheduler's switches.
#[derive(Clone, Debug, PartialEq)]
pub struct SchedKnobs {
    /// `sched.policy`, with the options of its scheduler.
    pub policy: SchedPolicy,
    /// `sched.fair`: CFS, as before Linux 6.6; `None` for EEVDF.
    pub cfs: Option<CfsKnobs>,
    /// `sched.features`.
    pub features: Features,
    /// `sched.yield_forfeits`: a yielder gives up the rest of its request, as since Linux 6.19.
    pub yield_forfeits: bool,
    /// `sched.base_slice_ns`; `None`: by the number of CPUs, as the kernel does.
    pub base_slice_ns: Option<u64>,
    /// `sched.pick` (ours): level by level, or flat as merged for 7.3.
    pub pick: PickMode,
    /// `preempt=`.
    pub preempt: Preempt,
    /// Details of `YIELD_TO_LAG_CREDIT`.
    pub lag_credit: LagCredit,
    /// `kernel.timer_migration`.
    pub timer_migration: bool,
    /// CONFIG_HZ: 100, 250, 300 or 1000.
    pub hz: u32,
}

/// Boot parameters of the host.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct HostKnobs {
    /// `nohz_full=`: CPUs without a tick while one task runs; timers and housekeeping move away.
    pub nohz_full: Vec<u32>,
    /// `isolcpus=domain`: CPUs that load balancing leaves alone.
    pub isolcpus: Vec<u32>,
    /// `host.cold_cache_ns` (ours): how much longer a task runs after another has used its CPU, in
    /// ns. Its data have left the caches. 0: not counted.
    pub cold_cache_ns: u32,
}

/// Xen's scheduler, as far as it decides which CPUs a wakeup tickles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XenScheduler {
    /// `__runq_tickle` of credit1: the chosen CPU, and one idle CPU if that one has work already, in
    /// one mask (`cpumask_raise_softirq`).
    Credit,
    /// credit2: the chosen CPU (`cpu_raise_softirq`).
    #[default]
    Credit2,
}

/// Xen's switches (the names but `xen.sched` are ours: Xen always does both).
#[derive(Clone, Debug, PartialEq)]
pub struct XenKnobs {
    /// `xen.batch_wakeups`: when a multicast IPI opens a batch.
    pub batch_wakeups: BatchPolicy,
    /// `xen.mwait_elision`: no IPI to a CPU that monitors its softirq word.
    pub mwait_elision: bool,
    /// `sched=`: which CPUs a wakeup tickles.
    pub sched: XenScheduler,
}

/// All knobs of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Knobs {
    /// KVM.
    pub kvm: KvmKnobs,
    /// Scheduler.
    pub sched: SchedKnobs,
    /// Host.
    pub host: HostKnobs,
    /// Xen.
    pub xen: XenKnobs,
}

impl Knobs {
    /// The defaults on a machine: an SVM host has the pause-loop window of `kvm_amd`.
    #[must_use]
    pub fn on(features: &HostFeatures) -> Self {
        let mut knobs = Self::default();
        if features.svm {
            knobs.kvm.ple = PleKnobs::SVM;
        }
        knobs
    }
}

impl Default for Knobs {
    /// Linux 7.2 and Xen 4.20 as they come, without what is not merged.
    fn default() -> Self {
        let ipi = IpiKnobs {
            ipi_tracking_enabled: false,
            ..IpiKnobs::default()
        };
        Self {
            kvm: KvmKnobs {
                pi_inject_timer: -1,
                timer_policy: TimerPolicy::default(),
                lapic_timer_advance: true,
                halt_poll: HaltPollKnobs::default(),
                ple: PleKnobs::VMX,
                directed_yield: YieldKnobs {
                    ipi,
                    ..YieldKnobs::upstream()
                },
                suppress_notification: Suppression::Put,
                enable_apicv: true,
                enable_ipiv: true,
                preemption_timer: true,
                vmentry_l1d_flush: L1dFlush::Never,
                arm_mode: Mode::Vhe,
            },
            sched: SchedKnobs {
                policy: SchedPolicy::Fair,
                cfs: None,
                features: Features::LINUX_7_2,
                yield_forfeits: true,
                base_slice_ns: None,
                pick: PickMode::Hierarchical,
                preempt: Preempt::Lazy,
                lag_credit: LagCredit::SERIES_V3,
                timer_migration: true,
                hz: 250,
            },
            host: HostKnobs::default(),
            xen: XenKnobs {
                batch_wakeups: BatchPolicy::Form,
                mwait_elision: true,
                sched: XenScheduler::default(),
            },
        }
    }
}

//! Where drills take place: the real device, or a host without one.

use crate::device::{TscMeans, Vcpu, Vm};
use crate::fake::{FakeHost, FakeVcpu, FakeVm};

use super::DrillError;

/// What a guest has seen, in the terms that both kinds of guest share.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Watched {
    pub(super) rounds: u64,
    pub(super) tsc_back: u64,
    pub(super) clock_back_ns: u64,
    pub(super) unstable: u64,
}

/// A guest's VM and vCPUs.
pub(crate) trait Machine {
    type V: Vm;
    type C: Vcpu;

    fn vm(&self) -> &Self::V;
    fn vcpus(&self) -> &[Self::C];
}

/// A guest that can be moved to a new VM.
pub(super) trait Stage: Machine + Sized {
    /// All vCPUs run for this many rounds, and stop.
    fn run(&mut self, rounds: u32) -> Result<(), DrillError>;
    /// A new VM for the same guest, its clocks as KVM makes them.
    fn next(&self) -> Result<Self, DrillError>;
    /// The VMM's thread is kept from running.
    fn lose_time(&self, ns: u64);
    fn watched(&self) -> Watched;
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
impl Machine for crate::guest::Guest {
    type V = kvm_ioctls::VmFd;
    type C = kvm_ioctls::VcpuFd;

    fn vm(&self) -> &Self::V {
        &self.vm
    }

    fn vcpus(&self) -> &[Self::C] {
        &self.vcpus
    }
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
impl Stage for crate::guest::Guest {
    fn run(&mut self, rounds: u32) -> Result<(), DrillError> {
        Ok(Self::run(self, rounds)?)
    }

    fn next(&self) -> Result<Self, DrillError> {
        Ok(Self::with_memory(self.memory(), self.vcpus.len())?)
    }

    fn lose_time(&self, ns: u64) {
        std::thread::sleep(std::time::Duration::from_nanos(ns));
    }

    fn watched(&self) -> Watched {
        let observed = self.seen();
        Watched {
            rounds: observed.rounds,
            tsc_back: observed.tsc_back,
            clock_back_ns: observed.clock_back_ns,
            unstable: observed.unstable,
        }
    }
}

/// The VM and the vCPUs of a guest on a [`FakeHost`].
#[derive(Debug)]
pub(crate) struct FakeMachine {
    vm: FakeVm,
    vcpus: Vec<FakeVcpu>,
}

impl FakeMachine {
    pub(crate) fn new(host: &FakeHost, vcpus: usize) -> Self {
        let (vm, vcpus) = host.vm(vcpus);
        Self { vm, vcpus }
    }
}

impl Machine for FakeMachine {
    type V = FakeVm;
    type C = FakeVcpu;

    fn vm(&self) -> &FakeVm {
        &self.vm
    }

    fn vcpus(&self) -> &[FakeVcpu] {
        &self.vcpus
    }
}

/// A guest on a [`FakeHost`].
pub(super) struct FakeStage {
    host: FakeHost,
    machine: FakeMachine,
    watched: Watched,
    latest: (u64, u64),
}

impl FakeStage {
    pub(super) fn new(host: &FakeHost, vcpus: usize) -> Self {
        Self {
            host: host.clone(),
            machine: FakeMachine::new(host, vcpus),
            watched: Watched::default(),
            latest: (0, 0),
        }
    }
}

impl Machine for FakeStage {
    type V = FakeVm;
    type C = FakeVcpu;

    fn vm(&self) -> &FakeVm {
        &self.machine.vm
    }

    fn vcpus(&self) -> &[FakeVcpu] {
        &self.machine.vcpus
    }
}

impl Stage for FakeStage {
    fn run(&mut self, rounds: u32) -> Result<(), DrillError> {
        for _ in 0..rounds {
            for vcpu in &self.machine.vcpus {
                let read = vcpu.read_clocks().map_err(DrillError::Fake)?;
                let (tsc, clock) = self.latest;
                let watched = &mut self.watched;
                watched.rounds += 1;
                watched.tsc_back = watched.tsc_back.max(tsc.saturating_sub(read.tsc));
                let step_back = clock.saturating_sub(read.kvmclock_ns);
                watched.clock_back_ns = watched.clock_back_ns.max(step_back);
                watched.unstable += u64::from(!read.stable);
                self.latest = (tsc.max(read.tsc), clock.max(read.kvmclock_ns));
            }
        }
        Ok(())
    }

    fn next(&self) -> Result<Self, DrillError> {
        Ok(Self {
            watched: self.watched,
            latest: self.latest,
            ..Self::new(&self.host, self.machine.vcpus.len())
        })
    }

    fn lose_time(&self, ns: u64) {
        self.host.pass(ns);
    }

    fn watched(&self) -> Watched {
        self.watched
    }
}

/// The host for drills without a device: everything is there but time for the VMM.
pub(super) fn fake_host(means: TscMeans, seed: u64) -> FakeHost {
    let host = FakeHost::new(2_596_120);
    host.set_means(means);
    // As measured on Linux 6.18.
    host.read_wall_clock_late(80);
    host.disturb(
        crate::fake::Disturbance {
            one_in: 50,
            most_ns: 200_000,
        },
        seed,
    );
    host
}

//! Where reports are shown: guests on a host without a device, and on `/dev/kvm`.

use super::Order;
use super::log::{Log, Logged};
use super::sight::{Sight, compare};
use crate::device::{Vcpu, Vm};
use crate::drill::DrillError;
pub(super) use crate::drill::stage::{FakeMachine, Machine};
use crate::error::IoctlError;
use crate::fake::{FakeHost, FakeVcpu, GuestReading};
use crate::policy::Policy;
use crate::save::{GuestClocks, of};
use crate::saved::{Saved, State, X86State};

/// The frequency of the host without a device, in kHz.
pub(super) const KHZ: u32 = 2_500_000;

/// A place where guests run.
pub(super) trait Stage {
    type G: OneGuest;

    /// A new VM, its clocks as KVM makes them.
    fn guest(&self, vcpus: usize) -> Result<Self::G, DrillError>;
    /// Time passes.
    fn pass(&self, ns: u64);
    /// The longest pause that this place makes, in ns.
    fn longest_ns(&self) -> u64;
}

/// A guest that reads its clocks.
pub(super) trait OneGuest: Machine {
    /// Each vCPU runs and reads its clocks once, one after the other.
    fn read(&mut self) -> Result<Vec<GuestReading>, DrillError>;
}

/// A host without a device.
#[derive(Debug)]
pub(super) struct FakeStage {
    pub(super) host: FakeHost,
}

impl FakeStage {
    pub(super) fn new() -> Self {
        let host = FakeHost::new(KHZ);
        Self { host }
    }
}

impl Stage for FakeStage {
    type G = FakeMachine;

    fn guest(&self, vcpus: usize) -> Result<FakeMachine, DrillError> {
        Ok(FakeMachine::new(&self.host, vcpus))
    }

    fn pass(&self, ns: u64) {
        self.host.pass(ns);
    }

    fn longest_ns(&self) -> u64 {
        u64::MAX
    }
}

impl OneGuest for FakeMachine {
    fn read(&mut self) -> Result<Vec<GuestReading>, DrillError> {
        let read = |vcpu: &FakeVcpu| vcpu.read_clocks().map_err(DrillError::Fake);
        self.vcpus().iter().map(read).collect()
    }
}

/// `/dev/kvm`.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[derive(Debug)]
pub(super) struct KvmStage;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
impl Stage for KvmStage {
    type G = crate::guest::Guest;

    fn guest(&self, vcpus: usize) -> Result<Self::G, DrillError> {
        Ok(crate::guest::Guest::new(vcpus)?)
    }

    fn pass(&self, ns: u64) {
        std::thread::sleep(std::time::Duration::from_nanos(ns));
    }

    /// A user waits for it.
    fn longest_ns(&self) -> u64 {
        2_000_000_000
    }
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
impl OneGuest for crate::guest::Guest {
    fn read(&mut self) -> Result<Vec<GuestReading>, DrillError> {
        Ok(self.read_in_turn()?)
    }
}

/// A guest of a second and a half, its readings at the save, and its saved clocks.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) before: Vec<GuestReading>,
    pub(super) saved: Saved,
    pub(super) x86: X86State,
}

impl Source {
    /// Boots a guest with the master clock on, lets it run and saves it.
    pub(super) fn boot<S: Stage>(stage: &S, vcpus: usize) -> Result<Self, DrillError> {
        let mut guest = stage.guest(vcpus)?;
        // KVM takes the first snapshot of the master clock here at the latest.
        set_clock(guest.vm(), 0)?;
        stage.pass(1_500_000_000);
        Self::save(&mut guest)
    }

    pub(super) fn save<G: OneGuest>(guest: &mut G) -> Result<Self, DrillError> {
        let readings = guest.read()?;
        let saved = GuestClocks::save(guest.vm(), guest.vcpus())?;
        let State::X86(x86) = saved.state().clone() else {
            return Err(DrillError::Platform);
        };
        Ok(Self {
            before: readings,
            saved,
            x86,
        })
    }

    /// What `KVM_GET_MSRS(IA32_TSC)` gave of a vCPU at the save.
    pub(super) fn tsc(&self, vcpu: usize) -> u64 {
        let offset = self.x86.vcpus.get(vcpu).map_or(0, |v| v.tsc_offset);
        offset.wrapping_add(self.x86.scaled(self.x86.instant.host_tsc))
    }

    /// The order with these steps, and what its guest sees.
    pub(super) fn order(
        &self,
        title: &'static str,
        log: &Log,
        after: Vec<GuestReading>,
        asked_ns: u64,
    ) -> Order {
        let sights = compare(&self.before, &after, self.x86.tsc_khz, asked_ns);
        self.with(title, log, after, sights)
    }

    pub(super) fn with(
        &self,
        title: &'static str,
        log: &Log,
        after: Vec<GuestReading>,
        sights: Vec<Sight>,
    ) -> Order {
        Order {
            title,
            before: self.before.clone(),
            steps: log.steps(),
            after,
            seen: sights,
        }
    }

    /// The right order of every report: this library's restore into a new VM.
    pub(super) fn restore<S: Stage>(
        &self,
        stage: &S,
        title: &'static str,
        policy: Policy,
    ) -> Result<Order, DrillError> {
        let log = Log::default();
        let mut guest = stage.guest(self.before.len())?;
        let explanation = restore_into(&self.saved, &guest, &log, policy)?;
        log.note("KVM_RUN of each vCPU");
        let after = guest.read()?;
        let asked_ns = explanation.advanced_ns;
        Ok(self.order(title, &log, after, asked_ns))
    }
}

/// Restores with every write recorded.
pub(super) fn restore_into<G: OneGuest>(
    saved: &Saved,
    guest: &G,
    log: &Log,
    policy: Policy,
) -> Result<crate::Explanation, DrillError> {
    let vm = Logged::new(guest.vm(), log);
    let vcpus = Logged::each(guest.vcpus(), log);
    Ok(saved.restore(&vm, &vcpus, policy)?)
}

/// `KVM_SET_CLOCK` by value, without flags.
pub(super) fn set_clock<V: Vm>(vm: &V, clock_ns: u64) -> Result<(), IoctlError> {
    let data = crate::arithmetic::KvmClockData {
        clock_ns,
        ..Default::default()
    };
    vm.set_clock(&data).map_err(of("KVM_SET_CLOCK", None))
}

/// `KVM_SET_MSRS` of one register of the vCPU at this position.
pub(super) fn set_msr<C: Vcpu>(
    vcpus: &[C],
    vcpu: usize,
    index: u32,
    value: u64,
) -> Result<(), IoctlError> {
    let failed = of("KVM_SET_MSRS", Some(vcpu));
    let device = vcpus
        .get(vcpu)
        .ok_or_else(|| failed(crate::Errno(libc::EBADF)))?;
    device.set_msr(index, value).map(|_| ()).map_err(failed)
}

/// `KVM_GET_MSRS` of one register of the vCPU at this position.
pub(super) fn msr<C: Vcpu>(vcpus: &[C], vcpu: usize, index: u32) -> Result<u64, IoctlError> {
    let failed = of("KVM_GET_MSRS", Some(vcpu));
    let device = vcpus
        .get(vcpu)
        .ok_or_else(|| failed(crate::Errno(libc::EBADF)))?;
    let value = device.msr(index).map_err(&failed)?;
    value.ok_or_else(|| failed(crate::Errno(libc::ENOENT)))
}

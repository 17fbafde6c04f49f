//! KVM's clocks without a device: the same arithmetic and bookkeeping
//! ([`stealtime_hypervisor::counter`]), on a host with time that passes by call.
//!
//! For tests, of this library and of VMMs: everything can be delayed, made to fail, or taken away.
//! `tests/live.rs` holds it against the real device where there is one.

mod arm64;
#[cfg(all(test, not(target_env = "musl")))]
mod golden;
mod host;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stealtime_hypervisor::counter::kvm_clock::{KVM_CLOCK_REALTIME, KvmClockData};
use stealtime_hypervisor::counter::tsc_sync::{HostInstant, VcpuTsc, VmTsc};

use crate::device::{
    Bracket, HostFacts, MSR_IA32_TSC, MSR_IA32_TSC_ADJUST, MSR_IA32_TSC_DEADLINE,
    MSR_KVM_SYSTEM_TIME_NEW, MsrValue, NoAnswer, Stopping, TscMeans, Vcpu, VcpuIdentity, Vm,
};
use crate::error::{Errno, HostError};

pub use arm64::FakeArm64Vm;
use host::HostState;
#[cfg(feature = "drill")]
pub(crate) use host::chance_of;
pub use host::{Disturbance, FakeHost};

/// A VM of a [`FakeHost`].
#[derive(Clone, Debug)]
pub struct FakeVm {
    host: FakeHost,
    state: Arc<Mutex<VmState>>,
}

/// A vCPU of a [`FakeVm`].
#[derive(Clone, Debug)]
pub struct FakeVcpu {
    vm: FakeVm,
    index: usize,
}

#[derive(Debug)]
struct VmState {
    tsc: VmTsc,
    vcpus: Vec<VcpuModel>,
}

#[derive(Debug)]
struct VcpuModel {
    tsc: VcpuTsc,
    deadline: u64,
    kvmclock_on: bool,
    has_adjust: bool,
    stopped: bool,
    running: bool,
}

/// What a guest sees on one vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct GuestReading {
    /// Its TSC.
    pub tsc: u64,
    /// Its kvmclock, in ns.
    pub kvmclock_ns: u64,
    /// The readings of two vCPUs can be compared (`PVCLOCK_TSC_STABLE_BIT`).
    pub stable: bool,
    /// It has the notice of a pause (`PVCLOCK_GUEST_STOPPED`); reading acknowledges it.
    pub stopped: bool,
}

impl VcpuModel {
    fn register(&mut self, index: u32, host: &HostState, now: &HostInstant) -> Option<u64> {
        let tsc = self.tsc.read(&host.tsc, now);
        // A deadline that has come reads 0.
        if self.deadline <= tsc {
            self.deadline = 0;
        }
        match index {
            MSR_IA32_TSC => Some(tsc),
            MSR_IA32_TSC_ADJUST => Some(self.tsc.ia32_tsc_adjust),
            MSR_IA32_TSC_DEADLINE => Some(self.deadline),
            MSR_KVM_SYSTEM_TIME_NEW => Some(u64::from(self.kvmclock_on)),
            _ => None,
        }
    }

    fn write_register(
        &mut self,
        vm: &mut VmTsc,
        index: u32,
        value: u64,
        host: &HostState,
        now: &HostInstant,
    ) -> bool {
        match index {
            MSR_IA32_TSC => {
                vm.host_write(&mut self.tsc, &host.tsc, now, value);
            }
            // Taken and ignored.
            MSR_IA32_TSC_ADJUST if !self.has_adjust => {}
            MSR_IA32_TSC_ADJUST => self.tsc.write_tsc_adjust(true, value),
            // What is in the past by the TSC of this moment fires at once.
            MSR_IA32_TSC_DEADLINE if value <= self.tsc.read(&host.tsc, now) => self.deadline = 0,
            MSR_IA32_TSC_DEADLINE => self.deadline = value,
            MSR_KVM_SYSTEM_TIME_NEW => self.kvmclock_on = value & 1 != 0,
            _ => return false,
        }
        true
    }
}

impl FakeHost {
    /// A new VM with this many vCPUs, each with its kvmclock enabled and its LAPIC in
    /// TSC-deadline mode.
    #[must_use]
    pub fn vm(&self, vcpus: usize) -> (FakeVm, Vec<FakeVcpu>) {
        let host = self.state();
        let tsc = VmTsc::new(&host.tsc, &host.now());
        drop(host);
        let vm = FakeVm {
            host: self.clone(),
            state: Arc::new(Mutex::new(VmState {
                tsc,
                vcpus: Vec::new(),
            })),
        };
        let vcpus = (0..vcpus).map(|_| vm.add_vcpu()).collect();
        (vm, vcpus)
    }
}

impl FakeVm {
    /// One vCPU more: `KVM_CREATE_VCPU`, at any time.
    #[must_use]
    pub fn add_vcpu(&self) -> FakeVcpu {
        let khz = self.host.state().tsc.khz;
        self.create_vcpu(0, khz, false)
    }

    fn create_vcpu(&self, cpu: u32, khz: u32, protected: bool) -> FakeVcpu {
        let mut host = self.host.state();
        let now = host.now();
        let fixed = host.facts.means == TscMeans::Fixed;
        let mut state = self.state();
        let created = state
            .tsc
            .create_vcpu(&mut host.tsc, &now, cpu, khz, protected);
        let (mut tsc, _) = created;
        keep_fixed(&mut tsc, fixed);
        state.vcpus.push(VcpuModel {
            tsc,
            deadline: 0,
            kvmclock_on: true,
            has_adjust: true,
            stopped: false,
            running: false,
        });
        FakeVcpu {
            vm: self.clone(),
            index: state.vcpus.len() - 1,
        }
    }
}

/// A KVM without means to move TSCs does its bookkeeping all the same.
fn keep_fixed(vcpu: &mut VcpuTsc, fixed: bool) {
    if fixed {
        vcpu.l1_tsc_offset = 0;
    }
}

impl FakeVm {
    /// Of the VM, among all that there are.
    fn number(&self) -> u64 {
        Arc::as_ptr(&self.state).addr() as u64
    }

    fn state(&self) -> MutexGuard<'_, VmState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Vm for FakeVm {
    fn host(&self) -> Result<HostFacts, HostError> {
        Ok(self.host.state().facts)
    }

    fn get_clock(&self) -> Result<KvmClockData, Errno> {
        let mut host = self.host.state();
        let now = host.call("KVM_GET_CLOCK")?;
        let wall = host.instants;
        self.state()
            .tsc
            .get_clock(&host.tsc, &now, wall)
            .map_err(|_| Errno(libc::EINVAL))
    }

    fn set_clock(&self, data: &KvmClockData) -> Result<(), Errno> {
        let mut host = self.host.state();
        let now = host.call("KVM_SET_CLOCK")?;
        if data.flags & !host.facts.clock_flags & KVM_CLOCK_REALTIME != 0 {
            return Err(Errno(libc::EINVAL));
        }
        // KVM takes its snapshot first, and reads the wall clock after it.
        let now = HostInstant {
            real_ns: now.real_ns.saturating_add(host.wall_clock_late()),
            ..now
        };
        self.state()
            .tsc
            .set_clock(&host.tsc, &now, data)
            .map(|_| ())
            .map_err(|_| Errno(libc::EINVAL))
    }

    fn host_instant(&self) -> Option<(u64, u64)> {
        let host = self.host.state();
        let now = host.now();
        host.instants.then_some((now.real_ns, now.tsc))
    }

    fn bracket(&self) -> Bracket {
        self.host.bracket()
    }

    fn identity(&self) -> Option<u64> {
        Some(self.number())
    }

    fn another_vcpu(&self, identity: u64, ids: &[u32]) -> Option<u32> {
        let vcpus = u32::try_from(self.state().vcpus.len()).unwrap_or(u32::MAX);
        (0..vcpus).find(|id| identity == self.number() && !ids.contains(id))
    }
}

impl FakeVcpu {
    /// One call: host, VM and this vCPU, at the instant when it acts.
    fn call<T>(
        &self,
        name: &'static str,
        act: impl FnOnce(&mut VmTsc, &mut VcpuModel, &HostState, &HostInstant) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let mut host = self.vm.host.state();
        let now = host.call(name)?;
        let mut state = self.vm.state();
        let VmState { tsc, vcpus } = &mut *state;
        let model = vcpus.get_mut(self.index).ok_or(Errno(libc::EBADF))?;
        let result = act(tsc, model, &host, &now);
        keep_fixed(&mut model.tsc, host.facts.means == TscMeans::Fixed);
        result
    }

    /// Runs the vCPU for a moment: what its guest reads.
    ///
    /// # Errors
    /// `EINVAL` where the host's frequency has no scale.
    pub fn read_clocks(&self) -> Result<GuestReading, Errno> {
        self.call("KVM_RUN", |vm, model, host, now| {
            vm.handle_masterclock_request(&mut model.tsc, &host.tsc, now);
            let page = vm
                .guest_time_update(&mut model.tsc, &host.tsc, now, model.stopped)
                .map_err(|_| Errno(libc::EINVAL))?;
            let tsc = model.tsc.read(&host.tsc, now);
            Ok(GuestReading {
                tsc,
                kvmclock_ns: page.at(tsc),
                stable: page.flags & 1 != 0,
                stopped: std::mem::take(&mut model.stopped),
            })
        })
    }

    /// The guest writes its own TSC, which moves `TSC_ADJUST` as well.
    ///
    /// # Errors
    /// The failures set on the host, and no others.
    pub fn guest_writes_tsc(&self, value: u64) -> Result<(), Errno> {
        self.call("KVM_RUN", |_, model, host, now| {
            model.tsc.guest_write(&host.tsc, now, value);
            Ok(())
        })
    }

    /// The guest does not use its kvmclock.
    pub fn disable_kvmclock(&self) {
        if let Some(model) = self.vm.state().vcpus.get_mut(self.index) {
            model.kvmclock_on = false;
        }
    }

    /// The vCPU's CPUID does not have `TSC_ADJUST`: writes of it are ignored.
    pub fn hide_tsc_adjust(&self) {
        if let Some(model) = self.vm.state().vcpus.get_mut(self.index) {
            model.has_adjust = false;
        }
    }

    /// The vCPU is in `KVM_RUN`, or not.
    pub fn set_running(&self, running: bool) {
        if let Some(model) = self.vm.state().vcpus.get_mut(self.index) {
            model.running = running;
        }
    }
}

impl Vcpu for FakeVcpu {
    fn tsc_offset(&self) -> Result<u64, Errno> {
        self.call("KVM_GET_DEVICE_ATTR", |_, model, host, _| {
            match host.facts.means {
                TscMeans::Values => Err(Errno(libc::ENXIO)),
                TscMeans::Offsets | TscMeans::Fixed => Ok(model.tsc.l1_tsc_offset),
            }
        })
    }

    fn set_tsc_offset(&self, offset: u64) -> Result<(), Errno> {
        self.call("KVM_SET_DEVICE_ATTR", |vm, model, host, now| {
            if host.facts.means == TscMeans::Values {
                return Err(Errno(libc::ENXIO));
            }
            vm.set_offset(&mut model.tsc, &host.tsc, now, offset);
            Ok(())
        })
    }

    fn tsc_khz(&self) -> Result<u32, Errno> {
        self.call("KVM_GET_TSC_KHZ", |_, model, _, _| {
            Ok(model.tsc.rate.virtual_khz)
        })
    }

    fn set_tsc_khz(&self, khz: u32) -> Result<(), Errno> {
        self.call("KVM_SET_TSC_KHZ", |_, model, host, _| {
            let set = model.tsc.set_tsc_khz(&host.tsc, khz);
            set.map_err(|_| Errno(libc::EINVAL))
        })
    }

    fn msr(&self, index: u32) -> Result<Option<u64>, Errno> {
        self.call("KVM_GET_MSRS", |_, model, host, now| {
            Ok(model.register(index, host, now))
        })
    }

    fn set_msr(&self, index: u32, value: u64) -> Result<bool, Errno> {
        self.call("KVM_SET_MSRS", |vm, model, host, now| {
            Ok(model.write_register(vm, index, value, host, now))
        })
    }

    fn two_msrs(&self, indices: [u32; 2]) -> Result<[Option<u64>; 2], Errno> {
        self.call("KVM_GET_MSRS", |_, model, host, now| {
            Ok(indices.map(|index| model.register(index, host, now)))
        })
    }

    fn set_two_msrs(&self, registers: [MsrValue; 2]) -> Result<usize, Errno> {
        self.call("KVM_SET_MSRS", |vm, model, host, now| {
            let accepted = registers
                .into_iter()
                .take_while(|msr| model.write_register(vm, msr.index, msr.value, host, now));
            Ok(accepted.count())
        })
    }

    fn kvmclock_ctrl(&self) -> Result<(), Errno> {
        self.call("KVM_KVMCLOCK_CTRL", |_, model, _, _| {
            if !model.kvmclock_on {
                return Err(Errno(libc::EINVAL));
            }
            model.stopped = true;
            Ok(())
        })
    }

    fn identity(&self) -> Option<VcpuIdentity> {
        let id = u32::try_from(self.index).ok()?;
        let vm = self.vm.number();
        Some(VcpuIdentity { vm, id })
    }

    fn frequencies(vcpus: &[Self], _: Stopping) -> Result<Vec<u32>, NoAnswer> {
        let query = |(vcpu, device): (usize, &Self)| {
            let state = device.vm.state();
            if state.vcpus.get(device.index).is_some_and(|v| v.running) {
                return Err(NoAnswer::Busy { vcpu });
            }
            drop(state);
            let khz = device.tsc_khz();
            khz.map_err(|errno| NoAnswer::Failed { vcpu, errno })
        };
        vcpus.iter().enumerate().map(query).collect()
    }
}

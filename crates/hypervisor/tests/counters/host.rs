//! A host with clocks at their nominal rates, for the tests.

use stealtime_hypervisor::counter::scaling::{HostTsc, RatioFormat};
use stealtime_hypervisor::counter::tsc_sync::{HostInstant, VcpuTsc, VmTsc};

pub(crate) const SECOND: u64 = 1_000_000_000;

/// A host and one VM on it.
pub(crate) struct Machine {
    pub(crate) host: HostTsc,
    pub(crate) vm: VmTsc,
    pub(crate) vcpus: Vec<VcpuTsc>,
    /// The TSC when the host's clocks were 0.
    tsc_at_zero: u64,
    /// The wall clock then.
    real_at_zero: u64,
    pub(crate) ns: u64,
}

impl Machine {
    pub(crate) fn new(khz: u32, tsc_at_zero: u64) -> Self {
        let host = HostTsc::new(khz, RatioFormat::VMX);
        let mut machine = Self {
            vm: VmTsc::new(&host, &HostInstant::default()),
            host,
            vcpus: Vec::new(),
            tsc_at_zero,
            real_at_zero: 1_700_000_000 * SECOND,
            ns: 5 * SECOND,
        };
        machine.vm = VmTsc::new(&machine.host, &machine.now());
        machine
    }

    pub(crate) fn with_realtime(mut self, real_at_zero: u64) -> Self {
        self.real_at_zero = real_at_zero;
        self
    }

    pub(crate) fn now(&self) -> HostInstant {
        let cycles = u128::from(self.ns) * u128::from(self.host.khz) / 1_000_000;
        HostInstant {
            ns: self.ns,
            tsc: self.tsc_at_zero.wrapping_add(cycles as u64),
            real_ns: self.real_at_zero + self.ns,
        }
    }

    pub(crate) fn pass(&mut self, ns: u64) {
        self.ns += ns;
    }

    pub(crate) fn add_vcpu(&mut self, guest_khz: u32) -> usize {
        let now = self.now();
        let cpu = self.vcpus.len() as u32;
        let (vcpu, khz) = self
            .vm
            .create_vcpu(&mut self.host, &now, cpu, guest_khz, false);
        khz.unwrap();
        self.vcpus.push(vcpu);
        self.vcpus.len() - 1
    }

    /// Serves all requests for the master clock.
    pub(crate) fn settle(&mut self) {
        let now = self.now();
        for vcpu in &mut self.vcpus {
            self.vm.handle_masterclock_request(vcpu, &self.host, &now);
        }
    }

    pub(crate) fn read(&self, vcpu: usize) -> u64 {
        self.vcpus[vcpu].read(&self.host, &self.now())
    }

    /// Writes a value; returns whether it was taken for "the same as the others".
    pub(crate) fn write(&mut self, vcpu: usize, value: u64) -> bool {
        let now = self.now();
        let vcpu = &mut self.vcpus[vcpu];
        self.vm.host_write(vcpu, &self.host, &now, value).matched
    }

    pub(crate) fn set_offset(&mut self, vcpu: usize, offset: u64) -> bool {
        let now = self.now();
        let vcpu = &mut self.vcpus[vcpu];
        self.vm.set_offset(vcpu, &self.host, &now, offset).matched
    }
}

//! The VMM's thread that saves, sends and restores.

use stealtime_hypervisor::counter::kvm_clock::{KVM_CLOCK_REALTIME, KvmClockData};
use stealtime_hypervisor::counter::migration::{Side, Uncertainty, by_offsets, documented};
use stealtime_hypervisor::posted_interrupt::{Requests, kick};

use super::arm64::{Move, Saved};
use super::clock::GuestClock;
use crate::config::{ClockMethod, MigrationConfig};
use crate::fault::Sim;
use crate::guest::Guests;
use crate::host::{Body, CpuSet, Flow, Host, hrtimer};
use crate::ids::{CpuNr, TaskNr, TimerNr, VcpuNr, VmNr};
use crate::kvm::{Kvm, deliver, tracking};
use crate::scale::mul_div;

/// What the thread does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Begin,
    Stop,
    AwaitStop,
    ReadClock,
    ReadVcpu(usize),
    Send,
    Arrive,
    Load,
    SetClock,
    ReadBack,
    Compute,
    WriteVcpu(usize),
    Run,
    Over,
}

/// A VMM's thread.
#[derive(Debug)]
pub(crate) struct VmmThread {
    vm: VmNr,
    cfg: MigrationConfig,
    step: Step,
    sleep: TimerNr,
    stopped_ns: u64,
    /// What was read on the source.
    clock: KvmClockData,
    ratio: u64,
    saved: Vec<u64>,
    /// arm64: what was read of each vCPU.
    saved_counters: Vec<Saved>,
    /// The wall clock when each of them was read, in ns.
    saved_at: Vec<u64>,
    /// By value: what will be written.
    values: Vec<u64>,
    /// The clock of the VM on the destination, until the guest runs there.
    restored: Option<GuestClock>,
    read_back: KvmClockData,
}

impl VmmThread {
    /// The VM that it moves.
    pub(crate) const fn vm(&self) -> VmNr {
        self.vm
    }

    pub(crate) fn new(vm: VmNr, cfg: MigrationConfig, sleep: TimerNr) -> Self {
        Self {
            vm,
            cfg,
            step: Step::Begin,
            sleep,
            stopped_ns: 0,
            clock: KvmClockData::default(),
            ratio: 0,
            saved: Vec::new(),
            saved_counters: Vec::new(),
            saved_at: Vec::new(),
            values: Vec::new(),
            restored: None,
            read_back: KvmClockData::default(),
        }
    }
}

/// What the VMM's thread did is over: the next thing.
pub(crate) fn step(
    kvm: &mut Kvm,
    guests: &mut Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    task: TaskNr,
) -> Sim<Flow> {
    let Body::Vmm(slot) = host.body_mut(task) else {
        return host.broken("a task that is no VMM migrates a guest");
    };
    // Taken out while it acts: that needs the whole machine.
    let Some(mut vmm) = slot.take() else {
        return host.broken("a VMM's thread acts within its own step");
    };
    let (step_ns, load_ns) = (vmm.cfg.step_ns, vmm.cfg.load_ns);
    let next = act(kvm, guests, host, cpu, task, &mut vmm)?;
    host.set_body(task, Body::Vmm(Some(vmm)));
    match next {
        Next::Works => {
            host.set_left(task, step_ns.max(1));
            Ok(Flow::Run)
        }
        Next::Loads => {
            host.set_left(task, load_ns.max(1));
            Ok(Flow::Run)
        }
        Next::Sleeps => Ok(Flow::Block),
    }
}

fn act(
    kvm: &mut Kvm,
    guests: &mut Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    task: TaskNr,
    vmm: &mut VmmThread,
) -> Sim<Next> {
    let now = host.now();
    let (vm, cfg) = (vmm.vm, &vmm.cfg);
    match vmm.step {
        Step::Begin => {
            hrtimer::start_pinned(host, vmm.sleep, cpu, cfg.at_ns.max(now + 1));
            vmm.step = Step::Stop;
            return Ok(Next::Sleeps);
        }
        Step::Stop => {
            stop_vm(kvm, guests, host, cpu, vm, task)?;
            vmm.step = Step::AwaitStop;
            if kvm.vm(vm).running > 0 {
                return Ok(Next::Sleeps);
            }
        }
        Step::AwaitStop => {
            if kvm.vm(vm).running > 0 {
                return Ok(Next::Sleeps);
            }
            vmm.stopped_ns = now;
            vmm.step = Step::ReadClock;
        }
        Step::ReadClock => {
            vmm.clock = kvm_get_clock(guests, host, vm)?;
            vmm.step = Step::ReadVcpu(0);
        }
        Step::ReadVcpu(n) => {
            let Some(clock) = &guests.vm(vm).clock else {
                return host.broken("a guest without clocks migrates");
            };
            let Some(vcpu) = clock.vcpus.get(n) else {
                vmm.step = Step::Send;
                return Ok(Next::Works);
            };
            vmm.ratio = vcpu.rate.ratio;
            if let Some(counters) = &clock.arm64 {
                let count = clock.real.instant(now).tsc;
                vmm.saved_counters.push(counters.save(n, cfg.method, count));
            }
            // By value the counter is read, at this vCPU's own instant.
            let saved = match cfg.method {
                ClockMethod::Value => clock.tsc(n, now),
                ClockMethod::Documented | ClockMethod::Offset => vcpu.l1_tsc_offset,
            };
            vmm.saved.push(saved);
            vmm.saved_at.push(clock.real.instant(now).real_ns);
            vmm.step = Step::ReadVcpu(n + 1);
        }
        Step::Send => {
            hrtimer::start_pinned(host, vmm.sleep, cpu, now + cfg.transfer_ns.max(1));
            vmm.step = Step::Arrive;
            move_vm(kvm, guests, host, vm, task, cfg);
            return Ok(Next::Sleeps);
        }
        Step::Arrive => {
            let created = match &guests.vm(vm).clock {
                Some(clock) => clock.created_on(&cfg.destination, now)?,
                None => return host.broken("a guest without clocks arrives"),
            };
            vmm.restored = Some(created);
            vmm.step = Step::SetClock;
        }
        Step::Load => {
            vmm.step = Step::WriteVcpu(0);
            return Ok(Next::Loads);
        }
        Step::SetClock | Step::ReadBack | Step::Compute | Step::WriteVcpu(_) => {
            restore(host, vmm)?;
        }
        Step::Run => {
            resume_vm(kvm, guests, host, cpu, vm, vmm)?;
            vmm.step = Step::Over;
            return Ok(Next::Sleeps);
        }
        Step::Over => return Ok(Next::Sleeps),
    }
    Ok(Next::Works)
}

fn restore(host: &mut Host<'_>, vmm: &mut VmmThread) -> Sim {
    let now = host.now();
    let Some(clock) = &mut vmm.restored else {
        return host.broken("nothing to restore");
    };
    let instant = clock.real.instant(now);
    match vmm.step {
        Step::SetClock => {
            let mut data = vmm.clock;
            data.flags &= KVM_CLOCK_REALTIME;
            if let Err(error) = clock.vm.set_clock(&clock.host, &instant, &data) {
                return host.broken(error.to_string());
            }
            vmm.step = Step::ReadBack;
        }
        Step::ReadBack => {
            match clock.vm.get_clock(&clock.host, &instant, true) {
                Ok(data) => vmm.read_back = data,
                Err(error) => return host.broken(error.to_string()),
            }
            vmm.step = Step::Compute;
        }
        Step::Compute => {
            // The time that passed by the wall clocks is added now; whatever delays the writes
            // after this is the guest's loss.
            let khz = clock.khz;
            let pairs = vmm.saved.iter().zip(&vmm.saved_at);
            let values = pairs.map(|(saved, time)| {
                let elapsed = instant.real_ns.saturating_sub(*time);
                saved.wrapping_add(mul_div(elapsed, khz.into(), 1_000_000))
            });
            vmm.values = values.collect();
            vmm.step = match vmm.cfg.load_ns {
                0 => Step::WriteVcpu(0),
                _ => Step::Load,
            };
        }
        Step::WriteVcpu(n) => {
            let Some(&saved) = vmm.saved.get(n) else {
                clock.vm.refresh_master_clock(&clock.host, &instant);
                vmm.step = Step::Run;
                return Ok(());
            };
            let bound = write_vcpu(host, vmm, n, saved)?;
            if let Some(clock) = &mut vmm.restored {
                clock.seen.bound_ns = clock.seen.bound_ns.max(bound);
            }
            vmm.step = Step::WriteVcpu(n + 1);
        }
        _ => {}
    }
    Ok(())
}

/// Writes one vCPU's counter; the bound that the method states.
fn write_vcpu(host: &Host<'_>, vmm: &mut VmmThread, n: usize, saved: u64) -> Sim<u64> {
    let Some(clock) = &mut vmm.restored else {
        return host.broken("nothing to restore");
    };
    let instant = clock.real.instant(host.now());
    let Some(vcpu) = clock.vcpus.get_mut(n) else {
        return host.broken("more clocks than vCPUs");
    };
    let source = Side {
        clock: vmm.clock,
        format: clock.host.format,
        ratio: vmm.ratio,
    };
    let destination = Side {
        clock: vmm.read_back,
        format: clock.host.format,
        ratio: vcpu.rate.ratio,
    };
    let (s, d) = (&vmm.cfg.source, &vmm.cfg.destination);
    let known = Uncertainty {
        realtime_skew_ns: s.realtime_skew_ns.abs_diff(d.realtime_skew_ns),
        frequency_error_ppb: s.drift_ppb.unsigned_abs().max(d.drift_ppb.unsigned_abs()),
        master_clock_age_ns: host.now(),
    };
    if let Some(counters) = &mut clock.arm64 {
        let transfer = Move {
            method: vmm.cfg.method,
            source: vmm.clock,
            destination: vmm.read_back,
            source_khz: s.tsc_khz,
            destination_khz: d.tsc_khz,
            frequency_error_ppb: known.frequency_error_ppb,
            realtime_skew_ns: known.realtime_skew_ns,
        };
        let saved = vmm.saved_counters.get(n).copied().unwrap_or_default();
        let value = vmm.values.get(n).copied().unwrap_or_default();
        let result = counters.restore(n, saved, value, instant.tsc, &transfer);
        return result.or_else(|error| host.broken(error.to_string()));
    }
    let result = match vmm.cfg.method {
        ClockMethod::Value => {
            let value = vmm.values.get(n).copied().unwrap_or(saved);
            clock.vm.host_write(vcpu, &clock.host, &instant, value);
            Ok(0)
        }
        ClockMethod::Documented => documented(&source, &destination, clock.khz, &known).map(|m| {
            clock
                .vm
                .set_offset(vcpu, &clock.host, &instant, m.offset(saved));
            m.account.tsc_against_its_rate_ns
        }),
        ClockMethod::Offset => by_offsets(&source, &destination, clock.khz, &known).map(|m| {
            clock
                .vm
                .set_offset(vcpu, &clock.host, &instant, m.offset(saved));
            m.account.tsc_against_its_rate_ns
        }),
    };
    match result {
        Ok(bound) => Ok(bound),
        Err(error) => host.broken(error.to_string()),
    }
}

fn kvm_get_clock(guests: &Guests, host: &Host<'_>, vm: VmNr) -> Sim<KvmClockData> {
    let Some(clock) = &guests.vm(vm).clock else {
        return host.broken("a guest without clocks is read");
    };
    let instant = clock.real.instant(host.now());
    match clock.vm.get_clock(&clock.host, &instant, true) {
        Ok(data) => Ok(data),
        Err(error) => host.broken(error.to_string()),
    }
}

/// All vCPUs are to leave the guest and stay out; `vmm` is woken by the last.
fn stop_vm(
    kvm: &mut Kvm,
    guests: &Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vm: VmNr,
    vmm: TaskNr,
) -> Sim {
    kvm.stop(vm, vmm);
    for index in 0..guests.vm(vm).vcpus {
        let vcpu = guests.vcpu_of(vm, index);
        let kick = kick(&kvm.vcpu(vcpu).shared, Requests::UNBLOCK, false);
        deliver::kicked(kvm, host, cpu, vcpu, kick)?;
    }
    Ok(())
}

/// A vCPU of a guest that is stopped parks instead of entering. Whether it did.
pub(crate) fn park(kvm: &mut Kvm, host: &mut Host<'_>, cpu: CpuNr, vcpu: VcpuNr) -> Sim<bool> {
    let Some(parked) = kvm.park(vcpu) else {
        return Ok(false);
    };
    if parked.is_last {
        host.wake(parked.vmm, cpu)?;
    }
    Ok(true)
}

/// The guest's and the VMM's threads belong to the other host from now on.
fn move_vm(
    kvm: &mut Kvm,
    guests: &Guests,
    host: &mut Host<'_>,
    vm: VmNr,
    vmm: TaskNr,
    cfg: &MigrationConfig,
) {
    let cpus = CpuSet::of(&cfg.to_cpus);
    host.set_allowed(vmm, cpus.clone());
    for index in 0..guests.vm(vm).vcpus {
        let task = kvm.vcpu(guests.vcpu_of(vm, index)).task;
        host.set_allowed(task, cpus.clone());
    }
}

fn resume_vm(
    kvm: &mut Kvm,
    guests: &mut Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vm: VmNr,
    vmm: &mut VmmThread,
) -> Sim {
    let now = host.now();
    if let Some(mut clock) = vmm.restored.take() {
        clock.judge(now);
        clock.seen.blackout_ns = now - vmm.stopped_ns;
        guests.replace_clock(vm, clock);
    }
    tracking::reset_tracking(kvm, host, vm)?;
    kvm.restart(vm, guests.vm(vm).vcpus);
    for index in 0..guests.vm(vm).vcpus {
        let vcpu = guests.vcpu_of(vm, index);
        kvm.unpark(vcpu);
        let task = kvm.vcpu(vcpu).task;
        host.wake(task, cpu)?;
    }
    Ok(())
}

/// How the thread goes on.
enum Next {
    Works,
    Loads,
    Sleeps,
}

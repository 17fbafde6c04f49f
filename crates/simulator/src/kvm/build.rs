//! Making VMs: their kernels, their vCPUs and the threads of their processes.

use stealtime_events::Tid;
use stealtime_hypervisor::directed_yield::ple::PleWindow;
use stealtime_hypervisor::directed_yield::{DirectedYield, YieldState};
use stealtime_hypervisor::fair::GroupId;
use stealtime_hypervisor::fair::weights::shares_of_cpu_weight;
use stealtime_hypervisor::halt_poll::HaltPoll;
use stealtime_hypervisor::ipi_tracking::IpiContext;
use stealtime_hypervisor::lapic::Lapic;
use stealtime_hypervisor::lapic_timer::{GuestTsc, LapicTimer, TimerParameters};
use stealtime_hypervisor::posted_interrupt::{Capabilities, PostedVcpu, SharedVcpu};
use stealtime_hypervisor::scx;

use super::{Eois, Exit, Kvm, Vcpu, VcpuRun, Vm};
use crate::books::{Answers, RunningBooks};
use crate::config::{ConfigError, Pinning, VmConfig};
use crate::fault::Sim;
use crate::guest::{Guest, GuestBuilder, Guests, VmSettings};
use crate::host::{Body, Callback, CpuSet, Host, bandwidth, build as host_build, task, worker};
use crate::ids::{Number, TaskNr, VcpuNr, VmNr};
use crate::machine::Recipe;
use crate::migration::{GuestClock, VmmThread};

pub(crate) fn add_vms(
    kvm: &mut Kvm,
    guests: &mut Guests,
    host: &mut Host<'_>,
    recipe: Recipe<'_>,
) -> Sim {
    // Each VM keeps its own.
    let vms = host.take_vms();
    if vms.is_empty() {
        return Ok(());
    }
    let vcpus: usize = vms.iter().map(|vm| vm.vcpus as usize).sum();
    kvm.vcpus.reserve(vcpus);
    guests.reserve(vms.len(), vcpus);
    host.reserve(vcpus + 2 * vms.len(), vcpus + vms.len());
    kvm.vms.reserve(vms.len());
    // machine.slice, a scope for each VM and in it, unless configured otherwise, groups for
    // its threads, as libvirt lays them out.
    let slice = host.create_group(None)?;
    for config in &vms {
        let group = host.create_group(Some(slice))?;
        host.set_shares(group, shares_of_cpu_weight(u64::from(config.cpu_weight)))?;
        let limit = config
            .cpu_max_ns
            .map(|(quota, period)| bandwidth::limit(host, group, quota, period));
        let threads = match config.vcpu_cgroups {
            true => host.create_group(Some(group))?,
            false => group,
        };
        add_vm(kvm, guests, host, config, threads, limit, recipe)?;
    }
    Ok(())
}

/// The clocks of a VM that moves to another host.
fn clock(host: &Host<'_>, config: &VmConfig) -> Result<Option<Box<GuestClock>>, ConfigError> {
    let Some(migration) = &config.migration else {
        return Ok(None);
    };
    let is_arm64 = host.cfg().host.profile.is_arm64();
    let offset = is_arm64.then_some(config.physical_counter_offset);
    let named = |error: ConfigError| ConfigError {
        key: format!("vm.{}.{}", config.name, error.key),
        ..error
    };
    let clock = GuestClock::new(migration, config.vcpus, offset).map_err(named)?;
    Ok(Some(Box::new(clock)))
}

fn add_vm(
    kvm: &mut Kvm,
    guests: &mut Guests,
    host: &mut Host<'_>,
    config: &VmConfig,
    group: GroupId,
    limit: Option<u32>,
    recipe: Recipe<'_>,
) -> Sim {
    let mut builder =
        GuestBuilder::new(&config.name, config.vcpus, config.guest.hz, host.streams())?;
    recipe(config, &mut builder)?;
    let meter = host.out_mut().add_meter(&config.name);
    let first = VcpuNr::from_index(kvm.vcpus.len());
    let hints = &host.cfg().knobs.kvm.directed_yield.ipi;
    let hinted = hints.ipi_tracking_enabled || hints.guest_yield_hint;
    let ipi_contexts = (0..if hinted { config.vcpus } else { 0 })
        .map(|_| IpiContext::new())
        .collect();
    let is_scx = host.class().scx().is_some();
    let answers_due: Vec<scx::Answers<_>> = (0..if is_scx { config.vcpus } else { 0 })
        .map(|_| scx::Answers::new())
        .collect();
    let ipiv = host.cfg().host.profile.features.ipiv && host.cfg().knobs.kvm.enable_ipiv;
    let vm = guests.add(Guest {
        cfg: VmSettings::of(config),
        first_vcpu: first,
        // Known when its first vCPU is added.
        first_task: TaskNr(0),
        vcpus: config.vcpus,
        kernel: builder.finish(),
        meter,
        clock: clock(host, config)?,
    });
    kvm.vms.add(Vm {
        // Addresses are of no matter: the entry's place says which descriptor it is.
        pid_table: (0..if ipiv { config.vcpus } else { 0 })
            .map(|index| u64::from(index) << 6 | 1)
            .collect(),
        directed_yield: DirectedYield::new(),
        ipi_contexts,
        answered_ns: vec![0; answers_due.len()],
        answers_due,
        apics: None,
        paused_by: None,
        answers: Answers::default(),
        running: config.vcpus,
    });
    let process = host.next_tid();
    let first = TaskNr::from_index(host.tasks().len());
    let own_group = |host: &mut Host<'_>| match config.vcpu_cgroups {
        true => host.create_group(Some(group)),
        false => Ok(group),
    };
    let emulator = own_group(host)?;
    worker::add(host, vm, config, emulator, process)?;
    let threads = VcpuThreads {
        config,
        process,
        allowed: match &config.pinning {
            Pinning::None => host_build::unpinned(host),
            pinned => pool(pinned),
        },
    };
    for index in 0..config.vcpus {
        let own_group_of_vcpu = own_group(host)?;
        let task = add_thread(host, &threads, index, own_group_of_vcpu)?;
        add_vcpu(kvm, guests, host, vm, index, task)?;
    }
    for task in first.index()..host.tasks().len() {
        host.set_bandwidth(TaskNr::from_index(task), limit);
    }
    if let Some(migration) = &config.migration {
        let allowed = pool(&config.pinning);
        let task = host_build::add_task(
            host,
            &format!("{}/vmm", config.name),
            Some(emulator),
            config.nice,
            allowed,
            Some(process),
        )?;
        let sleep = task::sleep_timer(host, task);
        host.set_body(
            task,
            Body::Vmm(Some(Box::new(VmmThread::new(vm, migration.clone(), sleep)))),
        );
    }
    Ok(())
}

/// What the threads of a VM's vCPUs have in common.
struct VcpuThreads<'c> {
    config: &'c VmConfig,
    /// Their process.
    process: Tid,
    /// Where they may run, unless each is pinned to a CPU of its own.
    allowed: CpuSet,
}

/// The thread of a vCPU.
fn add_thread(
    host: &mut Host<'_>,
    threads: &VcpuThreads<'_>,
    index: u32,
    group: GroupId,
) -> Sim<TaskNr> {
    let allowed = match &threads.config.pinning {
        Pinning::OneToOne(cpus) => {
            CpuSet::of(cpus.get(index as usize..=index as usize).unwrap_or(&[]))
        }
        Pinning::None | Pinning::Pool(_) => threads.allowed.clone(),
    };
    let name = format!("CPU {index}/KVM");
    host_build::add_task(
        host,
        &name,
        Some(group),
        threads.config.nice,
        allowed,
        Some(threads.process),
    )
}

fn add_vcpu(
    kvm: &mut Kvm,
    guests: &mut Guests,
    host: &mut Host<'_>,
    vm: VmNr,
    index: u32,
    task: TaskNr,
) -> Sim {
    let (hw, knobs) = (host.cfg().host.profile.features, &host.cfg().knobs.kvm);
    let apicv = hw.apicv && knobs.enable_apicv;
    let id = VcpuNr::from_index(kvm.vcpus.len());
    let capabilities = Capabilities {
        apicv,
        irqchip: true,
        ipiv: apicv && hw.ipiv && knobs.enable_ipiv,
        vtd_posting: hw.vtd_posting,
        host_x2apic: hw.x2apic,
    };
    let posted = PostedVcpu::new(id.0, capabilities, knobs.suppress_notification);
    let tsc =
        GuestTsc::new(host.costs().tsc_khz, GuestTsc::NEUTRAL, 0).map_err(|error| ConfigError {
            key: "profile.costs.tsc_khz".to_owned(),
            problem: error.to_string(),
        })?;
    let parameters = TimerParameters {
        policy: knobs.timer_policy,
        advance: knobs.lapic_timer_advance,
        ..TimerParameters::default()
    };
    let first = guests.vm(vm).first_vcpu;
    let mut timer = match index {
        0 => LapicTimer::new(parameters, tsc),
        _ => LapicTimer::like(&kvm.vcpus[first].timer),
    };
    let lvt = u32::from(crate::guest::LOCAL_TIMER_VECTOR) | 2 << 17;
    // Nothing is armed yet, so that there is nothing to do.
    let _ = timer.write_lvt(lvt);
    let ple = PleWindow::new(&knobs.ple);
    let hrtimer = host.add_timer(Callback::LapicTimer(id));
    let vcpu = guests.add_cpu(vm, index, task);
    kvm.vcpus.add(Vcpu {
        vm,
        index,
        task,
        run: VcpuRun::Ready,
        exit: Exit::ExternalInterrupt,
        shared: SharedVcpu::new(apicv),
        posted,
        lapic: Lapic::new(apicv),
        timer,
        hrtimer,
        halt_poll: HaltPoll::default(),
        halt: None,
        ple,
        yields: YieldState::new(),
        inject: None,
        window: false,
        pv_unhalted: false,
        answered: false,
        eois: Eois::Unseen,
        pv_eoi: None,
        parked: false,
        books: RunningBooks::default(),
    });
    host.set_body(task, Body::Vcpu(vcpu));
    Ok(())
}

/// The guest boots: its threads are there, its vCPUs' threads start.
pub(crate) fn start_vm(kvm: &Kvm, guests: &mut Guests, host: &mut Host<'_>, vm: VmNr) -> Sim {
    guests.boot(host, vm)?;
    for index in 0..guests.vm(vm).vcpus {
        let task = kvm.vcpus[guests.vcpu_of(vm, index)].task;
        let cpu = host.least_loaded(task);
        host.fork(task, cpu)?;
    }
    Ok(())
}

/// All CPUs that a VM's threads may use.
fn pool(pinning: &Pinning) -> CpuSet {
    match pinning {
        Pinning::None => CpuSet::ALL,
        Pinning::Pool(cpus) | Pinning::OneToOne(cpus) => CpuSet::of(cpus),
    }
}

//! Making a machine from its configuration.

use std::collections::VecDeque;

use stealtime_events::Tid;
use stealtime_hypervisor::directed_yield::ple::PleWindow;
use stealtime_hypervisor::directed_yield::{DirectedYield, YieldState};
use stealtime_hypervisor::eevdf::weights::shares_of_cpu_weight;
use stealtime_hypervisor::eevdf::{
    Attr, Config as FairConfig, Fair, GroupId, OtherLoad, Preempt, Resched, RqId,
};
use stealtime_hypervisor::halt_poll::HaltPoll;
use stealtime_hypervisor::ipi_tracking::IpiContext;
use stealtime_hypervisor::lapic::Lapic;
use stealtime_hypervisor::lapic_timer::{GuestTsc, LapicTimer, TimerParameters};
use stealtime_hypervisor::posted_interrupt::{Capabilities, PostedVcpu, SharedVcpu};

use super::task::{CpuSet, HostTask, NO_LIMIT, NOWHERE};
use super::{
    Body, Callback, Cpu, Functions, Hrtimer, Irq, Machine, Message, Phase, Task, TaskState, What,
    Worker, Workers,
};
use crate::at::At;
use crate::books::{Books, RunningBooks, TaskBooks};
use crate::config::{Config, ConfigError, Pinning, VmConfig};
use crate::engine::{Queue, Streams};
use crate::fault::{Fault, Sim};
use crate::guest::{GuestBuilder, GuestCpu, Vm, VmSettings};
use crate::ids::{CpuNr, Number, Table, TaskNr, VcpuNr, VmNr};
use crate::kvm::{Exit, Vcpu, VcpuRun};
use crate::migration::{GuestClock, VmmThread};
use crate::script::{Moves, Points, ScriptTask, Scripts, Yields};
use crate::sink::{NameList, Sink};
use crate::stats::{Meter, Stats};
use crate::workload;

/// Makes a guest's threads.
pub type Recipe<'r> = &'r mut dyn FnMut(&VmConfig, &mut GuestBuilder) -> Sim;

/// The cgroups of a VM whose tasks run scripts.
#[derive(Clone, Copy, Debug, Default)]
struct ScriptGroups {
    /// That of its vCPUs, or which holds one for each.
    vcpus: Option<GroupId>,
    /// That of its other threads.
    others: Option<GroupId>,
    limit: Option<u32>,
}

/// The host's fair class, without tasks.
fn fair(cfg: &Config) -> Result<Fair, Fault> {
    let sched = &cfg.knobs.sched;
    let mut config = FairConfig::linux_7_2(cfg.host.topology.cpus());
    config.features = sched.features;
    config.cfs = sched.cfs.map(|cfs| cfs.on(cfg.host.topology.cpus()));
    config.preempt = sched.preempt;
    config.tick_ns = 1_000_000_000 / u64::from(sched.hz);
    config.lag_credit = sched.lag_credit;
    config.yield_forfeits = sched.yield_forfeits;
    config.other_load = OtherLoad::Instantaneous;
    if let Some(ns) = sched.base_slice_ns {
        config.base_slice_ns = ns;
    }
    let mut fair = Fair::new(config)?;
    // The simulator checks its own sums; the scheduler's check is linear in its entities.
    fair.set_self_check(false);
    fair.set_lean();
    Ok(fair)
}

impl<'a> Machine<'a> {
    /// Makes the host and its guests, at time 0. Events go to `sink`.
    ///
    /// # Errors
    ///
    /// A configuration that cannot be run.
    pub fn new(cfg: &Config, sink: &'a mut dyn Sink) -> Result<Self, Fault> {
        Self::with_recipes(cfg, sink, &mut |vm, guest| {
            workload::build(&vm.workload, guest)
        })
    }

    /// The same, where `recipe` makes each guest's threads and what they share, whatever workload
    /// its configuration names.
    ///
    /// # Errors
    ///
    /// As [`Self::new`], and what `recipe` finds wrong.
    pub fn with_recipes(
        cfg: &Config,
        sink: &'a mut dyn Sink,
        recipe: Recipe<'_>,
    ) -> Result<Self, Fault> {
        cfg.check()?;
        let cpus = cfg.host.topology.cpus();
        let mut machine = Machine {
            now: 0,
            queue: Queue::new(),
            what: Vec::new(),
            costs: cfg.host.profile.costs,
            cfg: cfg.clone(),
            streams: Streams::new(cfg.run.seed),
            cpus: Table::default(),
            domains: super::domain::Domains::new(cfg.host.topology, &cfg.knobs.host.isolcpus),
            timer_views: Vec::new(),
            nearest: Vec::new(),
            next_idle_balance: 0,
            idle_balance_ns: 0,
            fair: fair(cfg)?,
            tasks: Table::default(),
            bandwidths: Vec::new(),
            workers: Vec::new(),
            by_slot: Vec::new(),
            processes: Vec::new(),
            timers: Table::default(),
            ahead: super::ahead::Ahead::default(),
            in_huge_pages: false,
            messages: super::message::Messages::default(),
            vms: Table::default(),
            vcpus: Table::default(),
            xen: crate::xen::Xen::new(cfg)?,
            checks: super::Checks::new(cfg!(debug_assertions)),
            points: Points::new(&cfg.scripts),
            yields: Yields::default(),
            finished: std::collections::BTreeMap::new(),
            books: Books::new(cpus),
            stats: Stats::new(cpus),
            names: NameList::default(),
            functions: Functions::default(),
            tracing: sink.wanted(),
            sink,
        };
        machine.functions = Functions {
            tick: machine.names.add("tick_nohz_handler"),
            apic_timer: machine.names.add("apic_timer_fn"),
            wakeup: machine.names.add("hrtimer_wakeup"),
            hrtick: machine.names.add("hrtick"),
            period: machine.names.add("sched_cfs_period_timer"),
            end: machine.names.add("stealtime_end"),
        };
        machine.add_cpus(cpus)?;
        machine.begin_timer_views();
        machine.start_remote_ticks();
        machine.add_tasks()?;
        machine.add_vms(recipe)?;
        machine.add_scripts()?;
        if cfg.run.warmup_ns > 0 {
            let slot = machine.slot(What::Measure);
            machine.queue.arm(slot, cfg.run.warmup_ns);
        } else {
            machine.begin_measuring();
        }
        machine.sink.begin(&machine.names, cpus);
        machine.introduce();
        machine.start_tasks()?;
        Ok(machine)
    }

    fn add_cpus(&mut self, cpus: u32) -> Sim {
        for n in 0..cpus {
            let rq = self.fair.create_rq(self.cfg.knobs.sched.pick)?;
            let cpu = CpuNr(n);
            let timer = self.slot(What::Phase(cpu));
            let clock_event = self.slot(What::ClockEvent(cpu));
            let tick = self.timers.add(Hrtimer::new(Callback::Tick));
            let hrtick = self.timers.add(Hrtimer::new(Callback::Hrtick));
            let host = &self.cfg.knobs.host;
            let full = host.nohz_full.contains(&n);
            self.cpus.add(Cpu {
                rq,
                phase: Phase::Idle,
                timer,
                debt_ns: 0,
                pending: Irq::default(),
                irqs_off: false,
                l1d_unsafe: false,
                preempt_off: false,
                resched: Resched::None,
                current: None,
                warm: None,
                idle: super::idle::IdleCpu::default(),
                hrtimers: VecDeque::new(),
                clock_event,
                tick,
                hrtick,
                devices: Vec::new(),
                runnable: 0,
                icr_idle_at: 0,
                slow: false,
                charged_ns: 0,
                balance: super::balance::Balance::default(),
                housekeeping: !full,
                isolated: host.isolcpus.contains(&n),
            });
        }
        Ok(())
    }

    fn start_remote_ticks(&mut self) {
        for cpu in self
            .cpus
            .numbers()
            .filter(|&cpu| !self.cpus[cpu].housekeeping)
            .collect::<Vec<_>>()
        {
            let at = super::sched::REMOTE_TICK_NS + u64::from(cpu.0);
            self.post(at, Message::RemoteTick { cpu });
        }
    }

    /// The host's other tasks.
    fn add_tasks(&mut self) -> Sim {
        let tasks = self.cfg.host.tasks.clone();
        for config in &tasks {
            let meter = self.stats.meters.len();
            self.stats.meters.push(Meter::named(&config.name));
            for k in 0..config.count {
                let random = self.streams.named(&format!("task/{}/{k}", config.name));
                let program = workload::host_program(&config.workload, random, k)?;
                let allowed = if config.cpus.is_empty() {
                    self.unpinned()
                } else {
                    CpuSet::of(&config.cpus)
                };
                let task = self.add_task(&config.name, None, config.nice, allowed, None)?;
                let sleep = self.sleep_timer(task);
                self.tasks[task].body = Body::Host(Box::new(HostTask {
                    program,
                    sleep,
                    reply: 0,
                    meter,
                }));
            }
        }
        Ok(())
    }

    /// Where a task may run that nobody pins: not on CPUs of `isolcpus`.
    fn unpinned(&self) -> CpuSet {
        let isolated = &self.cfg.knobs.host.isolcpus;
        let others = (0..self.cpus.len() as u32).filter(|cpu| !isolated.contains(cpu));
        let others: Vec<u32> = others.collect();
        if isolated.is_empty() || others.is_empty() {
            return CpuSet::ALL;
        }
        CpuSet::of(&others)
    }

    /// A task of the host; its body is a vCPU that does not exist until it gets another.
    fn add_task(
        &mut self,
        name: &str,
        group: Option<GroupId>,
        nice: i8,
        allowed: CpuSet,
        process: Option<Tid>,
    ) -> Sim<TaskNr> {
        let attr = Attr {
            nice,
            ..Attr::default()
        };
        let fair = self.fair.create_task(attr, group)?;
        let tid = self.next_tid();
        let name = self.names.of_task(name);
        let cpu = allowed.first();
        let task = self.tasks.add(Task {
            tid,
            name,
            fair,
            allowed,
            cpu,
            state: TaskState::Blocked,
            moved_ns: 0,
            limit: NO_LIMIT,
            left_ns: 0,
            body: Body::Vcpu(VcpuNr(u32::MAX)),
            kept: false,
            goes_to: NOWHERE,
            prio: 120 + i16::from(nice),
            books: TaskBooks::default(),
        });
        self.processes.push(process.unwrap_or(tid));
        if self.by_slot.len() <= fair.slot() {
            self.by_slot.resize(fair.slot() + 1, task);
        }
        self.by_slot[fair.slot()] = task;
        Ok(task)
    }

    /// The thread id of the task that is added next.
    fn next_tid(&self) -> Tid {
        Tid(1000 + self.tasks.len() as i32)
    }

    /// Tasks that do what was recorded.
    fn add_scripts(&mut self) -> Sim {
        let scripts = self.cfg.scripts.clone();
        let groups = self.add_script_groups(&scripts)?;
        for (index, config) in scripts.tasks.iter().enumerate() {
            let own = config.vm.and_then(|vm| groups.get(vm as usize));
            let own = own.copied().unwrap_or_default();
            let group = match own.vcpus {
                Some(vcpus) if config.vcpu.is_some() && scripts.vcpu_groups => {
                    Some(self.fair.create_group(Some(vcpus))?)
                }
                Some(vcpus) if config.vcpu.is_some() => Some(vcpus),
                _ => own.others,
            };
            let allowed = if config.cpus.is_empty() {
                CpuSet::ALL
            } else {
                CpuSet::of(&config.cpus)
            };
            let task = self.add_task(&config.name, group, config.nice, allowed, None)?;
            let timer = self.timers.add(Hrtimer::new(Callback::Script(task)));
            self.tasks[task].set_bandwidth(own.limit);
            self.tasks[task].kept = config.moves != Moves::Scheduler;
            if let Moves::Times(moves) = &config.moves
                && let Some(&(at, _)) = moves.first()
            {
                self.post(at, Message::ScriptMoves { task });
            }
            self.tasks[task].cpu = CpuNr(config.first_cpu);
            let script = ScriptTask::new(config, timer, index);
            self.tasks[task].body = Body::Script(Box::new(script));
            if let (Some(vm), Some(number)) = (config.vm, config.vcpu) {
                self.yields.add(vm, number, task);
            }
            // Where all requests count at once, no occasion is needed.
            if self.cfg.knobs.sched.preempt == Preempt::Lazy {
                self.expect_tick(task)?;
            }
            if config.starts_ns > 0 {
                self.tasks[task].state = TaskState::New;
                self.post(config.starts_ns, Message::StartScript { task });
            }
        }
        Ok(())
    }

    /// The groups of each VM of scripts and its limit.
    fn add_script_groups(&mut self, scripts: &Scripts) -> Sim<Vec<ScriptGroups>> {
        let any = scripts.groups.iter().any(Option::is_some);
        let slice = match scripts.slice && any {
            true => Some(self.fair.create_group(None)?),
            false => None,
        };
        let mut groups = Vec::new();
        for config in &scripts.groups {
            let Some(config) = config else {
                groups.push(ScriptGroups::default());
                continue;
            };
            let group = self.fair.create_group(slice)?;
            let shares = shares_of_cpu_weight(u64::from(config.cpu_weight));
            self.fair.set_shares(group, shares, 0)?;
            let limit = config
                .cpu_max_ns
                .map(|(quota, period)| self.limit(group, quota, period));
            let (mut vcpus, mut others) = (group, group);
            if scripts.vcpu_groups {
                vcpus = self.fair.create_group(Some(group))?;
                others = self.fair.create_group(Some(vcpus))?;
            }
            groups.push(ScriptGroups {
                vcpus: Some(vcpus),
                others: Some(others),
                limit,
            });
        }
        Ok(groups)
    }

    fn add_vms(&mut self, recipe: Recipe<'_>) -> Sim {
        // Each VM keeps its own.
        let vms = core::mem::take(&mut self.cfg.vms);
        if vms.is_empty() {
            return Ok(());
        }
        let vcpus: usize = vms.iter().map(|vm| vm.vcpus as usize).sum();
        self.vcpus.reserve(vcpus);
        self.tasks.reserve(vcpus + 2 * vms.len());
        self.timers.reserve(vcpus + vms.len());
        self.by_slot.reserve_exact(vcpus + 2 * vms.len());
        self.vms.reserve(vms.len());
        // machine.slice, a scope for each VM and in it, unless told otherwise, groups for its
        // threads, as libvirt lays them out.
        let slice = self.fair.create_group(None)?;
        for config in &vms {
            let group = self.fair.create_group(Some(slice))?;
            self.fair
                .set_shares(group, shares_of_cpu_weight(u64::from(config.cpu_weight)), 0)?;
            let limit = config
                .cpu_max_ns
                .map(|(quota, period)| self.limit(group, quota, period));
            let threads = match config.vcpu_cgroups {
                true => self.fair.create_group(Some(group))?,
                false => group,
            };
            self.add_vm(config, threads, limit, recipe)?;
        }
        Ok(())
    }

    fn add_vm(
        &mut self,
        config: &VmConfig,
        group: GroupId,
        limit: Option<u32>,
        recipe: Recipe<'_>,
    ) -> Sim {
        let mut builder =
            GuestBuilder::new(&config.name, config.vcpus, config.guest.hz, self.streams)?;
        recipe(config, &mut builder)?;
        let meter = self.stats.meters.len();
        self.stats.meters.push(Meter::named(&config.name));
        let first = VcpuNr::from_index(self.vcpus.len());
        let hints = &self.cfg.knobs.kvm.directed_yield.ipi;
        let hinted = hints.ipi_tracking_enabled || hints.guest_yield_hint;
        let ipi_contexts = (0..if hinted { config.vcpus } else { 0 })
            .map(|_| IpiContext::new())
            .collect();
        let ipiv = self.cfg.host.profile.features.ipiv && self.cfg.knobs.kvm.enable_ipiv;
        let vm = self.vms.add(Vm {
            cfg: VmSettings::of(config),
            first_vcpu: first,
            vcpus: config.vcpus,
            kernel: builder.finish(),
            // Addresses are of no matter: the entry's place says which descriptor it is.
            pid_table: (0..if ipiv { config.vcpus } else { 0 })
                .map(|index| u64::from(index) << 6 | 1)
                .collect(),
            directed_yield: DirectedYield::new(),
            ipi_contexts,
            apics: None,
            meter,
            clock: match &config.migration {
                Some(migration) => {
                    // Only arm64's reads of the counter trap.
                    let is_arm64 = self.cfg.host.profile.costs.counter_trap_ns != 0;
                    let offset = is_arm64.then_some(config.physical_counter_offset);
                    Some(Box::new(GuestClock::new(migration, config.vcpus, offset)?))
                }
                None => None,
            },
            paused_by: None,
            answers: crate::books::Answers::default(),
            running: config.vcpus,
        });
        let process = self.next_tid();
        let first = TaskNr::from_index(self.tasks.len());
        let own_group = |fair: &mut Fair| match config.vcpu_cgroups {
            true => fair.create_group(Some(group)),
            false => Ok(group),
        };
        let emulator = own_group(&mut self.fair)?;
        self.add_workers(vm, config, emulator, process)?;
        let allowed = match &config.pinning {
            Pinning::None => self.unpinned(),
            pinned => pool(pinned),
        };
        for index in 0..config.vcpus {
            let own = own_group(&mut self.fair)?;
            self.add_vcpu(vm, index, config, own, (process, &allowed))?;
        }
        for task in first.index()..self.tasks.len() {
            self.tasks[TaskNr::from_index(task)].set_bandwidth(limit);
        }
        if let Some(migration) = &config.migration {
            let allowed = pool(&config.pinning);
            let task = self.add_task(
                &format!("{}/vmm", config.name),
                Some(emulator),
                config.nice,
                allowed,
                Some(process),
            )?;
            let sleep = self.sleep_timer(task);
            self.tasks[task].body =
                Body::Vmm(Some(Box::new(VmmThread::new(vm, migration.clone(), sleep))));
        }
        Ok(())
    }

    /// The threads of the VM's process that are no vCPUs.
    fn add_workers(&mut self, vm: VmNr, config: &VmConfig, group: GroupId, process: Tid) -> Sim {
        let allowed = self.unpinned();
        let main = "qemu-system-x86";
        let main_loop = self.add_task(main, Some(group), 0, allowed.clone(), Some(process))?;
        let sleep = self.sleep_timer(main_loop);
        let body = Worker::MainLoop { sleep, done: false };
        self.tasks[main_loop].body = Body::Worker(Box::new(body));
        self.tasks[main_loop].state = TaskState::New;
        let at = config.start_ns + super::worker::MAIN_LOOP_START_NS;
        self.post(at, Message::StartWorker { task: main_loop });
        let name = format!("vhost-{}", process.0);
        let io = self.add_task(&name, Some(group), 0, allowed, Some(process))?;
        let body = Worker::Io {
            vm,
            requests: std::collections::VecDeque::new(),
            works: false,
        };
        self.tasks[io].body = Body::Worker(Box::new(body));
        self.tasks[io].state = TaskState::New;
        self.workers.push(Workers { main_loop, io });
        Ok(())
    }

    fn add_vcpu(
        &mut self,
        vm: VmNr,
        index: u32,
        config: &VmConfig,
        group: GroupId,
        (process, allowed): (Tid, &CpuSet),
    ) -> Sim {
        let allowed = match &config.pinning {
            Pinning::OneToOne(cpus) => {
                CpuSet::of(cpus.get(index as usize..=index as usize).unwrap_or(&[]))
            }
            Pinning::None | Pinning::Pool(_) => allowed.clone(),
        };
        let name = format!("CPU {index}/KVM");
        let task = self.add_task(&name, Some(group), config.nice, allowed, Some(process))?;
        let (hw, kvm) = (self.cfg.host.profile.features, &self.cfg.knobs.kvm);
        let apicv = hw.apicv && kvm.enable_apicv;
        let id = VcpuNr::from_index(self.vcpus.len());
        let capabilities = Capabilities {
            apicv,
            irqchip: true,
            ipiv: apicv && hw.ipiv && kvm.enable_ipiv,
            vtd_posting: hw.vtd_posting,
            host_x2apic: hw.x2apic,
        };
        let posted = PostedVcpu::new(id.0, capabilities, kvm.suppress_notification);
        let tsc = GuestTsc::new(self.costs.tsc_khz, GuestTsc::NEUTRAL, 0).map_err(|error| {
            ConfigError {
                key: "profile.costs.tsc_khz".to_owned(),
                problem: error.to_string(),
            }
        })?;
        let parameters = TimerParameters {
            policy: kvm.timer_policy,
            advance: kvm.lapic_timer_advance,
            ..TimerParameters::default()
        };
        let first = self.vms[vm].first_vcpu;
        let mut timer = match index {
            0 => LapicTimer::new(parameters, tsc),
            _ => LapicTimer::like(&self.vcpus[first].timer),
        };
        let lvt = u32::from(crate::guest::LOCAL_TIMER_VECTOR) | 2 << 17;
        // Nothing is armed yet, so that there is nothing to do.
        let _ = timer.write_lvt(lvt);
        let ple = PleWindow::new(&kvm.ple);
        let hrtimer = self.timers.add(Hrtimer::new(Callback::LapicTimer(id)));
        let vcpu = self.vcpus.add(Vcpu {
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
            hv_at: At::NEVER,
            halt_poll: HaltPoll::default(),
            halt: None,
            ple,
            yields: YieldState::new(),
            inject: None,
            window: false,
            guest: GuestCpu::default(),
            parked: false,
            step_ends: 0,
            turn: 0,
            books: RunningBooks::default(),
        });
        self.tasks[task].body = Body::Vcpu(vcpu);
        Ok(())
    }

    /// Tells the sink who is who.
    fn introduce(&mut self) {
        let processes = core::mem::take(&mut self.processes);
        if !self.tracing {
            return;
        }
        for (task, process) in self.tasks.numbers().zip(processes) {
            let t = &self.tasks[task];
            let kind = stealtime_events::Kind::Task {
                tid: t.tid,
                process,
                name: t.name,
            };
            self.emit(CpuNr(0), kind);
        }
    }

    /// All tasks are forked, spread over the CPUs that they may use.
    fn start_tasks(&mut self) -> Sim {
        for vm in self.vms.numbers() {
            let at = self.vms[vm].cfg.start_ns;
            if at > 0 {
                self.post(at, Message::Start { vm });
            } else {
                self.start_vm(vm)?;
            }
        }
        for task in self.tasks.numbers() {
            let later = self.tasks[task].state == TaskState::New;
            if !later && !matches!(self.tasks[task].body, Body::Vcpu(_) | Body::Worker(_)) {
                let cpu = match self.tasks[task].body {
                    Body::Script(_) => self.tasks[task].cpu,
                    _ => self.least_loaded(task),
                };
                self.fork(task, cpu)?;
            }
        }
        Ok(())
    }

    /// The guest boots: its threads are there, its vCPUs' threads start.
    pub(crate) fn start_vm(&mut self, vm: VmNr) -> Sim {
        let now = self.now;
        let first = self.vms[vm].first_vcpu;
        let kernel = &mut self.vms[vm].kernel;
        for thread in kernel.threads.numbers() {
            let t = &kernel.threads[thread];
            let rq = RqId::nth(t.vcpu);
            kernel.runnable[t.vcpu as usize] += 1;
            kernel.fair.fork(t.fair, rq, now)?;
        }
        self.start_sources(vm);
        for index in 0..self.vms[vm].vcpus {
            let vcpu = VcpuNr(first.0 + index);
            self.vcpus[vcpu].guest.resched = Resched::Now;
            self.vcpus[vcpu].guest.started = true;
            let task = self.vcpus[vcpu].task;
            let cpu = self.least_loaded(task);
            self.fork(task, cpu)?;
        }
        Ok(())
    }

    pub(crate) fn least_loaded(&self, task: TaskNr) -> CpuNr {
        let allowed = &self.tasks[task].allowed;
        let cpus = self
            .cpus
            .numbers()
            .filter(|&cpu| allowed.has(cpu) && !self.cpus[cpu].isolated);
        let least = cpus.min_by_key(|&cpu| self.cpus[cpu].runnable);
        least.unwrap_or_else(|| allowed.first())
    }
}

/// All CPUs that a VM's threads may use.
fn pool(pinning: &Pinning) -> CpuSet {
    match pinning {
        Pinning::None => CpuSet::ALL,
        Pinning::Pool(cpus) | Pinning::OneToOne(cpus) => CpuSet::of(cpus),
    }
}

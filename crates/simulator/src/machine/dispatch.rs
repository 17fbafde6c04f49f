//! What each CPU does next: here alone host, guests and scripts meet.
//!
//! A part that is through with what it does returns a [`Flow`]; the loop in [`Machine::drive`]
//! applies it until time must pass.

use stealtime_events::Kind;
use stealtime_hypervisor::fair::Resched;

use super::{Machine, inject};
use crate::fault::Sim;
use crate::guest::{DeviceInterrupt, source};
use crate::host::{
    Body, Callback, Flow, Irq, MAIN_LOOP_PERIOD_NS, MAIN_LOOP_WORK_NS, Message, MessageNr, Phase,
    Resume, TaskState, Worker, balance, bandwidth, hrtimer, idle, injected, irq, task, tick,
    worker,
};
use crate::ids::{CpuNr, TaskNr, TimerNr, VmNr};
use crate::kvm::{build as kvm_build, deliver, guest_mode, halt, load, run, timer};
use crate::migration::vmm;
use crate::{script, xen};

impl Machine<'_> {
    /// A message arrives.
    #[inline(never)]
    pub(super) fn arrived(&mut self, number: MessageNr) -> Sim {
        let Some(message) = self.host.clock_mut().take(number) else {
            return self.host.broken("a message arrived twice");
        };
        if let Some(injection) = injected::state_mut(&mut self.host)
            && injection.swallows(message)
        {
            return Ok(());
        }
        match message {
            Message::Irq { cpu, irq } => {
                if let Some(until_ns) = self.host.stalled(cpu) {
                    self.host.post(until_ns, Message::Irq { cpu, irq });
                    return Ok(());
                }
                deliver::raise(&mut self.kvm, &mut self.guests, &mut self.host, cpu, irq)
            }
            Message::FlagWritten { cpu } => idle::leave(&mut self.host, cpu),
            Message::Device { vm, device, thread } => {
                let irq = source::device_done(&mut self.guests, vm, device, thread);
                self.device_raises(vm, irq)
            }
            Message::SpinOver { vcpu } => {
                guest_mode::noticed(&mut self.kvm, &mut self.guests, &mut self.host, vcpu)
            }
            Message::Request { vm, source } => {
                match source::request_arrived(&mut self.guests, &mut self.host, vm, source) {
                    Some(irq) => self.device_raises(vm, irq),
                    None => Ok(()),
                }
            }
            Message::PollOver { vcpu, turn } => {
                let resume = halt::poll_noticed(
                    &mut self.kvm,
                    &mut self.guests,
                    &mut self.host,
                    vcpu,
                    turn,
                )?;
                self.resume(resume)
            }
            Message::ScriptPollOver { task, turn } => {
                let resume = self.scripts.poll_noticed(&mut self.host, task, turn)?;
                self.resume(resume)
            }
            Message::ScriptWake { task, by } => {
                let resume = script::finish_wake(&mut self.host, task, by)?;
                self.resume(resume)
            }
            Message::ScriptCalled {
                task,
                waker,
                exit_us,
            } => {
                let resume = self.scripts.called(&mut self.host, task, waker, exit_us)?;
                self.resume(resume)
            }
            Message::ScriptMoves { task } => script::apply_moves(&mut self.host, task),
            Message::ScriptTick { task } => {
                let resume = script::tick(&mut self.host, task)?;
                self.resume(resume)
            }
            Message::StartScript { task } => self.scripts.begin(&mut self.host, task),
            Message::Start { vm } => {
                kvm_build::start_vm(&self.kvm, &mut self.guests, &mut self.host, vm)
            }
            Message::Slack { limit } => bandwidth::distribute_slack(&mut self.host, limit),
            Message::StartWorker { task } => {
                let cpu = self.host.tasks()[task].cpu;
                worker::wake(&mut self.host, task, cpu)
            }
            Message::RemoteTick { cpu } => tick::tick_remote(&mut self.host, cpu),
            Message::Incident { number } => inject::happens(self, number),
        }
    }

    /// A device of a guest interrupts one of its vCPUs.
    fn device_raises(&mut self, vm: VmNr, irq: DeviceInterrupt) -> Sim {
        deliver::device_raises(&mut self.kvm, &mut self.guests, &mut self.host, vm, irq)
    }

    /// A part has interrupted what a CPU did: the CPU goes on.
    fn resume(&mut self, resume: Option<Resume>) -> Sim {
        match resume {
            Some(Resume { cpu, flow }) => self.drive(cpu, flow),
            None => Ok(()),
        }
    }

    /// Lets a CPU go on until time must pass.
    pub(crate) fn drive(&mut self, cpu: CpuNr, mut flow: Flow) -> Sim {
        loop {
            flow = match flow {
                Flow::Wait => return Ok(()),
                Flow::Continue => self.next(cpu)?,
                Flow::Schedule => self.schedule(cpu)?,
                Flow::Block => {
                    self.host.block_current(cpu)?;
                    self.schedule(cpu)?
                }
                Flow::Run => self.run_current(cpu)?,
            };
        }
    }

    fn switch(&mut self, cpu: CpuNr, prev: Option<TaskNr>, next: Option<TaskNr>) -> Sim<Flow> {
        let left_task = self.host.leave_cpu(prev);
        if let Some(task) = prev
            && let Body::Vcpu(vcpu) = self.host.tasks()[task].body
        {
            load::put(&mut self.kvm, &mut self.guests, &mut self.host, cpu, vcpu)?;
        }
        self.host.set_current(cpu, left_task, next);
        if prev.is_some() != next.is_some() {
            self.smt_changed(cpu);
        }
        self.host.begin_switch(cpu, prev, next)?;
        Ok(Flow::Wait)
    }

    /// `schedule()`: picks, and switches if that is another task.
    fn schedule(&mut self, cpu: CpuNr) -> Sim<Flow> {
        let next = self.host.pick(cpu)?;
        let prev = self.host.cpus()[cpu].current;
        if next == prev {
            return match prev {
                Some(_) => Ok(Flow::Run),
                None => idle::enter(&mut self.host, cpu).map(|()| Flow::Wait),
            };
        }
        self.switch(cpu, prev, next)
    }

    /// The switch is done: the new task runs.
    fn switched(&mut self, cpu: CpuNr) -> Sim<Flow> {
        self.host.enable_irqs(cpu);
        if let Some(task) = self.host.cpus()[cpu].current
            && let Body::Vcpu(vcpu) = self.host.tasks()[task].body
        {
            load::load(&mut self.kvm, &mut self.guests, &mut self.host, cpu, vcpu)?;
        }
        self.host.warm_up(cpu);
        Ok(Flow::Continue)
    }

    /// The phase of `cpu` is over.
    #[inline]
    pub(super) fn phase_over(&mut self, cpu: CpuNr) -> Sim {
        if self.host.cpus()[cpu].debt_ns > 0 {
            // Something was charged while the phase ran.
            self.host.stay(cpu, 0);
            return Ok(());
        }
        let flow = match self.host.cpus()[cpu].phase {
            Phase::Idle => return self.host.broken("an idle CPU's phase has no end"),
            Phase::IdleExit => Flow::Continue,
            Phase::Irq(irq) => self.irq_over(cpu, irq)?,
            Phase::Switch => self.switched(cpu)?,
            Phase::Run => {
                let Some(task) = self.host.cpus()[cpu].current else {
                    return self.host.broken("a CPU without a task runs one");
                };
                self.host.set_left(task, 0);
                match self.host.tasks()[task].body {
                    // What `run_current` looks at first is not so.
                    Body::Vcpu(vcpu) => {
                        run::step(&mut self.kvm, &mut self.guests, &mut self.host, cpu, vcpu)?
                    }
                    _ => Flow::Run,
                }
            }
        };
        match flow {
            // Most steps of guests take time: no more is to be done for these.
            Flow::Wait => Ok(()),
            flow => self.drive(cpu, flow),
        }
    }

    /// The current task goes on where it was.
    fn run_current(&mut self, cpu: CpuNr) -> Sim<Flow> {
        let Some(task) = self.host.cpus()[cpu].current else {
            return self.host.broken("a CPU without a task runs one");
        };
        if matches!(&self.host.tasks()[task].body, Body::Script(script) if !script.on_halt())
            && bandwidth::throttle(&mut self.host, cpu)?
        {
            return Ok(Flow::Schedule);
        }
        self.host.set_phase(cpu, Phase::Run);
        let remaining = self.host.tasks()[task].left_ns;
        if remaining > 0 {
            let computes = !matches!(self.host.tasks()[task].body, Body::Vcpu(_));
            let ns = if computes {
                self.host.slowed(cpu, remaining)
            } else {
                remaining
            };
            self.host.stay(cpu, ns);
            return Ok(Flow::Wait);
        }
        if self.host.cpus()[cpu].debt_ns > 0 {
            self.host.stay(cpu, 0);
            return Ok(Flow::Wait);
        }
        debug_assert_eq!(self.host.tasks()[task].state, TaskState::Running);
        if let Some(injection) = injected::state(&self.host)
            && injection.is_doomed(task)
        {
            self.host.end(task);
            return Ok(Flow::Block);
        }
        match self.host.tasks()[task].body {
            Body::Vcpu(vcpu) => {
                run::step(&mut self.kvm, &mut self.guests, &mut self.host, cpu, vcpu)
            }
            Body::Host(_) => task::step(&mut self.host, cpu, task),
            Body::Worker(_) => self.worker_step(cpu, task),
            Body::Script(_) => self.scripts.step(&mut self.host, cpu, task),
            Body::Vmm(_) => vmm::step(&mut self.kvm, &mut self.guests, &mut self.host, cpu, task),
        }
    }

    /// Between two things: takes interrupts, then reschedules, then goes on with the task.
    fn next(&mut self, cpu: CpuNr) -> Sim<Flow> {
        if irq::take_irq(&mut self.host, cpu) {
            return Ok(Flow::Wait);
        }
        if self.host.is_xen() && !self.host.cpus()[cpu].preempt_off {
            xen::do_softirqs(&mut self.host, cpu);
        }
        let c = &self.host.cpus()[cpu];
        match c.current {
            None if c.debt_ns > 0 => {
                self.host.set_phase(cpu, Phase::IdleExit);
                self.host.stay(cpu, 0);
                Ok(Flow::Wait)
            }
            None if c.balance.kicked => {
                balance::nohz_idle_balance(&mut self.host, cpu)?;
                Ok(Flow::Continue)
            }
            None if c.resched == Resched::None => {
                idle::enter(&mut self.host, cpu)?;
                Ok(Flow::Wait)
            }
            None => Ok(Flow::Schedule),
            Some(task) if self.host.reschedules(cpu, task) => Ok(Flow::Schedule),
            Some(_) => Ok(Flow::Run),
        }
    }

    /// `cpu` has got or lost a task: its sibling goes on at another speed.
    fn smt_changed(&mut self, cpu: CpuNr) {
        let host = &self.host.cfg().host;
        if host.profile.smt_percent < 100
            && let Some(sibling) = host.topology.sibling_of(cpu.0)
        {
            let slow = self.host.cpus()[cpu].current.is_some();
            self.set_slow(CpuNr(sibling), slow);
        }
    }

    /// The computing in progress on `cpu` is rescaled: as much work remains, at another speed.
    fn set_slow(&mut self, cpu: CpuNr, slow: bool) {
        if self.host.cpus()[cpu].slow == slow {
            return;
        }
        // The work is read at the old speed, and its end set at the new one.
        let segment = self.segment(cpu);
        let work = segment.map(|remaining| self.host.work_in(cpu, remaining));
        self.host.set_slow(cpu, slow);
        if let Some(work) = work {
            let end_ns = self.host.now() + self.host.slowed(cpu, work);
            let end = match run::vcpu_in_guest(&self.kvm, &self.host, cpu) {
                Some(vcpu) => self.guests.move_end(vcpu, end_ns),
                None => end_ns,
            };
            self.host.move_phase_end(cpu, end);
        }
    }

    /// What is left, by the clock, of the computing in progress on `cpu`.
    fn segment(&self, cpu: CpuNr) -> Option<u64> {
        let c = &self.host.cpus()[cpu];
        if c.phase != Phase::Run {
            return None;
        }
        match &self.host.tasks()[c.current?].body {
            Body::Vcpu(_) => {
                let vcpu = run::vcpu_in_guest(&self.kvm, &self.host, cpu)?;
                self.guests.compute_left(vcpu, self.host.now())
            }
            _ => self
                .host
                .clock()
                .when(c.timer)
                .map(|time| time - self.host.now()),
        }
    }

    /// The handler's end: does what it is for.
    fn irq_over(&mut self, cpu: CpuNr, irq: Irq) -> Sim<Flow> {
        self.host.stats_mut().host_irqs += 1;
        self.host.mark_l1d_unsafe(cpu);
        match irq {
            Irq::LocalTimer => self.expire_hrtimers(cpu)?,
            Irq::PostedIntr => self.host.stats_mut().spurious_notifications += 1,
            Irq::PostedWakeup => deliver::posted_wakeup(&mut self.kvm, &mut self.host, cpu)?,
            Irq::Device => deliver::device_irq(&mut self.kvm, &mut self.host, cpu)?,
            // The reschedule interrupt has done its work by coming.
            _ => {}
        }
        if let Some((class, vector)) = irq.traced() {
            self.host.emit(cpu, Kind::VectorExit { class, vector });
        }
        let now = self.host.now();
        self.host.out_mut().irq_over(cpu, now);
        debug_assert!(!self.host.cpus()[cpu].irqs_off);
        Ok(Flow::Continue)
    }

    /// What the thread did is over: the next thing.
    fn worker_step(&mut self, cpu: CpuNr, task: TaskNr) -> Sim<Flow> {
        if bandwidth::throttle(&mut self.host, cpu)? {
            return Ok(Flow::Schedule);
        }
        let now = self.host.now();
        let Body::Worker(worker) = self.host.body_mut(task) else {
            return self.host.broken("another task does the emulator's work");
        };
        match &mut **worker {
            Worker::MainLoop {
                sleep,
                done: worked,
            } => {
                *worked = !*worked;
                if *worked {
                    return Ok(worker::work(&mut self.host, task, MAIN_LOOP_WORK_NS));
                }
                let sleep = *sleep;
                hrtimer::start_pinned(&mut self.host, sleep, cpu, now + MAIN_LOOP_PERIOD_NS);
            }
            Worker::Io {
                vm,
                requests,
                works,
            } => {
                let vm = *vm;
                if core::mem::take(works)
                    && let Some((device, thread)) = requests.pop_front()
                {
                    source::start_device(&mut self.guests, &mut self.host, vm, device, thread);
                }
                if worker::begin_request(&mut self.host, task) {
                    let ns = u64::from(self.host.costs().handle_userspace_ns);
                    return Ok(worker::work(&mut self.host, task, ns));
                }
            }
        }
        Ok(Flow::Block)
    }

    /// The timer interrupt: all that is due.
    fn expire_hrtimers(&mut self, cpu: CpuNr) -> Sim {
        while let Some((time, timer)) = hrtimer::take_due(&mut self.host, cpu) {
            let hrtimer = hrtimer::address(timer);
            let function = hrtimer::function(&self.host, timer);
            self.host.emit(
                cpu,
                Kind::HrtimerExpireEntry {
                    hrtimer,
                    now_ns: self.host.now(),
                    function,
                },
            );
            self.expired(cpu, timer, time)?;
            self.host.emit(cpu, Kind::HrtimerExpireExit { hrtimer });
        }
        hrtimer::program(&mut self.host, cpu);
        Ok(())
    }

    fn expired(&mut self, cpu: CpuNr, timer: TimerNr, time: u64) -> Sim {
        match self.host.timers()[timer].callback {
            Callback::Tick => tick::tick(&mut self.host, cpu, time),
            Callback::Hrtick => tick::hrtick(&mut self.host, cpu),
            Callback::Wakeup(task) => self.host.wake(task, cpu).map(|_| ()),
            Callback::Period(limit) => bandwidth::period_over(&mut self.host, cpu, limit, time),
            Callback::LapicTimer(vcpu) => {
                timer::hrtimer_fired(&mut self.kvm, &mut self.guests, &mut self.host, cpu, vcpu)
            }
            Callback::Script(task) => self.scripts.wake(&mut self.host, task, cpu),
        }
    }
}

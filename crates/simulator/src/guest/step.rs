//! A vCPU in guest mode, step by step.

use super::stretch::Series;
use super::{
    Guests, Micro, SpinLimit, SpinOn, ThreadState, call, clock, counter, idle, irq, lock, mutex,
    source, spin, stretch, timer,
};
use crate::at::At;
use crate::fault::Sim;
use crate::host::{Host, Phase};
use crate::ids::{CpuNr, VcpuNr};
use crate::kvm::Exit;
use crate::program::{Op, SourceId, SpinId};

/// What a vCPU in guest mode has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// There is more to do at this instant.
    More,
    /// A step takes time, or waits in the guest.
    Waits,
    /// It begins to spin, or looks again: the window of pause-loop exiting is the hypervisor's.
    Spin(SpinOn),
    /// An instruction that may leave the guest.
    Exit(Exit),
}

impl Guests {
    /// The guest is entered: nothing is in progress.
    #[inline]
    pub(crate) fn resume(&mut self, vcpu: VcpuNr) {
        self.cpus[vcpu].running = None;
    }

    /// The step in progress is over, or its time is up: if that is a stretch of spinning, what was to
    /// end it.
    #[inline]
    pub(crate) fn step_over(
        &mut self,
        host: &mut Host<'_>,
        cpu: CpuNr,
        vcpu: VcpuNr,
    ) -> Option<SpinLimit> {
        let v = &mut self.cpus[vcpu];
        if matches!(v.running, Some(Micro::Spin(_))) {
            let limit = v.spin_limit;
            self.stop(host, cpu, vcpu);
            return Some(limit);
        }
        if let Some(Micro::Run { ns, .. }) = v.running.take() {
            stretch::settle(self, host, vcpu, ns, 0);
        }
        None
    }

    /// Takes the next step.
    #[inline(always)]
    pub(crate) fn advance(
        &mut self,
        host: &mut Host<'_>,
        cpu: CpuNr,
        vcpu: VcpuNr,
    ) -> Sim<Progress> {
        // Steps of the same kind are one.
        if let Some((ns, kernel)) = self.cpus[vcpu].take_runs() {
            if ns == 0 {
                return Ok(Progress::More);
            }
            let ns = match kernel {
                true => stretch::stretch(self, host, vcpu, ns),
                false => ns,
            };
            self.run_for(host, cpu, vcpu, Micro::Run { ns, kernel }, ns);
            return Ok(Progress::Waits);
        }
        // A step is looked at in its place. Behind a tag of one byte the words of a copy overlap, and the
        // processor cannot forward these stores to the loads that follow.
        let progress = match self.cpus[vcpu].front() {
            None if self.cpus[vcpu].in_irq.is_some() => {
                irq::iret(self, host, vcpu)?;
                return Ok(Progress::More);
            }
            None => match self.next_step(host, vcpu)? {
                true => return Ok(Progress::More),
                false => return Ok(Progress::Waits),
            },
            Some(&Micro::Exit(exit)) => Progress::Exit(exit),
            Some(&Micro::Spin(awaited)) => Progress::Spin(awaited),
            Some(&Micro::Passes(thread)) => {
                self.cpus[vcpu].take();
                return Ok(match stretch::run_passes(self, host, cpu, vcpu, thread) {
                    true => Progress::Waits,
                    false => Progress::More,
                });
            }
            Some(_) => {
                self.execute(host, vcpu)?;
                return Ok(Progress::More);
            }
        };
        self.cpus[vcpu].take();
        Ok(match progress {
            Progress::Exit(Exit::Hlt) if idle::skips_halt(self, vcpu) => Progress::More,
            progress => progress,
        })
    }

    /// Whether the preemption timer has fired by now.
    #[inline]
    pub(crate) fn preemption_timer_fired(&self, host: &Host<'_>, vcpu: VcpuNr) -> bool {
        let time = self.cpus[vcpu].hv_at.get();
        time.is_some_and(|time| time <= host.now())
    }

    /// The preemption timer fires at `time`, while in the guest.
    pub(crate) fn set_preemption_timer(&mut self, vcpu: VcpuNr, time: At) {
        self.cpus[vcpu].hv_at = time;
    }

    /// What is left, by the clock, of a step that computes.
    pub(crate) fn compute_left(&self, vcpu: VcpuNr, now: u64) -> Option<u64> {
        let v = &self.cpus[vcpu];
        let computes = matches!(v.running, Some(Micro::Run { .. }));
        computes.then(|| v.step_ends.saturating_sub(now))
    }

    /// The step in progress ends at `until`: when the CPU's timer fires, which may be for the
    /// preemption timer.
    pub(crate) fn move_end(&mut self, vcpu: VcpuNr, end: u64) -> u64 {
        let v = &mut self.cpus[vcpu];
        v.step_ends = end;
        v.hv_at.get().map_or(end, |time| time.min(end))
    }

    /// The host's CPU on which the vCPU's thread runs.
    pub(super) fn cpu_of(&self, host: &Host<'_>, vcpu: VcpuNr) -> Option<CpuNr> {
        let task = self.task_of(vcpu);
        let cpu = host.tasks()[task].cpu;
        let c = &host.cpus()[cpu];
        (c.phase == Phase::Run && c.current == Some(task)).then_some(cpu)
    }

    /// Stops what the guest is doing, for an exit or an interrupt: what is left comes first when it
    /// goes on.
    pub(crate) fn stop(&mut self, host: &mut Host<'_>, cpu: CpuNr, vcpu: VcpuNr) {
        host.interrupted(cpu);
        let remaining = self.cpus[vcpu].step_ends.saturating_sub(host.now());
        // What is left is work, not time: a busy sibling slows the CPU until the step goes on.
        let remaining = host.work_in(cpu, remaining);
        let v = &mut self.cpus[vcpu];
        match v.running.take() {
            // A stretch was cut at this instant: what follows is on the list already.
            None => {}
            Some(Micro::Run { ns, kernel }) => {
                // The CPU's timer may be set to an earlier end than the step's own.
                let remaining = stretch::settle(self, host, vcpu, ns, remaining.min(ns));
                if remaining > 0 {
                    let run = Micro::Run {
                        ns: remaining,
                        kernel,
                    };
                    self.cpus[vcpu].push_next(run);
                }
            }
            Some(spin @ Micro::Spin(_)) => {
                v.push_next(spin);
                spin::end_stretch(self, vcpu, host.now());
            }
            Some(step) => v.push_next(step),
        }
    }

    /// A step of the guest takes `ns`, or until the preemption timer fires.
    #[inline]
    pub(crate) fn run_for(
        &mut self,
        host: &mut Host<'_>,
        cpu: CpuNr,
        vcpu: VcpuNr,
        micro: Micro,
        ns: u64,
    ) {
        let debt = host.cpus()[cpu].debt_ns;
        let ns = host.slowed(cpu, ns);
        let v = &mut self.cpus[vcpu];
        v.running = Some(micro);
        v.step_began(host.now() + debt, ns);
        let length = match v.hv_at.get() {
            Some(time) => ns.min(time.saturating_sub(host.now() + debt)),
            None => ns,
        };
        host.stay(cpu, length);
    }

    /// The instruction that leaves the guest has not run: it comes first when the guest goes on.
    pub(crate) fn take_back(&mut self, vcpu: VcpuNr, exit: Exit) {
        self.cpus[vcpu].push_next(Micro::Exit(exit));
    }

    /// HLT in the guest: nothing until an interrupt comes.
    pub(crate) fn halt(&mut self, host: &mut Host<'_>, cpu: CpuNr, vcpu: VcpuNr) {
        let v = &mut self.cpus[vcpu];
        v.running = Some(Micro::Exit(Exit::Hlt));
        if let Some(time) = v.hv_at.get() {
            let ns = time.saturating_sub(host.now());
            host.stay(cpu, ns);
        }
    }

    /// What an interrupted HLT or a stopped step did not need is forgotten; the thread's next step.
    /// `false`: the vCPU waits in the guest.
    fn next_step(&mut self, host: &mut Host<'_>, vcpu: VcpuNr) -> Sim<bool> {
        idle::leave_poll(self, host, vcpu)?;
        let g = &self.cpus[vcpu];
        if g.resched != stealtime_hypervisor::fair::Resched::None && g.preempt_off == 0 {
            self.schedule(host, vcpu)?;
            return Ok(true);
        }
        match self.cpus[vcpu].current {
            Some(thread) => self.thread_step(host, vcpu, thread).map(|()| true),
            None => {
                idle::enter(self, host, vcpu);
                Ok(true)
            }
        }
    }

    /// Asks the thread's program for its next step and spells it out.
    fn thread_step(
        &mut self,
        host: &mut Host<'_>,
        vcpu: VcpuNr,
        thread: crate::ids::ThreadNr,
    ) -> Sim {
        let now = host.now();
        let vm = self.cpus[vcpu].vm;
        if stretch::series_goes_on(self, host, vm, thread) {
            self.cpus[vcpu].push(Micro::Passes(thread));
            return Ok(());
        }
        let measuring = host.out().measuring();
        let machine_vm = &mut self.vms[vm];
        let meter = &mut host.stats_mut().meters[machine_vm.meter];
        let t = &mut machine_vm.kernel.threads[thread];
        let reply = core::mem::take(&mut t.reply);
        let op = t.program.next(reply, now, &mut |record| {
            if measuring {
                meter.record(record);
            }
        });
        debug_assert_eq!(t.state, ThreadState::Runnable);
        self.spell_out(host, vcpu, thread, op);
        Ok(())
    }

    #[inline(never)]
    fn spell_out(
        &mut self,
        host: &mut Host<'_>,
        vcpu: VcpuNr,
        thread: crate::ids::ThreadNr,
        op: Op,
    ) {
        let syscall = Micro::Run {
            ns: u64::from(host.costs().guest_syscall_ns / 2),
            kernel: true,
        };
        let now = host.now();
        // The doorbell of an assigned device is mapped: a write to it does not leave the guest.
        let assigned = self.vms[self.cpus[vcpu].vm].cfg.assigned_device;
        let g = &mut self.cpus[vcpu];
        let run = |ns, kernel| Micro::Run { ns, kernel };
        match op {
            Op::Compute(ns) => g.push(run(ns, false)),
            Op::Kernel(ns) => g.push(run(ns, true)),
            Op::IrqsOff(ns) => {
                for micro in [Micro::IrqsOff, run(ns, true), Micro::IrqsOn] {
                    g.push(micro);
                }
            }
            Op::Cpuid => g.push(Micro::Exit(Exit::Cpuid)),
            Op::ReadClock => g.push(Micro::ReadClock),
            Op::ReadCounter(ns) => counter::spell_out_counter(self, host, vcpu, ns),
            Op::Sleep(ns) => {
                g.push(syscall);
                g.push(Micro::SleepUntil(now + ns));
            }
            Op::SleepUntil(time) => {
                g.push(syscall);
                g.push(Micro::SleepUntil(time));
            }
            Op::Wait(queue) => {
                g.push(syscall);
                g.push(Micro::Wait(queue));
            }
            Op::Wake(queue, n) => {
                g.push(syscall);
                g.push(Micro::Wake(queue, n));
                g.push(syscall);
            }
            Op::Passes(passes) => {
                g.push(Micro::Passes(thread));
                let vm = &mut self.vms[self.cpus[vcpu].vm];
                vm.kernel.threads[thread].series = Some(Series::new(passes));
            }
            Op::Section {
                lock,
                held_ns,
                then_ns,
            } => g.base.replace(section(lock, held_ns, then_ns)),
            Op::Lock(lock) => g.push(Micro::TryLock(lock)),
            Op::Unlock(lock) => g.push(Micro::Unlock(lock)),
            Op::LockMutex(mutex) => g.push(Micro::TryMutex(mutex)),
            Op::UnlockMutex(mutex) => g.push(Micro::UnlockMutex(mutex)),
            Op::CallOne(target) => {
                g.push(syscall);
                g.push(Micro::CallOne(target));
            }
            Op::CallOthers { flush } => {
                g.push(syscall);
                g.push(Micro::Call { flush });
            }
            Op::Kick(target) => g.push(Micro::Exit(Exit::Icr {
                vector: super::KICK_VECTOR,
                to: crate::kvm::IpiTo::One(target),
            })),
            Op::Io(device) => {
                g.push(syscall);
                g.push(Micro::ExpectDevice);
                g.push(match assigned {
                    true => Micro::Submit { device, thread },
                    false => Micro::Exit(Exit::Io { device, thread }),
                });
                g.push(Micro::Block);
            }
            Op::KickOthers => self.spell_out_kicks(host, vcpu),
            Op::Receive(source) => self.spell_out_receive(vcpu, source, syscall),
            Op::Respond(source) => {
                let answer = match assigned {
                    true => Micro::Answer(source),
                    false => Micro::Exit(Exit::Notify { source }),
                };
                for micro in [syscall, answer, syscall] {
                    g.push(micro);
                }
            }
            Op::PageFault => g.push(Micro::Exit(Exit::EptViolation)),
            Op::Yield => {
                g.push(syscall);
                g.push(Micro::Yield);
            }
            Op::Exit => g.push(Micro::End),
        }
    }

    fn spell_out_receive(&mut self, vcpu: VcpuNr, source: SourceId, syscall: Micro) {
        let kernel = &self.vms[self.cpus[vcpu].vm].kernel;
        let queue = kernel.sources[source.0 as usize].queue;
        let (wait, take) = (Micro::Wait(queue), Micro::TakeRequest(source));
        for micro in [syscall, wait, take, syscall] {
            self.cpus[vcpu].push(micro);
        }
    }

    fn spell_out_kicks(&mut self, host: &mut Host<'_>, vcpu: VcpuNr) {
        let v = &self.cpus[vcpu];
        let (own_index, n) = (v.index, self.vms[v.vm].vcpus);
        let rest: Vec<u32> = (0..n).filter(|&index| index != own_index).collect();
        // The thread's steps are none: what comes next comes now.
        self.cpus[vcpu].push_next(Micro::IrqsOn);
        call::send_ipis(self, host, vcpu, super::KICK_VECTOR, &rest);
        self.cpus[vcpu].push_next(Micro::IrqsOff);
    }

    /// Does the next step, which takes no time of its own.
    fn execute(&mut self, host: &mut Host<'_>, vcpu: VcpuNr) -> Sim {
        let Some(micro) = self.cpus[vcpu].take() else {
            return host.broken("a step is done that is not there");
        };
        match micro {
            Micro::IrqsOff => self.cpus[vcpu].irqs_off = true,
            Micro::IrqsOn => self.cpus[vcpu].irqs_off = false,
            Micro::Handle(vector) => irq::handle(self, host, vcpu, vector)?,
            Micro::ReadClock => {
                let ns = clock::read_clock(self, host, vcpu);
                self.reply(vcpu, ns);
            }
            Micro::ReadCounter => {
                let count = counter::read_counter(self, host, vcpu)?;
                self.reply(vcpu, count);
            }
            Micro::Wait(queue) => self.wait(host, vcpu, queue)?,
            Micro::Wake(queue, n) => self.give_counts(host, vcpu, queue, n)?,
            Micro::SleepUntil(time) => timer::sleep(self, host, vcpu, time)?,
            Micro::ExpectDevice => self.expect(vcpu, ThreadState::WaitsDevice),
            Micro::Block => self.block_unless_woken(host, vcpu)?,
            Micro::TryLock(lock) => lock::try_lock(self, host, vcpu, lock)?,
            Micro::Unlock(lock) => lock::unlock(self, host, vcpu, lock)?,
            Micro::TryMutex(mutex) => mutex::try_lock(self, host, vcpu, mutex)?,
            Micro::RetryMutex(mutex) => mutex::retry(self, host, vcpu, mutex)?,
            Micro::UnlockMutex(mutex) => mutex::unlock(self, host, vcpu, mutex)?,
            Micro::TakeRequest(source) => {
                let time = source::take_request(self, host, vcpu, source)?;
                self.reply(vcpu, time);
            }
            Micro::Submit { device, thread } => {
                source::start_device(self, host, self.cpus[vcpu].vm, device, thread);
            }
            Micro::Answer(source) => source::answered(self, host, vcpu, source),
            Micro::CallOver => {
                let g = &mut self.cpus[vcpu];
                g.preempt_off = g.preempt_off.saturating_sub(1);
                g.push_next(Micro::CheckResched);
            }
            Micro::Call { flush } => call::call_others(self, host, vcpu, flush),
            Micro::CallOne(target) => call::call_one(self, host, vcpu, target),
            Micro::Yield => self.yield_current(host, vcpu)?,
            Micro::End => self.block(host, vcpu, ThreadState::Dead)?,
            Micro::CheckResched => {
                let g = &self.cpus[vcpu];
                if g.resched != stealtime_hypervisor::fair::Resched::None && g.preempt_off == 0 {
                    self.schedule(host, vcpu)?;
                }
            }
            Micro::Run { .. } | Micro::Exit(_) | Micro::Spin(_) | Micro::Passes(_) => {
                return host.broken("a step that takes time is done at once");
            }
        }
        Ok(())
    }

    fn reply(&mut self, vcpu: VcpuNr, reply: u64) {
        let v = &self.cpus[vcpu];
        if let Some(thread) = v.current {
            self.vms[v.vm].kernel.threads[thread].reply = reply;
        }
    }
}

/// The steps of a critical section.
fn section(lock: SpinId, held_ns: u64, then_ns: u64) -> [Micro; 4] {
    let run = |ns| Micro::Run { ns, kernel: true };
    [
        Micro::TryLock(lock),
        run(held_ns),
        Micro::Unlock(lock),
        run(then_ns),
    ]
}

impl super::GuestCpu {
    /// A step of the guest begins, and ends by itself after `ns`.
    fn step_began(&mut self, time: u64, ns: u64) {
        self.step_ends = time + ns;
    }
}

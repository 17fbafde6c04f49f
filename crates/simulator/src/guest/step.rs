//! A vCPU in guest mode, step by step.

use super::stretch::Series;
use super::{Micro, SpinLimit, ThreadState};
use crate::fault::Sim;
use crate::ids::{CpuNr, VcpuNr};
use crate::kvm::{Exit, VcpuRun};
use crate::machine::Machine;
use crate::program::{Op, SourceId, SpinId};

impl Machine<'_> {
    /// The guest runs on from where it was.
    pub(crate) fn guest_resume(&mut self, cpu: CpuNr, vcpu: VcpuNr) -> Sim {
        let g = &mut self.vcpus[vcpu].guest;
        g.running = None;
        self.guest_go(cpu, vcpu)
    }

    /// The guest's step in progress is over, or the preemption timer or the PLE window is.
    pub(crate) fn guest_step(&mut self, cpu: CpuNr, vcpu: VcpuNr) -> Sim {
        self.spin_left(cpu, vcpu);
        let v = &mut self.vcpus[vcpu];
        if v.run == VcpuRun::Exiting {
            return self.vcpu_exited(cpu, vcpu, Exit::Pause);
        }
        if v.hv_at.get().is_some_and(|at| at <= self.now) {
            self.stop_guest(cpu, vcpu);
            return self.vm_exit(cpu, vcpu, Exit::PreemptionTimer);
        }
        let Some(Micro::Spin(_)) = v.guest.running else {
            if let Some(Micro::Run { ns, kernel }) = v.guest.running.take() {
                self.settle(vcpu, ns, 0);
                if !kernel {
                    self.look_ahead_to_sleep(vcpu);
                }
            }
            return self.guest_go(cpu, vcpu);
        };
        let limit = v.guest.spin_limit;
        self.stop_guest(cpu, vcpu);
        match limit {
            SpinLimit::Ple => self.vm_exit(cpu, vcpu, Exit::Pause),
            _ => self.guest_resume(cpu, vcpu),
        }
    }

    /// Stops what the guest is doing, for an exit or an interrupt: what is left comes first when it
    /// goes on.
    pub(crate) fn stop_guest(&mut self, cpu: CpuNr, vcpu: VcpuNr) {
        self.interrupted(cpu);
        let left = self.vcpus[vcpu].step_ends.saturating_sub(self.now);
        let left = self.work_in(cpu, left);
        let v = &mut self.vcpus[vcpu];
        let Some(running) = v.guest.running.take() else {
            return;
        };
        match running {
            Micro::Run { ns, kernel } => {
                // The CPU's timer may be set to an earlier end than the step's own.
                let left = self.settle(vcpu, ns, left.min(ns));
                if left > 0 {
                    let run = Micro::Run { ns: left, kernel };
                    self.vcpus[vcpu].guest.push_next(run);
                }
            }
            Micro::Spin(_) => {
                v.guest.push_next(running);
                self.spin_stretch_over(vcpu, self.now);
            }
            other => v.guest.push_next(other),
        }
    }

    /// Works off steps until one takes time or leaves the guest.
    fn guest_go(&mut self, cpu: CpuNr, vcpu: VcpuNr) -> Sim {
        let mut turns = 0u32;
        loop {
            turns += 1;
            if turns > 1_000_000 {
                return Err(self.no_progress("a guest's thread takes no time").into());
            }
            if self.vcpus[vcpu].guest.takes_interrupts() && self.take_virtual_irq(vcpu) {
                continue;
            }
            let v = &mut self.vcpus[vcpu];
            if v.window && v.guest.takes_interrupts() {
                return self.vm_exit(cpu, vcpu, Exit::InterruptWindow);
            }
            // Steps of the same kind are one.
            if let Some((ns, kernel)) = v.guest.take_runs() {
                if ns == 0 {
                    continue;
                }
                let ns = match kernel {
                    true => self.stretch(vcpu, ns),
                    false => ns,
                };
                self.guest_stay(cpu, vcpu, Micro::Run { ns, kernel }, ns);
                return Ok(());
            }
            let Some(micro) = self.vcpus[vcpu].guest.take() else {
                if self.vcpus[vcpu].guest.in_irq.is_some() {
                    self.guest_iret(vcpu)?;
                } else if !self.guest_next(vcpu)? {
                    return Ok(());
                }
                continue;
            };
            match micro {
                Micro::Exit(Exit::Hlt) if self.guest_skips_halt(vcpu) => {}
                Micro::Exit(exit) => {
                    if matches!(exit, Exit::Icr { .. } | Exit::SendIpi { .. }) {
                        self.vcpus[vcpu].books.sends(self.now);
                    }
                    if self.leaves_guest(cpu, vcpu, exit)? {
                        return self.vm_exit(cpu, vcpu, exit);
                    }
                    if exit == Exit::Hlt {
                        // HLT in the guest: nothing until an interrupt comes.
                        self.guest_halts(cpu, vcpu, micro);
                        return Ok(());
                    }
                }
                Micro::Spin(on) => {
                    if self.guest_spin(cpu, vcpu, on)? {
                        return Ok(());
                    }
                }
                Micro::Passes(thread) => {
                    if self.guest_passes(cpu, vcpu, thread) {
                        return Ok(());
                    }
                }
                other => self.guest_do(vcpu, other)?,
            }
        }
    }

    /// A step of the guest takes `ns`, or until the preemption timer fires.
    pub(crate) fn guest_stay(&mut self, cpu: CpuNr, vcpu: VcpuNr, micro: Micro, ns: u64) {
        let debt = self.cpus[cpu].debt_ns;
        let ns = self.slowed(cpu, ns);
        let v = &mut self.vcpus[vcpu];
        v.guest.running = Some(micro);
        v.step_began(self.now + debt, ns);
        let until = match v.hv_at.get() {
            Some(at) => ns.min(at.saturating_sub(self.now + debt)),
            None => ns,
        };
        self.stay(cpu, until);
    }

    fn guest_halts(&mut self, cpu: CpuNr, vcpu: VcpuNr, micro: Micro) {
        let v = &mut self.vcpus[vcpu];
        v.guest.running = Some(micro);
        if let Some(at) = v.hv_at.get() {
            let ns = at.saturating_sub(self.now);
            self.stay(cpu, ns);
        }
    }

    /// Whether an instruction leaves the guest. If not, its effect is done here.
    fn leaves_guest(&mut self, cpu: CpuNr, vcpu: VcpuNr, exit: Exit) -> Sim<bool> {
        let v = &mut self.vcpus[vcpu];
        match exit {
            Exit::Eoi if v.shared.apicv() => {
                let eoi = v.lapic.virtual_eoi(&self.stats.mechanisms);
                Ok(eoi.exits)
            }
            Exit::Eoi if self.vms[v.vm].cfg.guest.pv_eoi => {
                let source = v.posted.source(&v.shared, &self.stats.mechanisms);
                v.lapic.eoi(&source);
                // More to come: the hypervisor did not offer to skip the exit.
                Ok(v.lapic.has_interrupt(&source).is_some())
            }
            Exit::Hlt => {
                let guest = &self.vms[v.vm].cfg.guest;
                Ok(!(guest.hlt_in_guest || guest.mwait_in_guest))
            }
            Exit::Icr { vector, to } => self.needs_icr_exit(cpu, vcpu, vector, to),
            _ => Ok(true),
        }
    }

    /// What an interrupted HLT or a stopped step did not need is forgotten; the thread's next step.
    /// `false`: the vCPU waits in the guest.
    fn guest_next(&mut self, vcpu: VcpuNr) -> Sim<bool> {
        self.guest_leaves_poll(vcpu)?;
        let g = &self.vcpus[vcpu].guest;
        if g.resched != stealtime_hypervisor::eevdf::Resched::None && g.preempt_off == 0 {
            self.guest_schedule(vcpu)?;
            return Ok(true);
        }
        match self.vcpus[vcpu].guest.current {
            Some(thread) => self.thread_step(vcpu, thread).map(|()| true),
            None => {
                self.guest_idles(vcpu);
                Ok(true)
            }
        }
    }

    /// Asks the thread's program for its next step and spells it out.
    fn thread_step(&mut self, vcpu: VcpuNr, thread: crate::ids::ThreadNr) -> Sim {
        let now = self.now;
        let vm = self.vcpus[vcpu].vm;
        if self.series_goes_on(vm, thread) {
            self.vcpus[vcpu].guest.push(Micro::Passes(thread));
            return Ok(());
        }
        let measuring = self.books.measuring();
        let machine_vm = &mut self.vms[vm];
        let meter = &mut self.stats.meters[machine_vm.meter];
        let t = &mut machine_vm.kernel.threads[thread];
        let reply = core::mem::take(&mut t.reply);
        let op = t.program.next(reply, now, &mut |record| {
            if measuring {
                meter.record(record);
            }
        });
        debug_assert_eq!(t.state, ThreadState::Runnable);
        self.spell_out(vcpu, thread, op);
        Ok(())
    }

    #[inline(never)]
    fn spell_out(&mut self, vcpu: VcpuNr, thread: crate::ids::ThreadNr, op: Op) {
        let syscall = Micro::Run {
            ns: u64::from(self.costs.guest_syscall_ns / 2),
            kernel: true,
        };
        let now = self.now;
        // The doorbell of an assigned device is mapped: a write to it does not leave the guest.
        let assigned = self.vms[self.vcpus[vcpu].vm].cfg.assigned_device;
        let g = &mut self.vcpus[vcpu].guest;
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
            Op::ReadCounter(ns) => self.spell_out_counter(vcpu, ns),
            Op::Sleep(ns) => {
                g.push(syscall);
                g.push(Micro::SleepUntil(now + ns));
            }
            Op::SleepUntil(at) => {
                g.push(syscall);
                g.push(Micro::SleepUntil(at));
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
                let vm = &mut self.vms[self.vcpus[vcpu].vm];
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
            Op::KickOthers => self.spell_out_kicks(vcpu),
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
        let kernel = &self.vms[self.vcpus[vcpu].vm].kernel;
        let queue = kernel.sources[source.0 as usize].queue;
        let (wait, take) = (Micro::Wait(queue), Micro::TakeRequest(source));
        for micro in [syscall, wait, take, syscall] {
            self.vcpus[vcpu].guest.push(micro);
        }
    }

    fn spell_out_kicks(&mut self, vcpu: VcpuNr) {
        let v = &self.vcpus[vcpu];
        let (own, n) = (v.index, self.vms[v.vm].vcpus);
        let others: Vec<u32> = (0..n).filter(|&index| index != own).collect();
        // The thread's steps are none: what comes next comes now.
        self.vcpus[vcpu].guest.push_next(Micro::IrqsOn);
        self.guest_send_ipis(vcpu, super::KICK_VECTOR, &others);
        self.vcpus[vcpu].guest.push_next(Micro::IrqsOff);
    }

    /// Does a step that takes no time of its own.
    fn guest_do(&mut self, vcpu: VcpuNr, micro: Micro) -> Sim {
        match micro {
            Micro::IrqsOff => self.vcpus[vcpu].guest.irqs_off = true,
            Micro::IrqsOn => self.vcpus[vcpu].guest.irqs_off = false,
            Micro::Handle(vector) => self.guest_handle(vcpu, vector)?,
            Micro::ReadClock => {
                let ns = self.read_guest_clock(vcpu);
                self.reply(vcpu, ns);
            }
            Micro::ReadCounter => {
                let count = self.read_guest_counter(vcpu)?;
                self.reply(vcpu, count);
            }
            Micro::Wait(queue) => self.guest_wait(vcpu, queue)?,
            Micro::Wake(queue, n) => self.guest_give(vcpu, queue, n)?,
            Micro::SleepUntil(at) => self.guest_sleep(vcpu, at)?,
            Micro::ExpectDevice => self.guest_expect(vcpu, ThreadState::WaitsDevice),
            Micro::Block => self.guest_block_unless_woken(vcpu)?,
            Micro::TryLock(lock) => self.guest_try_lock(vcpu, lock)?,
            Micro::Unlock(lock) => self.guest_unlock(vcpu, lock)?,
            Micro::TryMutex(mutex) => self.guest_try_mutex(vcpu, mutex)?,
            Micro::RetryMutex(mutex) => self.guest_retry_mutex(vcpu, mutex)?,
            Micro::UnlockMutex(mutex) => self.guest_unlock_mutex(vcpu, mutex)?,
            Micro::TakeRequest(source) => {
                let at = self.guest_take_request(vcpu, source)?;
                self.reply(vcpu, at);
            }
            Micro::Submit { device, thread } => {
                self.start_device(self.vcpus[vcpu].vm, device, thread);
            }
            Micro::Answer(source) => self.source_answered(vcpu, source),
            Micro::CallOver => {
                let g = &mut self.vcpus[vcpu].guest;
                g.preempt_off = g.preempt_off.saturating_sub(1);
                g.push_next(Micro::CheckResched);
            }
            Micro::Call { flush } => self.guest_call(vcpu, flush),
            Micro::Yield => self.guest_yield(vcpu)?,
            Micro::End => self.guest_block(vcpu, ThreadState::Dead)?,
            Micro::CheckResched => {
                let g = &self.vcpus[vcpu].guest;
                if g.resched != stealtime_hypervisor::eevdf::Resched::None && g.preempt_off == 0 {
                    self.guest_schedule(vcpu)?;
                }
            }
            Micro::Run { .. } | Micro::Exit(_) | Micro::Spin(_) | Micro::Passes(_) => {
                return self.broken("a step that takes time is done at once");
            }
        }
        Ok(())
    }

    fn reply(&mut self, vcpu: VcpuNr, reply: u64) {
        let v = &self.vcpus[vcpu];
        if let Some(thread) = v.guest.current {
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

impl crate::kvm::Vcpu {
    /// A step of the guest begins, and ends by itself after `ns`.
    fn step_began(&mut self, at: u64, ns: u64) {
        self.step_ends = at + ns;
    }
}

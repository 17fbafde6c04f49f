//! Halts: polling, sleeping, waking (`kvm_vcpu_halt`, `kvm_vcpu_block`).

use stealtime_events::{Kind, VcpuId};
use stealtime_hypervisor::eevdf::Resched;
use stealtime_hypervisor::halt_poll::{Adaptation, HaltEnd, PollTurn};
use stealtime_hypervisor::posted_interrupt::{Requests, wake_up};

use super::{HaltState, VcpuRun};
use crate::fault::Sim;
use crate::ids::{CpuNr, VcpuNr};
use crate::machine::{Body, Machine, Message, Phase};

impl Machine<'_> {
    /// The guest has executed HLT. Whether it halts: nothing waits for it. What does has been seen:
    /// a kick of a paravirtual spinlock ends one HLT and no other (`__kvm_emulate_halt`).
    pub(crate) fn vcpu_halt(&mut self, cpu: CpuNr, vcpu: VcpuNr) -> Sim<bool> {
        if self.wanted(vcpu) {
            self.vcpus[vcpu].guest.pv_unhalted = false;
            return Ok(false);
        }
        self.timer_begin_blocking(cpu, vcpu)?;
        let now = self.now;
        let alone = self.single_task_running(cpu)?;
        let resched = self.cpus[cpu].resched != Resched::None;
        let v = &mut self.vcpus[vcpu];
        // A guest that polls itself forbids it here (MSR_KVM_POLL_CONTROL).
        let allowed = self.vms[v.vm].cfg.guest.guest_halt_poll_ns == 0;
        let halt = v.halt_poll.begin(&self.cfg.knobs.kvm.halt_poll, allowed);
        let turn = PollTurn {
            elapsed_ns: 0,
            alone,
            need_resched: resched,
        };
        v.halt = Some(HaltState {
            halt,
            since_ns: now,
            poll_ns: 0,
            waited: false,
        });
        v.turn = v.turn.wrapping_add(1);
        if halt.keeps_polling(&turn) {
            v.run = VcpuRun::Polling;
            v.books.polling(now, true);
            let task = v.task;
            self.tasks[task].left_ns = u64::from(halt.poll_ns());
            return self.run_task(cpu, task).map(|()| true);
        }
        self.begin_block(cpu, vcpu).map(|()| true)
    }

    /// Whether one task alone is on this CPU's queue (`single_task_running`). The kernel counts those too
    /// that sleep but have not left it (`DELAY_DEQUEUE`): `rq->nr_running` is what is queued, not what is
    /// runnable.
    pub(crate) fn single_task_running(&self, cpu: CpuNr) -> Sim<bool> {
        Ok(self.fair.queue(self.cpus[cpu].rq, None)?.h_nr_queued <= 1)
    }

    /// Whether a halted vCPU has something to do (`kvm_vcpu_check_block`).
    fn wanted(&mut self, vcpu: VcpuNr) -> bool {
        let v = &mut self.vcpus[vcpu];
        let source = v.posted.source(&v.shared, &self.stats.mechanisms);
        self.vms[v.vm].paused_by.is_some()
            || v.shared.requests().0 & Requests::UNBLOCK.0 != 0
            || v.timer.pending() > 0
            || v.lapic.has_interrupt(&source).is_some()
            || v.guest.pv_unhalted
    }

    /// Polling is over: by its time, by what was waited for, or since the CPU is wanted.
    pub(crate) fn poll_over(&mut self, cpu: CpuNr, vcpu: VcpuNr) -> Sim {
        let now = self.now;
        let v = &mut self.vcpus[vcpu];
        if let Some(halt) = &mut v.halt {
            halt.poll_ns = now - halt.since_ns;
        }
        v.books.polling(now, false);
        v.run = VcpuRun::Blocked;
        if self.wanted(vcpu) {
            return self.halt_over(cpu, vcpu);
        }
        self.begin_block(cpu, vcpu)
    }

    fn begin_block(&mut self, cpu: CpuNr, vcpu: VcpuNr) -> Sim {
        let v = &mut self.vcpus[vcpu];
        v.run = VcpuRun::Blocked;
        v.posted.begin_blocking(&v.shared, &self.stats.mechanisms);
        self.block_again(cpu, vcpu)
    }

    /// A turn of the wait loop: looks once more, then sleeps. The thread comes back here when it
    /// was woken.
    pub(crate) fn block_again(&mut self, cpu: CpuNr, vcpu: VcpuNr) -> Sim {
        let pending = self.vcpus[vcpu].timer.pending() > 0 || self.vcpus[vcpu].guest.pv_unhalted;
        let v = &mut self.vcpus[vcpu];
        let sleeps = v
            .posted
            .wait(&v.shared, &mut v.lapic, true, &self.stats.mechanisms);
        if !sleeps || pending {
            v.posted.end_blocking(&v.shared, &self.stats.mechanisms);
            return self.halt_over(cpu, vcpu);
        }
        if let Some(halt) = &mut v.halt {
            halt.waited = true;
        }
        self.block_current(cpu)
    }

    /// The halt is over: polling adapts, the guest is entered.
    fn halt_over(&mut self, cpu: CpuNr, vcpu: VcpuNr) -> Sim {
        let now = self.now;
        let v = &mut self.vcpus[vcpu];
        v.run = VcpuRun::Ready;
        v.guest.pv_unhalted = false;
        if let Some(state) = v.halt.take() {
            let end = HaltEnd {
                waited: state.waited,
                halt_ns: now - state.since_ns,
                poll_ns: state.poll_ns,
                valid_wakeup: true,
            };
            let old = v.halt_poll.own_ns();
            let knobs = &self.cfg.knobs.kvm.halt_poll;
            let adaptation = v
                .halt_poll
                .end(knobs, &state.halt, &end, &self.stats.mechanisms);
            let (new, index) = (v.halt_poll.own_ns(), v.index);
            v.books.halted();
            if matches!(adaptation, Adaptation::Grown | Adaptation::Shrunk) {
                let grow = adaptation == Adaptation::Grown;
                self.emit(
                    cpu,
                    Kind::KvmHaltPollNs {
                        vcpu: VcpuId(index),
                        grow,
                        new,
                        old,
                    },
                );
            }
            self.emit(
                cpu,
                Kind::KvmVcpuWakeup {
                    ns: end.halt_ns,
                    waited: end.waited,
                    valid: true,
                },
            );
        }
        self.timer_end_blocking(cpu, vcpu)?;
        // KVM's way back to where the entry turns interrupts off. Xen has none: it switches to the vCPU.
        if self.xen.is_none() {
            let task = self.vcpus[vcpu].task;
            self.tasks[task].left_ns = u64::from(self.costs.handle_wake_ns);
        }
        self.next(cpu)
    }

    /// Makes a vCPU look: wakes its thread if it sleeps, and ends its poll if it polls.
    pub(crate) fn wake_vcpu(&mut self, vcpu: VcpuNr, by: CpuNr) -> Sim {
        let v = &self.vcpus[vcpu];
        if v.run == VcpuRun::Polling {
            let turn = v.turn;
            let since = v.halt.as_ref().map_or(self.now, |halt| halt.since_ns);
            let seen = self.now + self.cpus[by].debt_ns + u64::from(self.costs.cache_line_ns);
            // The loop looks once in each of its turns.
            let turns = seen.saturating_sub(since);
            let at = since + turns.next_multiple_of(u64::from(self.costs.halt_poll_turn_ns.max(1)));
            self.post(at.max(seen), Message::PollOver { vcpu, turn });
            return Ok(());
        }
        let woken = wake_up(&v.shared);
        self.woken(vcpu, woken, by)
    }

    /// After `wake_up` said whether there was a sleeper.
    pub(crate) fn woken(&mut self, vcpu: VcpuNr, woken: bool, by: CpuNr) -> Sim {
        if self.vcpus[vcpu].yields.wake_up(woken) {
            let task = self.vcpus[vcpu].task;
            self.wake(task, by)?;
        }
        Ok(())
    }

    /// The processor or the IOMMU has posted to a vCPU: one that polls sees it without being told.
    pub(crate) fn seen_by_poll(&mut self, vcpu: VcpuNr, by: CpuNr) -> Sim {
        if self.vcpus[vcpu].run == VcpuRun::Polling {
            return self.wake_vcpu(vcpu, by);
        }
        Ok(())
    }

    /// Another task is on the CPU's queue, whether it preempts or not: whoever polls there stops
    /// (`kvm_vcpu_can_poll`).
    pub(crate) fn disturb_poll(&mut self, cpu: CpuNr, by: CpuNr) -> Sim {
        let Some(task) = self.cpus[cpu].current else {
            return Ok(());
        };
        match self.tasks[task].body {
            Body::Vcpu(vcpu) => self.seen_by_poll(vcpu, by),
            Body::Script(_) => {
                if let Some(turn) = self.script_polls(task) {
                    let at = self.now + self.poll_told_ns(task, by);
                    self.post(at, Message::ScriptPollOver { task, turn });
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn poll_noticed(&mut self, vcpu: VcpuNr, turn: u32) -> Sim {
        let v = &self.vcpus[vcpu];
        if v.run != VcpuRun::Polling || v.turn != turn {
            return Ok(());
        }
        let task = v.task;
        let cpu = self.tasks[task].cpu;
        if self.cpus[cpu].current == Some(task) && self.cpus[cpu].phase == Phase::Run {
            self.interrupted(cpu);
            self.tasks[task].left_ns = 0;
            return self.poll_over(cpu, vcpu);
        }
        // An interrupt's handler or another task is in between: it looks when it comes back.
        self.tasks[task].left_ns = 0;
        Ok(())
    }
}

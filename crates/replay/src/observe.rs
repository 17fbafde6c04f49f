//! What the tracker reports, as changes of the tasks' scripts.

use stealtime_events::exit_reason::Class;
use stealtime_events::hypercall::{KVM_HC_KICK_CPU, KVM_HC_SCHED_YIELD};
use stealtime_events::{Event, Kind, Names, Tid};
use stealtime_simulator::script::Spent;
use stealtime_track::{
    Exit, FoundCurrent, Loss, Observer, Place, Switch, SwitchOut, ThreadIndex, ThreadRef,
    VcpuIndex, Waking,
};

use crate::scripts::Scripts;
use crate::task::State;
use crate::wake::Origin;

/// MSRs that set the LAPIC's timer: IA32_TSC_DEADLINE, and x2APIC's initial count (SDM 3A, 12.5.4).
const SETS_TIMER: [u32; 2] = [0x6e0, 0x838];
/// The initial count in xAPIC mode (SDM 3A, table 12-1).
const TMICT: u32 = 0x380;
/// Priority of a task before its first recorded switch, which has it: nice 0.
const DEFAULT_PRIO: i16 = 120;

impl Observer for Scripts {
    fn thread_named(&mut self, thread: ThreadRef, process: Tid, name: &str) {
        if thread.tid.is_idle() {
            return;
        }
        let tid = thread.tid.0;
        self.vmm_threads.belongs(tid, process.0);
        match self.tasks.get_mut(thread.index) {
            Some(task) => name.clone_into(&mut task.name),
            // The task has not done anything yet.
            None => {
                self.unseen.insert(tid, (process.0, name.to_owned()));
            }
        }
    }

    fn thread_begins(&mut self, thread: ThreadRef, cpu: Option<u16>) {
        self.birth(thread, cpu);
    }

    fn thread_exits(&mut self, thread: ThreadRef) {
        if let Some(task) = self.tasks.get_mut(thread.index) {
            task.exits_now = true;
        }
    }

    fn thread_replaced(&mut self, old: ThreadIndex, new: ThreadRef) {
        if old != new.index
            && let Some(task) = self.tasks.get_mut(old)
            && task.state != State::Gone
        {
            // Its last switch was lost.
            task.ends(self.now);
        }
        self.bury(old);
    }

    fn switch(&mut self, switch: &Switch) {
        let Switch {
            cpu, prev, next, ..
        } = *switch;
        self.switch_tasks(usize::from(cpu), prev, switch.out, next, switch.next_prio);
    }

    /// A recording leaves out the switches of threads that it was configured to leave out. Such a switch was
    /// after the latest event of its CPU.
    fn current_found(&mut self, found: &FoundCurrent) {
        let FoundCurrent { cpu, thread, since } = *found;
        let cpu = usize::from(cpu);
        if thread.tid.0 < 0 {
            // perf has no id of a task that exits, and the task is current until its switch.
            return;
        }
        let known = self.cpus[cpu].current;
        match known {
            Some(known) if known.tid == thread.tid => {}
            Some(known) => {
                self.resolved.hidden_switches += 1;
                let now = core::mem::replace(&mut self.now, since);
                let prio = self.prio(thread);
                self.switch_tasks(cpu, known, SwitchOut::Asleep, thread, prio);
                self.now = now;
            }
            None => self.seen_again(cpu, thread),
        }
    }

    fn waking(&mut self, waking: &Waking) {
        self.on_waking(waking);
    }

    fn wakeup(&mut self, thread: ThreadRef, target: u32) {
        self.on_wakeup(thread.index, target);
    }

    fn migrates(&mut self, thread: ThreadRef, target: u32) {
        let now = self.now;
        match self.tasks.get_mut(thread.index) {
            Some(task) => task.moves(now, target),
            None => {
                self.moved_first.insert(thread.index);
            }
        }
    }

    fn entry(&mut self, _: VcpuIndex, place: &Place, _: u64) {
        let now = self.now;
        self.cpus[usize::from(place.cpu)].goes_on();
        let task = self.task_on(place.cpu, place.thread_ref());
        task.settle(now);
        task.end_halt_unseen();
        task.yields();
        task.spent = Spent::Guest;
        task.computes(now);
    }

    fn exit(&mut self, _: VcpuIndex, place: &Place, exit: &Exit) {
        let now = self.now;
        let halts = exit.class == Class::Halt;
        self.halts += u64::from(halts);
        let task = self.task_on(place.cpu, place.thread_ref());
        task.settle(now);
        if exit.class == Class::PreemptionTimer {
            task.ticks(now);
        }
        let reason = exit.recorded;
        task.exit(reason);
        task.spins = exit.class == Class::Pause;
        task.spent = match exit.class {
            Class::HostInterrupt => Spent::Interrupt(reason.code),
            Class::Halt => Spent::Halt(reason.code),
            _ => Spent::Exit(reason.code),
        };
        if halts {
            task.begin_halt();
            task.computes(now);
        }
    }

    fn halt_ends(&mut self, place: &Place, ns: u64, waited: bool) {
        if place.tid.is_idle() {
            return;
        }
        let now = self.now;
        self.polling.halt(ns, waited);
        self.halt_ends += 1;
        let time = now.saturating_sub(self.first);
        let task = self.task(place.thread_ref());
        let poll = task.halt_over(now, ns, time);
        task.computes(now);
        if let Some((came, late)) = poll {
            self.cpus[usize::from(place.cpu)].poll_called(came, late);
        }
    }

    fn poll_window(&mut self, place: &Place, new: u32, old: u32) {
        if !place.tid.is_idle() {
            self.polling.change(place.tid.0, new, old);
        }
    }

    fn lost(&mut self, loss: &Loss) {
        self.timers.lost(loss.cpu);
        self.on_loss(usize::from(loss.cpu), loss.since, loss.time.max(self.now));
    }

    fn event(&mut self, event: &Event, place: &Place, names: &dyn Names) {
        let cpu = usize::from(place.cpu);
        if !place.tid.is_idle() {
            self.on_kvm(event, place);
        }
        self.cpus[cpu].acts(self.now);
        if let Some(report) = self.timers.event(event, place, names) {
            self.on_timer(event, place, report);
        }
        self.cpus[cpu].last = self.now;
    }
}

impl Scripts {
    /// What KVM does for a guest in the context of a task: interrupts, timers and yields.
    fn on_kvm(&mut self, event: &Event, place: &Place) {
        let (now, thread) = (self.now, place.thread_ref());
        match event.kind {
            Kind::KvmMsr {
                write: true, ecx, ..
            } if SETS_TIMER.contains(&ecx) => self.task(thread).guest_arms(now),
            Kind::KvmApic {
                write: true,
                reg: TMICT,
                ..
            } => self.task(thread).guest_arms(now),
            Kind::KvmSetIrq { .. } if event.context.in_task() => {
                self.vmm_threads.emulates(thread.tid.0);
            }
            Kind::KvmHypercall { nr, a0, a1 } => {
                let target = match nr {
                    KVM_HC_SCHED_YIELD => a0,
                    KVM_HC_KICK_CPU => a1.into(),
                    _ => return,
                };
                self.task(thread).yields_to = u32::try_from(target).ok();
            }
            Kind::KvmApicAcceptIrq { apicid, .. } | Kind::KvmApicvAcceptIrq { apicid, .. } => {
                self.accepted(&Origin::new(event, place), apicid);
            }
            _ => {}
        }
    }

    /// The priority that a task had last.
    pub(crate) fn prio(&self, thread: ThreadRef) -> i16 {
        let task = self.tasks.get(thread.index);
        task.map_or(DEFAULT_PRIO, |task| task.prio)
    }
}

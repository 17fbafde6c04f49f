//! What is on its way: interrupts in flight, devices at work.

use super::{Irq, Machine, What};
use crate::engine::Slot;
use crate::fault::Sim;
use crate::ids::{CpuNr, TaskNr, ThreadNr, VcpuNr, VmNr};

/// A device's interrupt that waits at a CPU for its handler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceIrq {
    pub(crate) vm: VmNr,
    pub(crate) vcpu: VcpuNr,
    pub(crate) vector: u8,
}

/// Something that arrives later.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Message {
    /// An interrupt reaches a CPU.
    Irq { cpu: CpuNr, irq: Irq },
    /// An idle CPU sees that its flag was written.
    FlagWritten { cpu: CpuNr },
    /// A device of a guest has finished a request of this thread.
    Device {
        vm: VmNr,
        device: u32,
        thread: ThreadNr,
    },
    /// What a spinning vCPU waits for has happened.
    SpinOver { vcpu: VcpuNr },
    /// A request of clients reaches a guest's network card.
    Request { vm: VmNr, source: u32 },
    /// A halt-polling vCPU sees that it is wanted.
    PollOver { vcpu: VcpuNr, turn: u32 },
    /// A polling script sees what it waits for.
    ScriptPollOver { task: TaskNr, turn: u32 },
    /// What wakes a script has done its work: the task is runnable.
    ScriptWake { task: TaskNr, by: CpuNr },
    /// A script's task moves.
    ScriptMoves { task: TaskNr },
    /// The tick of a script's guest.
    ScriptTick { task: TaskNr },
    /// A script's task is forked.
    StartScript { task: TaskNr },
    /// A VM starts.
    Start { vm: VmNr },
    /// Runtime that came back to a limit is handed out.
    Slack { limit: u32 },
    /// The main loop of a VM's emulator starts.
    StartWorker { task: TaskNr },
    /// Housekeeping ticks for a CPU that has no tick (`sched_tick_remote`).
    RemoteTick { cpu: CpuNr },
}

/// Messages in flight, each with a timer of the engine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Messages {
    list: Vec<(Slot, Option<Message>)>,
    free: Vec<u32>,
}

impl Machine<'_> {
    /// Lets a message arrive at `at`.
    pub(crate) fn post(&mut self, at: u64, message: Message) {
        let number = match self.messages.free.pop() {
            Some(number) => number,
            None => {
                let number = self.messages.list.len() as u32;
                let slot = self.slot(What::Message(number));
                self.messages.list.push((slot, None));
                number
            }
        };
        let entry = &mut self.messages.list[number as usize];
        entry.1 = Some(message);
        let slot = entry.0;
        self.queue.arm(slot, at);
    }

    pub(crate) fn arrived(&mut self, number: u32) -> Sim {
        let Some(message) = self.messages.list[number as usize].1.take() else {
            return self.broken("a message arrived twice");
        };
        self.messages.free.push(number);
        match message {
            Message::Irq { cpu, irq } => self.raise(cpu, irq),
            Message::FlagWritten { cpu } => self.leave_idle(cpu),
            Message::Device { vm, device, thread } => self.device_done(vm, device, thread),
            Message::SpinOver { vcpu } => self.spin_noticed(vcpu),
            Message::Request { vm, source } => self.request_arrived(vm, source),
            Message::PollOver { vcpu, turn } => self.poll_noticed(vcpu, turn),
            Message::ScriptPollOver { task, turn } => self.script_noticed(task, turn),
            Message::ScriptWake { task, by } => self.script_woken(task, by),
            Message::ScriptMoves { task } => self.script_moves(task),
            Message::ScriptTick { task } => self.script_ticks(task),
            Message::StartScript { task } => self.script_begins(task),
            Message::Start { vm } => self.start_vm(vm),
            Message::Slack { limit } => self.hand_out_slack(limit),
            Message::StartWorker { task } => self.wake_worker(task, self.tasks[task].cpu),
            Message::RemoteTick { cpu } => self.tick_remote(cpu),
        }
    }
}

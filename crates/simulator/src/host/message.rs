//! What is on its way: interrupts in flight, devices at work.

use super::Irq;
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
    /// A CPU ends a script's wait, and takes so many us to leave its idle state before.
    ScriptCalled {
        task: TaskNr,
        waker: CpuNr,
        exit_us: u16,
    },
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
    /// An injected fault happens.
    Incident { number: u32 },
    /// Housekeeping ticks for a CPU that has no tick (`sched_tick_remote`).
    RemoteTick { cpu: CpuNr },
}

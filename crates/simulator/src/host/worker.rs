//! The threads of a VM's process that are no vCPUs: QEMU's main loop and the worker that does the
//! guest's I/O (an iothread or vhost).

use std::collections::VecDeque;

use stealtime_events::Tid;
use stealtime_hypervisor::fair::GroupId;

use super::{Body, Flow, Host, Message, TaskState, build, task};
use crate::config::VmConfig;
use crate::fault::Sim;
use crate::ids::{CpuNr, TaskNr, ThreadNr, TimerNr, VmNr};
use crate::program::DeviceId;

/// How often the main loop wakes without I/O, in ns: its timers are few (an estimate).
pub(crate) const MAIN_LOOP_PERIOD_NS: u64 = 1_000_000_000;
/// What it does then, in ns (an estimate).
pub(crate) const MAIN_LOOP_WORK_NS: u64 = 20_000;
/// It first wakes so long after the guest has started, in ns.
const MAIN_LOOP_START_NS: u64 = 10_000_000;

/// A VM's threads that are no vCPUs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Workers {
    pub(crate) main_loop: TaskNr,
    pub(crate) io: TaskNr,
}

/// What a thread of the emulator does.
#[derive(Clone, Debug)]
pub(crate) enum Worker {
    /// Wakes now and then.
    MainLoop {
        sleep: TimerNr,
        /// It has done its work and sleeps next.
        done: bool,
    },
    /// Passes requests of the guest on to devices.
    Io {
        vm: VmNr,
        requests: VecDeque<(DeviceId, ThreadNr)>,
        /// The first request is being worked on.
        works: bool,
    },
}

/// Begins with the next request, if there is one.
pub(crate) fn begin_request(host: &mut Host<'_>, task: TaskNr) -> bool {
    match &mut host.tasks[task].body {
        Body::Worker(worker) => match &mut **worker {
            Worker::Io {
                requests, works, ..
            } => {
                *works = !requests.is_empty();
                *works
            }
            Worker::MainLoop { .. } => false,
        },
        _ => false,
    }
}

/// The thread works for so long, at least 1 ns: less would be no step.
pub(crate) fn work(host: &mut Host<'_>, task: TaskNr, ns: u64) -> Flow {
    host.tasks[task].left_ns = ns.max(1);
    Flow::Run
}

/// A guest's request goes to its worker.
pub(crate) fn request_io(
    host: &mut Host<'_>,
    vm: VmNr,
    device: DeviceId,
    thread: ThreadNr,
    waker: CpuNr,
) -> Sim {
    let Some(&Workers { io: task, .. }) = host.workers.get(vm.0 as usize) else {
        return host.broken("a VM without a worker does I/O");
    };
    if let Body::Worker(worker) = &mut host.tasks[task].body
        && let Worker::Io { requests, .. } = &mut **worker
    {
        requests.push_back((device, thread));
    }
    wake(host, task, waker)
}

/// A thread of the emulator is woken, or started at its first wakeup.
pub(crate) fn wake(host: &mut Host<'_>, task: TaskNr, waker: CpuNr) -> Sim {
    if host.tasks[task].state == TaskState::New {
        let cpu = host.least_loaded(task);
        return host.fork_by(task, cpu, waker);
    }
    host.wake(task, waker).map(|_| ())
}

/// The threads of the VM's process that are no vCPUs.
pub(crate) fn add(
    host: &mut Host<'_>,
    vm: VmNr,
    config: &VmConfig,
    group: GroupId,
    process: Tid,
) -> Sim {
    let allowed = build::unpinned(host);
    let main = "qemu-system-x86";
    let main_loop = build::add_task(host, main, Some(group), 0, allowed.clone(), Some(process))?;
    let sleep = task::sleep_timer(host, main_loop);
    let body = Worker::MainLoop { sleep, done: false };
    host.tasks[main_loop].body = Body::Worker(Box::new(body));
    host.tasks[main_loop].state = TaskState::New;
    let time = config.start_ns + MAIN_LOOP_START_NS;
    host.clock
        .post(time, Message::StartWorker { task: main_loop });
    let name = format!("vhost-{}", process.0);
    let io = build::add_task(host, &name, Some(group), 0, allowed, Some(process))?;
    let body = Worker::Io {
        vm,
        requests: VecDeque::new(),
        works: false,
    };
    host.tasks[io].body = Body::Worker(Box::new(body));
    host.tasks[io].state = TaskState::New;
    host.workers.push(Workers { main_loop, io });
    Ok(())
}

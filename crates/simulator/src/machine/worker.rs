//! The threads of a VM's process beside its vCPUs: QEMU's main loop and the worker that does the
//! guest's I/O (an iothread or vhost).

use std::collections::VecDeque;

use super::{Body, Machine, Message, TaskState};
use crate::fault::Sim;
use crate::ids::{CpuNr, TaskNr, ThreadNr, TimerNr, VmNr};
use crate::program::DeviceId;

/// How often the main loop wakes without I/O, in ns: its timers are few (an estimate).
const MAIN_LOOP_PERIOD_NS: u64 = 1_000_000_000;
/// What it does then, in ns (an estimate).
const MAIN_LOOP_WORK_NS: u64 = 20_000;
/// It first wakes so long after the guest has started, in ns.
pub(crate) const MAIN_LOOP_START_NS: u64 = 10_000_000;

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

impl Machine<'_> {
    /// What the thread did is over: the next thing.
    pub(crate) fn worker_step(&mut self, cpu: CpuNr, task: TaskNr) -> Sim {
        if self.throttle(cpu)? {
            return Ok(());
        }
        let now = self.now;
        let Body::Worker(worker) = &mut self.tasks[task].body else {
            return self.broken("another task does the emulator's work");
        };
        match &mut **worker {
            Worker::MainLoop { sleep, done } => {
                *done = !*done;
                if *done {
                    return self.work(cpu, task, MAIN_LOOP_WORK_NS);
                }
                let sleep = *sleep;
                self.start_pinned(sleep, cpu, now + MAIN_LOOP_PERIOD_NS);
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
                    self.start_device(vm, device, thread);
                }
                if self.begin_request(task) {
                    return self.work(cpu, task, u64::from(self.costs.handle_userspace_ns));
                }
            }
        }
        self.block_current(cpu)
    }

    fn begin_request(&mut self, task: TaskNr) -> bool {
        match &mut self.tasks[task].body {
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

    fn work(&mut self, cpu: CpuNr, task: TaskNr, ns: u64) -> Sim {
        self.tasks[task].left_ns = ns.max(1);
        self.run_task(cpu, task)
    }

    /// A guest's request goes to its worker.
    pub(crate) fn request_io(
        &mut self,
        vm: VmNr,
        device: DeviceId,
        thread: ThreadNr,
        by: CpuNr,
    ) -> Sim {
        let Some(&Workers { io: task, .. }) = self.workers.get(vm.0 as usize) else {
            return self.broken("a VM without a worker does I/O");
        };
        if let Body::Worker(worker) = &mut self.tasks[task].body
            && let Worker::Io { requests, .. } = &mut **worker
        {
            requests.push_back((device, thread));
        }
        self.wake_worker(task, by)
    }

    /// The device works on the request for as long as it takes.
    pub(crate) fn start_device(&mut self, vm: VmNr, device: DeviceId, thread: ThreadNr) {
        let at = self.now + self.vms[vm].kernel.device_latency(device.0);
        let device = device.0;
        self.post(at, Message::Device { vm, device, thread });
    }

    /// A thread of the emulator is woken, or started at its first wakeup.
    pub(crate) fn wake_worker(&mut self, task: TaskNr, by: CpuNr) -> Sim {
        if self.tasks[task].state == TaskState::New {
            let cpu = self.least_loaded(task);
            return self.fork_by(task, cpu, by);
        }
        self.wake(task, by).map(|_| ())
    }
}

//! What a guest's kernel keeps: threads, queues, locks, devices.

use std::collections::VecDeque;

use stealtime_hypervisor::fair::{Fair, TaskId};

use super::queues::{Passing, Queues};
use super::source::Source;
use crate::engine::Random;
use crate::ids::{Table, ThreadNr};
use crate::program::{MutexId, Program};

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadState {
    /// Runs or may run.
    Runnable,
    /// Waits for a count of a queue.
    Waits(u32),
    /// Waits for a mutex.
    WaitsMutex(u32),
    /// Waits for a device.
    WaitsDevice,
    /// Sleeps.
    Sleeps,
    /// Has ended.
    Dead,
}

/// A thread of a guest.
pub(crate) struct Thread {
    pub(crate) name: String,
    pub(crate) program: Box<dyn Program>,
    pub(crate) fair: TaskId,
    /// Where it runs, or ran last.
    pub(crate) vcpu: u32,
    pub(crate) pinned: bool,
    pub(crate) state: ThreadState,
    /// Off its run queue: a wakeup must put it back.
    pub(crate) off_queue: bool,
    pub(crate) reply: u64,
    /// Its address space, by number.
    pub(crate) process: u32,
    /// Mutexes that it holds.
    pub(crate) holds: Vec<MutexId>,
    /// Passes that it is at.
    pub(crate) series: Option<super::stretch::Series>,
    /// What was left of its steps when it was switched out.
    pub(crate) saved: super::Steps,
}

impl core::fmt::Debug for Thread {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Thread")
            .field("name", &self.name)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

/// The owner of a spinlock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) vcpu: u32,
    pub(crate) thread: Option<ThreadNr>,
}

/// A waiter for a spinlock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiter {
    pub(crate) vcpu: u32,
    pub(crate) thread: Option<ThreadNr>,
    /// It has halted, or is about to, and wants to be kicked.
    pub(crate) halted: bool,
    /// It was kicked since: an unlock has nothing to do until it looks.
    pub(crate) kicked: bool,
}

/// A spinlock: its owner and its waiters in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct SpinLock {
    pub(crate) name: String,
    pub(crate) owner: Option<Holder>,
    pub(crate) waiters: VecDeque<Waiter>,
    /// It is a lock of a program: its waiters spin at CPL 3.
    pub(crate) user: bool,
}

/// A sleeping lock.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mutex {
    pub(crate) name: String,
    pub(crate) owner: Option<ThreadNr>,
    /// Sleepers, in order. The one that was woken stays until it has the mutex.
    pub(crate) waiters: VecDeque<ThreadNr>,
    /// vCPUs that spin while the owner runs, in order.
    pub(crate) spinners: VecDeque<u32>,
    /// The next release hands it to the first sleeper (`MUTEX_FLAG_HANDOFF`).
    pub(crate) handoff: bool,
}

/// A device.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    pub(crate) latency_ns: u64,
    pub(crate) spread_percent: u32,
    /// The vCPU that its interrupt goes to.
    pub(crate) vcpu: u32,
    pub(crate) random: Random,
}

/// A guest's kernel.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// Its run queues are the vCPUs', in their order.
    pub(crate) fair: Fair,
    pub(crate) threads: Table<ThreadNr, Thread>,
    /// Threads by the slot of their scheduler id.
    pub(crate) by_slot: Vec<ThreadNr>,
    pub(crate) queues: Queues,
    pub(crate) spinlocks: Vec<SpinLock>,
    pub(crate) mutexes: Vec<Mutex>,
    pub(crate) devices: Vec<Device>,
    pub(crate) sources: Vec<Source>,
    /// Threads that run or wait to, by vCPU.
    pub(crate) runnable: Vec<u32>,
    /// Threads that wait for a device that has finished, until its interrupt is handled.
    pub(crate) finished: Vec<(u8, ThreadNr)>,
    /// Stretches of passes that go on.
    pub(crate) passing: Passing,
    pub(crate) tick_ns: u64,
}

/// An interrupt that a device raises at one of its guest's vCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceInterrupt {
    /// Index of the vCPU within the guest.
    pub(crate) vcpu: u32,
    pub(crate) vector: u8,
}

impl Kernel {
    /// How long a request to this device takes.
    pub(crate) fn device_latency(&mut self, device: u32) -> u64 {
        let Some(d) = self.devices.get_mut(device as usize) else {
            return 0;
        };
        d.random.around(d.latency_ns, d.spread_percent)
    }

    /// A device has finished a thread's request: the interrupt that says so.
    pub(crate) fn device_done(&mut self, device: u32, thread: ThreadNr) -> DeviceInterrupt {
        let vector = super::DEVICE_VECTOR + (device % super::DEVICES) as u8;
        self.finished.push((vector, thread));
        let vcpu = self.devices.get(device as usize).map_or(0, |d| d.vcpu);
        DeviceInterrupt { vcpu, vector }
    }
}

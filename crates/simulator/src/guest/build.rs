//! Making a guest: what a workload's recipe may use.

use core::future::Future;
use std::collections::VecDeque;

use stealtime_hypervisor::fair::{Attr, Config as FairConfig, Fair, Feature, PickMode};

use super::kernel::{Device, Kernel, Mutex, SpinLock, Thread, ThreadState};
use super::queues::{Passing, Queues};
use super::source::Source;
use crate::engine::{Random, Streams};
use crate::fault::Sim;
use crate::ids::{Table, ThreadNr};
use crate::program::{AsyncProgram, DeviceId, MutexId, Program, QueueId, SourceId, SpinId};

/// How requests of clients come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// As a Poisson process, whatever becomes of them.
    Open {
        /// Mean time between two, in ns.
        mean_gap_ns: u64,
    },
    /// Each client sends its next one some time after the last was answered.
    Closed {
        /// How many there are.
        clients: u32,
        /// Mean of the exponentially distributed time from an answer to the next request at the
        /// card, in ns: the network both ways and the client.
        think_ns: u64,
    },
}

/// Makes the threads of a guest and what they share.
#[derive(Debug)]
pub struct GuestBuilder {
    name: String,
    vcpus: u32,
    process: u32,
    streams: Streams,
    kernel: Kernel,
}

impl GuestBuilder {
    pub(crate) fn new(name: &str, vcpus: u32, hz: u32, streams: Streams) -> Sim<Self> {
        let mut config = FairConfig::linux_7_2(vcpus);
        config.features = config.features.without(Feature::Hrtick);
        config.tick_ns = 1_000_000_000 / u64::from(hz.max(10));
        let tick_ns = config.tick_ns;
        let mut fair = Fair::new(config)?;
        fair.set_self_check(false);
        fair.set_lean();
        for _ in 0..vcpus {
            fair.create_rq(PickMode::Hierarchical)?;
        }
        Ok(Self {
            name: name.to_owned(),
            vcpus,
            process: 0,
            streams,
            kernel: Kernel {
                fair,
                threads: Table::default(),
                by_slot: Vec::new(),
                queues: Queues::default(),
                spinlocks: Vec::new(),
                mutexes: Vec::new(),
                devices: Vec::new(),
                sources: Vec::new(),
                runnable: vec![0; vcpus as usize],
                finished: Vec::new(),
                passing: Passing::default(),
                tick_ns,
            },
        })
    }

    /// vCPUs of the guest.
    #[must_use]
    pub fn vcpus(&self) -> u32 {
        self.vcpus
    }

    /// The stream of random numbers of this name, within the guest.
    #[must_use]
    pub fn random(&self, name: &str) -> Random {
        self.streams.named(&format!("{}/{name}", self.name))
    }

    /// A spinlock.
    pub fn spinlock(&mut self, name: &str) -> SpinId {
        self.kernel.spinlocks.push(SpinLock {
            name: name.to_owned(),
            ..SpinLock::default()
        });
        SpinId(self.kernel.spinlocks.len() as u32 - 1)
    }

    /// A spinlock of a program: test and set, held and waited for at CPL 3. The guest preempts no thread
    /// that holds it or waits for it: there is a vCPU for each of the program's threads.
    pub fn user_spinlock(&mut self, name: &str) -> SpinId {
        let lock = self.spinlock(name);
        if let Some(lock) = self.kernel.spinlocks.get_mut(lock.0 as usize) {
            lock.user = true;
        }
        lock
    }

    /// A mutex.
    pub fn mutex(&mut self, name: &str) -> MutexId {
        self.kernel.mutexes.push(Mutex {
            name: name.to_owned(),
            ..Mutex::default()
        });
        MutexId(self.kernel.mutexes.len() as u32 - 1)
    }

    /// A counting queue that starts with `counts`.
    pub fn queue(&mut self, name: &str, counts: u64) -> QueueId {
        self.kernel.queues.add(name, counts)
    }

    /// A device with an interrupt to `vcpu`. A request takes `latency_ns`, give or take
    /// `spread_percent`.
    pub fn device(
        &mut self,
        name: &str,
        latency_ns: u64,
        spread_percent: u32,
        vcpu: u32,
    ) -> DeviceId {
        let random = self.random(&format!("device/{name}"));
        self.kernel.devices.push(Device {
            latency_ns,
            spread_percent,
            vcpu: vcpu % self.vcpus.max(1),
            random,
        });
        DeviceId(self.kernel.devices.len() as u32 - 1)
    }

    /// Clients with requests to a network card that interrupts `vcpu`.
    pub fn source(&mut self, name: &str, arrivals: Arrivals, vcpu: u32) -> SourceId {
        let queue = self.queue(name, 0);
        self.kernel.queues.fill_from_outside(queue);
        let random = self.random(&format!("source/{name}"));
        let number = self.kernel.sources.len() as u32;
        self.kernel.sources.push(Source {
            arrivals,
            queue,
            vcpu: vcpu % self.vcpus.max(1),
            vector: super::SOURCE_VECTOR + (number % super::SOURCES) as u8,
            random,
            arrived: VecDeque::new(),
            pending: 0,
        });
        SourceId(number)
    }

    /// Threads from here on are of a new process, with a TLB of its own to be flushed.
    pub fn new_process(&mut self) {
        self.process += 1;
    }

    /// A thread that runs `body`, on `vcpu` alone if one is given.
    ///
    /// # Errors
    ///
    /// Too many threads.
    pub fn spawn<F>(
        &mut self,
        name: &str,
        vcpu: Option<u32>,
        body: impl FnOnce(crate::program::Thread) -> F,
    ) -> Sim
    where
        F: Future<Output = ()> + 'static,
    {
        let number = self.kernel.threads.len() as u32;
        let random = self.random(&format!("thread/{number}"));
        let program = AsyncProgram::new(random, number, body);
        self.spawn_program(name, vcpu, Box::new(program))
    }

    /// The same for any program.
    ///
    /// # Errors
    ///
    /// Too many threads.
    pub fn spawn_program(
        &mut self,
        name: &str,
        vcpu: Option<u32>,
        program: Box<dyn Program>,
    ) -> Sim {
        let fair = self.kernel.fair.create_task(Attr::default(), None)?;
        let number = self.kernel.threads.len() as u32;
        let thread: ThreadNr = self.kernel.threads.add(Thread {
            name: name.to_owned(),
            program,
            fair,
            vcpu: vcpu.unwrap_or(number) % self.vcpus.max(1),
            pinned: vcpu.is_some(),
            state: ThreadState::Runnable,
            off_queue: false,
            reply: 0,
            process: self.process,
            holds: Vec::new(),
            series: None,
            saved: super::Steps::default(),
        });
        debug_assert_eq!(fair.slot(), self.kernel.by_slot.len());
        self.kernel.by_slot.push(thread);
        Ok(())
    }

    pub(crate) fn finish(self) -> Kernel {
        self.kernel
    }
}

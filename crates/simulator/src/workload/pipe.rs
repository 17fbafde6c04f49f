//! `sched-pipe` and `cpuid-loop`: the costs of waking another thread and of leaving the guest.

use super::Workload;
use super::params::{ParamDoc, Params};
use super::tools::{THREADS, threads};
use crate::engine::Random;
use crate::fault::Sim;
use crate::guest::{Arrivals, GuestBuilder};
use crate::program::{QueueId, Thread};

pub(super) const SCHED_PIPE: Workload = Workload {
    name: "sched-pipe",
    about: "two threads that pass a word to and fro over two pipes (perf bench sched pipe); an \
            operation is a round trip",
    params: &[
        ParamDoc {
            name: "pairs",
            default: 1,
            min: 1,
            max: 4096,
            unit: "",
            about: "pairs of threads (perf bench has one)",
        },
        ParamDoc {
            name: "pinned",
            default: 1,
            min: 0,
            max: 1,
            unit: "",
            about: "whether the threads of a pair have a vCPU each (the measurement published with \
                    IPI virtualization was across two vCPUs), or the guest places them",
        },
        ParamDoc {
            name: "copy_ns",
            default: 250,
            min: 0,
            max: 1_000_000,
            unit: "ns",
            about: "kernel work of a read or a write of 4 bytes beyond the system call (estimate)",
        },
        ParamDoc {
            name: "jitter_percent",
            default: 0,
            min: 0,
            max: 100,
            unit: "%",
            about: "variation of that work to either side (caches, branches)",
        },
    ],
    build: build_pipe,
};

fn build_pipe(params: &Params, guest: &mut GuestBuilder) -> Sim {
    let copy = Work {
        ns: params.get("copy_ns"),
        jitter: params.get("jitter_percent"),
    };
    let pinned = params.get("pinned") == 1;
    for pair in 0..params.count("pairs") {
        let requests = guest.queue(&format!("pipe/{pair}/there"), 0);
        let responses = guest.queue(&format!("pipe/{pair}/back"), 0);
        let pin = |n| pinned.then_some(pair * 2 + n);
        guest.spawn(&format!("ping/{pair}"), pin(0), move |thread| {
            ping(thread, requests, responses, copy)
        })?;
        guest.spawn(&format!("pong/{pair}"), pin(1), move |thread| {
            pong(thread, requests, responses, copy)
        })?;
    }
    Ok(())
}

/// The kernel's work for a read or a write.
#[derive(Clone, Copy)]
struct Work {
    ns: u64,
    /// In percent.
    jitter: u64,
}

impl Work {
    fn draw(self, random: &mut Random) -> u64 {
        let around = self.ns * self.jitter / 100;
        match around {
            0 => self.ns,
            around => self.ns - around + random.below(2 * around + 1),
        }
    }
}

async fn ping(mut thread: Thread, request: QueueId, response: QueueId, copy: Work) {
    loop {
        let began = thread.now();
        write(&mut thread, request, copy).await;
        read(&mut thread, response, copy).await;
        thread.took(thread.now() - began);
    }
}

async fn pong(mut thread: Thread, request: QueueId, response: QueueId, copy: Work) {
    loop {
        read(&mut thread, request, copy).await;
        write(&mut thread, response, copy).await;
    }
}

async fn write(thread: &mut Thread, pipe: QueueId, copy: Work) {
    let ns = copy.draw(&mut thread.random);
    thread.kernel(ns).await;
    thread.wake(pipe, 1).await;
}

async fn read(thread: &mut Thread, pipe: QueueId, copy: Work) {
    thread.wait(pipe).await;
    let ns = copy.draw(&mut thread.random);
    thread.kernel(ns).await;
}

pub(super) const CPUID_LOOP: Workload = Workload {
    name: "cpuid-loop",
    about: "threads that execute CPUID, which always exits, again and again; an operation is one \
            of them",
    params: &[
        THREADS,
        ParamDoc {
            name: "work_ns",
            default: 0,
            min: 0,
            max: 1_000_000_000,
            unit: "ns",
            about: "computing between two of them",
        },
        ParamDoc {
            name: "interrupt_ns",
            default: 0,
            min: 0,
            max: 10_000_000_000,
            unit: "ns",
            about: "mean of the exponentially distributed time between two interrupts of a device for \
                    each thread's vCPU; 0: none",
        },
    ],
    build: build_cpuid_loop,
};

fn build_cpuid_loop(params: &Params, guest: &mut GuestBuilder) -> Sim {
    let (work_ns, mean_gap_ns) = (params.get("work_ns"), params.get("interrupt_ns"));
    for n in 0..threads(params, guest) {
        if mean_gap_ns > 0 {
            guest.source(&format!("device/{n}"), Arrivals::Open { mean_gap_ns }, n);
        }
        guest.spawn(&format!("cpuid/{n}"), Some(n), move |thread| {
            cpuid_loop(thread, work_ns)
        })?;
    }
    Ok(())
}

async fn cpuid_loop(thread: Thread, work_ns: u64) {
    loop {
        if work_ns > 0 {
            thread.compute(work_ns).await;
        }
        let began = thread.now();
        thread.cpuid().await;
        thread.took(thread.now() - began);
    }
}

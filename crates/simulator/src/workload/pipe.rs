//! `sched-pipe` and `cpuid-loop`: the costs of waking another thread and of leaving the guest.

use super::Workload;
use super::params::{ParamDoc, Params};
use super::tools::{THREADS, threads};
use crate::fault::Sim;
use crate::guest::GuestBuilder;
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
    ],
    build: build_pipe,
};

fn build_pipe(params: &Params, guest: &mut GuestBuilder) -> Sim {
    let copy = params.get("copy_ns");
    let pinned = params.get("pinned") == 1;
    for pair in 0..params.count("pairs") {
        let there = guest.queue(&format!("pipe/{pair}/there"), 0);
        let back = guest.queue(&format!("pipe/{pair}/back"), 0);
        let on = |n| pinned.then_some(pair * 2 + n);
        guest.spawn(&format!("ping/{pair}"), on(0), move |thread| {
            ping(thread, there, back, copy)
        })?;
        guest.spawn(&format!("pong/{pair}"), on(1), move |thread| {
            pong(thread, there, back, copy)
        })?;
    }
    Ok(())
}

async fn ping(thread: Thread, there: QueueId, back: QueueId, copy: u64) {
    loop {
        let began = thread.now();
        write(&thread, there, copy).await;
        read(&thread, back, copy).await;
        thread.took(thread.now() - began);
    }
}

async fn pong(thread: Thread, there: QueueId, back: QueueId, copy: u64) {
    loop {
        read(&thread, there, copy).await;
        write(&thread, back, copy).await;
    }
}

async fn write(thread: &Thread, pipe: QueueId, copy: u64) {
    thread.kernel(copy).await;
    thread.wake(pipe, 1).await;
}

async fn read(thread: &Thread, pipe: QueueId, copy: u64) {
    thread.wait(pipe).await;
    thread.kernel(copy).await;
}

pub(super) const CPUID_LOOP: Workload = Workload {
    name: "cpuid-loop",
    about: "threads that execute CPUID, which always exits, again and again; an operation is one \
            of them",
    params: &[THREADS],
    build: |params, guest| {
        for n in 0..threads(params, guest) {
            guest.spawn(&format!("cpuid/{n}"), Some(n), cpuid_loop)?;
        }
        Ok(())
    },
};

async fn cpuid_loop(thread: Thread) {
    loop {
        let began = thread.now();
        thread.cpuid().await;
        thread.took(thread.now() - began);
    }
}

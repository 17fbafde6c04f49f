//! `cyclictest` and `broadcast`: how late timers come, and what a timer that interrupts everybody
//! costs.

use super::Workload;
use super::params::{ParamDoc, Params};
use super::tools::{THREADS, threads};
use crate::fault::Sim;
use crate::guest::GuestBuilder;
use crate::program::Thread;

pub(super) const CYCLICTEST: Workload = Workload {
    name: "cyclictest",
    about: "threads, each on its vCPU, that sleep until a programmed time; a latency is from that \
            time until the thread runs",
    params: &[
        THREADS,
        ParamDoc {
            name: "interval_ns",
            default: 1_000_000,
            min: 10_000,
            max: 10_000_000_000,
            unit: "ns",
            about: "interval of the first thread (cyclictest -i, its default: 1000 us)",
        },
        ParamDoc {
            name: "distance_ns",
            default: 500_000,
            min: 0,
            max: 1_000_000_000,
            unit: "ns",
            about: "increase of the interval from thread to thread (cyclictest -d, its \
                    default: 500 us)",
        },
    ],
    build: |params, guest| {
        let (interval, distance) = (params.get("interval_ns"), params.get("distance_ns"));
        for n in 0..threads(params, guest) {
            let interval = interval + distance * u64::from(n);
            guest.spawn(&format!("cyclictest/{n}"), Some(n), move |thread| {
                cycle(thread, interval)
            })?;
        }
        Ok(())
    },
};

async fn cycle(thread: Thread, interval: u64) {
    let mut due = thread.now();
    loop {
        // A cycle that was missed is skipped, as cyclictest does.
        while due <= thread.now() {
            due += interval;
        }
        thread.sleep_until(due).await;
        thread.took(thread.now() - due);
    }
}

pub(super) const BROADCAST: Workload = Workload {
    name: "broadcast",
    about: "a timer on vCPU 0 that interrupts all other vCPUs; a latency is what the sender \
            spends in its write to the ICR",
    params: &[
        ParamDoc {
            name: "period_ns",
            default: 1_000_000,
            min: 10_000,
            max: 10_000_000_000,
            unit: "ns",
            about: "time between two broadcasts (1 kHz: the guests of the published Xen result \
                    sent up to that often)",
        },
        ParamDoc {
            name: "busy",
            default: 0,
            min: 0,
            max: 1,
            unit: "",
            about: "whether the other vCPUs compute, or halt between two broadcasts (the published \
                    guests were mostly idle)",
        },
    ],
    build: build_broadcast,
};

fn build_broadcast(params: &Params, guest: &mut GuestBuilder) -> Sim {
    let period = params.get("period_ns");
    guest.spawn("broadcast", Some(0), move |thread| {
        broadcast(thread, period)
    })?;
    if params.get("busy") == 1 {
        for n in 1..guest.vcpus() {
            guest.spawn(&format!("busy/{n}"), Some(n), busy)?;
        }
    }
    Ok(())
}

async fn broadcast(thread: Thread, period: u64) {
    let mut due = thread.now();
    loop {
        while due <= thread.now() {
            due += period;
        }
        thread.sleep_until(due).await;
        let began = thread.now();
        thread.kick_others().await;
        thread.took(thread.now() - began);
    }
}

async fn busy(thread: Thread) {
    loop {
        thread.compute(100_000).await;
    }
}

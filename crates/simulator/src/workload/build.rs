//! `kernel-build`: compilers that run side by side.

use super::Workload;
use super::params::{ParamDoc, Params};
use super::tools::threads;
use crate::fault::Sim;
use crate::guest::GuestBuilder;
use crate::program::{DeviceId, SpinId, Thread};

pub(super) const KERNEL_BUILD: Workload = Workload {
    name: "kernel-build",
    about: "jobs that fork, read a source, compute with page faults and short locks, and write an \
        object (make -j). A job is an operation and a latency",
    params: &[
        ParamDoc {
            name: "threads",
            default: 0,
            min: 0,
            max: 65_536,
            unit: "",
            about: "jobs at a time (make -j); 0 for one a vCPU",
        },
        ParamDoc {
            name: "job_ns",
            default: 40_000_000,
            min: 100_000,
            max: 100_000_000_000,
            unit: "ns",
            about: "mean computing of a job (estimate: a tenth of what a file of the kernel takes, \
                    so that short runs finish many)",
        },
        ParamDoc {
            name: "fault_ns",
            default: 200_000,
            min: 1_000,
            max: 1_000_000_000,
            unit: "ns",
            about: "computing between two pages that the hypervisor must bring in (estimate: a \
                guest with mostly populated memory)",
        },
        ParamDoc {
            name: "lock_ns",
            default: 500,
            min: 0,
            max: 1_000_000,
            unit: "ns",
            about: "time for which the zone's spinlock is held at a page fault (estimate)",
        },
        ParamDoc {
            name: "fork_ns",
            default: 400_000,
            min: 0,
            max: 1_000_000_000,
            unit: "ns",
            about: "kernel work of fork, exec and exit of a compiler (estimate)",
        },
        ParamDoc {
            name: "disk_ns",
            default: 80_000,
            min: 1_000,
            max: 1_000_000_000,
            unit: "ns",
            about: "latency of the disk, for one read and one write a job (estimate: NVMe)",
        },
    ],
    build,
};

#[derive(Clone, Copy)]
struct Job {
    compute: u64,
    fault: u64,
    lock_ns: u64,
    fork: u64,
    zone: SpinId,
    disk: DeviceId,
}

fn build(params: &Params, guest: &mut GuestBuilder) -> Sim {
    let job = Job {
        compute: params.get("job_ns"),
        fault: params.get("fault_ns"),
        lock_ns: params.get("lock_ns"),
        fork: params.get("fork_ns"),
        zone: guest.spinlock("zone"),
        disk: guest.device("disk", params.get("disk_ns"), 30, 0),
    };
    for n in 0..threads(params, guest) {
        guest.new_process();
        guest.spawn(&format!("job/{n}"), None, move |thread| jobs(thread, job))?;
    }
    Ok(())
}

async fn jobs(mut thread: Thread, job: Job) {
    loop {
        let began = thread.now();
        thread.kernel(job.fork / 2).await;
        thread.io(job.disk).await;
        let mut remaining = thread.random.around(job.compute, 50);
        while remaining > 0 {
            let ns = thread.random.exponential(job.fault).clamp(1, remaining);
            thread.compute(ns).await;
            remaining -= ns;
            thread.lock(job.zone).await;
            thread.kernel(job.lock_ns).await;
            thread.unlock(job.zone).await;
            thread.page_fault().await;
        }
        thread.io(job.disk).await;
        thread.kernel(job.fork / 2).await;
        thread.took(thread.now() - began);
    }
}

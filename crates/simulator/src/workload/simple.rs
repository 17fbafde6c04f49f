//! The simplest workloads: nothing, computing, ticking.

use core::future::Future;
use core::pin::Pin;

use super::Workload;
use super::params::{ParamDoc, Params};
use super::tools::{THREADS, threads};
use crate::config::ConfigError;
use crate::fault::Sim;
use crate::guest::GuestBuilder;
use crate::program::{SpinId, Thread};

pub(super) const IDLE: Workload = Workload {
    name: "idle",
    about: "nothing: all vCPUs halt",
    params: &[],
    build: |_, _| Ok(()),
};

pub(super) const BUSY: Workload = Workload {
    name: "busy",
    about: "threads that compute and never wait",
    params: &[
        THREADS,
        ParamDoc {
            name: "chunk_ns",
            default: 1_000_000,
            min: 1_000,
            max: 10_000_000_000,
            unit: "ns",
            about: "computing that counts as one operation (no outside source: a unit of count)",
        },
    ],
    build: |params, guest| {
        let chunk = params.get("chunk_ns");
        spawn_each(params, guest, "busy", move |thread| busy(thread, chunk))
    },
};

pub(super) const TICKS: Workload = Workload {
    name: "ticks",
    about: "threads that sleep and compute a little, by turns",
    params: &[
        THREADS,
        ParamDoc {
            name: "period_ns",
            default: 1_000_000,
            min: 1_000,
            max: 100_000_000_000,
            unit: "ns",
            about: "sleep between two turns (1 ms: a media or game server's)",
        },
        ParamDoc {
            name: "work_ns",
            default: 20_000,
            min: 0,
            max: 100_000_000_000,
            unit: "ns",
            about: "mean of the exponentially distributed work of a turn",
        },
    ],
    build: |params, guest| {
        let (period, work) = (params.get("period_ns"), params.get("work_ns"));
        spawn_each(params, guest, "ticks", move |thread| {
            ticks(thread, period, work)
        })
    },
};

pub(super) const USER_LOCK: Workload = Workload {
    name: "user-lock",
    about: "a thread on each vCPU that takes a spinlock of their program's own, at CPL 3",
    params: &[
        ParamDoc {
            name: "think_ns",
            default: 12_000,
            min: 100,
            max: 1_000_000_000,
            unit: "ns",
            about: "mean computing between two turns (no outside source: eight vCPUs share the lock)",
        },
        ParamDoc {
            name: "held_ns",
            default: 1_500,
            min: 0,
            max: 1_000_000,
            unit: "ns",
            about: "computing with the lock held (no outside source)",
        },
    ],
    build: |params, guest| {
        let (think, held) = (params.get("think_ns"), params.get("held_ns"));
        let lock = guest.user_spinlock("lock");
        for vcpu in 0..guest.vcpus() {
            guest.spawn(&format!("user/{vcpu}"), Some(vcpu), |thread| {
                user_lock(thread, lock, think, held)
            })?;
        }
        Ok(())
    },
};

const CALL_THINK: ParamDoc = ParamDoc {
    name: "think_ns",
    default: 50_000,
    min: 0,
    max: 1_000_000_000,
    unit: "ns",
    about: "mean computing between two calls (estimate: a guest that changes page tables often)",
};

const IN_KERNEL: ParamDoc = ParamDoc {
    name: "in_kernel",
    default: 0,
    min: 0,
    max: 1,
    unit: "",
    about: "1: vCPUs that are called compute in the kernel. Without APICv KVM passes over a vCPU that is preempted in \
        user mode, even if an interrupt of it is pending",
};

pub(super) const IPI_PAIRS: Workload = Workload {
    name: "ipi-pairs",
    about: "even vCPUs that call a function on the next one and wait for it, over and over, while \
        odd ones compute. A call is an operation and a latency; a lone vCPU computes",
    params: &[CALL_THINK, IN_KERNEL],
    build: |params, guest| {
        let (think, in_kernel) = (params.get("think_ns"), params.get("in_kernel") == 1);
        for vcpu in 0..guest.vcpus() {
            let partner = vcpu + 1;
            let (is_caller, is_alone) =
                (vcpu % 2 == 0 && partner < guest.vcpus(), guest.vcpus() == 1);
            guest.spawn(&format!("pair/{vcpu}"), Some(vcpu), |thread| async move {
                match is_caller {
                    true => caller(thread, partner, think).await,
                    false => computes(thread, is_alone, in_kernel).await,
                }
            })?;
        }
        Ok(())
    },
};

async fn caller(mut thread: Thread, partner: u32, think: u64) {
    loop {
        let think = thread.random.exponential(think);
        let sent = thread.now();
        thread.call_one(partner).await;
        thread.took(thread.now() - sent);
        thread.compute(think).await;
    }
}

async fn computes(mut thread: Thread, counts: bool, in_kernel: bool) {
    loop {
        let chunk = thread.random.around(1_000_000, 50);
        match in_kernel {
            true => thread.kernel(chunk).await,
            false => thread.compute(chunk).await,
        };
        thread.done(u64::from(counts));
    }
}

pub(super) const SHOOTDOWN: Workload = Workload {
    name: "shootdown",
    about: "vCPU 0 calls a function on all others and waits for each, over and over, while the others compute. \
        A call of all is an operation and a latency; a lone vCPU computes",
    params: &[CALL_THINK, IN_KERNEL],
    build: |params, guest| {
        let (think, in_kernel) = (params.get("think_ns"), params.get("in_kernel") == 1);
        let is_alone = guest.vcpus() == 1;
        for vcpu in 0..guest.vcpus() {
            guest.spawn(
                &format!("shootdown/{vcpu}"),
                Some(vcpu),
                |thread| async move {
                    match vcpu == 0 && !is_alone {
                        true => shoots(thread, think).await,
                        false => computes(thread, is_alone, in_kernel).await,
                    }
                },
            )?;
        }
        Ok(())
    },
};

async fn shoots(mut thread: Thread, think: u64) {
    loop {
        let think = thread.random.exponential(think);
        let sent = thread.now();
        thread.call_others().await;
        thread.took(thread.now() - sent);
        thread.compute(think).await;
    }
}

pub(super) const KERNEL_LOCK: Workload = Workload {
    name: "kernel-lock",
    about: "a thread on each vCPU that takes one spinlock of the guest's kernel, over and over. A section with the \
        lock is an operation",
    params: &[
        ParamDoc {
            name: "held_ns",
            default: 160_000,
            min: 0,
            max: 1_000_000_000,
            unit: "ns",
            about: "kernel work with the lock held (the load lock of docs/live-yield.md)",
        },
        ParamDoc {
            name: "then_ns",
            default: 160_000,
            min: 0,
            max: 1_000_000_000,
            unit: "ns",
            about: "kernel work between two sections (the same load)",
        },
    ],
    build: |params, guest| {
        let (held, outside) = (params.get("held_ns"), params.get("then_ns"));
        let lock = guest.spinlock("lock");
        for vcpu in 0..guest.vcpus() {
            guest.spawn(&format!("kernel/{vcpu}"), Some(vcpu), |thread| async move {
                loop {
                    thread.section(lock, held, outside).await;
                    thread.done(1);
                }
            })?;
        }
        Ok(())
    },
};

async fn user_lock(mut thread: Thread, lock: SpinId, think: u64, held: u64) {
    loop {
        let ns = thread.random.exponential(think);
        thread.compute(ns).await;
        thread.lock(lock).await;
        thread.compute(held).await;
        thread.unlock(lock).await;
        thread.done(1);
    }
}

pub(super) const CLOCK_READER: Workload = Workload {
    name: "clock-reader",
    about: "threads that read the clock on every vCPU, over and over",
    params: &[ParamDoc {
        name: "pause_ns",
        default: 10_000,
        min: 100,
        max: 1_000_000_000,
        unit: "ns",
        about: "computing between two readings (no outside source: often enough to see a step)",
    }],
    build: |params, guest| {
        let pause = params.get("pause_ns");
        for vcpu in 0..guest.vcpus() {
            guest.spawn(&format!("reader/{vcpu}"), Some(vcpu), |thread| {
                clock_reader(thread, pause)
            })?;
        }
        Ok(())
    },
};

async fn clock_reader(mut thread: Thread, pause: u64) {
    loop {
        let ns = thread.random.around(pause, 50);
        thread.compute(ns).await;
        thread.read_clock().await;
        thread.done(1);
    }
}

fn spawn_each<F>(
    params: &Params,
    guest: &mut GuestBuilder,
    name: &str,
    body: impl Fn(Thread) -> F,
) -> Sim
where
    F: Future<Output = ()> + 'static,
{
    for n in 0..threads(params, guest) {
        guest.spawn(&format!("{name}/{n}"), None, &body)?;
    }
    Ok(())
}

async fn busy(thread: Thread, chunk: u64) {
    loop {
        thread.compute(chunk).await;
        thread.done(1);
    }
}

async fn ticks(mut thread: Thread, period: u64, work: u64) {
    loop {
        let due = thread.now() + period;
        thread.sleep_until(due).await;
        let ns = thread.random.exponential(work);
        thread.compute(ns).await;
        thread.took(thread.now() - due);
    }
}

pub(crate) type Body = Box<dyn FnOnce(Thread) -> Pin<Box<dyn Future<Output = ()>>>>;

/// Makes what a task of the host runs under the name of a simple workload. `key` is the place of the name.
///
/// # Errors
///
/// [`ConfigError`] for a workload that needs a guest.
pub(crate) fn host_body(key: String, name: &str) -> Result<fn(&Params) -> Body, ConfigError> {
    Ok(match name {
        "busy" => |params| {
            let chunk = params.get("chunk_ns");
            Box::new(move |thread| Box::pin(busy(thread, chunk)))
        },
        "ticks" => |params| {
            let (period, work) = (params.get("period_ns"), params.get("work_ns"));
            Box::new(move |thread| Box::pin(ticks(thread, period, work)))
        },
        "idle" => |_| Box::new(|_| Box::pin(async {})),
        _ => {
            let problem = format!("a host task cannot be {name:?}: it may be busy, ticks or idle");
            return Err(ConfigError { key, problem });
        }
    })
}

//! What a run gives.

use stealtime_events::Tid;

use crate::books::{Answers, CpuBooks, TaskBooks, VcpuBooks};
use crate::guest::Guests;
use crate::host::{Body, Host, Task};
use crate::ids::VmNr;
use crate::kvm::Kvm;
use crate::migration::ClockOutcome;
use crate::script::{ScriptOutcome, ScriptRunner};
use crate::stats::Stats;

/// A vCPU's account.
#[derive(Clone, Debug, PartialEq)]
pub struct VcpuOutcome {
    /// Index within its VM.
    pub index: u32,
    /// Its thread, as events show it.
    pub tid: Tid,
    /// Its thread's time.
    pub task: TaskBooks,
    /// Its own.
    pub vcpu: VcpuBooks,
}

/// A VM's account.
#[derive(Clone, Debug, PartialEq)]
pub struct VmOutcome {
    /// Name.
    pub name: String,
    /// Index of its workload's report in [`Stats::meters`].
    pub meter: usize,
    /// vCPUs.
    pub vcpus: Vec<VcpuOutcome>,
    /// How soon its vCPUs take interrupts.
    pub answers: Answers,
    /// Its process's other threads: the emulator's main loop and the worker that does its I/O.
    pub workers: Vec<TaskBooks>,
    /// What it saw of its clocks, if it was to be migrated.
    pub clocks: Option<ClockOutcome>,
}

/// Another task's account.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskOutcome {
    /// Index of its report in [`Stats::meters`].
    pub meter: usize,
    /// Its time.
    pub books: TaskBooks,
}

/// What a run gives, over the time after the warm-up.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Measured time, in ns.
    pub measured_ns: u64,
    /// CPUs of the host.
    pub cpus: Vec<CpuBooks>,
    /// VMs.
    pub vms: Vec<VmOutcome>,
    /// Other tasks of the host.
    pub tasks: Vec<TaskOutcome>,
    /// Tasks that did what was recorded.
    pub scripts: Vec<ScriptOutcome>,
    /// Counts.
    pub stats: Stats,
}

impl Outcome {
    /// What the parts have come to.
    pub(crate) fn of(host: &Host<'_>, kvm: &Kvm, guests: &Guests, runner: &ScriptRunner) -> Self {
        let vms = guests.vms().map(|vm| {
            let v = guests.vm(vm);
            let vcpus = (0..v.vcpus).map(|index| {
                let number = guests.vcpu_of(vm, index);
                let vcpu = kvm.vcpu(number);
                VcpuOutcome {
                    index,
                    tid: host.tasks()[vcpu.task].tid,
                    task: host.tasks()[vcpu.task].books,
                    vcpu: vcpu.books.so_far(guests.cpu(number).spin_ns),
                }
            });
            VmOutcome {
                name: v.cfg.name.to_string(),
                meter: v.meter,
                vcpus: vcpus.collect(),
                answers: kvm.vm(vm).answers.clone(),
                workers: workers_of(host, vm),
                clocks: v.clock.as_ref().map(|clock| clock.seen()),
            }
        });
        let tasks = host.tasks().iter().filter_map(|task| match &task.body {
            Body::Host(host) => Some(TaskOutcome {
                meter: host.meter,
                books: task.books,
            }),
            Body::Vcpu(_) | Body::Vmm(_) | Body::Script(_) | Body::Worker(_) => None,
        });
        let scripts = host
            .tasks()
            .numbers()
            .filter_map(|number| match &host.tasks()[number] {
                task @ Task {
                    body: Body::Script(script),
                    ..
                } => {
                    let finished = runner.finished_ns(number);
                    Some(script.outcome(task.tid, task.books, finished))
                }
                _ => None,
            });
        Self {
            measured_ns: host.now() - host.out().books().since_ns,
            cpus: host.out().books().cpus.clone(),
            vms: vms.collect(),
            tasks: tasks.collect(),
            scripts: scripts.collect(),
            stats: host.out().stats().clone(),
        }
    }
}

/// The books of the threads of a VM's process that are no vCPUs.
fn workers_of(host: &Host<'_>, vm: VmNr) -> Vec<TaskBooks> {
    let workers = host.workers(vm);
    let threads = workers.into_iter().flat_map(|w| [w.main_loop, w.io]);
    threads.map(|task| host.tasks()[task].books).collect()
}

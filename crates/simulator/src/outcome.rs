//! What a run gives.

use stealtime_events::Tid;

use crate::books::{Answers, CpuBooks, TaskBooks, VcpuBooks};
use crate::fault::Sim;
use crate::ids::{Number, VmNr};
use crate::machine::{Body, Machine, Task};
use crate::migration::ClockOutcome;
use crate::script::ScriptOutcome;
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

impl Machine<'_> {
    pub(crate) fn outcome(&self) -> Outcome {
        let vms = self.vms.numbers().map(|vm| {
            let v = &self.vms[vm];
            let vcpus = (0..v.vcpus).map(|index| {
                let vcpu = &self.vcpus[self.vcpu_of(vm, index)];
                VcpuOutcome {
                    index,
                    tid: self.tasks[vcpu.task].tid,
                    task: self.tasks[vcpu.task].books,
                    vcpu: vcpu.books.so_far(),
                }
            });
            VmOutcome {
                name: v.cfg.name.to_string(),
                meter: v.meter,
                vcpus: vcpus.collect(),
                answers: v.answers.clone(),
                workers: self.workers_of(vm),
                clocks: v.clock.as_ref().map(|clock| clock.seen()),
            }
        });
        let tasks = self.tasks.iter().filter_map(|task| match &task.body {
            Body::Host(host) => Some(TaskOutcome {
                meter: host.meter,
                books: task.books,
            }),
            Body::Vcpu(_) | Body::Vmm(_) | Body::Script(_) | Body::Worker(_) => None,
        });
        let scripts = self
            .tasks
            .numbers()
            .filter_map(|number| match &self.tasks[number] {
                task @ Task {
                    body: Body::Script(script),
                    ..
                } => {
                    let finished = self.finished.get(&number).copied();
                    Some(script.outcome(task.tid, task.books, finished))
                }
                _ => None,
            });
        Outcome {
            measured_ns: self.now - self.books.since_ns,
            cpus: self.books.cpus.clone(),
            vms: vms.collect(),
            tasks: tasks.collect(),
            scripts: scripts.collect(),
            stats: self.stats.clone(),
        }
    }

    fn workers_of(&self, vm: VmNr) -> Vec<TaskBooks> {
        let workers = self.workers.get(vm.index());
        let both = workers.into_iter().flat_map(|w| [w.main_loop, w.io]);
        both.map(|task| self.tasks[task].books).collect()
    }

    /// At the end: whether a guest's threads wait for each other.
    pub(crate) fn check_deadlock(&self) -> Sim {
        for vm in self.vms.numbers() {
            self.check_guest(vm)?;
        }
        Ok(())
    }
}

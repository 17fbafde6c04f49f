//! What a run gives.

use crate::books::{CpuBooks, TaskBooks, VcpuBooks};
use crate::fault::{Fault, Sim};
use crate::guest::ThreadState;
use crate::ids::VmNr;
use crate::machine::{Body, Machine};
use crate::migration::ClockOutcome;
use crate::script::ScriptOutcome;
use crate::stats::Stats;

/// A vCPU's account.
#[derive(Clone, Debug, PartialEq)]
pub struct VcpuOutcome {
    /// Index within its VM.
    pub index: u32,
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
                    task: self.tasks[vcpu.task].books,
                    vcpu: vcpu.books.clone(),
                }
            });
            VmOutcome {
                name: v.cfg.name.clone(),
                meter: v.meter,
                vcpus: vcpus.collect(),
                clocks: v.clock.as_ref().map(|clock| clock.seen()),
            }
        });
        let tasks = self.tasks.iter().filter_map(|task| match &task.body {
            Body::Host(host) => Some(TaskOutcome {
                meter: host.meter,
                books: task.books,
            }),
            Body::Vcpu(_) | Body::Vmm(_) | Body::Script(_) => None,
        });
        let scripts = self
            .tasks
            .numbers()
            .filter_map(|task| match &self.tasks[task].body {
                Body::Script(script) => {
                    let finished = self.finished.get(&task).copied();
                    Some(script.outcome(self.tasks[task].books, finished))
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

    /// When nothing is due any more: whether a guest's threads wait for each other.
    pub(crate) fn check_deadlock(&self) -> Sim {
        for vm in self.vms.numbers() {
            self.check_guest(vm)?;
        }
        Ok(())
    }

    /// A guest all of whose threads wait for what only its threads can do is deadlocked.
    fn check_guest(&self, vm: VmNr) -> Sim {
        let kernel = &self.vms[vm].kernel;
        let mut waits = Vec::new();
        for thread in kernel.threads.iter() {
            let what = match thread.state {
                ThreadState::Dead => continue,
                ThreadState::Waits(queue) => {
                    format!("a count of {}", kernel.queues[queue as usize].name)
                }
                ThreadState::WaitsMutex(mutex) => {
                    let m = &kernel.mutexes[mutex as usize];
                    let owner = m
                        .owner
                        .map_or("nobody", |t| kernel.threads[t].name.as_str());
                    format!("mutex {}, which {owner} holds", m.name)
                }
                // Time or a device will wake it, or it runs.
                _ => return Ok(()),
            };
            waits.push(format!("{} waits for {what}", thread.name));
        }
        if waits.is_empty() {
            return Ok(());
        }
        Err(Fault::Deadlock {
            vm: self.vms[vm].cfg.name.clone(),
            waits,
        })
    }
}

//! A recording on fewer or more CPUs.
//!
//! Each CPU of the new host is like a recorded one. With more CPUs than recorded, CPUs beyond those are like
//! the first ones again. Replays have no caches and no SMT, so that all CPUs are alike otherwise.

use stealtime_simulator::script::{Gaps, Late};

use crate::clocked::clocked_vms;
use crate::host::Assumed;
use crate::population::{free, wake_at_recorded_times, without};
use crate::recording::{RecordedTask, Recording, WithoutStalls};

/// A task has no CPU left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoCpuLeft {
    /// Thread id.
    pub tid: i32,
    /// Name.
    pub name: String,
    /// The CPUs that it may use, as recorded.
    pub cpus: Vec<u32>,
}

/// A recording on other CPUs.
#[derive(Clone, Debug)]
pub struct OnCpus {
    /// The tasks, with the new numbers of CPUs.
    pub recording: Recording,
    /// The recorded CPU that each CPU is like.
    like: Vec<u32>,
    /// CPUs of the recorded host.
    recorded: u32,
}

/// Whether a task is the kernel's for one CPU (`ksoftirqd/3`, `kworker/3:1`).
fn is_of_cpu(task: &RecordedTask) -> bool {
    let mut parts = task.name.split('/').skip(1);
    let number = parts
        .next()
        .is_some_and(|text| text.starts_with(|c: char| c.is_ascii_digit()));
    task.vm.is_none() && number && task.ran_on.len() <= 1
}

impl OnCpus {
    /// A recording on CPUs that are like these recorded ones. Threads of the kernel for other CPUs are left
    /// out.
    #[must_use]
    pub fn new(recording: &Recording, like: Vec<u32>) -> Self {
        let recorded = recording.cpus;
        let mut changed = recording.clone();
        let is_left = |cpu: u16| like.contains(&u32::from(cpu));
        let tasks = core::mem::take(&mut changed.tasks);
        let (remaining, departed): (Vec<_>, Vec<_>) = tasks
            .into_iter()
            .partition(|task| !is_of_cpu(task) || task.ran_on.iter().all(|&cpu| is_left(cpu)));
        changed.tasks = without(remaining, &departed, &recording.edge_ns);
        match like.len() < recorded as usize {
            true => wake_at_recorded_times(&mut changed.tasks, |_| true),
            false => {
                let clocked = clocked_vms(&changed.tasks);
                wake_at_recorded_times(&mut changed.tasks, |vm| clocked.contains(&vm));
            }
        }
        changed.cpus = like.len() as u32;
        let renumbered = Self {
            recording: changed,
            like,
            recorded,
        };
        renumbered.with_cpus()
    }

    /// The new number of a recorded CPU.
    fn number(&self, cpu: u32) -> Option<u32> {
        let number = self.like.iter().position(|&like| like == cpu);
        number.map(|number| number as u32)
    }

    /// A task's CPU, or another one in place of one that is left out.
    fn number_or(&self, cpu: u32, task: usize) -> u32 {
        self.number(cpu)
            .unwrap_or_else(|| (task % self.like.len().max(1)) as u32)
    }

    fn with_cpus(mut self) -> Self {
        let mut tasks = core::mem::take(&mut self.recording.tasks);
        for (index, task) in tasks.iter_mut().enumerate() {
            task.first_cpu = self.number_or(task.first_cpu.into(), index) as u16;
            let ran_on = task.ran_on.iter();
            let ran_on = ran_on.filter_map(|&cpu| Some(self.number(cpu.into())? as u16));
            task.ran_on = ran_on.collect();
            let moves = task.moves.iter();
            task.moves = moves
                .map(|&(time, cpu)| (time, self.number_or(cpu, index)))
                .collect();
        }
        let recording = &mut self.recording;
        recording.tasks = tasks;
        let like = &self.like;
        let late = |lists: &mut Vec<Late>| {
            let list = |&cpu: &u32| lists.get(cpu as usize).cloned().unwrap_or_default();
            *lists = match lists.is_empty() {
                true => Vec::new(),
                false => like.iter().map(list).collect(),
            };
        };
        late(&mut recording.late);
        late(&mut recording.tick_late);
        late(&mut recording.idle_late);
        late(&mut recording.idle_called);
        late(&mut recording.poll_called);
        let WithoutStalls {
            late: slices,
            tick_late,
            idle_called,
        } = &mut recording.without_stalls;
        late(slices);
        late(tick_late);
        late(idle_called);
        let gaps = like
            .iter()
            .map(|&cpu| recording.gaps.get(cpu as usize).cloned());
        recording.gaps = gaps.map(Option::unwrap_or_default).collect::<Vec<Gaps>>();
        self
    }

    /// What is assumed of the host, by the new numbers of CPUs.
    ///
    /// # Errors
    ///
    /// A task that is bound to CPUs that are left out.
    pub fn assumed(&self, assumed: &Assumed) -> Result<Assumed, NoCpuLeft> {
        let mut changed = assumed.clone();
        let every_cpu = || (0..self.recording.cpus).collect::<Vec<u32>>();
        let numbers = |cpus: &[u32]| match (0..self.recorded).all(|cpu| cpus.contains(&cpu)) {
            true => every_cpu(),
            false => cpus.iter().filter_map(|&cpu| self.number(cpu)).collect(),
        };
        let task = |tid: i32| self.recording.tasks.iter().find(|task| task.tid == tid);
        let allowed = |task: &RecordedTask, cpus: &[u32]| match numbers(cpus) {
            numbers if numbers.is_empty() => Err(NoCpuLeft {
                tid: task.tid,
                name: task.name.clone(),
                cpus: cpus.to_vec(),
            }),
            numbers => Ok(numbers),
        };
        for ((vm, number), cpus) in &mut changed.pins {
            let mut tasks = self.recording.tasks.iter();
            if let Some(task) = tasks.find(|task| task.vcpu == Some((*vm, *number))) {
                *cpus = allowed(task, cpus)?;
            }
        }
        for (tid, cpus) in &mut changed.task_pins {
            if let Some(task) = task(*tid) {
                *cpus = allowed(task, cpus)?;
            }
        }
        let is_pinned = |task: &RecordedTask| {
            let mut pins = assumed.pins.iter();
            let mut tasks = assumed.task_pins.iter();
            pins.any(|pin| Some(pin.0) == task.vcpu) || tasks.any(|pin| pin.0 == task.tid)
        };
        for (tid, cpus) in &mut changed.affinity {
            match task(*tid) {
                // A pin replaces what the host has.
                Some(task) if is_pinned(task) => *cpus = every_cpu(),
                Some(task) => *cpus = allowed(task, cpus)?,
                None => {}
            }
        }
        Ok(free(&changed, &self.recording))
    }
}

#[cfg(test)]
mod tests {
    use super::is_of_cpu;
    use crate::clocked::tests::{ARMED, task};
    use crate::recording::RecordedTask;

    #[test]
    fn threads_of_a_cpu_have_its_number_and_ran_there_alone() {
        let is_of_one = |name: &str, ran_on: &[u16]| {
            is_of_cpu(&RecordedTask {
                name: name.to_owned(),
                vm: None,
                ran_on: ran_on.to_vec(),
                ..task(ARMED)
            })
        };
        assert!(is_of_one("ksoftirqd/3", &[3]) && is_of_one("kworker/3:1", &[]));
        assert!(!is_of_one("kworker/3:1", &[2, 3]) && !is_of_one("kworker/u8:1", &[3]));
    }
}

//! The scripts at the end of the recording.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stealtime_simulator::script::{Late, Step, Then};

use crate::coupled::settle_coupled;
use crate::cpu::{Cpu, Latency, late_since};
use crate::recording::{Begins, RecordedTask, Recording, Unseen, Wait, WithoutStalls};
use crate::scripts::Scripts;
use crate::sleep_costs::SleepCosts;
use crate::task::Task;
use crate::timers::{late_by_step, settle_timed};

impl Scripts {
    /// The recording is over.
    pub(crate) fn finish(mut self) -> Recording {
        let wake_ns = self.busy_wakes.percentile(5);
        let counted_ns = wake_ns.map_or(0, |ns| u32::try_from(ns).unwrap_or(u32::MAX));
        let late_slices = self.late(|cpu| &cpu.late, 0);
        let tick_late = self.late(|cpu| &cpu.tick_late, 0);
        let idle_late = self.late(|cpu| &cpu.idle_late, counted_ns);
        let idle_called = self.late(|cpu| &cpu.idle_called, counted_ns);
        let without_stalls = WithoutStalls {
            late: self.without_stalls(|cpu| &cpu.late),
            tick_late: self.without_stalls(|cpu| &cpu.tick_late),
            idle_called: self.late(|cpu| &cpu.first_called, counted_ns),
        };
        let hrtick = self.hrtick();
        let poll_called = self.late(|cpu| &cpu.poll_called, 0);
        let gaps = self.cpus.iter().map(|cpu| cpu.gaps(self.first)).collect();
        let mut ended = self.take_tasks();
        settle_coupled(&mut ended);
        let switches = ended.iter().map(|task| task.switches_in).sum();
        let migrations = ended.iter().map(|task| task.moves.len() as u64).sum();
        let mut costs = SleepCosts::default();
        for task in &ended {
            costs.add(&task.costs);
        }
        let (block_ns, slept_ns) = costs.typical();
        let names = ended.iter().map(|task| (task.tid, task.name.as_str()));
        let vms = self.vmm_threads.found(&self.vcpus, &names.collect());
        let recorded = |task| recorded(&self, task, slept_ns, counted_ns, &vms);
        let tasks = ended.into_iter().map(recorded);
        let tasks: Vec<RecordedTask> = tasks.filter(|task| !task.ran_on.is_empty()).collect();
        let ran: BTreeSet<(usize, u32)> = tasks.iter().filter_map(|task| task.vcpu).collect();
        let mut never_ran: Vec<(usize, u32)> = self.by_number.keys().copied().collect();
        never_ran.retain(|vcpu| !ran.contains(vcpu));
        never_ran.sort_unstable();
        let steps = tasks.iter().flat_map(|task| task.steps.iter());
        let yields = steps.filter(|step| matches!(step, Step::Spin | Step::YieldTo(_)));
        let yields = yields.count() as u64;
        let with_events: BTreeSet<i32> = tasks.iter().map(|task| task.tid).collect();
        self.unseen.retain(|tid, _| !with_events.contains(tid));
        let unseen = self.unseen.into_iter();
        let unseen = unseen.map(|(tid, (process, name))| Unseen { tid, process, name });
        Recording {
            span_ns: self.now.saturating_sub(self.first),
            cpus: self.cpus.len() as u32,
            release: self.release,
            tasks,
            never_ran,
            unseen: unseen.collect(),
            edges: self.edges.len() as u32,
            edge_ns: self.edges.into(),
            resolved: self.resolved,
            idle_wake_ns: self.idle_wakes.percentile(50),
            wake_ns,
            halt_poll_ns: self.polling.halt_poll_ns(),
            hz: self.timers.hz(),
            hrtick,
            limits: self.quotas.limits(),
            late: late_slices,
            tick_late,
            idle_late,
            idle_called,
            without_stalls,
            poll_called,
            is_lossy: self.is_lossy,
            gaps,
            block_ns,
            wakeups: self.wakeups,
            slices: self.slices,
            decisions: self
                .decisions
                .decisions(|tid| self.vcpus.contains_key(&tid)),
            newidle: self.newidle.found(),
            switches,
            migrations,
            yields,
            halts: self.halts,
            halts_told: self.halt_ends,
            population: None,
        }
    }

    /// Latencies of each CPU, less what of them is counted elsewhere, in ns.
    fn late(&self, latencies: fn(&Cpu) -> &[Latency], counted_ns: u32) -> Vec<Late> {
        let cpus = self.cpus.iter();
        cpus.map(|cpu| late_since(latencies(cpu), self.first, counted_ns))
            .collect()
    }

    /// Latencies of each CPU without stalls, in ns.
    fn without_stalls(&self, latencies: fn(&Cpu) -> &[Latency]) -> Vec<Late> {
        let late = |cpu| {
            let latencies = latencies(cpu).iter();
            let rest: Vec<Latency> = latencies.map(|latency| latency.without_stall()).collect();
            late_since(&rest, self.first, 0)
        };
        self.cpus.iter().map(late).collect()
    }

    /// All tasks in the order of their ids; where an id was given out again, in the order of time.
    fn take_tasks(&mut self) -> Vec<Task> {
        let mut tasks = core::mem::take(&mut self.past);
        tasks.extend(core::mem::take(&mut self.tasks).into_tasks());
        // A stable sort: tasks that have ended come first.
        tasks.sort_by_key(|task| task.tid);
        for task in &mut tasks {
            if task.name.is_empty()
                && let Some((_, name)) = self.unseen.get(&task.tid)
            {
                task.name.clone_from(name);
            }
        }
        tasks
    }
}

/// A task as it was seen to the end. Halts that polled would have taken `slept_ns` if they had slept. Wakeups
/// take `counted_ns` in any case.
fn recorded(
    scripts: &Scripts,
    mut task: Task,
    slept_ns: u32,
    counted_ns: u32,
    vms: &BTreeMap<i32, usize>,
) -> RecordedTask {
    let (first, now, vcpu) = (scripts.first, scripts.now, task.vcpu);
    let begins = task.born.filter(|birth| birth.time > first);
    let goes_on = vcpu.is_some() && task.died.is_none() && begins.is_none();
    task.finish(now, goes_on);
    // A vCPU that spins without end goes on to spin.
    let continuation = match vcpu {
        _ if goes_on && task.yields_at_times() => Then::Repeat,
        Some(_) if task.died.is_none() && task.never_waits(first, now) => Then::Compute,
        _ if goes_on => Then::Repeat,
        _ => Then::End,
    };
    task.set_sleep_costs(slept_ns);
    let alarm_ns = task.alarm_ns();
    let ticks = task.settle_ticks(first);
    settle_timed(&mut task.steps, &task.timed, &task.alarms, first);
    let after = |time: u64| time.saturating_sub(first);
    let moves = task.moves.iter();
    let late = late_by_step(&task.timed);
    let waits = task.waits.iter().map(|wait| Wait {
        step: wait.step as u32,
        began_ns: after(wait.began),
        ended_ns: after(wait.woken),
        late_us: late.get(&wait.step).copied().unwrap_or(0),
        caller: wait.caller,
    });
    RecordedTask {
        tid: task.tid,
        name: task.name,
        vcpu,
        vm: vcpu
            .map(|vcpu| vcpu.0)
            .or_else(|| vms.get(&task.tid).copied()),
        nice: task.prio.saturating_sub(120).clamp(-20, 19) as i8,
        ran_on: task.cpus.iter().copied().collect(),
        first_cpu: task.first_cpu.unwrap_or(0),
        begins: begins.map(|birth| Begins {
            at_ns: after(birth.time),
            is_seen: birth.is_seen,
        }),
        ends_ns: task.died.map(after),
        switches_in: task.switches_in,
        moves: moves.map(|&(time, cpu)| (after(time), cpu)).collect(),
        then: continuation,
        alarm_ns,
        ticks,
        exits: task.exits,
        waits: waits.collect(),
        stalls: Arc::from(task.stalls),
        called: late_since(&task.calls, first, counted_ns),
        steps: Arc::from(task.steps),
    }
}

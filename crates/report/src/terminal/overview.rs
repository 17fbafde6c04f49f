//! What an operator looks at first: the longest waits, whole VMs, CPUs, and all of it over time.

use stealtime_analysis::Answers;
use stealtime_analysis::answers::{CpuUse, Stall, cause_in_words};

use super::grid::{Grid, number, text};
use super::time::vcpu_number;
use super::{Section, nothing};
use crate::units::{Times, count, count_or_dash, counted, share};

/// Marks of a sparkline in a line of its own.
const LINE: usize = 48;
/// Marks of one next to some columns: both fit 100 columns.
const COLUMN: usize = 24;
/// From nothing to the highest value.
pub(crate) const LEVELS: [char; 9] = ['·', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Values as marks, the highest of them as a full one.
pub(crate) fn sparkline(values: &[u64]) -> String {
    let highest = values.iter().copied().max().unwrap_or(0);
    let level = |value: &u64| match highest {
        0 => 0,
        // Rounded up: what is not nothing has a mark.
        highest => (u128::from(*value) * 8).div_ceil(u128::from(highest)) as usize,
    };
    values
        .iter()
        .map(|value| LEVELS[level(value).min(8)])
        .collect()
}

/// Buckets put together to at most so many marks, and how many are one mark.
pub(crate) fn marks(values: &[u64], limit: usize) -> (Vec<u64>, u64) {
    let together = values.len().div_ceil(limit).max(1);
    let sums = values.chunks(together);
    let sums = sums.map(|part| part.iter().fold(0, |sum: u64, ns| sum.saturating_add(*ns)));
    (sums.collect(), together as u64)
}

/// Steal of all VMs over time.
pub(crate) fn steal_over_time(answers: &Answers) -> Vec<u64> {
    let mut sums = vec![0_u64; answers.over_time.buckets as usize];
    for vm in &answers.over_time.vms {
        let pairs = sums.iter_mut().zip(&vm.steal_ns);
        pairs.for_each(|(sum, ns)| *sum = sum.saturating_add(*ns));
    }
    sums
}

/// Lines of the header: what CPUs do, and steal over time.
pub(crate) fn facts(answers: &Answers, times: Times) -> Vec<String> {
    if answers.vcpus.is_empty() {
        return Vec::new();
    }
    [cpus(answers), steal(answers, times)]
        .into_iter()
        .flatten()
        .collect()
}

fn cpus(answers: &Answers) -> Option<String> {
    let host = &answers.host;
    let sum = |time: fn(&CpuUse) -> Option<u64>| {
        let mut times = host.cpus.iter().map(time);
        times.try_fold(0_u64, |sum, ns| Some(sum.saturating_add(ns?)))
    };
    let (vcpu, rest, idle) = (
        sum(|cpu| cpu.vcpu_ns)?,
        sum(|cpu| cpu.other_ns)?,
        sum(|cpu| cpu.idle_ns)?,
    );
    let busy = vcpu.saturating_add(rest);
    let whole = busy.saturating_add(idle);
    if whole == 0 {
        return None;
    }
    // The CPUs seen: of a selection, or all.
    let tenths = u64::from(host.vcpus) * 10 / (host.cpus.len() as u64).max(1);
    let rate = u128::from(host.switches) * 1_000_000_000 / u128::from(host.span_ns.max(1));
    let switches = match Times::of(&answers.source.clock_unit) {
        Times::Ns => format!(
            ", {} switches/s",
            count(u64::try_from(rate).unwrap_or(u64::MAX))
        ),
        Times::Ticks => String::new(),
    };
    Some(format!(
        "CPUs: {} busy (vCPUs {}, other tasks {}), {}.{} vCPUs per CPU{switches}",
        share(busy, whole),
        share(vcpu, whole),
        share(rest, whole),
        tenths / 10,
        tenths % 10
    ))
}

fn steal(answers: &Answers, times: Times) -> Option<String> {
    let sum = |total: u64, ns: u64| total.saturating_add(ns);
    let vcpus = answers.vcpus.iter();
    let stolen = vcpus
        .clone()
        .map(|vcpu| vcpu.preempted_ns.saturating_add(vcpu.wake_wait_ns));
    let stolen = stolen.fold(0, sum);
    let span = vcpus.map(|vcpu| vcpu.span_ns).fold(0, sum);
    if stolen == 0 {
        return None;
    }
    let (marks, together) = marks(&steal_over_time(answers), LINE);
    let width = answers.over_time.width_ns.saturating_mul(together);
    let highest = marks.iter().copied().max().unwrap_or(0);
    Some(format!(
        "steal: {} of vCPU time {} (each mark {}, the highest {} of it)",
        share(stolen, span),
        sparkline(&marks),
        times.show(width).replace("  s", " s"),
        share(highest, width.saturating_mul(answers.host.vcpus.into()))
    ))
}

/// The occupant of the CPU in a wait: the task, and the VM if it is another one's.
fn occupant(stall: &Stall) -> String {
    match (&stall.task, stall.cause.as_str()) {
        (Some(task), "vcpu_other_vm") => format!("{task} of {}", stall.who),
        (Some(task), _) => task.clone(),
        (None, _) => stall.who.clone(),
    }
}

/// The longest waits.
pub(super) fn stalls(answers: &Answers, times: Times) -> Section {
    let mut grid = Grid::new(&[
        text("VM"),
        number("vCPU"),
        number("at"),
        number("waited"),
        text("after"),
        number("CPU"),
        text("the CPU had"),
        text("who"),
        number("for"),
    ]);
    for stall in &answers.stalls {
        let after = stall.start_ns.saturating_sub(answers.source.first_ns);
        grid.row([
            stall.vm.clone(),
            vcpu_number(stall.vcpu),
            times.show(after),
            times.show(stall.ns),
            stall.kind.clone(),
            stall.cpu.to_string(),
            cause_in_words(&stall.cause).to_owned(),
            occupant(stall),
            times.show(stall.cause_ns),
        ]);
    }
    let export = answers
        .stalls
        .first()
        .and_then(|stall| stall.export.as_ref());
    Section::new(
        "Longest waits for a CPU",
        grid,
        match longer(answers, times) {
            Some(_) if answers.waits.iter().any(|row| row.count > 0) => {
                "No wait is longer than the limit.".to_owned()
            }
            _ => nothing(
                answers,
                "waiting for a CPU",
                &["sched:sched_switch", "sched:sched_wakeup"],
            ),
        },
    )
    .explained("At: since the first event. For: how long the CPU had it during the wait.")
    .with_foot(longer(answers, times).unwrap_or_default())
    .with_command(export.cloned().unwrap_or_default())
}

/// How many waits are longer than the limit.
fn longer(answers: &Answers, times: Times) -> Option<String> {
    let sum = |value: fn(&stealtime_analysis::answers::Waits) -> Option<u64>| {
        let mut values = answers.waits.iter().filter_map(value).peekable();
        values.peek()?;
        Some(values.fold(0_u64, u64::saturating_add))
    };
    let (longer, ns) = (sum(|row| row.longer)?, sum(|row| row.longer_ns)?);
    Some(format!(
        "Longer than the limit: {}, together {}.",
        counted(longer, "wait"),
        times.show(ns).replace("  s", " s")
    ))
}

/// Single waits by length.
pub(super) fn waits(answers: &Answers, times: Times) -> Section {
    let mut grid = Grid::new(&[
        text("VM"),
        number("waits"),
        number("<10us"),
        number("<100us"),
        number("<1ms"),
        number("<10ms"),
        number("<100ms"),
        number("longer"),
        number("p50"),
        number("p99"),
        number("longest"),
    ]);
    for row in answers.waits.iter().filter(|row| row.count > 0) {
        let classes = row.classes.iter().map(|class| count_or_dash(class.count));
        let head = [row.vm.clone(), count(row.count)].into_iter();
        let times = [row.p50_ns, row.p99_ns, row.max_ns].map(|ns| times.show(ns));
        grid.row(head.chain(classes).chain(times));
        grid.weigh(row.ns);
    }
    Section::new(
        "Single waits for a CPU",
        grid,
        nothing(answers, "wait", &["sched:sched_switch"]),
    )
    .explained("Counts of waits by their length.")
    .summed("of waiting")
}

/// Whole VMs.
pub(super) fn states(answers: &Answers) -> Section {
    let mut grid = Grid::new(&[
        text("VM"),
        number("vCPUs"),
        number("steal"),
        number("all run"),
        number("some run"),
        number("hazard"),
        number("none run"),
        number("asleep"),
        text("steal over time"),
    ]);
    let rows = answers.vm_states.iter().zip(&answers.over_time.vms);
    let mut per_mark = 0;
    for (row, over_time) in rows {
        let known = row.instants.saturating_sub(row.unknown);
        let part = |instants: u64| share(instants, known);
        let vcpus = answers.vcpus.iter().filter(|vcpu| vcpu.vm == row.vm);
        let (stolen, span) = vcpus.fold((0_u64, 0_u64), |(stolen, span), vcpu| {
            let ns = vcpu.preempted_ns.saturating_add(vcpu.wake_wait_ns);
            (stolen.saturating_add(ns), span.saturating_add(vcpu.span_ns))
        });
        let (marks, together) = marks(&over_time.steal_ns, COLUMN);
        per_mark = answers.over_time.width_ns.saturating_mul(together);
        grid.row([
            row.vm.clone(),
            row.vcpus.to_string(),
            share(stolen, span),
            part(row.full_run),
            part(row.partial_run),
            part(row.concurrency_hazard),
            part(row.full_contention + row.partial_contention),
            part(row.blocked),
            sparkline(&marks),
        ]);
        grid.weigh(stolen);
    }
    let times = Times::of(&answers.source.clock_unit);
    let foot = match per_mark {
        0 => String::new(),
        ns => format!("Each mark is {}.", times.show(ns).replace("  s", " s")),
    };
    Section::new(
        "Whole VMs",
        grid,
        nothing(answers, "VM", &["kvm:kvm_entry"]),
    )
    .explained(
        "Share of time in which all vCPUs run; some run and the others sleep; some run while others \
         wait (concurrency hazard); none runs and some wait; all sleep.",
    )
    .with_foot(foot)
    .summed("of steal")
}

/// The host's CPUs.
pub(super) fn host(answers: &Answers, times: Times) -> Section {
    let mut grid = Grid::new(&[
        number("CPU"),
        number("busy"),
        number("vCPUs"),
        number("other tasks"),
        number("idle"),
        number("vCPUs waited"),
        number("switches"),
        text("busy over time"),
    ]);
    let known = |cpu: &CpuUse| Some((cpu.vcpu_ns?, cpu.other_ns?, cpu.idle_ns?));
    for (cpu, (vcpu, rest, idle)) in answers
        .host
        .cpus
        .iter()
        .filter_map(|cpu| Some((cpu, known(cpu)?)))
    {
        let busy = vcpu.saturating_add(rest);
        let whole = busy.saturating_add(idle);
        let over_time = answers.over_time.cpus.iter().find(|row| row.cpu == cpu.cpu);
        let marks = over_time
            .map(|row| marks(&row.busy_ns, COLUMN).0)
            .unwrap_or_default();
        grid.row([
            cpu.cpu.to_string(),
            share(busy, whole),
            share(vcpu, whole),
            share(rest, whole),
            share(idle, whole),
            times.show_or_dash(cpu.waiting_ns.unwrap_or(0)),
            count(cpu.switches),
            sparkline(&marks),
        ]);
        grid.weigh(busy);
    }
    Section::new(
        "CPUs of the host",
        grid,
        nothing(answers, "CPU", &["sched:sched_switch"]),
    )
    .explained("Shares of the time in which the current task is known.")
    .summed("of work")
}

/// CPU time of VMM threads.
pub(super) fn vmm_threads(answers: &Answers, times: Times) -> Section {
    let mut grid = Grid::new(&[
        text("VM"),
        text("threads"),
        number("number"),
        number("CPU time"),
        number("of a CPU"),
        text("most"),
        number("tid"),
        number("time"),
    ]);
    for row in &answers.vmm_threads {
        let vm = match row.vm.as_str() {
            "" => "(not known)",
            vm => vm,
        };
        grid.row([
            vm.to_owned(),
            row.role.clone(),
            row.threads.to_string(),
            times.show(row.cpu_ns),
            share(row.cpu_ns, answers.host.span_ns),
            row.task.clone(),
            row.tid.to_string(),
            times.show(row.task_ns),
        ]);
        grid.weigh(row.cpu_ns);
    }
    Section::new(
        "Threads of VMMs",
        grid,
        nothing(answers, "thread of a VMM that ran", &["sched:sched_switch"]),
    )
    .explained("CPU time of emulators, iothreads and vhost, without vCPUs.")
    .summed("of CPU time")
}

/// Steal of VMs and use of CPUs over time.
pub(super) fn over_time(answers: &Answers, times: Times) -> Section {
    let mut grid = Grid::new(&[
        text("of"),
        number("number"),
        text("time"),
        number("on average"),
        number("highest"),
        text("over time"),
    ]);
    let span = answers.host.span_ns;
    let width = answers.over_time.width_ns;
    let mut row = |name: String, parallel: u64, quantity: &str, values: &[u64]| {
        let (marks, together) = marks(values, LINE);
        let sum = values.iter().fold(0_u64, |sum, ns| sum.saturating_add(*ns));
        let highest = marks.iter().copied().max().unwrap_or(0);
        let per_mark = width.saturating_mul(together).saturating_mul(parallel);
        grid.row([
            name,
            parallel.to_string(),
            quantity.to_owned(),
            share(sum, span.saturating_mul(parallel)),
            share(highest, per_mark),
            sparkline(&marks),
        ]);
    };
    for vm in &answers.over_time.vms {
        row(
            vm.vm.clone(),
            vm.vcpus.into(),
            "waiting for a CPU",
            &vm.steal_ns,
        );
    }
    for cpu in &answers.over_time.cpus {
        row(format!("CPU {}", cpu.cpu), 1, "busy", &cpu.busy_ns);
    }
    let marks = marks(&steal_over_time(answers), LINE);
    let foot = format!(
        "Each mark is {}.",
        times
            .show(width.saturating_mul(marks.1))
            .replace("  s", " s")
    );
    Section::new(
        "Over time",
        grid,
        nothing(answers, "VM", &["kvm:kvm_entry"]),
    )
    .explained("Of a VM the number of its vCPUs; shares are of the time of all of them.")
    .with_foot(foot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_nothing_has_a_mark() {
        assert_eq!(sparkline(&[0, 1, 500, 1000]), "·▁▄█");
        assert_eq!(sparkline(&[0, 0]), "··");
        assert_eq!(sparkline(&[u64::MAX]), "█");
        assert_eq!(marks(&[1; 96], LINE), (vec![2; 48], 2));
    }
}

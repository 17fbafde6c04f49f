//! From a sample to the rows of a table, for text and for the screen.

use clap::ValueEnum;
use stealtime_analysis::per_mille;
use stealtime_collector::{Sample, Stall, Times, Vcpu, Vm, Wakeups};
use stealtime_report::{count, counted, escape};

use crate::watched::Cost;

/// A column of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Column {
    /// The VM's name
    Name,
    /// Number of vCPUs
    Vcpus,
    /// In the guest
    Guest,
    /// Handling exits, in KVM or in the VMM
    Exits,
    /// Polling for a wakeup
    Poll,
    /// Waiting for a CPU: steal
    Ready,
    /// Of that: the VM's bandwidth is used up
    Throttled,
    /// Halted or asleep
    Halt,
    /// 99th percentile of wakeup latency
    Wakeup,
    /// The longest wait for a CPU
    Stall,
    /// Exits a second
    Rate,
}

impl Column {
    /// All, from left to right.
    pub(crate) const ALL: [Self; 11] = [
        Self::Name,
        Self::Vcpus,
        Self::Guest,
        Self::Exits,
        Self::Poll,
        Self::Ready,
        Self::Throttled,
        Self::Halt,
        Self::Wakeup,
        Self::Stall,
        Self::Rate,
    ];

    /// Its title.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Name => "VM",
            Self::Vcpus => "vCPUs",
            Self::Guest => "guest",
            Self::Exits => "exits",
            Self::Poll => "poll",
            Self::Ready => "ready",
            Self::Throttled => "throttled",
            Self::Halt => "halted",
            Self::Wakeup => "wakeup p99",
            Self::Stall => "longest wait",
            Self::Rate => "exits/s",
        }
    }

    /// The columns that a screen of `width` cells shows whole, from left to right. A number that is cut
    /// on its left reads as another one.
    pub(crate) fn fitting(width: u16, sort: Self) -> Vec<Self> {
        /// Those that go first in a narrow terminal come last.
        const BY_NEED: [Column; 10] = [
            Column::Ready,
            Column::Stall,
            Column::Guest,
            Column::Throttled,
            Column::Wakeup,
            Column::Exits,
            Column::Halt,
            Column::Poll,
            Column::Vcpus,
            Column::Rate,
        ];
        let mut shown = vec![Self::Name];
        let mut room = width.saturating_sub(Self::Name.width());
        let first = (sort != Self::Name).then_some(sort);
        let further = BY_NEED.into_iter().filter(|&column| column != sort);
        for column in first.into_iter().chain(further) {
            let needed = column.width() + 1;
            // Names may be cut for the column by which rows stand.
            let cuts_names = column == sort && needed < width;
            if needed > room && !cuts_names {
                break;
            }
            room = room.saturating_sub(needed);
            shown.push(column);
        }
        shown.sort_by_key(|&column| column as usize);
        shown
    }

    /// Its width on the screen, in cells; of the first the least.
    pub(crate) const fn width(self) -> u16 {
        match self {
            Self::Name => 16,
            Self::Vcpus => 5,
            Self::Guest | Self::Exits | Self::Poll | Self::Ready | Self::Halt => 6,
            Self::Throttled => 9,
            Self::Wakeup => 10,
            Self::Stall => 12,
            Self::Rate => 10,
        }
    }
}

/// What of a sample is shown, and in which order.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    pub(crate) sort: Column,
    pub(crate) reverse: bool,
    /// A part of the names of VMs.
    pub(crate) filter: String,
    pub(crate) vcpus: bool,
}

/// A row: a VM, or a vCPU below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    /// The VM's name as it is, to find it again.
    pub(crate) vm: String,
    /// Text of each column, safe for a terminal.
    pub(crate) cells: [String; Column::ALL.len()],
    pub(crate) is_vcpu: bool,
    /// Share of its time that it waits for a CPU, in per mille.
    pub(crate) ready: u64,
}

fn percent(part: u64, whole: u64) -> String {
    let share = 100.0 * part as f64 / whole.max(1) as f64;
    format!("{share:.1}%")
}

/// A time in ns with three digits and a unit.
pub(crate) fn time(ns: u64) -> String {
    let (value, unit) = match ns {
        0 => return "-".to_owned(),
        ns if ns < 1_000 => return format!("{ns} ns"),
        ns if ns < 999_500 => (ns as f64 / 1e3, "us"),
        ns if ns < 999_500_000 => (ns as f64 / 1e6, "ms"),
        ns => (ns as f64 / 1e9, "s"),
    };
    match value {
        value if value < 9.995 => format!("{value:.2} {unit}"),
        value if value < 99.95 => format!("{value:.1} {unit}"),
        value => format!("{value:.0} {unit}"),
    }
}

/// Events in `length` ns as a rate a second.
fn rate(events: u64, length: u64) -> String {
    let rate = u128::from(events) * 1_000_000_000 / u128::from(length.max(1));
    count(u64::try_from(rate).unwrap_or(u64::MAX))
}

/// The cells of a row. Rates are of `length`, the interval in ns.
fn cells(
    titles: [String; 2],
    times: &Times,
    length: u64,
    wakeups: &Wakeups,
    stall_ns: u64,
) -> [String; Column::ALL.len()] {
    let [name, vcpus] = titles;
    let whole = times.total_ns();
    [
        name,
        vcpus,
        percent(times.guest_ns, whole),
        percent(times.exit_ns, whole),
        percent(times.poll_ns, whole),
        percent(times.ready_ns, whole),
        percent(times.ready.throttled, whole),
        percent(times.halt_ns, whole),
        time(wakeups.p99_ns),
        time(stall_ns),
        rate(times.exits, length),
    ]
}

fn stall_of(vm: &Vm) -> u64 {
    vm.vcpus.iter().map(|vcpu| vcpu.stall_ns).max().unwrap_or(0)
}

/// The VMs that are shown, in their order.
pub(crate) fn vms<'s>(sample: &'s Sample, shape: &Shape) -> Vec<&'s Vm> {
    let filter = shape.filter.to_lowercase();
    let is_shown = |vm: &&Vm| vm.vm.to_lowercase().contains(&filter);
    let mut vms: Vec<&Vm> = sample.vms.iter().filter(is_shown).collect();
    vms.sort_by(|a, b| a.vm.cmp(&b.vm));
    let share = |part: u64, vm: &Vm| per_mille(part, vm.times.total_ns());
    let key = |vm: &Vm| match shape.sort {
        Column::Name => 0,
        Column::Vcpus => vm.vcpus.len() as u64,
        Column::Guest => share(vm.times.guest_ns, vm),
        Column::Exits => share(vm.times.exit_ns, vm),
        Column::Poll => share(vm.times.poll_ns, vm),
        Column::Ready => share(vm.times.ready_ns, vm),
        Column::Throttled => share(vm.times.ready.throttled, vm),
        Column::Halt => share(vm.times.halt_ns, vm),
        Column::Wakeup => vm.wakeups.p99_ns,
        Column::Stall => stall_of(vm),
        Column::Rate => vm.times.exits,
    };
    vms.sort_by_key(|vm| std::cmp::Reverse(key(vm)));
    if shape.reverse {
        vms.reverse();
    }
    vms
}

/// The rows of the table.
pub(crate) fn rows(sample: &Sample, shape: &Shape) -> Vec<Row> {
    let length = sample.length_ns();
    let mut rows = Vec::new();
    for vm in vms(sample, shape) {
        let guess = if vm.guessed { "?" } else { "" };
        let name = format!("{}{guess}", escape::short(&escape::terminal(&vm.vm), 40));
        let titles = [name, vm.vcpus.len().to_string()];
        rows.push(Row {
            vm: vm.vm.clone(),
            cells: cells(titles, &vm.times, length, &vm.wakeups, stall_of(vm)),
            is_vcpu: false,
            ready: per_mille(vm.times.ready_ns, vm.times.total_ns()),
        });
        if shape.vcpus {
            rows.extend(vm.vcpus.iter().map(|vcpu| vcpu_row(vm, vcpu, length)));
        }
    }
    rows
}

/// A vCPU by its number, else by its thread.
pub(crate) fn vcpu_name(vcpu: u32, tid: i32) -> String {
    match vcpu {
        u32::MAX => format!("thread {tid}"),
        number => format!("vCPU {number}"),
    }
}

/// The row of a vCPU.
pub(crate) fn vcpu_row(vm: &Vm, vcpu: &Vcpu, length: u64) -> Row {
    let ended = if vcpu.has_ended { " ended" } else { "" };
    let name = vcpu_name(vcpu.vcpu, vcpu.tid);
    let titles = [format!("  {name}{ended}"), String::new()];
    Row {
        vm: vm.vm.clone(),
        cells: cells(titles, &vcpu.times, length, &vcpu.wakeups, vcpu.stall_ns),
        is_vcpu: true,
        ready: per_mille(vcpu.times.ready_ns, vcpu.times.total_ns()),
    }
}

/// A line on the interval: its events, losses and cost.
pub(crate) fn summary(sample: &Sample, cost: &Cost) -> String {
    let lost = match (sample.lost, sample.lost_gaps) {
        (0, 0) if sample.partial => "PARTIAL: the clock jumped".to_owned(),
        (0, 0) => "none lost".to_owned(),
        (lost, 0) => format!("PARTIAL: {} lost", count(lost)),
        (lost, _) => format!("PARTIAL: {} lost and more", count(lost)),
    };
    let length = sample.length_ns();
    let means = match cost.by {
        Some("bpf") => " by BPF",
        _ => "",
    };
    let cost = cost.cpu_ns.map_or_else(String::new, |ns| {
        format!(", collecting{means} took {} of a CPU", percent(ns, length))
    });
    let vcpus: usize = sample.vms.iter().map(|vm| vm.vcpus.len()).sum();
    format!(
        "{}, {}; {} events/s, {lost}{cost}",
        counted(sample.vms.len() as u64, "VM"),
        counted(vcpus as u64, "vCPU"),
        rate(sample.events, length)
    )
}

/// A line on the host's CPUs.
pub(crate) fn cpus(sample: &Sample) -> String {
    let sum = |part: fn(&stealtime_collector::Cpu) -> u64| sample.cpus.iter().map(part).sum();
    let whole = sample.cpus.len() as u64 * sample.length_ns();
    let (vcpu, tasks): (u64, u64) = (sum(|cpu| cpu.vcpu_ns), sum(|cpu| cpu.other_ns));
    let (idle, waiting): (u64, u64) = (sum(|cpu| cpu.idle_ns), sum(|cpu| cpu.waiting_ns));
    format!(
        "{} CPUs: vCPU threads {}, other tasks {}, idle {}; {:.2} vCPUs wait on average",
        sample.cpus.len(),
        percent(vcpu, whole),
        percent(tasks, whole),
        percent(idle, whole),
        waiting as f64 / sample.length_ns().max(1) as f64
    )
}

/// A line on a wait for a CPU. `now` is the end of the latest sample, in ns.
pub(crate) fn stall(stall: &Stall, now: u64) -> String {
    let occupant = escape::terminal(&stall.who);
    let cause = stealtime_analysis::answers::cause_in_words(stall.cause);
    let cause = match occupant.is_empty() {
        true => cause.to_owned(),
        false => format!("{cause}: {occupant}"),
    };
    let end = stall.start_ns.saturating_add(stall.ns);
    let age = match stall.goes_on {
        true => "still waits".to_owned(),
        false => format!("{:.1} s ago", now.saturating_sub(end) as f64 / 1e9),
    };
    format!(
        "{:>8}  {:<8} CPU {:<3} {:9}  {cause}  ({age})",
        time(stall.ns),
        vcpu_name(stall.vcpu, stall.tid),
        stall.cpu,
        stall.kind
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `watch` and `analyze` count it.
    #[test]
    fn shares_are_of_the_time_that_vcpus_exist() {
        let times = Times {
            guest_ns: 100,
            ready_ns: 300,
            ..Times::default()
        };
        let vcpu = Vcpu {
            times,
            has_ended: true,
            ..Vcpu::default()
        };
        let sample = Sample {
            end_ns: 1000,
            vms: vec![Vm {
                times,
                vcpus: vec![vcpu],
                ..Vm::default()
            }],
            ..Sample::default()
        };
        let shape = Shape {
            sort: Column::Ready,
            reverse: false,
            filter: String::new(),
            vcpus: true,
        };
        let rows = rows(&sample, &shape);
        assert_eq!(rows.len(), 2);
        for row in rows {
            assert_eq!(row.cells[Column::Ready as usize], "75.0%");
            assert_eq!(row.ready, 750);
        }
    }

    #[test]
    fn a_vcpu_without_a_number_is_named_by_its_thread() {
        let waited = |vcpu| {
            let stall = Stall {
                vcpu,
                tid: 77,
                ..Stall::default()
            };
            super::stall(&stall, 0)
        };
        assert!(waited(3).contains(" vCPU 3 "), "{}", waited(3));
        assert!(waited(u32::MAX).contains(" thread 77 "));
    }

    #[test]
    fn times_have_three_digits() {
        let shown = [
            0,
            7,
            1_234,
            56_789,
            999_499,
            999_500,
            12_345_678,
            1_500_000_000,
        ];
        assert_eq!(
            shown.map(time),
            [
                "-", "7 ns", "1.23 us", "56.8 us", "999 us", "1.00 ms", "12.3 ms", "1.50 s"
            ]
        );
    }
}

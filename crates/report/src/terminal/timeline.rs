//! What CPUs did in a short time, as one line of characters each.

use std::collections::BTreeMap;
use std::ops::Range;

use stealtime_events::{Event, Kind, Names, Tid};
use stealtime_lab::units::show_time;
use stealtime_track::{Exit, Observer, Place, Tracker, VcpuIndex};

use super::{Screen, Style};

/// Columns of time: with the CPU's number a line has at most 100.
const SLOTS: usize = 88;
/// Names in the legend: more would be longer than the picture.
const MOST_NAMED: usize = 40;

/// What has a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Holder {
    Idle,
    Interrupt,
    /// A VM's vCPU in the guest.
    Guest(usize),
    /// A VM's vCPU thread in the host.
    Host(usize),
    /// Another task.
    Task(Tid),
}

/// A CPU at its latest event.
#[derive(Clone, Debug)]
struct Cpu {
    tid: Tid,
    in_guest: bool,
    /// Interrupts that are not over.
    interrupts: u32,
    since_ns: u64,
    /// ns by slot and holder.
    slots: Vec<BTreeMap<Holder, u64>>,
}

impl Cpu {
    /// Books the time up to `now` for what has had the CPU.
    fn settle(&mut self, now: u64, window: &Range<u64>, vcpus: &BTreeMap<Tid, usize>) {
        let holder = match (self.interrupts, vcpus.get(&self.tid)) {
            (1.., _) => Holder::Interrupt,
            (_, Some(vm)) if self.in_guest => Holder::Guest(*vm),
            (_, Some(vm)) => Holder::Host(*vm),
            _ if self.tid == Tid::IDLE => Holder::Idle,
            _ => Holder::Task(self.tid),
        };
        let (mut begin, end) = (self.since_ns.max(window.start), now.min(window.end));
        self.since_ns = now;
        let length = u128::from(window.end - window.start);
        while begin < end {
            let slot = (u128::from(begin - window.start) * SLOTS as u128 / length) as usize;
            // The first ns of the next slot, rounded up.
            let next = (slot as u128 + 1) * length;
            let next = window.start + next.div_ceil(SLOTS as u128) as u64;
            let slot_end = next.min(end).max(begin + 1);
            if let Some(parts) = self.slots.get_mut(slot) {
                *parts.entry(holder).or_default() += slot_end - begin;
            }
            begin = slot_end;
        }
    }
}

/// Gathers what CPUs do from events in the order of time.
#[derive(Debug)]
pub struct Timeline {
    tracker: Tracker<Painter>,
}

/// The observer that fills the lines.
#[derive(Debug)]
struct Painter {
    /// The window, ns.
    window: Range<u64>,
    vm_names: Vec<String>,
    cpus: BTreeMap<u16, Cpu>,
    /// Processes of VMs, in the order of their VMs.
    processes: Vec<Tid>,
    /// VMs of vCPU threads.
    vcpus: BTreeMap<Tid, usize>,
    tasks: BTreeMap<Tid, Task>,
}

/// A task as the recording introduces it.
#[derive(Debug)]
struct Task {
    process: Tid,
    name: String,
}

impl Timeline {
    /// A timeline of these CPUs from one time to another, in ns; `vm_names` in the order in which
    /// VMs' threads are introduced.
    #[must_use]
    pub fn new(from_ns: u64, until_ns: u64, cpus: &[u16], vm_names: Vec<String>) -> Self {
        let cpu = Cpu {
            tid: Tid::IDLE,
            in_guest: false,
            interrupts: 0,
            since_ns: 0,
            slots: vec![BTreeMap::new(); SLOTS],
        };
        let painter = Painter {
            window: from_ns..until_ns.max(from_ns.saturating_add(1)),
            vm_names,
            cpus: cpus.iter().map(|number| (*number, cpu.clone())).collect(),
            processes: Vec::new(),
            vcpus: BTreeMap::new(),
            tasks: BTreeMap::new(),
        };
        Self {
            tracker: Tracker::new(painter),
        }
    }

    /// Takes the next event.
    pub fn event(&mut self, event: &Event, names: &dyn Names) {
        if let Kind::Task { tid, process, name } = event.kind {
            let name = names.name(name).to_owned();
            let tasks = &mut self.tracker.observer_mut().tasks;
            tasks.insert(tid, Task { process, name });
        }
        self.tracker.event(event, names);
    }

    /// The picture: each column shows what had most of its time.
    #[must_use]
    pub fn render(mut self, style: Style) -> String {
        self.tracker.observer_mut().render(style)
    }
}

impl Observer for Painter {
    fn vcpu_found(&mut self, _: VcpuIndex, tid: Tid) {
        let process = self.tasks.get(&tid).map_or(Tid(0), |task| task.process);
        let known = self.processes.iter().position(|known| *known == process);
        let vm = known.unwrap_or_else(|| {
            self.processes.push(process);
            self.processes.len() - 1
        });
        self.vcpus.insert(tid, vm);
    }

    fn task_current(&mut self, cpu: u16, tid: Tid, time: u64) {
        self.change(cpu, time, |cpu| {
            cpu.tid = tid;
            cpu.in_guest = false;
        });
    }

    fn entry(&mut self, _: VcpuIndex, place: &Place, _: u64) {
        self.change(place.cpu, place.time, |cpu| cpu.in_guest = true);
    }

    fn exit(&mut self, _: VcpuIndex, place: &Place, _: &Exit) {
        self.change(place.cpu, place.time, |cpu| cpu.in_guest = false);
    }

    fn event(&mut self, event: &Event, place: &Place, _: &dyn Names) {
        match event.kind {
            Kind::VectorEntry { .. } | Kind::IrqHandlerEntry { .. } => {
                self.change(place.cpu, place.time, |cpu| cpu.interrupts += 1);
            }
            Kind::VectorExit { .. } | Kind::IrqHandlerExit { .. } => {
                self.change(place.cpu, place.time, |cpu| {
                    cpu.interrupts = cpu.interrupts.saturating_sub(1);
                });
            }
            _ => {}
        }
    }
}

impl Painter {
    /// Books a CPU's time up to `now` for its holder, then changes the CPU.
    fn change(&mut self, number: u16, now: u64, change: impl FnOnce(&mut Cpu)) {
        if let Some(cpu) = self.cpus.get_mut(&number) {
            cpu.settle(now, &self.window, &self.vcpus);
            change(cpu);
        }
    }

    fn render(&mut self, style: Style) -> String {
        for cpu in self.cpus.values_mut() {
            cpu.settle(self.window.end, &self.window, &self.vcpus);
        }
        let mut screen = Screen::new(style);
        let length = self.window.end - self.window.start;
        screen.heading(&format!(
            "From {} on, {}; each column is {} ns",
            show_time(self.window.start),
            show_time(length),
            length / SLOTS as u64
        ));
        let tasks = self.drawn_tasks();
        for (number, cpu) in &self.cpus {
            let line: String = cpu
                .slots
                .iter()
                .map(|parts| mark(most(parts), &tasks))
                .collect();
            screen.line(&format!("CPU {number:>4} {line}"));
        }
        screen.dim(0, &self.legend(&tasks));
        screen.text
    }

    /// Tasks that have a column, in the order of their ids.
    fn drawn_tasks(&self) -> Vec<Tid> {
        let parts = self.cpus.values().flat_map(|cpu| &cpu.slots);
        let mut tasks: Vec<Tid> = parts
            .filter_map(|parts| match most(parts) {
                Holder::Task(tid) => Some(tid),
                _ => None,
            })
            .collect();
        tasks.sort_unstable();
        tasks.dedup();
        tasks
    }

    /// What the letters stand for.
    fn legend(&self, tasks: &[Tid]) -> String {
        let shown: Vec<Holder> = self
            .cpus
            .values()
            .flat_map(|cpu| cpu.slots.iter().map(most))
            .collect();
        let mut parts = vec![". idle".to_owned(), "! host interrupt".to_owned()];
        for (vm, name) in self.vm_names.iter().enumerate().take(MOST_NAMED) {
            if shown.contains(&Holder::Guest(vm)) || shown.contains(&Holder::Host(vm)) {
                let (guest, host) = (
                    mark(Holder::Guest(vm), tasks),
                    mark(Holder::Host(vm), tasks),
                );
                parts.push(format!(
                    "{guest} guest {name} ({host} its thread in the host)"
                ));
            }
        }
        for task in tasks.iter().take(MOST_NAMED) {
            let name = self.tasks.get(task).map_or("?", |task| task.name.as_str());
            parts.push(format!("{} {name}", mark(Holder::Task(*task), tasks)));
        }
        parts.join(", ")
    }
}

/// What had most of a slot; the first of equals.
fn most(parts: &BTreeMap<Holder, u64>) -> Holder {
    let mut best = (Holder::Idle, 0);
    for (holder, ns) in parts {
        if *ns > best.1 {
            best = (*holder, *ns);
        }
    }
    best.0
}

fn mark(holder: Holder, tasks: &[Tid]) -> char {
    let letter = |first: u8, n: usize, overflow: char| match u8::try_from(n) {
        Ok(n @ 0..26) => char::from(first + n),
        _ => overflow,
    };
    match holder {
        Holder::Idle => '.',
        Holder::Interrupt => '!',
        Holder::Guest(vm) => letter(b'A', vm, '@'),
        Holder::Host(vm) => letter(b'a', vm, '*'),
        Holder::Task(tid) => match tasks.iter().position(|task| *task == tid) {
            Some(n @ 0..9) => char::from(b'1' + n as u8),
            _ => '+',
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stealtime_events::{Context, CpuId, NameId, VcpuId};

    struct Few;

    impl Names for Few {
        fn name(&self, id: NameId) -> &str {
            ["CPU 0/KVM", "backup"]
                .get(id.0 as usize)
                .copied()
                .unwrap_or("")
        }
    }

    fn feed(timeline: &mut Timeline, time_ns: u64, tid: i32, kind: Kind) {
        let event = Event {
            time_ns,
            tid: Tid(tid),
            cpu: CpuId(0),
            context: Context::default(),
            kind,
        };
        timeline.event(&event, &Few);
    }

    fn switch(prev: i32, next: i32) -> Kind {
        Kind::SchedSwitch {
            prev: Tid(prev),
            next: Tid(next),
            prev_prio: 120,
            next_prio: 120,
            prev_state: 0,
        }
    }

    #[test]
    fn each_column_shows_what_had_most_of_it() {
        let mut timeline = Timeline::new(1_000, 1_000 + 88_000, &[0, 3], vec!["web".into()]);
        feed(
            &mut timeline,
            0,
            0,
            Kind::Task {
                tid: Tid(7),
                process: Tid(5),
                name: NameId(0),
            },
        );
        feed(
            &mut timeline,
            0,
            0,
            Kind::Task {
                tid: Tid(9),
                process: Tid(9),
                name: NameId(1),
            },
        );
        feed(&mut timeline, 0, 0, switch(0, 7));
        feed(&mut timeline, 11_000, 7, Kind::KvmEntry { vcpu: VcpuId(0) });
        feed(&mut timeline, 21_400, 7, switch(7, 9));
        feed(&mut timeline, 31_000, 9, switch(9, 0));
        let text = timeline.render(Style::new(false));
        let line = text.lines().nth(1).expect("CPU 0");
        let expected = format!(
            "CPU    0 {}{}{}{}",
            "a".repeat(10),
            "A".repeat(10),
            "1".repeat(10),
            ".".repeat(58)
        );
        assert_eq!(line, expected);
        assert!(
            text.lines()
                .nth(2)
                .expect("CPU 3")
                .ends_with(&".".repeat(88))
        );
        assert!(
            text.contains("A guest web (a its thread in the host), 1 backup"),
            "{text}"
        );
        assert!(text.lines().all(|line| line.len() <= 100));
    }

    #[test]
    fn odd_spans_are_divided_without_a_gap() {
        for length in [1, 7, 87, 89, 1_000_003] {
            let mut timeline = Timeline::new(5, 5 + length, &[0], vec![]);
            feed(&mut timeline, 0, 0, switch(0, 9));
            let painter = timeline.tracker.observer_mut();
            painter.change(0, u64::MAX, |_| {});
            let total: u64 = painter.cpus[&0]
                .slots
                .iter()
                .flat_map(BTreeMap::values)
                .sum();
            assert_eq!(total, length);
        }
    }
}

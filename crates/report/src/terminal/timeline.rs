//! What CPUs did in a short time, as one line of characters each.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use stealtime_events::{Event, Kind, Names, Tid};
use stealtime_lab::units::show_time;
use stealtime_track::names::vcpu_in_name;

use super::Style;
use crate::escape;

/// Characters of a line, without the CPU's number.
const SLOTS: usize = 88;
/// Names in the legend.
const MOST_NAMED: usize = 40;

/// Who has a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    Idle,
    Interrupt,
    /// A VM's vCPU in the guest.
    Guest(usize),
    /// A VM's vCPU thread in the host.
    Host(usize),
    /// Another task.
    Task(Tid),
}

/// A CPU as it is now.
#[derive(Clone, Debug)]
struct Cpu {
    tid: Tid,
    in_guest: bool,
    /// Interrupts that are not over.
    interrupts: u32,
    since_ns: u64,
    /// ns by slot and who had them.
    slots: Vec<BTreeMap<Who, u64>>,
}

/// Gathers what CPUs do from events in the order of time.
#[derive(Clone, Debug)]
pub struct Timeline {
    from_ns: u64,
    until_ns: u64,
    vm_names: Vec<String>,
    cpus: BTreeMap<u16, Cpu>,
    /// Processes of VMs, in the order of their VMs.
    processes: Vec<Tid>,
    vcpus: BTreeMap<Tid, usize>,
    names: BTreeMap<Tid, String>,
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
        Self {
            from_ns,
            until_ns: until_ns.max(from_ns.saturating_add(1)),
            vm_names,
            cpus: cpus.iter().map(|number| (*number, cpu.clone())).collect(),
            processes: Vec::new(),
            vcpus: BTreeMap::new(),
            names: BTreeMap::new(),
        }
    }

    /// Takes the next event.
    pub fn event(&mut self, event: &Event, names: &dyn Names) {
        if let Kind::Task { tid, process, name } = event.kind {
            self.introduce(tid, process, names.name(name));
            return;
        }
        if !self.cpus.contains_key(&event.cpu.0) {
            return;
        }
        self.settle(event.cpu.0, event.time_ns);
        let Some(cpu) = self.cpus.get_mut(&event.cpu.0) else {
            return;
        };
        match event.kind {
            Kind::SchedSwitch { next, .. } => {
                cpu.tid = next;
                cpu.in_guest = false;
            }
            Kind::KvmEntry { .. } => cpu.in_guest = true,
            Kind::KvmExit { .. } => cpu.in_guest = false,
            Kind::VectorEntry { .. } | Kind::IrqHandlerEntry { .. } => cpu.interrupts += 1,
            Kind::VectorExit { .. } | Kind::IrqHandlerExit { .. } => {
                cpu.interrupts = cpu.interrupts.saturating_sub(1);
            }
            _ => {}
        }
    }

    fn introduce(&mut self, tid: Tid, process: Tid, name: &str) {
        if vcpu_in_name(name).is_some() {
            let known = self.processes.iter().position(|other| *other == process);
            let vm = known.unwrap_or_else(|| {
                self.processes.push(process);
                self.processes.len() - 1
            });
            self.vcpus.insert(tid, vm);
        }
        self.names.insert(tid, name.to_owned());
    }

    /// Books the time up to `now` for whoever had this CPU.
    fn settle(&mut self, number: u16, now: u64) {
        let Some(cpu) = self.cpus.get_mut(&number) else {
            return;
        };
        let who = match (cpu.interrupts, self.vcpus.get(&cpu.tid)) {
            (1.., _) => Who::Interrupt,
            (_, Some(vm)) if cpu.in_guest => Who::Guest(*vm),
            (_, Some(vm)) => Who::Host(*vm),
            _ if cpu.tid == Tid::IDLE => Who::Idle,
            _ => Who::Task(cpu.tid),
        };
        let (mut at, end) = (cpu.since_ns.max(self.from_ns), now.min(self.until_ns));
        cpu.since_ns = now;
        let span = u128::from(self.until_ns - self.from_ns);
        while at < end {
            let slot = (u128::from(at - self.from_ns) * SLOTS as u128 / span) as usize;
            // The first ns of the next slot, rounded up.
            let next = (slot as u128 + 1) * span;
            let next = self.from_ns + next.div_ceil(SLOTS as u128) as u64;
            let until = next.min(end).max(at + 1);
            if let Some(parts) = cpu.slots.get_mut(slot) {
                *parts.entry(who).or_default() += until - at;
            }
            at = until;
        }
    }

    /// The picture: in each column, who had most of its time.
    #[must_use]
    pub fn render(mut self, style: Style) -> String {
        let numbers: Vec<u16> = self.cpus.keys().copied().collect();
        for number in numbers {
            self.settle(number, self.until_ns);
        }
        let mut out = String::new();
        let span = self.until_ns - self.from_ns;
        let _ = writeln!(
            out,
            "{}",
            style.bold(&format!(
                "From {} on, {}; each column is {} ns",
                show_time(self.from_ns),
                show_time(span),
                span / SLOTS as u64
            ))
        );
        let tasks = self.tasks();
        for (number, cpu) in &self.cpus {
            let line: String = cpu
                .slots
                .iter()
                .map(|parts| mark(most(parts), &tasks))
                .collect();
            let _ = writeln!(out, "CPU {number:>4} {line}");
        }
        self.legend(&tasks, style, &mut out);
        out
    }

    /// Tasks that have a column, in the order of their ids.
    fn tasks(&self) -> Vec<Tid> {
        let parts = self.cpus.values().flat_map(|cpu| &cpu.slots);
        let mut tasks: Vec<Tid> = parts
            .filter_map(|parts| match most(parts) {
                Who::Task(tid) => Some(tid),
                _ => None,
            })
            .collect();
        tasks.sort_unstable();
        tasks.dedup();
        tasks
    }

    fn legend(&self, tasks: &[Tid], style: Style, out: &mut String) {
        let shown: Vec<Who> = self
            .cpus
            .values()
            .flat_map(|cpu| cpu.slots.iter().map(most))
            .collect();
        let mut parts = vec![". idle".to_owned(), "! host interrupt".to_owned()];
        for (vm, name) in self.vm_names.iter().enumerate().take(MOST_NAMED) {
            if shown.contains(&Who::Guest(vm)) || shown.contains(&Who::Host(vm)) {
                let (guest, host) = (mark(Who::Guest(vm), tasks), mark(Who::Host(vm), tasks));
                parts.push(format!(
                    "{guest} guest {name} ({host} its thread in the host)"
                ));
            }
        }
        for task in tasks.iter().take(MOST_NAMED) {
            let name = self.names.get(task).map_or("?", String::as_str);
            parts.push(format!("{} {name}", mark(Who::Task(*task), tasks)));
        }
        let text = parts.join(", ");
        for line in crate::units::wrap(&escape::terminal(&text), style.width) {
            out.push_str(&style.dim(&line));
            out.push('\n');
        }
    }
}

/// Who had most of a slot; the first of equals.
fn most(parts: &BTreeMap<Who, u64>) -> Who {
    let mut best = (Who::Idle, 0);
    for (who, ns) in parts {
        if *ns > best.1 {
            best = (*who, *ns);
        }
    }
    best.0
}

fn mark(who: Who, tasks: &[Tid]) -> char {
    let letter = |first: u8, n: usize, more: char| match u8::try_from(n) {
        Ok(n @ 0..26) => char::from(first + n),
        _ => more,
    };
    match who {
        Who::Idle => '.',
        Who::Interrupt => '!',
        Who::Guest(vm) => letter(b'A', vm, '@'),
        Who::Host(vm) => letter(b'a', vm, '*'),
        Who::Task(tid) => match tasks.iter().position(|task| *task == tid) {
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

    fn feed(timeline: &mut Timeline, time_ns: u64, kind: Kind) {
        let event = Event {
            time_ns,
            tid: Tid(0),
            cpu: CpuId(0),
            context: Context::default(),
            kind,
        };
        timeline.event(&event, &Few);
    }

    fn switch(next: i32) -> Kind {
        Kind::SchedSwitch {
            prev: Tid(0),
            next: Tid(next),
            prev_prio: 120,
            next_prio: 120,
            prev_state: 0,
        }
    }

    #[test]
    fn each_column_shows_who_had_most_of_it() {
        let mut t = Timeline::new(1_000, 1_000 + 88_000, &[0, 3], vec!["web".into()]);
        feed(
            &mut t,
            0,
            Kind::Task {
                tid: Tid(7),
                process: Tid(5),
                name: NameId(0),
            },
        );
        feed(
            &mut t,
            0,
            Kind::Task {
                tid: Tid(9),
                process: Tid(9),
                name: NameId(1),
            },
        );
        feed(&mut t, 0, switch(7));
        feed(&mut t, 11_000, Kind::KvmEntry { vcpu: VcpuId(0) });
        feed(&mut t, 21_400, switch(9));
        feed(&mut t, 31_000, switch(0));
        let text = t.render(Style::new(false));
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
        for span in [1, 7, 87, 89, 1_000_003] {
            let mut t = Timeline::new(5, 5 + span, &[0], vec![]);
            feed(&mut t, 0, switch(9));
            let numbers: Vec<u16> = t.cpus.keys().copied().collect();
            numbers.iter().for_each(|n| t.settle(*n, u64::MAX));
            let total: u64 = t.cpus[&0].slots.iter().flat_map(BTreeMap::values).sum();
            assert_eq!(total, span);
        }
    }
}

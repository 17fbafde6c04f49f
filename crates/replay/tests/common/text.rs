//! Traces and demands as short text: what a test says is all there is.

use std::fmt::Write;

use stealtime_events::{ExitReason, Kind, NameId, Tid, VcpuId};
use stealtime_replay::{RecordedTask, Recording};
use stealtime_simulator::script::{Late, Spent, Step, Until};

use super::Log;
use super::kinds::{switch_at, wakeup, waking};

/// The clock of traces at their begin, in ns.
pub const BEGIN_NS: u64 = 3_000_000_000;
const US: u64 = 1_000;

/// A trace of such lines: a time in us since the begin, the CPU, its current task, and what happens. A task
/// that is interrupted has `!` behind its id. Times of timers are in us since the begin too.
pub fn trace(text: &str) -> Log {
    let mut log = Log::default();
    log.append(text);
    log
}

impl Log {
    /// Adds such lines, and puts all events in the order of time.
    pub fn append(&mut self, text: &str) {
        let lines = text.lines().map(str::trim);
        for line in lines.filter(|line| !line.is_empty()) {
            let mut words = line.split_whitespace();
            let mut word = || words.next().expect(line);
            let time_ns = BEGIN_NS + number(word()) * US;
            let cpu = number(word()) as u16;
            let task = word();
            let what = word();
            let rest: Vec<&str> = words.collect();
            let kind = self.kind(what, &rest);
            match task.strip_suffix('!') {
                Some(tid) => self.interrupt(time_ns, cpu, id(tid), kind),
                None => self.add(time_ns, cpu, id(task), kind),
            }
        }
        self.events.sort_by_key(|event| event.time_ns);
    }

    fn kind(&mut self, what: &str, rest: &[&str]) -> Kind {
        let value = |index: usize| number(rest.get(index).expect(what));
        let tid = |index: usize| value(index) as i32;
        let short = |index: usize| value(index) as u32;
        let has = |word: &str| rest.contains(&word);
        match what {
            "switch" => {
                let states = [("sleeps", 1), ("stops", 4), ("ends", 0x10)];
                let state = states.iter().find(|state| has(state.0));
                let state = state.map_or(0, |state| state.1);
                let prio = if has("real-time") { 50 } else { 120 };
                switch_at(tid(0), tid(1), state, prio)
            }
            "waking" => waking(tid(0), short(1)),
            "wakeup" => wakeup(tid(0), short(1)),
            "new" => Kind::SchedWakeupNew {
                tid: Tid(tid(0)),
                prio: 120,
                target_cpu: short(1),
            },
            "fork" => Kind::SchedProcessFork {
                parent: Tid(tid(0)),
                child: Tid(tid(1)),
            },
            "exits" => Kind::SchedProcessExit { tid: Tid(tid(0)) },
            "moves" => Kind::SchedMigrateTask {
                tid: Tid(tid(0)),
                prio: 120,
                orig_cpu: 0,
                dest_cpu: short(1),
            },
            "name" => Kind::Task {
                tid: Tid(tid(0)),
                process: Tid(tid(1)),
                name: rest
                    .get(2)
                    .map_or(NameId::NONE, |name| self.names.add(name)),
            },
            "lost" => Kind::Lost { count: value(0) },
            _ => match what.split_once("timer") {
                Some((verb, "")) => self.timer(verb.trim_end_matches('-'), rest),
                _ => of_kvm(what, rest),
            },
        }
    }

    /// An hrtimer with its function and time.
    fn timer(&mut self, verb: &str, rest: &[&str]) -> Kind {
        let hrtimer = number(rest.first().expect(verb));
        if verb == "cancel" {
            return Kind::HrtimerCancel { hrtimer };
        }
        if verb == "end" {
            return Kind::HrtimerExpireExit { hrtimer };
        }
        let function = self.names.add(rest.get(1).expect(verb));
        let clock_ns = BEGIN_NS + number(rest.get(2).expect(verb)) * US;
        match verb {
            "set" => Kind::HrtimerStart {
                hrtimer,
                function,
                expires_ns: clock_ns,
            },
            "expire" => Kind::HrtimerExpireEntry {
                hrtimer,
                function,
                now_ns: clock_ns,
            },
            _ => panic!("{verb} of a timer"),
        }
    }
}

fn of_kvm(what: &str, rest: &[&str]) -> Kind {
    let value = |index: usize| number(rest.get(index).expect(what));
    let short = |index: usize| value(index) as u32;
    match what {
        "entry" => Kind::KvmEntry {
            vcpu: VcpuId(short(0)),
        },
        "exit" => Kind::KvmExit {
            vcpu: VcpuId(short(0)),
            reason: ExitReason::vmx(short(1)),
            intr_vector: None,
            info1: 0,
        },
        "accepts" => Kind::KvmApicAcceptIrq {
            apicid: short(0),
            dm: 0,
            tm: 0,
            vec: 0xfd,
        },
        "accepts-by-hardware" => Kind::KvmApicvAcceptIrq {
            apicid: short(0),
            dm: 0,
            tm: 0,
            vec: 0xfd,
        },
        "halted" => Kind::KvmVcpuWakeup {
            ns: value(0) * US,
            waited: rest.contains(&"slept"),
            valid: true,
        },
        "window" => Kind::KvmHaltPollNs {
            grow: value(1) > value(2),
            vcpu: VcpuId(short(0)),
            new: short(1) * 1_000,
            old: short(2) * 1_000,
        },
        "writes-msr" => Kind::KvmMsr {
            write: true,
            ecx: short(0),
            data: 0,
            exception: false,
        },
        "reads-msr" => Kind::KvmMsr {
            write: false,
            ecx: short(0),
            data: 0,
            exception: false,
        },
        "writes-apic" => Kind::KvmApic {
            write: true,
            reg: short(0),
            val: 0,
        },
        "hypercall" => Kind::KvmHypercall {
            nr: value(0),
            a0: value(1),
            a1: short(2),
        },
        "raises" => Kind::KvmSetIrq {
            gsi: short(0),
            level: 1,
        },
        _ => panic!("{what}"),
    }
}

/// Of a task; -1 where it has none.
fn id(text: &str) -> i32 {
    text.parse().unwrap_or_else(|_| panic!("{text} is no id"))
}

/// A decimal number, or a hexadecimal one behind 0x.
fn number(text: &str) -> u64 {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.unwrap_or_else(|_| panic!("{text} is no number"))
}

/// The task of a recording with this id.
pub fn task(recording: &Recording, tid: i32) -> &RecordedTask {
    let mut tasks = recording.tasks.iter();
    tasks.find(|task| task.tid == tid).expect("such a task")
}

/// The steps of that task, with times in us.
pub fn steps(recording: &Recording, tid: i32) -> String {
    let steps = task(recording, tid).steps.iter();
    let steps: Vec<String> = steps.map(step).collect();
    steps.join(", ")
}

fn step(step: &Step) -> String {
    match *step {
        Step::Run { ns, spent } => {
            let spent = match spent {
                Spent::Guest => "guest".to_owned(),
                Spent::Exit(number) => format!("exit{number}"),
                Spent::Interrupt(number) => format!("interrupt{number}"),
                Spent::Halt(number) => format!("halt{number}"),
                Spent::Host => "host".to_owned(),
            };
            format!("{spent} {}", us(ns))
        }
        Step::Reach(edge) => format!("reach {}", edge.0),
        Step::Sleep(end) => format!("sleep {}", until(end)),
        Step::Halt(end) => format!("halt {}", until(end)),
        Step::Slept(ns) => format!("slept {}", us(ns.into())),
        Step::Alarm(end) => format!("alarm {}", until(end)),
        Step::Spin => "spin".to_owned(),
        Step::YieldTo(vcpu) => format!("yield to {vcpu}"),
        Step::Arm => "arm".to_owned(),
        Step::Move(cpu) => format!("move {cpu}"),
    }
}

fn until(end: Until) -> String {
    match end {
        Until::Edge(edge) => format!("for {}", edge.0),
        Until::Work { edge, ns, busy } => {
            let busy = if busy { " busy" } else { "" };
            format!("for {} or work {}{busy}", edge.0, us(ns.into()))
        }
        Until::Time(u64::MAX) => "forever".to_owned(),
        Until::Time(ns) => format!("to {}", us(ns)),
        Until::Armed { ns, .. } => format!("armed {}", us(ns)),
        Until::After(ns) => format!("after {}", us(ns)),
        Until::Grid {
            phase_ns,
            period_ns,
            nth,
            late_us,
        } => {
            let [phase, period] = [phase_ns, period_ns].map(|ns| us(ns.into()));
            format!("grid {phase} of {period} nth {nth} late {late_us}")
        }
        Until::AfterEdge {
            edge, ns, exit_us, ..
        } => format!("answer to {} {} exit {exit_us}", edge.0, us(ns.into())),
        _ => format!("{end:?}"),
    }
}

/// So many ns in us.
fn us(ns: u64) -> String {
    match ns % US {
        0 => (ns / US).to_string(),
        rest => format!("{}.{rest:03}", ns / US),
    }
}

/// When that task waited, in us, and the CPU that ended it where that was another one.
pub fn waits(recording: &Recording, tid: i32) -> String {
    let mut text = String::new();
    for wait in task(recording, tid).waits.iter() {
        let times = [wait.began_ns, wait.ended_ns].map(us).join("-");
        let _ = write!(text, "{}: {times}", wait.step);
        if wait.late_us > 0 {
            let _ = write!(text, " late {}", wait.late_us);
        }
        if let Some(caller) = wait.caller {
            let idle = if caller.is_idle { "idle " } else { "" };
            let _ = write!(text, " by {idle}{}", caller.cpu);
        }
        text.push_str(", ");
    }
    text.trim_end_matches(", ").to_owned()
}

/// Delays of CPUs: when they began, and how long they took, in us.
pub fn late(delays: &[Late]) -> String {
    let cpus = delays.iter().map(|late| {
        let entries = late.0.iter();
        let entries = entries.map(|&(time, ns)| format!("{}+{}", us(time), us(u64::from(ns))));
        entries.collect::<Vec<_>>().join(" ")
    });
    cpus.collect::<Vec<_>>().join(" | ")
}

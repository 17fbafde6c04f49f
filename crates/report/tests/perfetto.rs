//! Events to Perfetto and back.

use common::Reading;
use proptest::prelude::*;
use stealtime_analysis::answers::{EventCount, Source, VcpuTime, Vm};
use stealtime_analysis::{Analysis, Answers, Options as AnalysisOptions};
use stealtime_events::{
    Context, CpuId, Event, ExitReason, HostVector, Kind, NameId, Names, Tid, VcpuId,
};
use stealtime_report::perfetto::{Exporter, Options};

use crate::common;

const V0: i32 = 100;
const V1: i32 = 101;
const HOG: i32 = 900;
const VCPU0: &str = "vCPU 0 (CPU 0/KVM, tid 100)";
const VCPU1: &str = "vCPU 1 (CPU 1/KVM, tid 101)";
const SLEEPS: u32 = 1;
const RUNNABLE: u32 = 0;

struct Table;

impl Names for Table {
    fn name(&self, id: NameId) -> &str {
        ["", "CPU 0/KVM", "CPU 1/KVM", "hog\u{1b}[31m"]
            .get(id.0 as usize)
            .copied()
            .unwrap_or("")
    }
}

/// Two vCPUs of one VM.
fn answers() -> Answers {
    let vcpu = |vcpu: u32, tid| VcpuTime {
        vm: "vm-a".into(),
        vcpu,
        task: format!("CPU {vcpu}/KVM"),
        tid,
        ..VcpuTime::default()
    };
    Answers {
        source: Source {
            cpus: 2,
            uname: Some("Linux host 7.2.13 #1".into()),
            clock_unit: "ns".into(),
            ..Source::default()
        },
        events: vec![EventCount {
            name: "sched_switch".into(),
            count: 1,
            today: None,
        }],
        vms: vec![Vm {
            vm: "vm-a".into(),
            pid: Some(99),
            vcpus: 2,
            grouped_by: "process".into(),
            guessed: false,
        }],
        vcpus: vec![vcpu(0, V0), vcpu(1, V1)],
        ..Answers::default()
    }
}

fn at(time_ns: u64, cpu: u16, tid: i32, kind: Kind) -> Event {
    Event {
        time_ns,
        tid: Tid(tid),
        cpu: CpuId(cpu),
        context: Context::default(),
        kind,
    }
}

fn entry(vcpu: u32) -> Kind {
    Kind::KvmEntry { vcpu: VcpuId(vcpu) }
}

fn exit(name: &str, vcpu: u32) -> Kind {
    Kind::KvmExit {
        reason: ExitReason::from_name(name).expect("a reason"),
        vcpu: VcpuId(vcpu),
        intr_vector: None,
        info1: 7,
    }
}

fn switch(prev: i32, prev_state: u32, next: i32) -> Kind {
    Kind::SchedSwitch {
        prev: Tid(prev),
        next: Tid(next),
        prev_prio: 120,
        next_prio: 120,
        prev_state,
    }
}

fn wakeup(tid: i32) -> Kind {
    Kind::SchedWakeup {
        tid: Tid(tid),
        prio: 120,
        target_cpu: 0,
    }
}

fn export(options: Options, events: &[Event]) -> Reading {
    let mut bytes = Vec::new();
    let mut exporter = Exporter::new(&mut bytes, &answers(), options).expect("a vector takes all");
    for event in events {
        exporter.event(event, &Table).expect("a vector takes all");
    }
    exporter.finish().expect("a vector takes all");
    Reading::new(&bytes)
}

fn names() -> Vec<Event> {
    let task = |tid, name| {
        let kind = Kind::Task {
            tid: Tid(tid),
            process: Tid(0),
            name: NameId(name),
        };
        at(0, 0, 0, kind)
    };
    vec![task(V0, 1), task(V1, 2), task(HOG, 3)]
}

/// vCPU 0 runs, is preempted by a hog, halts with a poll in vain, is woken and runs again.
fn a_life() -> Vec<Event> {
    let mut events = names();
    events.extend([
        at(100, 0, V0, entry(0)),
        at(200, 0, V0, exit("EXTERNAL_INTERRUPT", 0)),
        at(210, 0, V0, switch(V0, RUNNABLE, HOG)),
        at(300, 0, HOG, switch(HOG, RUNNABLE, V0)),
        at(310, 0, V0, entry(0)),
        at(400, 0, V0, exit("HLT", 0)),
        at(450, 0, V0, switch(V0, SLEEPS, 0)),
        at(600, 1, 0, wakeup(V0)),
        at(620, 0, 0, switch(0, RUNNABLE, V0)),
        at(
            625,
            0,
            V0,
            Kind::KvmHaltPollNs {
                vcpu: VcpuId(0),
                grow: false,
                new: 0,
                old: 30,
            },
        ),
        at(
            630,
            0,
            V0,
            Kind::KvmVcpuWakeup {
                ns: 220,
                waited: true,
                valid: true,
            },
        ),
        at(640, 0, V0, entry(0)),
        at(700, 0, V0, exit("IO_INSTRUCTION", 0)),
        at(
            710,
            0,
            V0,
            Kind::KvmUserspaceExit {
                reason: 2,
                errno: 0,
            },
        ),
        at(800, 0, V0, entry(0)),
    ]);
    events
}

#[test]
fn a_vcpu_is_in_the_guest_or_says_where_else() {
    let reading = export(Options::default(), &a_life());
    assert_eq!(
        reading.of(VCPU0),
        [
            "0 guest 100..200",
            "0 EXTERNAL_INTERRUPT 200..310",
            "1 preempted 210..300",
            "0 guest 310..400",
            "0 HLT 400..640",
            "1 polling 410..440",
            "1 halted 450..600",
            "1 ready 600..620",
            "0 guest 640..700",
            "0 IO_INSTRUCTION 700..800",
            "1 VMM: IO 710..800",
            "0 guest 800..800",
        ]
    );
    assert_eq!(
        reading.of("CPU 0"),
        [
            "0 vm-a vCPU 0 100..210",
            "0 hog\u{1b}[31m 210..300",
            "0 vm-a vCPU 0 300..450",
            "0 vm-a vCPU 0 620..800",
        ]
    );
    let switches: Vec<_> = reading
        .bundles
        .iter()
        .flat_map(|bundle| &bundle.event)
        .collect();
    assert_eq!(switches.len(), 4);
    let first = switches[0].sched_switch.as_ref().expect("a switch");
    assert_eq!((first.prev_comm(), first.next_pid()), ("CPU 0/KVM", HOG));
}

#[test]
fn tracks_lie_in_their_vm_and_its_process() {
    let reading = export(Options::default(), &a_life());
    let named = |name: &str| {
        let mut tracks = reading.tracks.values();
        tracks
            .find(|track| track.name() == name)
            .expect(name)
            .clone()
    };
    let vm = &reading.tracks[&named(VCPU0).parent_uuid()];
    let process = vm.process.as_ref().expect("a process");
    assert_eq!((process.pid(), process.process_name()), (99, "vm-a"));
    assert_eq!(named(VCPU1).parent_uuid(), vm.uuid());
    let host = &reading.tracks[&named("CPU 0").parent_uuid()];
    assert_eq!(host.name(), "Host CPUs");
    let threads = reading
        .tracks
        .values()
        .filter_map(|track| track.thread.as_ref());
    assert_eq!(
        threads.map(|thread| thread.tid()).collect::<Vec<_>>(),
        [100, 101]
    );
}

#[test]
fn a_window_cuts_slices_at_its_edges() {
    let options = Options {
        from_ns: Some(500),
        to_ns: Some(625),
        ..Options::default()
    };
    let reading = export(options, &a_life());
    assert_eq!(
        reading.of(VCPU0),
        ["0 HLT 500..625", "1 halted 500..600", "1 ready 600..620"]
    );
    assert_eq!(reading.of("CPU 0"), ["0 vm-a vCPU 0 620..625"]);
}

#[test]
fn unasked_tracks_are_left_out_but_known() {
    let options = Options {
        cpus: vec![1],
        ..Options::default()
    };
    let reading = export(options, &a_life());
    assert!(reading.of("CPU 0").is_empty());
    assert!(reading.bundles.is_empty());
    assert_eq!(reading.of(VCPU0).len(), 12);
    let options = Options {
        vms: vec!["another".into()],
        ..Options::default()
    };
    let reading = export(options, &a_life());
    assert!(reading.of(VCPU0).is_empty());
    assert_eq!(reading.of("CPU 0").len(), 4);
}

#[test]
fn an_ipi_flows_to_each_injection() {
    let accept = |apicid| Kind::KvmApicAcceptIrq {
        apicid,
        dm: 0,
        tm: 0,
        vec: 0xfd,
    };
    let inject = Kind::KvmInjVirq {
        vector: 0xfd,
        soft: false,
        reinjected: false,
    };
    let ipi = Kind::KvmApicIpi {
        icr_low: 0x8fd,
        dest_id: 3,
    };
    let events = [
        at(100, 0, V0, entry(0)),
        at(110, 1, V1, entry(1)),
        at(200, 0, V0, exit("MSR_WRITE", 0)),
        at(201, 0, V0, ipi),
        at(202, 0, V0, accept(0)),
        at(203, 0, V0, accept(1)),
        at(210, 1, V1, exit("EXTERNAL_INTERRUPT", 1)),
        at(215, 1, V1, inject),
        at(216, 1, V1, entry(1)),
        at(220, 0, V0, inject),
        at(230, 0, V0, entry(0)),
        // Another device's interrupt with the same vector: no IPI, no flow.
        at(300, 1, V1, exit("EXTERNAL_INTERRUPT", 1)),
        at(310, 1, V1, inject),
    ];
    let reading = export(Options::default(), &events);
    assert_eq!(
        reading.of(VCPU0),
        [
            "0 guest 100..200",
            "0 MSR_WRITE 200..230",
            "1 IPI 0xfd @201",
            "1 inject 0xfd @220",
            "0 guest 230..310",
        ]
    );
    let one = |track: &str, name: &str| {
        let mut slices = reading.slices.iter();
        slices
            .find(|slice| slice.track == track && slice.name == name)
            .expect(name)
    };
    assert_eq!(one(VCPU0, "IPI 0xfd").flows, [1, 2]);
    assert_eq!(one(VCPU0, "inject 0xfd").ends, [1]);
    assert_eq!(one(VCPU1, "inject 0xfd").ends, [2]);
    assert_eq!(
        reading.slices.iter().flat_map(|slice| &slice.ends).count(),
        2
    );
}

#[test]
fn interrupts_nest_in_what_they_interrupt() {
    let timer = |begins| {
        let (class, vector) = (HostVector::LocalTimer, 0xec);
        if begins {
            Kind::VectorEntry { class, vector }
        } else {
            Kind::VectorExit { class, vector }
        }
    };
    let events = [
        // An end with its begin before the recording.
        at(90, 0, HOG, timer(false)),
        at(100, 0, HOG, timer(true)),
        at(110, 0, HOG, Kind::SoftirqEntry { vec: 7 }),
        // The softirq's end was lost.
        at(130, 0, HOG, timer(false)),
        at(150, 0, HOG, switch(HOG, SLEEPS, 0)),
        at(160, 0, 0, timer(true)),
        at(170, 0, 0, timer(false)),
    ];
    let reading = export(Options::default(), &events);
    assert_eq!(
        reading.of("CPU 0"),
        [
            "0 tid 900 90..150",
            "1 local_timer 100..130",
            "2 softirq SCHED 110..130",
            "0 local_timer 160..170",
        ]
    );
}

#[test]
fn where_events_were_lost_nothing_is_said() {
    let mut events = names();
    events.extend([
        at(100, 0, V0, entry(0)),
        at(150, 0, V0, exit("EXTERNAL_INTERRUPT", 0)),
        at(160, 0, V0, entry(0)),
        at(500, 0, V0, Kind::Lost { count: 12 }),
        at(510, 0, V0, exit("HLT", 0)),
        at(520, 0, V0, entry(0)),
    ]);
    let reading = export(Options::default(), &events);
    assert_eq!(
        reading.of(VCPU0),
        [
            "0 guest 100..150",
            "0 EXTERNAL_INTERRUPT 150..160",
            "0 guest 160..160",
            "0 events lost 160..500",
            "0 HLT 510..520",
            "0 guest 520..520",
        ]
    );
    assert_eq!(
        reading.of("CPU 0"),
        [
            "0 vm-a vCPU 0 100..160",
            "0 events lost 160..500",
            "0 vm-a vCPU 0 510..520",
        ]
    );
}

#[test]
fn halt_polling_is_a_counter() {
    let poll = |new| Kind::KvmHaltPollNs {
        vcpu: VcpuId(0),
        grow: true,
        new,
        old: 0,
    };
    let events = [at(100, 0, V0, poll(10_000)), at(200, 0, V0, poll(20_000))];
    let reading = export(Options::default(), &events);
    assert_eq!(
        reading.counters,
        [
            ("halt_poll_ns".to_owned(), 100, 10_000),
            ("halt_poll_ns".to_owned(), 200, 20_000)
        ]
    );
}

fn any_kind() -> impl Strategy<Value = Kind> {
    let tid = prop::sample::select(vec![0, V0, V1, HOG]);
    let other = prop::sample::select(vec![0, V0, V1, HOG]);
    prop_oneof![
        (0_u32..2).prop_map(entry),
        prop::sample::select(vec!["HLT", "MSR_WRITE", "EPT_VIOLATION"])
            .prop_map(|name| exit(name, 0)),
        (tid.clone(), 0_u32..2, other).prop_map(|(prev, state, next)| switch(prev, state, next)),
        tid.prop_map(wakeup),
        (0_u64..300, any::<bool>()).prop_map(|(ns, waited)| Kind::KvmVcpuWakeup {
            ns,
            waited,
            valid: true
        }),
        (0_u32..3).prop_map(|reason| Kind::KvmUserspaceExit { reason, errno: 0 }),
        Just(Kind::KvmApicIpi {
            icr_low: 0xfd,
            dest_id: 1
        }),
        (0_u32..3).prop_map(|apicid| Kind::KvmApicAcceptIrq {
            apicid,
            dm: 0,
            tm: 0,
            vec: 0xfd
        }),
        Just(Kind::KvmInjVirq {
            vector: 0xfd,
            soft: false,
            reinjected: false
        }),
        (0_u32..3).prop_map(|vec| Kind::SoftirqEntry { vec }),
        (0_u32..3).prop_map(|vec| Kind::SoftirqExit { vec }),
        (0_u64..3).prop_map(|count| Kind::Lost { count }),
        any::<u32>().prop_map(|new| Kind::KvmPleWindowUpdate {
            vcpu: VcpuId(0),
            new,
            old: 1
        }),
    ]
}

fn any_events() -> impl Strategy<Value = Vec<Event>> {
    let tid = prop::sample::select(vec![0, V0, V1, HOG]);
    let event = (0_u64..40, 0_u16..3, tid, any_kind());
    prop::collection::vec(event, 0..200).prop_map(|events| {
        let mut now = 1_000;
        let step = |(step, cpu, tid, kind): (u64, u16, i32, Kind)| {
            // Mostly forwards, many at the same time, some backwards.
            now = if step == 39 { now - 30 } else { now + step / 4 };
            at(now, cpu, tid, kind)
        };
        events.into_iter().map(step).collect()
    })
}

#[test]
fn a_cpu_that_is_met_late_and_out_of_order_begins_with_the_window() {
    let lost = at(1_000, 0, 0, Kind::Lost { count: 0 });
    let entry = at(970, 1, V0, Kind::KvmEntry { vcpu: VcpuId(0) });
    let options = Options {
        from_ns: Some(971),
        ..Options::default()
    };
    let reading = export(options, &[lost, entry]);
    assert!(reading.slices.iter().all(|slice| slice.begin >= 971));
    assert!(!reading.slices.is_empty());
}

proptest! {
    /// Whatever the events: slices nest, every begin has its end, flows end once.
    #[test]
    fn any_events_make_a_well_formed_trace(events in any_events(), from in 0_u64..1_500) {
        for options in [
            Options::default(),
            Options { from_ns: Some(from), to_ns: Some(from + 400), ..Options::default() },
        ] {
            let (from, to) = (options.from_ns.unwrap_or(0), options.to_ns.unwrap_or(u64::MAX));
            let reading = export(options, &events);
            for slice in &reading.slices {
                prop_assert!(slice.begin <= slice.end && slice.begin >= from && slice.end <= to);
            }
        }
    }

    /// A vCPU's outermost slices do not overlap, nor those within one.
    #[test]
    fn slices_of_a_level_do_not_overlap(events in any_events()) {
        let reading = export(Options::default(), &events);
        for track in [VCPU0, VCPU1, "CPU 0", "CPU 1"] {
            let mut ends = [0_u64; 32];
            for slice in reading.slices.iter().filter(|slice| slice.track == track) {
                prop_assert!(slice.begin >= ends[slice.depth], "{slice:?}");
                ends[slice.depth] = slice.end;
            }
        }
    }
}

/// What a random host does next.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// The CPU's current task enters or leaves the guest.
    Mode,
    /// The CPU switches to this task, if it is runnable; the current one sleeps or is preempted.
    Switch { task: usize, sleeps: bool },
    /// A task on the CPU wakes this one, if it sleeps.
    Wake { task: usize },
    /// The CPU's current task ends its halt, which changes its polling window if `window` says so.
    EndHalt { window: Option<u32> },
}

/// A halt under way, as KVM keeps it.
#[derive(Debug, Clone, Copy)]
struct Halted {
    since: u64,
    sleeps: bool,
    switches: usize,
}

/// Switches within a halt of which the analysis remembers all stretches on a CPU.
const MAX_SWITCHES: usize = 7;

const TASKS: [i32; 3] = [V0, V1, HOG];

/// Events of a host of which every switch is recorded.
fn consistent_events() -> impl Strategy<Value = Vec<Event>> {
    let task = 0..TASKS.len();
    let window = prop::option::of(0_u32..80);
    let step = prop_oneof![
        3 => Just(Step::Mode),
        4 => (task.clone(), any::<bool>()).prop_map(|(task, sleeps)| Step::Switch { task, sleeps }),
        3 => task.prop_map(|task| Step::Wake { task }),
        3 => window.prop_map(|window| Step::EndHalt { window }),
    ];
    let halts = any::<bool>();
    prop::collection::vec((1_u64..50, 0_u16..2, halts, step), 0..200).prop_map(|steps| {
        let mut host = Host::default();
        for (delay, cpu, halts, step) in steps {
            host.now += delay;
            host.step(cpu, halts, step);
        }
        host.events
    })
}

/// A random host, by task.
struct Host {
    now: u64,
    events: Vec<Event>,
    current: [Option<usize>; 2],
    asleep: [bool; 3],
    in_guest: [bool; 3],
    halts: [Option<Halted>; 3],
    windows: [u32; 3],
}

impl Default for Host {
    fn default() -> Self {
        Self {
            now: 1_000,
            events: names(),
            current: [None; 2],
            asleep: [false; 3],
            in_guest: [false; 3],
            halts: [None; 3],
            windows: [30, 0, 0],
        }
    }
}

impl Host {
    fn add(&mut self, cpu: u16, tid: i32, kind: Kind) {
        self.events.push(at(self.now, cpu, tid, kind));
    }

    fn step(&mut self, cpu: u16, halts: bool, step: Step) {
        let index = usize::from(cpu);
        let running = self.current[index];
        let tid = running.map_or(0, |task| TASKS[task]);
        match (step, running) {
            (Step::Mode, Some(task @ 0..2)) => {
                let kind = self.change_mode(task, halts);
                self.add(cpu, tid, kind);
            }
            (Step::Switch { task, sleeps }, _)
                if !self.asleep[task] && !self.current.contains(&Some(task)) =>
            {
                if let Some(left) = running {
                    self.asleep[left] = sleeps;
                    self.in_guest[left] = false;
                    if let Some(halt) = &mut self.halts[left] {
                        halt.sleeps |= sleeps;
                        halt.switches += 1;
                    }
                }
                self.current[index] = Some(task);
                let state = if sleeps { SLEEPS } else { RUNNABLE };
                self.add(cpu, tid, switch(tid, state, TASKS[task]));
            }
            (Step::Wake { task }, _) if self.asleep[task] => {
                self.asleep[task] = false;
                self.add(cpu, tid, wakeup(TASKS[task]));
            }
            (Step::EndHalt { window }, Some(task @ 0..2)) => self.end_halt(cpu, task, window),
            _ => {}
        }
    }

    fn change_mode(&mut self, task: usize, halts: bool) -> Kind {
        let vcpu = if task == 0 { 0 } else { 1 };
        self.in_guest[task] = !self.in_guest[task];
        self.halts[task] = None;
        match (self.in_guest[task], halts) {
            (true, _) => entry(vcpu),
            (false, true) => {
                self.halts[task] = Some(Halted {
                    since: self.now,
                    sleeps: false,
                    switches: 0,
                });
                exit("HLT", vcpu)
            }
            (false, false) => exit("EXTERNAL_INTERRUPT", vcpu),
        }
    }

    fn end_halt(&mut self, cpu: u16, task: usize, window: Option<u32>) {
        let few = |halt: &Halted| halt.switches <= MAX_SWITCHES;
        let Some(halt) = self.halts[task].take().filter(few) else {
            return;
        };
        if let Some(new) = window {
            let old = std::mem::replace(&mut self.windows[task], new);
            let kind = Kind::KvmHaltPollNs {
                vcpu: VcpuId(if task == 0 { 0 } else { 1 }),
                grow: new > old,
                new,
                old,
            };
            self.add(cpu, TASKS[task], kind);
        }
        // The exit takes a part of the time.
        let kind = Kind::KvmVcpuWakeup {
            ns: (self.now - halt.since).saturating_sub(5),
            waited: halt.sleeps,
            valid: true,
        };
        self.add(cpu, TASKS[task], kind);
    }
}

/// Answers of the analysis for the same events.
fn analyzed(events: &[Event]) -> Answers {
    let mut analysis = Analysis::new(AnalysisOptions::default());
    for event in events {
        analysis.event(event, &Table);
    }
    analysis.finish(&Table)
}

proptest! {
    /// The exporter and the analysis observe the same tracker: time in each state is the same.
    #[test]
    fn slices_add_up_to_the_answers(events in consistent_events()) {
        let answers = analyzed(&events);
        let mut bytes = Vec::new();
        let mut exporter = Exporter::new(&mut bytes, &answers, Options::default()).expect("a vector");
        for event in &events {
            exporter.event(event, &Table).expect("a vector takes all");
        }
        exporter.finish().expect("a vector takes all");
        let reading = Reading::new(&bytes);
        for vcpu in &answers.vcpus {
            let track = format!("vCPU {} ({}, tid {})", vcpu.vcpu, vcpu.task, vcpu.tid);
            let sum = |names: &[&str]| -> u64 {
                let slices = reading.slices.iter().filter(|slice| slice.track == track);
                let named = slices.filter(|slice| names.contains(&slice.name.as_str()));
                named.map(|slice| slice.end - slice.begin).sum()
            };
            prop_assert_eq!(sum(&["guest"]), vcpu.guest_ns.unwrap_or(0), "{} guest", track);
            prop_assert_eq!(sum(&["preempted"]), vcpu.preempted_ns, "{} preempted", track);
            prop_assert_eq!(sum(&["ready"]), vcpu.wake_wait_ns, "{} ready", track);
            prop_assert_eq!(sum(&["blocked", "asleep"]), vcpu.blocked_ns, "{} blocked", track);
            let slept = sum(&["halted", "blocked", "asleep"]);
            prop_assert_eq!(slept, vcpu.halt_ns, "{} asleep", track);
            prop_assert_eq!(Some(sum(&["polling"])), vcpu.poll_ns, "{} polling", track);
        }
    }
}

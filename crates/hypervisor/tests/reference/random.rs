//! The crate against the reference on random sequences.

use std::collections::BTreeMap;

use crate::generate::Generator;
use crate::model::Model;
use crate::op::{ENTITY, QUEUE, Scheduler, differences};
use crate::ours::Ours;

/// How often each case was reached, level by level and flat.
type Marks = BTreeMap<&'static str, [u64; 2]>;

/// Cases that a long run must meet, and whether in both ways to pick.
const CASES: &[(&str, bool)] = &[
    ("an earlier buddy stays", true),
    ("buddy not eligible", true),
    ("buddy picked", true),
    ("buddy without protection", false),
    ("changed while delayed", true),
    ("changed while running", true),
    ("check dequeues a delayed one", true),
    ("check ends at a delayed one", true),
    ("credit forces", true),
    ("credit in place", false),
    ("credit in the tree", true),
    ("credit spares a buddy", false),
    ("delayed group picked", false),
    ("delayed task picked", true),
    ("equal deadlines", true),
    ("expired", true),
    ("group delayed", false),
    ("group throttled in debt", false),
    ("group stays as its task leaves awake", false),
    ("idle group preempted", false),
    ("idle one preempted", true),
    ("joined below a delayed group", false),
    ("joined while current", false),
    ("lag at its bound", true),
    ("nomination stopped by an idle entity", true),
    ("picked alone", true),
    ("placed heavier than all others", true),
    ("placed with half a slice", true),
    ("placed with its old deadline", true),
    ("placed with lag", true),
    ("preempted", true),
    ("priority apart from nice", true),
    ("preempted by a shorter slice", true),
    ("protected", true),
    ("protection cut", true),
    ("protection over", true),
    ("requeued elsewhere", true),
    ("requeued while current", false),
    ("requeued in place", true),
    ("reweighed in the tree", false),
    ("reweighed off the queue", true),
    ("reweighed while protected", true),
    ("running one wins by its deadline", true),
    ("synchronous wakeup preempts", true),
    ("synchronous wakeup waits", true),
    ("task delayed", true),
    ("task throttled in debt", false),
    ("timer at its floor", false),
    ("timer left where it was", true),
    ("weight at its floor", true),
    ("yield costs nothing", true),
    ("yield forfeits", true),
    ("yield_to alone", true),
    ("yield_to another CPU", true),
    ("yield_to in a group", true),
    ("yield_to refused", true),
];

/// Everything that differs.
fn compare(model: &Model, ours: &Ours) -> Vec<String> {
    let mut wrong = Vec::new();
    let groups = model.groups.len();
    for cpu in 0..model.cpus.len() {
        let (expected, got) = (model.pending(cpu), ours.pending(cpu));
        let what = format!("cpu {cpu}");
        differences(&what, &["resched", "hrtick"], &expected, &got, &mut wrong);
        let (expected, got) = ([model.running(cpu)], [ours.running(cpu)]);
        differences(&what, &["running"], &expected, &got, &mut wrong);
        for g in 0..groups {
            let (expected, got) = (model.queue(cpu, g), ours.queue(cpu, g));
            let what = format!("cpu {cpu} queue {g}");
            differences(&what, &QUEUE, &expected, &got, &mut wrong);
        }
        for g in 1..groups as i64 {
            compare_entity(model, ours, cpu, -g, &mut wrong);
        }
    }
    for id in model.tasks.keys() {
        compare_entity(model, ours, 0, *id, &mut wrong);
    }
    wrong
}

fn compare_entity(model: &Model, ours: &Ours, cpu: usize, id: i64, wrong: &mut Vec<String>) {
    let what = format!("cpu {cpu} entity {id}");
    // Under flat picking groups do not compete.
    if id > 0 || !model.flat() {
        let (expected, got) = (model.weight(cpu, id), ours.weight(cpu, id));
        if expected != got {
            wrong.push(format!("  {what}: competes at {expected:?}, got {got:?}"));
        }
    }
    match (model.entity(cpu, id), ours.entity(cpu, id)) {
        (Some(expected), Some(got)) => differences(&what, &ENTITY, &expected, &got, wrong),
        (expected, got) if expected == got => {}
        (expected, got) => wrong.push(format!("  {what}: expected {expected:?}, got {got:?}")),
    }
}

/// One run: its steps.
fn run(seed: u64, steps: usize, marks: &mut Marks) -> usize {
    let mut generator = Generator::new(seed, steps);
    let mut model = Model::new(&generator.setup);
    let mut ours = Ours::new(&generator.setup);
    let mut last = Vec::new();
    for n in 0..generator.steps {
        let step = generator.step(&model);
        last.push(step);
        let (expected, got) = (model.apply(&step), ours.apply(&step));
        let mut wrong = compare(&model, &ours);
        if expected != got {
            wrong.push(format!("  answer: expected {expected:?}, got {got:?}"));
        }
        assert!(
            wrong.is_empty(),
            "seed {seed}, step {n} of {:?}\n{:#?}\n{}",
            generator.setup,
            &last[last.len().saturating_sub(6)..],
            wrong.join("\n")
        );
    }
    for (what, times) in model.marks.borrow().iter() {
        let modes = marks.entry(what).or_default();
        modes[usize::from(model.flat())] += times;
    }
    generator.steps
}

/// A number from the environment: `STEALTIME_REFERENCE_STEPS` for longer runs,
/// `STEALTIME_REFERENCE_SEED` for another first seed.
fn asked(name: &str, otherwise: usize) -> usize {
    let asked = std::env::var(name).ok();
    asked.map_or(otherwise, |n| {
        n.parse().unwrap_or_else(|e| panic!("{name}={n}: {e}"))
    })
}

#[test]
fn crate_and_reference_agree_on_random_sequences() {
    let least = if cfg!(miri) { 500 } else { 1_200_000 };
    let least = asked("STEALTIME_REFERENCE_STEPS", least);
    let mut seed = asked("STEALTIME_REFERENCE_SEED", 1) as u64;
    let (mut marks, mut steps) = (Marks::new(), 0);
    while steps < least {
        steps += run(seed, if cfg!(miri) { 100 } else { 800 }, &mut marks);
        seed += 1;
    }
    for (what, [levels, flat]) in &marks {
        println!("{what}: {levels} level by level, {flat} flat");
    }
    if steps < 1_000_000 {
        return;
    }
    // A comparison that never meets a case says nothing of it.
    for (what, in_both) in CASES {
        let [levels, flat] = marks.get(what).copied().unwrap_or_default();
        assert!(levels >= 8, "{what}: met {levels} times");
        assert!(!in_both || flat >= 8, "{what}: met {flat} times, flat");
    }
}

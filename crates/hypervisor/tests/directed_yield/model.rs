//! The selection against a plain model: lists of candidates, tried in turn.

use proptest::prelude::*;
use stealtime_hypervisor::directed_yield::{
    CandidateOrder, Reason, SchedOut, YieldFlags, YieldKnobs, YieldTo,
};

use crate::vm::{Vm, named};

/// One vCPU as drawn: flags, and what it answers to a yield.
#[derive(Clone, Copy, Debug)]
struct Drawn {
    preempted: bool,
    in_kernel: bool,
    woken: bool,
    blocking: bool,
    runnable: bool,
    pending: bool,
    spins: bool,
    eligible: bool,
}

fn drawn() -> impl Strategy<Value = Drawn> {
    any::<[bool; 8]>().prop_map(|b| Drawn {
        preempted: b[0],
        in_kernel: b[1],
        woken: b[2],
        blocking: b[3],
        runnable: b[4],
        pending: b[5],
        spins: b[6],
        eligible: b[7],
    })
}

impl Drawn {
    fn ready(&self) -> bool {
        (self.preempted || self.woken) && (!self.blocking || self.runnable || self.pending)
    }

    fn reason(&self, confirmed: bool, kernel_mode: bool) -> Option<Reason> {
        if confirmed {
            Some(Reason::Confirmed)
        } else if self.pending {
            Some(Reason::PendingInterrupt)
        } else if self.preempted && (!kernel_mode || self.in_kernel) {
            Some(Reason::Preempted)
        } else {
            None
        }
    }
}

/// The candidates in the order in which they are considered, with a reason.
fn candidates(
    drawn: &[Drawn],
    me: u32,
    last: u32,
    confirmed: Option<u32>,
    kernel_mode: bool,
    order: CandidateOrder,
) -> Vec<(u32, Reason)> {
    let n = drawn.len() as u32;
    let round = (0..n).map(|i| (last + 1 + i) % n).filter(|&v| v != me);
    let round: Vec<u32> = round.filter(|&v| drawn[v as usize].ready()).collect();
    let with_reason = |v: &u32| {
        let reason = drawn[*v as usize].reason(confirmed == Some(*v), kernel_mode)?;
        Some((*v, reason))
    };
    let mut strict: Vec<_> = round.iter().filter_map(with_reason).collect();
    if order == CandidateOrder::Priority {
        // Stable: the round decides among equals.
        strict.sort_by_key(|&(_, reason)| reason as u32);
    }
    let relaxed = round.iter().filter(|&&v| drawn[v as usize].preempted);
    strict.extend(relaxed.map(|&v| (v, Reason::Relaxed)));
    strict
}

/// Tries the candidates; returns those that it asked and the one that it boosted.
fn tried(
    drawn: &mut [Drawn],
    candidates: &[(u32, Reason)],
    answers: &[YieldTo],
) -> (Vec<u32>, Option<(u32, Reason)>) {
    let (mut asked, mut tries, mut relaxed) = (Vec::new(), 3, false);
    for &(vcpu, reason) in candidates {
        if reason == Reason::Relaxed {
            relaxed = true;
        } else if tries == 0 {
            continue;
        }
        let v = &mut drawn[vcpu as usize];
        if v.spins {
            v.eligible = !v.eligible;
            if v.eligible {
                continue;
            }
        }
        let answer = answers.get(asked.len()).copied();
        asked.push(vcpu);
        match answer.unwrap_or(YieldTo::Yielded) {
            YieldTo::Yielded => return (asked, Some((vcpu, reason))),
            YieldTo::Declined => {}
            YieldTo::BothAlone => {
                tries = if tries > 0 { tries - 1 } else { 0 };
                if tries == 0 && relaxed {
                    break;
                }
            }
        }
    }
    (asked, None)
}

fn machine(drawn: &[Drawn], knobs: YieldKnobs, me: u32) -> Vm {
    let mut vm = Vm::new(drawn.len(), knobs);
    for (vcpu, d) in vm.vcpus.iter_mut().zip(drawn) {
        vcpu.state.sched_out(SchedOut {
            runnable: d.preempted,
            wants_to_run: true,
            in_kernel: d.in_kernel,
        });
        vcpu.state.wake_up(d.woken);
        let mut flags = vcpu.state.flags();
        if d.spins {
            flags = flags.with(YieldFlags::IN_SPIN_LOOP);
        }
        if d.eligible {
            flags = flags.with(YieldFlags::DY_ELIGIBLE);
        }
        vcpu.state.restore(flags);
        (vcpu.blocking, vcpu.runnable, vcpu.pending) = (d.blocking, d.runnable, d.pending);
    }
    assert!((me as usize) < drawn.len());
    vm
}

/// Moves `last_boosted_vcpu` to `last` by a spin of its own; returns where it is then.
fn boost_once(vm: &mut Vm, last: u32) -> u32 {
    let mut other = Vm::new(vm.vcpus.len(), YieldKnobs::upstream());
    other.preempt(last as usize, true);
    other.spin(u32::from(last == 0), true);
    vm.yields = other.yields;
    vm.yields.last_boosted_vcpu()
}

fn answer() -> impl Strategy<Value = YieldTo> {
    prop_oneof![
        Just(YieldTo::Declined),
        Just(YieldTo::BothAlone),
        Just(YieldTo::BothAlone),
        Just(YieldTo::Yielded),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn the_selection_is_the_models(
        mut drawn in prop::collection::vec(drawn(), 2..12),
        answers in prop::collection::vec(answer(), 0..10),
        last in any::<prop::sample::Index>(),
        me in any::<prop::sample::Index>(),
        receiver in any::<prop::sample::Index>(),
        sends in any::<bool>(),
        kernel_mode in any::<bool>(),
        priority in any::<bool>(),
    ) {
        let order = if priority { CandidateOrder::Priority } else { CandidateOrder::Scan };
        let knobs = YieldKnobs { order, ..YieldKnobs::default() };
        let (me, receiver) = (me.index(drawn.len()) as u32, receiver.index(drawn.len()) as u32);
        let mut vm = machine(&drawn, knobs, me);
        vm.answers.clone_from(&answers);
        let confirmed = (sends && me != receiver).then_some(receiver);
        if confirmed.is_some() {
            vm.ipi(me, receiver);
        }
        let last = boost_once(&mut vm, last.index(drawn.len()) as u32);
        let list = candidates(&drawn, me, last, confirmed, kernel_mode, order);
        let (asked, boosted) = tried(&mut drawn, &list, &answers);
        let outcome = vm.spin(me, kernel_mode);
        prop_assert_eq!(&vm.asked, &asked);
        prop_assert_eq!(named(outcome.boosted), boosted);
        for (index, d) in drawn.iter().enumerate() {
            if index != me as usize {
                prop_assert_eq!(vm.eligible(index), d.eligible, "vCPU {}", index);
            }
        }
    }
}

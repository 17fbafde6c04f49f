//! What wakeups show of a host's scheduler, and how long they take.

use common::kinds::{switch, switch_at, wakeup, waking};
use common::{Log, extracted};
use stealtime_events::{Context, ExitReason, Kind, VcpuId};
use stealtime_hypervisor::fair::Preempt;
use stealtime_replay::{Decisions, WakeLatencies};
use stealtime_simulator::Sink;

use crate::common;

const LAZY: u8 = Context::NEED_RESCHED_LAZY;
const AT_ONCE: u8 = Context::NEED_RESCHED;
/// A vCPU, a thread, and the task that is woken.
const VCPU: i32 = 7;
const THREAD: i32 = 9;
const WOKEN: i32 = 8;
/// The highest priority of the fair class.
const FAIR: i16 = 100;

/// What CPU 0 does.
#[derive(Default)]
struct Scene {
    log: Log,
    now_ns: u64,
    current: i32,
}

impl Scene {
    /// The vCPU has been in its guest; the thread has the CPU now.
    fn new() -> Self {
        let mut scene = Self::default();
        scene.switch(VCPU, FAIR);
        let vcpu = VcpuId(0);
        scene.add(0, Kind::KvmEntry { vcpu });
        let exit = Kind::KvmExit {
            reason: ExitReason::vmx(1),
            vcpu,
            intr_vector: None,
            info1: 0,
        };
        scene.add(0, exit);
        scene.switch(THREAD, FAIR);
        scene
    }

    fn add(&mut self, flags: u8, kind: Kind) {
        self.now_ns += 1_000;
        self.log.add(self.now_ns, 0, self.current, kind);
        if let Some(event) = self.log.events.last_mut() {
            event.context = Context::from_bits(flags);
        }
    }

    fn switch(&mut self, next: i32, prio: i16) {
        self.add(0, switch_at(self.current, next, 0, prio));
        self.current = next;
    }

    /// A task is woken here so often, and the current one is to reschedule by these flags then.
    fn wakes(mut self, times: u64, flags: u8) -> Self {
        for _ in 0..times {
            self.add(0, waking(WOKEN, 0));
            self.add(flags, wakeup(WOKEN, 0));
        }
        self
    }

    /// The same of one with this priority.
    fn wakes_at(mut self, prio: i32) -> Self {
        let first = self.log.events.len();
        self = self.wakes(50, LAZY);
        for event in &mut self.log.events[first..] {
            if let Kind::SchedWakeup { prio: woken, .. } = &mut event.kind {
                *woken = prio;
            }
        }
        self
    }

    fn decisions(&self) -> Decisions {
        extracted(&self.log.events, &self.log.names).0.decisions
    }

    fn permille(&self) -> Option<u64> {
        self.decisions().preempt_permille()
    }
}

/// 30 of 50 wakeups preempt.
fn usual() -> Scene {
    Scene::new().wakes(30, LAZY).wakes(20, 0)
}

#[test]
fn fifty_wakeups_show_how_many_preempt() {
    assert_eq!(usual().permille(), Some(600));
    assert_eq!(Scene::new().wakes(29, LAZY).wakes(20, 0).permille(), None);
    // Fewer than 20 requests do not show that the events have flags.
    assert_eq!(
        Scene::new().wakes(20, AT_ONCE).wakes(60, 0).permille(),
        Some(250)
    );
    assert_eq!(
        Scene::new().wakes(19, AT_ONCE).wakes(61, 0).permille(),
        None
    );
}

#[test]
fn wakeups_count_among_tasks_of_the_fair_class_where_flags_are_known() {
    assert_eq!(usual().wakes_at(i32::from(FAIR)).permille(), Some(800));
    assert_eq!(usual().wakes_at(i32::from(FAIR) - 1).permille(), Some(600));
    let mut real_time = usual();
    real_time.switch(VCPU, FAIR - 1);
    assert_eq!(real_time.wakes(50, LAZY).permille(), Some(600));
    let mut unknown = usual().wakes(50, LAZY);
    for event in &mut unknown.log.events[104..] {
        if let Kind::SchedWaking { .. } = event.kind {
            event.context = Context::UNKNOWN;
        }
    }
    assert_eq!(unknown.permille(), Some(600));
    // After a loss it is not known which task is current.
    let mut lost = usual();
    lost.add(0, Kind::Lost { count: 1 });
    assert_eq!(lost.wakes(50, LAZY).permille(), Some(600));
}

#[test]
fn a_host_preempts_lazily_if_most_requests_of_its_tasks_are_lazy() {
    let preempt = |lazy, at_once| {
        let scene = Scene::new().wakes(lazy, LAZY).wakes(at_once, AT_ONCE);
        scene.decisions().preempt()
    };
    assert_eq!(preempt(31, 30), Some(Preempt::Lazy));
    assert_eq!(preempt(30, 30), None);
    assert_eq!(preempt(19, 0), None);
    let mut idle = Scene::new();
    idle.switch(0, FAIR);
    for _ in 0..50 {
        idle.add(LAZY, waking(WOKEN, 0));
    }
    assert_eq!(idle.decisions().preempt(), None);
}

/// Wakeups while the vCPU has the CPU, and while the thread does: how many, and how many preempt.
fn sorts(vcpu: [u64; 2], thread: [u64; 2]) -> Decisions {
    let mut scene = Scene::new();
    for (tid, [total, preempt]) in [(VCPU, vcpu), (THREAD, thread)] {
        scene.switch(tid, FAIR);
        scene = scene.wakes(preempt, LAZY).wakes(total - preempt, 0);
    }
    scene.decisions()
}

#[test]
fn decisions_of_each_sort_count_by_how_many_the_recording_has() {
    let recorded = sorts([100, 50], [300, 30]);
    // By 300 permille of 100, and by none or 500 permille of 300.
    let thread_alike = recorded.apart_permille(&sorts([100, 80], [100, 10]));
    assert_eq!(thread_alike, Some(300 * 100 / 400));
    let both = recorded.apart_permille(&sorts([100, 80], [100, 60]));
    assert_eq!(both, Some((300 * 100 + 500 * 300) / 400));
    // A sort with fewer than 50 in one of the two does not count.
    let few = recorded.apart_permille(&sorts([50, 40], [49, 49]));
    assert_eq!(few, Some(300));
    let fewest = sorts([50, 40], [49, 49]);
    assert_eq!(fewest.apart_permille(&recorded), Some(300));
    assert_eq!(sorts([50, 19], [300, 0]).apart_permille(&recorded), None);
}

#[test]
fn a_loss_hides_which_task_is_displaced() {
    let mut scene = Scene::new();
    assert_eq!(scene.decisions().displaced(), 1);
    scene.switch(VCPU, FAIR);
    assert_eq!(scene.decisions().displaced(), 2);
    scene.add(0, Kind::Lost { count: 1 });
    scene.switch(THREAD, FAIR);
    assert_eq!(scene.decisions().displaced(), 2);
}

/// Latencies on CPU 0.
fn latencies(events: &[(u64, Kind)]) -> WakeLatencies {
    let mut log = Log::default();
    for &(time_ns, kind) in events {
        log.add(time_ns, 0, 0, kind);
    }
    let mut latencies = WakeLatencies::default();
    log.events.iter().for_each(|event| latencies.event(event));
    latencies
}

#[test]
fn a_task_waits_from_its_first_wakeup_and_from_a_preemption() {
    let latencies = latencies(&[
        (10, waking(5, 0)),
        (15, waking(5, 0)),
        (30, switch(0, 5, 0)),
        (50, switch(5, 6, 0)),
        (80, switch(6, 5, 1)),
        (90, switch(5, 0, 1)),
    ]);
    assert_eq!(latencies.samples, [(5, vec![20])].into());
    assert_eq!(latencies.ready_ns, [(5, 20 + 30)].into());
}

/// It may have run meanwhile.
#[test]
fn a_task_that_waits_in_a_loss_has_no_latency() {
    let latencies = latencies(&[
        (10, waking(5, 0)),
        (20, Kind::Lost { count: 1 }),
        (30, switch(0, 5, 0)),
        (40, switch(5, 6, 0)),
        (50, Kind::Lost { count: 1 }),
        (60, switch(6, 5, 1)),
    ]);
    assert!(latencies.samples.is_empty() && latencies.ready_ns.is_empty());
}

//! What ends halts of vCPUs, and what they cost.

use common::Log;
use common::kinds::{switch, wakeup, waking};
use stealtime_events::{ExitReason, Kind, NameId, Tid, VcpuId};
use stealtime_replay::{RecordedTask, Recording};
use stealtime_simulator::script::{Step, Until};

use crate::common;

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;
/// The threads of vCPUs 0 and 1 of a VM, each on the CPU of its number.
const HALTS: i32 = 7;
const SENDS: i32 = 8;
/// A task of the host that has CPU 1 without vCPU 1.
const OTHER: i32 = 9;

/// Both vCPUs compute.
fn guest() -> Log {
    let mut log = Log::default();
    for (cpu, tid) in [(0, HALTS), (1, SENDS)] {
        let (thread, process, name) = (Tid(tid), Tid(HALTS), NameId::NONE);
        let named = Kind::Task {
            tid: thread,
            process,
            name,
        };
        log.add(0, cpu, tid, named);
        log.add(0, cpu, 0, switch(0, tid, 0));
        enters(&mut log, 10 * US, cpu, tid);
    }
    log
}

fn enters(log: &mut Log, time_ns: u64, cpu: u16, tid: i32) {
    let vcpu = VcpuId(cpu.into());
    log.add(time_ns, cpu, tid, Kind::KvmEntry { vcpu });
}

fn exits(log: &mut Log, time_ns: u64, cpu: u16, tid: i32, reason: u32) {
    let (reason, vcpu) = (ExitReason::vmx(reason), VcpuId(cpu.into()));
    let exit = Kind::KvmExit {
        reason,
        vcpu,
        intr_vector: None,
        info1: 0,
    };
    log.add(time_ns, cpu, tid, exit);
}

/// vCPU 1 sends an IPI to vCPU 0.
fn sends(log: &mut Log, time_ns: u64) {
    // APIC_WRITE
    exits(log, time_ns, 1, SENDS, 56);
    let accepts = Kind::KvmApicvAcceptIrq {
        apicid: 0,
        dm: 0,
        tm: 0,
        vec: 0xfd,
    };
    log.add(time_ns + US, 1, SENDS, accepts);
    enters(log, time_ns + 5 * US, 1, SENDS);
}

fn halt_ends(log: &mut Log, time_ns: u64, ns: u64, waited: bool) {
    let valid = true;
    let ends = Kind::KvmVcpuWakeup { ns, waited, valid };
    log.add(time_ns, 0, HALTS, ends);
    enters(log, time_ns + US, 0, HALTS);
}

/// vCPU 0 halts and polls until vCPU 1 sends an IPI after 50 us.
fn polls(log: &mut Log, time_ns: u64) {
    exits(log, time_ns, 0, HALTS, 12);
    sends(log, time_ns + 50 * US);
    halt_ends(log, time_ns + 52 * US, 51 * US, false);
}

/// vCPU 0 halts and sleeps for 1 ms, until `wake` wakes it. Its way back takes 20 us.
fn sleeps(log: &mut Log, time_ns: u64, wake: impl Fn(&mut Log, u64) -> i32) {
    exits(log, time_ns, 0, HALTS, 12);
    log.add(time_ns + US, 0, HALTS, switch(HALTS, 0, 1));
    let end_ns = time_ns + MS;
    let waker = wake(log, end_ns);
    log.add(end_ns + 2 * US, 1, waker, waking(HALTS, 0));
    log.add(end_ns + 3 * US, 1, waker, wakeup(HALTS, 0));
    log.add(end_ns + 30 * US, 0, 0, switch(0, HALTS, 0));
    halt_ends(log, end_ns + 50 * US, MS + 49 * US, true);
}

fn by_ipi(log: &mut Log, time_ns: u64) -> i32 {
    sends(log, time_ns);
    SENDS
}

fn halting(recording: &Recording) -> &RecordedTask {
    let mut tasks = recording.tasks.iter();
    tasks
        .find(|task| task.vcpu == Some((0, 0)))
        .expect("it is a vCPU")
}

/// A vCPU's IPI ends a poll as it ends a sleep: at a point of its own demand.
#[test]
fn halts_wait_for_the_vcpu_that_sends_an_ipi() {
    for has_polled in [true, false] {
        let mut log = guest();
        match has_polled {
            true => polls(&mut log, MS),
            false => sleeps(&mut log, MS, by_ipi),
        }
        let recording = log.extracted();
        let halts = halting(&recording).steps.iter();
        let ends = halts.filter_map(|step| match *step {
            Step::Halt(end) => Some(end),
            _ => None,
        });
        let ends: Vec<Until> = ends.collect();
        let is_point = |end: &Until| matches!(end, Until::Edge(_) | Until::Work { .. });
        assert!(ends.len() == 1 && ends.iter().all(is_point), "{ends:?}");
        assert_eq!(recording.resolved.edges, 1, "polled: {has_polled}");
    }
}

/// Where a replay does not poll, a halt that polled takes as much as others that slept.
#[test]
fn halts_that_polled_would_have_cost_a_sleep() {
    let mut log = guest();
    polls(&mut log, MS);
    sleeps(&mut log, 2 * MS, by_ipi);
    polls(&mut log, 4 * MS);
    let recording = log.extracted();
    let slept = halting(&recording).steps.iter();
    let slept = slept.filter_map(|step| match *step {
        Step::Slept(ns) => Some(ns),
        _ => None,
    });
    assert_eq!(slept.collect::<Vec<u32>>(), [20_000; 3]);
}

/// When the guest's timer would have ended a halt that something else ended, in ms.
fn alarms(cancels: bool) -> Vec<u64> {
    let mut log = guest();
    let function = log.names.add("apic_timer_fn");
    // An expiry shows the clock of timers.
    let expires = Kind::HrtimerExpireEntry {
        hrtimer: 2,
        now_ns: 20 * US,
        function,
    };
    log.interrupt(20 * US, 1, SENDS, expires);
    let starts = Kind::HrtimerStart {
        hrtimer: 1,
        function,
        expires_ns: 10 * MS,
    };
    exits(&mut log, 500 * US, 0, HALTS, 32);
    log.add(501 * US, 0, HALTS, starts);
    if cancels {
        log.add(502 * US, 0, HALTS, Kind::HrtimerCancel { hrtimer: 1 });
    }
    enters(&mut log, 505 * US, 0, HALTS);
    log.add(600 * US, 1, SENDS, switch(SENDS, OTHER, 0));
    sleeps(&mut log, MS, |_, _| OTHER);
    let recording = log.extracted();
    let steps = halting(&recording).steps.iter();
    let alarms = steps.filter_map(|step| match *step {
        Step::Alarm(Until::Time(time_ns)) if time_ns != u64::MAX => Some(time_ns / MS),
        Step::Alarm(Until::Armed { ns, .. }) => Some((ns + 501 * US) / MS),
        _ => None,
    });
    alarms.collect()
}

#[test]
fn a_timer_that_the_guest_cancels_ends_no_halt() {
    assert_eq!(alarms(false), [10]);
    assert_eq!(alarms(true), Vec::<u64>::new());
}

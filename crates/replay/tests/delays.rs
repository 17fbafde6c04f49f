//! Slices and ticks that end late, and stalls that explain it.

use common::text::{late, steps, task, trace};
use stealtime_replay::Recording;

use crate::common;

/// Stalls of a task: the step, after how much of it, and how long, in us.
fn stalls(recording: &Recording, tid: i32) -> Vec<(u32, u64, u64)> {
    let stalls = task(recording, tid).stalls.iter();
    stalls
        .map(|stall| (stall.step, stall.after_ns / 1_000, stall.ns / 1_000))
        .collect()
}

/// A slice timer and a tick are due in the same stall. Of two stalls the longer one explains a late timer.
#[test]
fn a_stall_is_a_part_of_what_its_task_computes() {
    let log = trace(
        "
      0 0  0 switch 0 20
     10 0 20 settimer 100 tick_nohz_handler 4000
    100 0 20 settimer 200 hrtick 3000
   6000 0 20! expiretimer 200 hrtick 6000
   6003 0 20! expiretimer 100 tick_nohz_handler 6003
   6010 0 20 switch 20 21
   6020 0 21 switch 21 20 sleeps
   7000 0 20 settimer 200 hrtick 7500
   9000 0 20! expiretimer 200 hrtick 9000
   9004 0 20 switch 20 21
   9010 0 21 switch 21 20 sleeps
   9020 0 20 settimer 200 hrtick 9500
  12000 0 20 canceltimer 5
  12700 0 20! expiretimer 200 hrtick 12700
  12705 0 20 switch 20 21
",
    );
    let recording = log.extracted();
    assert_eq!(steps(&recording, 20), "host 12689");
    let expected = [(0, 100, 5_900), (0, 6_990, 2_000), (0, 9_004, 2_980)];
    assert_eq!(stalls(&recording, 20), expected);
    assert_eq!(stalls(&recording, 21), []);
    assert_eq!(late(&recording.late), "3000+3010 7500+1504 9500+3205");
    assert_eq!(late(&recording.tick_late), "4000+2010");
    let without = &recording.without_stalls;
    assert_eq!(late(&without.late), "6000+10 9000+4 12000+705");
    assert_eq!(late(&without.tick_late), "6000+10");
}

/// A vCPU that polls in a halt computes nothing, nor does an idle CPU.
#[test]
fn cpus_that_compute_nothing_are_late_for_another_reason() {
    let log = trace(
        "
      0 0 10 name 10 10
      0 0  0 switch 0 10
      5 0 10 entry 0
     10 0 10 settimer 100 tick_nohz_handler 2000
   1000 0 10 exit 0 12
   4000 0 10! expiretimer 100 tick_nohz_handler 4000
   4100 0 10 halted 3100
   4101 0 10 entry 0
      0 1 20 switch 20 0 sleeps
      5 1  0 settimer 101 tick_nohz_handler 1000
   3000 1  0! expiretimer 101 tick_nohz_handler 3000
   3100 1  0 switch 0 20
",
    );
    let recording = log.extracted();
    assert_eq!(
        [10, 20].map(|tid| stalls(&recording, tid)),
        [const { Vec::new() }; 2]
    );
    let ticks = "2000+2000 | 1000+2000";
    assert_eq!(late(&recording.tick_late), ticks);
    assert_eq!(late(&recording.without_stalls.tick_late), ticks);
}

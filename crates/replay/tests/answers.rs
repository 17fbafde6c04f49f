//! Waits for what a VM's own requests ask for.

use common::text::{steps, trace};
use stealtime_replay::{Guest, Recording};

use crate::common;

/// Of each round, in us: when its answers come after the request.
type Delays<'a> = &'a [&'a [u64]];

/// A vCPU asks a thread of its VMM for something. The thread passes it on 20 us later and sleeps. The vCPU
/// halts after 30 us, and 30 us after each answer its CPU has left its idle state. A round takes 10 ms, and
/// every second one `longer` us in addition.
fn recorded(longer: u64, rounds: Delays) -> Recording {
    let mut log = trace(
        "
      0 0 10 name 10 10
      0 0 10 name 12 10
      0 0  0 switch 0 10
      1 0 10 entry 0
      2 1 12 switch 12 0 sleeps
",
    );
    let mut begin = 0;
    for (number, delays) in (0..).zip(rounds) {
        begin += 10_000 + number % 2 * longer;
        let mut add = |after: u64, line: &str| log.append(&format!("{} {line}", begin + after));
        add(0, "0 10 exit 0 30");
        add(1, "0 10 waking 12 1");
        add(3, "0 10 entry 0");
        add(11, "1 0 switch 0 12");
        add(20, "1 12 switch 12 0 sleeps");
        let mut halted = 30;
        for delay in *delays {
            let answer = 20 + delay;
            add(halted, "0 10 exit 0 12");
            add(halted + 1, "0 10 switch 10 0 sleeps");
            add(answer, "0 0! waking 10 0");
            add(answer, "0 0! wakeup 10 0");
            add(answer + 30, "0 0 switch 0 10");
            let line = format!("0 10 halted {} slept", answer + 32 - halted - 1);
            add(answer + 32, &line);
            add(answer + 33, "0 10 entry 0");
            halted = answer + 40;
        }
    }
    log.extracted()
}

/// What ends the halts of the vCPU as a guest of another host.
fn ends(recording: &Recording) -> Vec<String> {
    let guest = Guest::new(recording, 0, 1_000);
    let steps = steps(guest.recording(), 10);
    let halts = steps
        .split(", ")
        .filter_map(|step| step.strip_prefix("halt "));
    halts.map(str::to_owned).collect()
}

fn has_answers(recording: &Recording) -> bool {
    ends(recording).iter().any(|end| end.starts_with("answer"))
}

#[test]
fn a_guest_waits_for_answers_as_long_as_they_took() {
    let delay = |number: u64| [80 + number % 5 * 10];
    let delays: Vec<[u64; 1]> = (0..120).map(delay).collect();
    let rounds: Vec<&[u64]> = delays.iter().map(|delay| &delay[..]).collect();
    let recording = recorded(4_000, &rounds);
    assert_eq!(recording.idle_wake_ns, Some(30_000));
    // A quarter of a short delay is the most that an idle CPU takes to leave its state.
    let expected = (120..).zip(&delays);
    let expected =
        expected.map(|(edge, [delay])| format!("answer to {edge} {} exit 20", delay - 20));
    assert_eq!(ends(&recording), expected.collect::<Vec<String>>());
    // The points are those where the thread sleeps after the requests.
    let guest = Guest::new(&recording, 0, 1_000);
    let thread = steps(guest.recording(), 12);
    let begins = "host 2, sleep for 0, host 9, reach 120, sleep for 1, host 9, reach 121, ";
    assert!(thread.starts_with(begins), "{thread}");
    let guest = guest.recording();
    assert_eq!((guest.edges, guest.edge_ns.len()), (240, 240));
    assert_eq!(guest.edge_ns[120..122], [10_020_000, 24_020_000]);
}

#[test]
fn of_delays_that_are_near_none_are_those_of_deep_idle_states() {
    // As far from each other as the first two are.
    let delays = [80, 80, 80, 80, 90, 90, 90, 100, 100, 100].map(|delay| [delay]);
    let rounds = delays.iter().map(|delay| &delay[..]);
    let rounds: Vec<&[u64]> = rounds.cycle().take(120).collect();
    let ends = ends(&recorded(4_000, &rounds));
    let exits: Vec<&str> = ends
        .iter()
        .filter_map(|end| end.split("exit ").nth(1))
        .collect();
    assert_eq!(exits, ["20"; 120]);
}

#[test]
fn what_comes_at_a_fixed_rate_or_several_times_is_no_answer() {
    let same = [&[100][..]; 120];
    assert!(has_answers(&recorded(4_000, &same)));
    assert!(!has_answers(&recorded(0, &same)));
    // Two interrupts come for each request, the second one 50 to 250 us after the first.
    let pair = |number: u64| [100, 150 + 2 * number];
    let pairs: Vec<[u64; 2]> = (0..100).map(pair).collect();
    let rounds: Vec<&[u64]> = pairs.iter().map(|pair| &pair[..]).collect();
    assert!(!has_answers(&recorded(4_000, &rounds)));
}

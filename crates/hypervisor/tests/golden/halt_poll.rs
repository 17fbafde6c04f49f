//! Family `halt-poll`: how long, whether it slept, how the window adapts.

use std::cell::Cell;

use serde_json::{Value, json};
use stealtime_hypervisor::events::Events;
use stealtime_hypervisor::halt_poll::{Halt, HaltEnd, HaltPoll, HaltPollKnobs, PollTurn};

use crate::files;

/// The statistics that one halt adds to.
#[derive(Default)]
struct Counters {
    attempted: Cell<u64>,
    successful: Cell<u64>,
    invalid: Cell<u64>,
    success_ns: Cell<u64>,
    fail_ns: Cell<u64>,
}

impl Events for Counters {
    fn halt_polled(&self, successful: bool, poll_ns: u64) {
        self.attempted.set(self.attempted.get() + 1);
        if successful {
            self.successful.set(self.successful.get() + 1);
            self.success_ns.set(self.success_ns.get() + poll_ns);
        } else {
            self.fail_ns.set(self.fail_ns.get() + poll_ns);
        }
    }
    fn halt_poll_invalid(&self) {
        self.invalid.set(self.invalid.get() + 1);
    }
}

fn number(op: &Value, key: &str) -> u64 {
    op[key]
        .as_u64()
        .unwrap_or_else(|| panic!("{key} of {op} is no u64"))
}

struct Param {
    knobs: HaltPollKnobs,
    allowed: bool,
    valid_wakeup: bool,
}

fn param(op: &Value) -> Param {
    let small = |key| number(op, key) as u32;
    Param {
        knobs: HaltPollKnobs {
            halt_poll_ns: small("halt_poll_ns"),
            grow: small("grow"),
            grow_start_ns: small("grow_start"),
            shrink: small("shrink"),
            vm_max_ns: (small("override") != 0).then(|| small("vm_max")),
        },
        allowed: number(op, "poll_control") & 1 != 0,
        valid_wakeup: number(op, "valid_wakeup") != 0,
    }
}

/// The polling loop and the wait of one halt: when it ended, when polling ended, whether it slept.
fn pass(halt: &Halt, op: &Value, valid_wakeup: bool) -> HaltEnd {
    let (wake, step) = (number(op, "wake"), number(op, "step"));
    let mut end = HaltEnd {
        waited: false,
        halt_ns: 0,
        poll_ns: 0,
        valid_wakeup,
    };
    let mut now = 0;
    if halt.polls() {
        loop {
            if now >= wake {
                (end.halt_ns, end.poll_ns) = (now, now);
                return end;
            }
            now += step;
            let turn = PollTurn {
                elapsed_ns: now,
                alone: now < number(op, "alone_until"),
                need_resched: now >= number(op, "resched_at"),
            };
            if !halt.keeps_polling(&turn) {
                break;
            }
        }
        end.poll_ns = now;
    }
    now += number(op, "gap");
    end.waited = now < wake;
    if end.waited {
        now = wake + number(op, "lat");
    }
    end.halt_ns = now;
    end
}

#[test]
fn halt_poll() {
    for file in files::of("halt-poll") {
        for line in file.sequences() {
            let mut vcpu = HaltPoll::default();
            let mut set = None;
            for (step, op) in line["ops"].as_array().unwrap().iter().enumerate() {
                if op["op"] == "param" {
                    set = Some(param(op));
                    continue;
                }
                let set = set.as_ref().expect("a param comes first");
                let counters = Counters::default();
                let halt = vcpu.begin(&set.knobs, set.allowed);
                let end = pass(&halt, op, set.valid_wakeup);
                vcpu.end(&set.knobs, &halt, &end, &counters);
                let slept_ns = if end.waited {
                    end.halt_ns - end.poll_ns
                } else {
                    0
                };
                let got = json!({
                    "halt_poll_ns": vcpu.own_ns(),
                    "waited": u8::from(end.waited),
                    "halt_ns": end.halt_ns,
                    "attempted": counters.attempted.get(),
                    "successful": counters.successful.get(),
                    "invalid": counters.invalid.get(),
                    "success_ns": counters.success_ns.get(),
                    "fail_ns": counters.fail_ns.get(),
                    "wait_ns": slept_ns,
                });
                assert_eq!(
                    got,
                    op["out"],
                    "{}: family halt-poll, seed {}, step {step}: {op}",
                    file.path.display(),
                    line["seed"]
                );
            }
        }
    }
}

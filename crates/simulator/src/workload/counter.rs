//! `counter-read`: what a read of an arm64 guest's physical counter takes.

use super::Workload;
use super::params::{ParamDoc, Params};
use crate::fault::Sim;
use crate::guest::GuestBuilder;
use crate::program::Thread;

pub(super) const COUNTER_READ: Workload = Workload {
    name: "counter-read",
    about: "a thread that reads the physical counter between two reads of the virtual one, in a \
        loop. A latency is from one read to the other. It is the benchmark of the arm64 counter series",
    params: &[
        ParamDoc {
            name: "read_ns",
            default: 25,
            min: 1,
            max: 1_000_000,
            unit: "ns",
            about: "three reads and their barriers, undisturbed (estimate)",
        },
        ParamDoc {
            name: "slow_ppm",
            default: 100_000,
            min: 0,
            max: 1_000_000,
            unit: "",
            about: "delayed reads of a million (estimate)",
        },
        ParamDoc {
            name: "slow_ns",
            default: 200,
            min: 1,
            max: 1_000_000,
            unit: "ns",
            about: "mean of such a delay, exponentially distributed",
        },
    ],
    build,
};

fn build(params: &Params, guest: &mut GuestBuilder) -> Sim {
    let (read, ppm, slow) = (
        params.get("read_ns"),
        params.get("slow_ppm"),
        params.get("slow_ns"),
    );
    guest.spawn("counter", Some(0), move |thread| {
        read_on(thread, read, ppm, slow)
    })
}

async fn read_on(mut thread: Thread, read: u64, ppm: u64, slow: u64) {
    loop {
        let delayed = thread.random.below(1_000_000) < ppm;
        let delay = match delayed {
            true => thread.random.exponential(slow),
            false => 0,
        };
        let began = thread.now();
        thread.read_counter(read + delay).await;
        thread.took(thread.now() - began);
    }
}

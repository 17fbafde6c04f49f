//! TSC conversion, the clock page, migration, halt polling.

use std::hint::black_box;
use std::sync::atomic::AtomicU64;

use stealtime_hypervisor::counter::arith::TimeScale;
use stealtime_hypervisor::counter::kvm_clock::KvmClockData;
use stealtime_hypervisor::counter::migration::{Side, Uncertainty, by_offsets};
use stealtime_hypervisor::counter::pvclock::{PvclockPage, PvclockTime};
use stealtime_hypervisor::counter::scaling::RatioFormat;
use stealtime_hypervisor::halt_poll::{HaltEnd, HaltPoll, HaltPollKnobs};

use crate::Operation;

const VMX: RatioFormat = RatioFormat::VMX;
const RATIO: u64 = 0xd123_4567_89ab;

fn side(host_tsc: u64, clock_ns: u64) -> Side {
    Side {
        clock: KvmClockData {
            clock_ns,
            flags: 14,
            realtime_ns: clock_ns,
            host_tsc,
        },
        format: VMX,
        ratio: RATIO,
    }
}

pub(crate) fn operations() -> Vec<Operation> {
    let Ok(scale) = TimeScale::cycles_to_ns(2_500_000) else {
        return Vec::new();
    };
    let time = PvclockTime {
        tsc_timestamp: 1000,
        system_time_ns: 1,
        scale,
        flags: 1,
    };
    let page = PvclockPage::<AtomicU64>::new();
    page.publish(time);
    let written = PvclockPage::<AtomicU64>::new();
    let mut poll = HaltPoll::default();
    vec![
        Operation::new("tsc-scale-neutral", |n| {
            black_box(VMX.scale(black_box(n << 20), black_box(VMX.neutral())));
        }),
        Operation::new("tsc-read-scaled", |n| {
            black_box(VMX.read_l1(black_box(RATIO), black_box(n), black_box(n << 20)));
        }),
        Operation::new("tsc-cycles-to-ns", move |n| {
            black_box(black_box(scale).scale(black_box(n << 20)));
        }),
        Operation::new("tsc-scale-factors", |n| {
            let khz = 2_000_000 + (n & 0xffff);
            let _ = black_box(TimeScale::cycles_to_ns(black_box(khz)));
        }),
        Operation::new("pvclock-read", move |n| {
            let _ = black_box(black_box(&page).read(|| n, 8));
        }),
        Operation::new("pvclock-publish", move |_| {
            black_box(black_box(&written).publish(black_box(time)));
        }),
        Operation::new("migrate-by-offsets", |n| {
            let (source, destination) = (side(n << 30, n), side(n, n + 1_000_000));
            let known = Uncertainty::default();
            let moved = by_offsets(black_box(&source), &destination, 2_000_000, &known);
            let _ = black_box(moved);
        }),
        Operation::new("halt-poll", move |n| {
            let knobs = HaltPollKnobs::default();
            let halt = poll.begin(black_box(&knobs), true);
            let end = HaltEnd {
                waited: n & 1 != 0,
                halt_ns: n & 0x3_ffff,
                poll_ns: u64::from(halt.poll_ns()),
                valid_wakeup: true,
            };
            black_box(poll.end(&knobs, &halt, &end, &()));
        }),
    ]
}

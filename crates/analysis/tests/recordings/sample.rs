//! A piece of 6000 events of a host with two VMs. The numbers were computed from the same text by a
//! script that shares no code with this crate.

use std::path::PathBuf;

use super::common::{answers, check};
use stealtime_analysis::{Options, Selection};

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/four-vcpus.txt.zst")
}

#[test]
fn time_and_exits_are_those_of_the_text() {
    let answers = answers(&path(), Options::default());
    check(&answers);
    let mut times: Vec<_> = answers
        .vcpus
        .iter()
        .map(|vcpu| (vcpu.tid, vcpu.guest_ns.unwrap(), vcpu.on_cpu_ns))
        .collect();
    times.sort_unstable();
    assert_eq!(
        times,
        [
            (357, 13_754_643, 32_729_214),
            (358, 21_157_850, 85_652_371),
            (359, 14_394_203, 34_171_886),
            (360, 14_448_707, 28_338_933),
        ]
    );
    let exits: Vec<_> = answers
        .exit_totals
        .iter()
        .map(|row| {
            (
                row.reason.as_str(),
                row.samples,
                row.time_ns,
                row.min_ns,
                row.max_ns,
            )
        })
        .collect();
    assert_eq!(
        exits,
        [
            ("msr", 378, 67_679_431, 38_300, 4_251_448),
            ("hlt", 123, 209_938_001, 33_567, 6_371_734),
            ("vintr", 83, 9_893_264, 20_975, 3_570_022),
            ("interrupt", 50, 47_967_670, 35_798, 4_927_619),
        ]
    );
    assert_eq!(
        (answers.source.first_ns, answers.source.span_ns),
        (45_541_955_272, 103_759_446)
    );
}

#[test]
fn the_vms_are_distinguished() {
    let answers = answers(&path(), Options::default());
    let tids = |vm: usize| -> Vec<i32> {
        let vm = &answers.vms[vm].vm;
        answers
            .vcpus
            .iter()
            .filter(|vcpu| vcpu.vm == *vm)
            .map(|vcpu| vcpu.tid)
            .collect()
    };
    assert_eq!((tids(0), tids(1)), (vec![357, 360], vec![358, 359]));
}

#[test]
fn a_hundred_slices_make_the_whole() {
    let whole = answers(&path(), Options::default());
    let step = whole.source.span_ns / 100;
    let mut sums = (0, 0, 0, 0);
    for slice in 0..=100 {
        let selection = Selection {
            from_ns: Some(slice * step),
            to_ns: (slice < 100).then(|| (slice + 1) * step),
            ..Selection::default()
        };
        let part = answers(
            &path(),
            Options {
                selection,
                ..Options::default()
            },
        );
        check(&part);
        sums.0 += part.vcpus.iter().map(|vcpu| vcpu.span_ns).sum::<u64>();
        sums.1 += part
            .vcpus
            .iter()
            .map(|vcpu| vcpu.poll_wasted_ns)
            .sum::<u64>();
        sums.2 += part.exit_totals.iter().map(|row| row.samples).sum::<u64>();
        sums.3 += part.source.events;
    }
    let expected = (
        whole.vcpus.iter().map(|vcpu| vcpu.span_ns).sum::<u64>(),
        whole
            .vcpus
            .iter()
            .map(|vcpu| vcpu.poll_wasted_ns)
            .sum::<u64>(),
        whole.exit_totals.iter().map(|row| row.samples).sum::<u64>(),
        whole.source.events,
    );
    assert_eq!(sums, expected);
}

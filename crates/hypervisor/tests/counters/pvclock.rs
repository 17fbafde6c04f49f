//! The clock page: item 10.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use stealtime_hypervisor::counter::arith::TimeScale;
use stealtime_hypervisor::counter::pvclock::{
    PVCLOCK_GUEST_STOPPED, PVCLOCK_TSC_STABLE, PvclockBusy, PvclockPage, PvclockTime,
};

fn time(n: u64) -> PvclockTime {
    PvclockTime {
        tsc_timestamp: n,
        system_time_ns: n.wrapping_mul(3),
        scale: TimeScale {
            mul: n as u32,
            shift: (n % 128) as i8,
        },
        flags: PVCLOCK_TSC_STABLE,
    }
}

#[test]
fn counters_sloppy_10_an_odd_or_changed_version_is_read_again() {
    let page = PvclockPage::<Cell<u64>>::new();
    page.publish(time(5));
    assert_eq!(page.version(), 2);
    let odd = page.begin_update();
    assert_eq!(odd, 3);
    let busy = PvclockBusy {
        attempts: 4,
        version: 3,
    };
    assert_eq!(page.read(|| 0, 4), Err(busy));
    page.write_fields(time(6));
    assert_eq!(page.read(|| 0, 4), Err(busy));
    page.end_update(odd);
    assert_eq!(page.try_read(|| ()).unwrap(), (time(6), 4, ()));
    // An update within the reading: the counter read with it belongs to neither.
    let torn = page.try_read(|| page.publish(time(7)));
    assert_eq!(
        torn.map(|_| ()),
        Err(PvclockBusy {
            attempts: 1,
            version: 6
        })
    );
    let mut updates = 0;
    let reading = page.read(
        || {
            updates += 1;
            if updates < 3 {
                page.publish(time(8));
            }
            9
        },
        3,
    );
    assert_eq!(reading.unwrap().version, 10);
    // A host that died while it wrote: the next one does not make the page look whole.
    page.begin_update();
    assert_eq!(page.begin_update() & 1, 1);
    assert!(page.try_read(|| ()).is_err());
}

#[test]
fn counters_sloppy_10_guest_stopped_survives_updates_until_acknowledged() {
    let page = PvclockPage::<Cell<u64>>::new();
    let stopped = PvclockTime {
        flags: PVCLOCK_GUEST_STOPPED,
        ..time(1)
    };
    page.publish(stopped);
    assert_eq!(page.publish(stopped).flags, PVCLOCK_GUEST_STOPPED);
    let both = PVCLOCK_TSC_STABLE | PVCLOCK_GUEST_STOPPED;
    assert_eq!(page.publish(time(2)).flags, both);
    assert_eq!(page.read(|| 0, 1).unwrap().flags, both);
    assert!(page.acknowledge_stopped());
    assert!(!page.acknowledge_stopped());
    assert_eq!(page.publish(time(3)).flags, PVCLOCK_TSC_STABLE);
}

#[test]
fn the_page_has_the_layout_of_the_abi() {
    assert_eq!(size_of::<PvclockPage<AtomicU64>>(), 32);
    let page = PvclockPage::<AtomicU64>::new();
    page.publish(PvclockTime {
        tsc_timestamp: 0x0102_0304_0506_0708,
        system_time_ns: 0x1112_1314_1516_1718,
        scale: TimeScale {
            mul: 0x2122_2324,
            shift: -2,
        },
        flags: PVCLOCK_TSC_STABLE,
    });
    // SAFETY: the page is 32 bytes of plain integers, fully initialised, and not written while it
    // is copied. Needed to look at what a guest sees, which reads it as bytes.
    let bytes: [u8; 32] = unsafe { std::mem::transmute_copy(&page) };
    let expected = [
        2, 0, 0, 0, 0, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1, 0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12,
        0x11, 0x24, 0x23, 0x22, 0x21, 0xfe, 1, 0, 0,
    ];
    assert_eq!(bytes, expected);
}

/// Real threads: no reader ever sees fields of two updates. Also run under Miri.
#[test]
fn readers_on_other_cpus_see_whole_updates() {
    let updates = if cfg!(miri) { 50 } else { 20_000 };
    let page = PvclockPage::<AtomicU64>::new();
    let done = AtomicBool::new(false);
    page.publish(time(0));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut last = 0;
                while !done.load(Ordering::Relaxed) {
                    let Ok((seen, version, ())) = page.try_read(|| ()) else {
                        continue;
                    };
                    assert_eq!(seen, time(seen.tsc_timestamp));
                    assert_eq!(u64::from(version), 2 + 2 * seen.tsc_timestamp);
                    assert!(seen.tsc_timestamp >= last);
                    last = seen.tsc_timestamp;
                }
            });
        }
        for n in 1..=updates {
            page.publish(time(n));
        }
        done.store(true, Ordering::Relaxed);
    });
}

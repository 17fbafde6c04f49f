//! What reading a counter costs: native, through the kvmclock, in a guest, trapped.
//!
//! ```no_run
//! // 64 vCPUs, saved and restored 100 times on /dev/kvm.
//! println!("{}", guest_clock::bench::ioctls(64, 100)?);
//! println!("{}", guest_clock::bench::costs()?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fmt;
use std::hint::black_box;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use serde::Serialize;
use stealtime_hypervisor::counter::arith::TimeScale;
use stealtime_hypervisor::counter::pvclock::{PVCLOCK_TSC_STABLE, PvclockPage, PvclockTime};

use crate::drill::DrillError;
use crate::guest::{Guest, Reader};
use crate::kvm::{host, rdtsc};
use crate::readings::{HEADING, readings};

mod ioctls;

pub use crate::readings::{Reading, Spread};
pub use ioctls::{Cost, IoctlTimes, ioctls};

/// Costs in picoseconds a reading: the least of several runs, since whatever disturbs adds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Costs {
    /// `LFENCE; RDTSC` in this process.
    pub native_tsc_ps: u64,
    /// A kvmclock page read in this process, `LFENCE; RDTSC` in it: the cost in a guest
    /// without TSC exits.
    pub kvmclock_ps: u64,
    /// The system's own clock, by `clock_gettime(CLOCK_MONOTONIC)`.
    pub monotonic_ps: u64,
    /// `LFENCE; RDTSC` in this process, each between two others, as the counter series measures its own:
    /// that of one more is in it.
    pub each_native_tsc: Spread,
    /// A kvmclock page, likewise.
    pub each_kvmclock: Spread,
    /// `CLOCK_MONOTONIC`, likewise.
    pub each_monotonic: Spread,
    /// Readings of the TSC by a guest, native and trapped.
    pub guest_readings: Vec<Reading>,
    /// A turn of an empty loop in a guest: well below a nanosecond where code is not emulated.
    pub guest_loop_ps: u64,
    /// A turn with `RDTSC` in it.
    pub guest_rdtsc_ps: u64,
    /// A turn with `RDMSR` of the TSC in it: trapped unless KVM lets it through.
    pub guest_rdmsr_ps: u64,
    /// A turn with `IN` from a port in it that the VMM answers with a counter: a clock device.
    pub guest_port_ps: u64,
}

impl fmt::Display for Costs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = [
            ("native: RDTSC in this process", self.native_tsc_ps),
            ("kvmclock page, RDTSC in it", self.kvmclock_ps),
            ("CLOCK_MONOTONIC of this system", self.monotonic_ps),
            ("guest: empty turn of a loop", self.guest_loop_ps),
            ("guest: turn with RDTSC", self.guest_rdtsc_ps),
            ("guest: turn with RDMSR, trapped", self.guest_rdmsr_ps),
            ("guest: turn with IN, to the VMM", self.guest_port_ps),
        ];
        write!(f, "{:<36}{:>10}", "a reading costs", "ns")?;
        for (name, ps) in rows {
            write!(f, "\n{name:<36}{:>8}.{}", ps / 1000, ps % 1000 / 100)?;
        }
        let each = [
            ("RDTSC", &self.each_native_tsc),
            ("kvmclock page", &self.each_kvmclock),
            ("CLOCK_MONOTONIC", &self.each_monotonic),
        ];
        write!(
            f,
            "\n{:<36}{:>10}{:>12}{:>10}",
            "each by itself, between two RDTSC", "average", "deviation", "95 %"
        )?;
        for (name, spread) in each {
            write!(f, "\n{name:<36}{spread}")?;
        }
        write!(f, "\n{HEADING}")?;
        self.guest_readings
            .iter()
            .try_for_each(|reading| write!(f, "\n{reading}"))
    }
}

/// Short runs, and many: on a busy machine a few of them go undisturbed.
const RUNS: u32 = 80;

fn least(
    rounds: u32,
    mut run: impl FnMut() -> Result<Duration, DrillError>,
) -> Result<u64, DrillError> {
    let mut best = u128::MAX;
    for _ in 0..RUNS {
        best = best.min(run()?.as_nanos());
    }
    Ok(u64::try_from(best * 1000 / u128::from(rounds.max(1))).unwrap_or(u64::MAX))
}

fn here(rounds: u32, mut read: impl FnMut() -> u64) -> Result<u64, DrillError> {
    least(rounds, || {
        let begin = Instant::now();
        for _ in 0..rounds {
            black_box(read());
        }
        Ok(begin.elapsed())
    })
}

fn in_guest(reader: Reader, rounds: u32) -> Result<u64, DrillError> {
    let mut guest = Guest::reading(reader)?;
    least(rounds, || {
        let begin = Instant::now();
        guest.run(rounds)?;
        Ok(begin.elapsed())
    })
}

/// Measures all of them, in about a second.
///
/// # Errors
/// [`DrillError`], for the guests.
pub fn costs() -> Result<Costs, DrillError> {
    let facts = host().map_err(crate::SaveError::Host)?.facts();
    let page = PvclockPage::<AtomicU64>::new();
    let scale = TimeScale::cycles_to_ns(u64::from(facts.tsc_khz)).unwrap_or_default();
    page.publish(PvclockTime {
        tsc_timestamp: rdtsc(),
        system_time_ns: 0,
        scale,
        flags: PVCLOCK_TSC_STABLE,
    });
    let epoch = Instant::now();
    // Starting and ending a run costs two switches: enough rounds that they do not count, few
    // enough for KVMs that emulate each instruction.
    let rounds = 2_000;
    let khz = facts.tsc_khz;
    Ok(Costs {
        each_native_tsc: Spread::measure(khz, rdtsc),
        each_kvmclock: Spread::measure(khz, || page.read(rdtsc, 8).map_or(0, |r| r.ns)),
        each_monotonic: Spread::measure(khz, || u64::from(epoch.elapsed().subsec_nanos())),
        guest_readings: readings()?,
        native_tsc_ps: here(20_000, rdtsc)?,
        kvmclock_ps: here(20_000, || page.read(rdtsc, 8).map_or(0, |r| r.ns))?,
        monotonic_ps: here(20_000, || u64::from(epoch.elapsed().subsec_nanos()))?,
        guest_loop_ps: in_guest(Reader::Nothing, rounds)?,
        guest_rdtsc_ps: in_guest(Reader::Rdtsc, rounds)?,
        guest_rdmsr_ps: in_guest(Reader::Rdmsr, rounds)?,
        guest_port_ps: in_guest(Reader::Port, rounds / 4)?,
    })
}

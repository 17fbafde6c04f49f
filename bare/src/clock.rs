//! The TSC of a guest over saves and restores by its offset, on CPUs with TSCs of their own.
//!
//! Each put saves the guest's counter: the host's clocks in one instant, and the offset. Each load is a
//! restore: a new offset from both instants, as a migration has it. The guest reports its TSC.

use core::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use stealtime_hypervisor::counter::kvm_clock::{
    KVM_CLOCK_HOST_TSC, KVM_CLOCK_REALTIME, KvmClockData,
};
use stealtime_hypervisor::counter::migration::{Side, Uncertainty, by_offsets};
use stealtime_hypervisor::counter::scaling::RatioFormat;
use stealtime_hypervisor::lapic_timer::GuestTsc;

use crate::console::say;
use crate::cpu;
use crate::guest::Program;
use crate::phase::{self, Guest, Phase};
use crate::scenario::{check, posts, setup};
use crate::vcpu::{NS_PER_CYCLE, Setup, Shared, TSC_KHZ};

/// What a guest reads when its vCPU is created.
const FIRST: u64 = 1 << 40;

static MOVES: AtomicU64 = AtomicU64::new(0);
static REPORTS: AtomicU64 = AtomicU64::new(0);
/// Least and largest distance of a report behind the ideal counter, guest cycles.
static BEHIND_MIN: AtomicI64 = AtomicI64::new(i64::MAX);
static BEHIND_MAX: AtomicI64 = AtomicI64::new(i64::MIN);

/// What came of the guests' reports.
#[derive(Clone, Copy, Default)]
pub struct Reports {
    pub moves: u64,
    pub reports: u64,
    pub behind_min: i64,
    pub behind_max: i64,
}

/// A phase begins.
pub fn reset() {
    MOVES.store(0, SeqCst);
    REPORTS.store(0, SeqCst);
    BEHIND_MIN.store(i64::MAX, SeqCst);
    BEHIND_MAX.store(i64::MIN, SeqCst);
}

/// Those of the phase.
pub fn reports() -> Reports {
    Reports {
        moves: MOVES.load(SeqCst),
        reports: REPORTS.load(SeqCst),
        behind_min: BEHIND_MIN.load(SeqCst),
        behind_max: BEHIND_MAX.load(SeqCst),
    }
}

/// The counter of one vCPU.
pub struct GuestClock {
    khz: u32,
    ratio: u64,
    offset: u64,
    /// The clocks at the last put.
    saved: Side,
    /// The instant of [`FIRST`], ns.
    begin_ns: u64,
}

/// The clocks of this CPU in one instant. The wall clock is the TSC without its adjustment.
fn side(ratio: u64) -> Side {
    let host_tsc = cpu::tsc();
    let real_ns = host_tsc.wrapping_sub(cpu::tsc_adjustment()) * NS_PER_CYCLE;
    Side {
        clock: KvmClockData {
            clock_ns: real_ns,
            flags: KVM_CLOCK_REALTIME | KVM_CLOCK_HOST_TSC,
            realtime_ns: real_ns,
            host_tsc,
        },
        format: RatioFormat::VMX,
        ratio,
    }
}

impl GuestClock {
    /// A counter of `khz` that begins now.
    pub fn new(khz: u32) -> Self {
        let ratio = RatioFormat::VMX.ratio(khz, TSC_KHZ).expect("a ratio");
        let saved = side(ratio);
        Self {
            khz,
            ratio,
            offset: RatioFormat::VMX.l1_offset(ratio, saved.clock.host_tsc, FIRST),
            begin_ns: saved.clock.clock_ns,
            saved,
        }
    }

    /// For the VMCS: ratio and offset.
    pub fn fields(&self) -> (u64, u64) {
        (self.ratio, self.offset)
    }

    /// For the timer.
    pub fn tsc(&self) -> GuestTsc {
        GuestTsc::new(self.khz, self.ratio, self.offset).expect("a frequency and a ratio")
    }

    /// The vCPU's thread leaves its CPU.
    pub fn save(&mut self) {
        self.saved = side(self.ratio);
    }

    /// The vCPU's thread is current on a CPU again, another one if it `moved`.
    pub fn restore(&mut self, moved: bool) {
        let known = Uncertainty::default();
        let migration = by_offsets(&self.saved, &side(self.ratio), self.khz, &known);
        self.offset = migration.expect("clocks that advance").offset(self.offset);
        if moved {
            MOVES.fetch_add(1, Relaxed);
        }
    }

    /// The guest has read `value` shortly before.
    pub fn report(&self, value: u64) {
        let elapsed_ns = side(self.ratio).clock.clock_ns - self.begin_ns;
        // Up to an hour at 5 GHz.
        let ideal = FIRST + elapsed_ns * u64::from(self.khz) / 1_000_000;
        let distance = ideal.wrapping_sub(value) as i64;
        REPORTS.fetch_add(1, Relaxed);
        BEHIND_MIN.fetch_min(distance, Relaxed);
        BEHIND_MAX.fetch_max(distance, Relaxed);
    }
}

/// Largest difference between two distances of reports, guest cycles.
///
/// A report contains the path from the guest's read to the host's. Each restore adds up to three cycles: it
/// converts a time, and scales on both sides.
fn tolerance(moves: u64) -> u64 {
    200 + 3 * moves
}

/// A guest that reports its TSC and changes its CPU.
fn reporting(name: &'static str, khz: u32, skew: u64, count: u64) -> Phase {
    let setup = Setup {
        guest_khz: Some(khz),
        ..setup()
    };
    let guest = Guest {
        count: 2 * count as u32,
        work: 50,
        ..Guest::new(0, Program::Clock)
    };
    Phase {
        guests: [guest].into(),
        poster: None,
        migrate: skew > 0,
        skew,
        ..posts(name, setup, guest, 0)
    }
}

/// Guests' counters over restores on the same CPU, and on one with a TSC that is ahead by 0.1 s.
pub fn table(count: u64, machine: &Shared) {
    say!(
        "{:<28} {:>8} {:>8} {:>8} {:>9} {:>9} {:>9}",
        "guests' TSC",
        "kHz",
        "restores",
        "moves",
        "backward",
        "behind",
        "most"
    );
    for (name, khz, skew) in [
        ("saved and restored", TSC_KHZ, 0),
        ("the same, scaled", 40_000, 0),
        ("moved, skewed TSCs", TSC_KHZ, 5_000_000),
        ("the same, scaled", 33_333, 5_000_000),
    ] {
        let outcome = phase::run(reporting(name, khz, skew, count), machine);
        let Reports {
            moves,
            reports,
            behind_min,
            behind_max,
        } = outcome.clock;
        // Each other report ends in a put and a load.
        let restores = reports / 2;
        say!(
            "{name:<28} {khz:>8} {restores:>8} {moves:>8} {:>9} {behind_min:>9} {behind_max:>9}",
            outcome.backward
        );
        check(
            reports == 2 * count && (moves > 0) == (skew > 0),
            format_args!("a guest did not report or move as often as asked"),
        );
        check(
            outcome.backward == 0
                && behind_min >= 0
                && behind_max.abs_diff(behind_min) <= tolerance(restores),
            format_args!("a guest's TSC is not continuous"),
        );
    }
}

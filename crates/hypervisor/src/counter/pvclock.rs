//! The kvmclock page: layout, version protocol, reader.
//!
//! 32 bytes in guest memory, little endian, as the ABI has them:
//!
//! | bytes | field | word |
//! |---|---|---|
//! | 0–3 | version, odd while the host writes | 0 |
//! | 4–7 | – | 0 |
//! | 8–15 | `tsc_timestamp` | 1 |
//! | 16–23 | `system_time`, ns | 2 |
//! | 24–27 | `tsc_to_system_mul` | 3 |
//! | 28 | `tsc_shift`, signed | 3 |
//! | 29 | flags | 3 |
//! | 30–31 | – | 3 |
//!
//! The page is four [`AtomicWord`]s: with `AtomicU64` it lies in guest memory as it is, where that is
//! aligned to 8 bytes. (`MSR_KVM_SYSTEM_TIME_NEW` asks for 4 only; guests give it a line or more.)
//!
//! ```
//! use std::sync::atomic::AtomicU64;
//! use stealtime_hypervisor::counter::arith::TimeScale;
//! use stealtime_hypervisor::counter::pvclock::{PVCLOCK_TSC_STABLE, PvclockPage, PvclockTime};
//!
//! let page = PvclockPage::<AtomicU64>::new();
//! page.publish(PvclockTime {
//!     tsc_timestamp: 5_000,
//!     system_time_ns: 1_000_000,
//!     scale: TimeScale::cycles_to_ns(2_000_000)?,
//!     flags: PVCLOCK_TSC_STABLE,
//! });
//! // The guest: 2,000 cycles of 2 GHz later.
//! let reading = page.read(|| 7_000, 1)?;
//! assert_eq!(reading.ns, 1_001_000);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use core::sync::atomic::Ordering;

use super::arith::TimeScale;
use crate::word::AtomicWord;

/// All vCPUs share one pair of host instants: readings of two vCPUs can be compared.
pub const PVCLOCK_TSC_STABLE: u8 = 1;
/// The host stopped the guest; the guest's watchdogs clear the bit when they have seen it.
pub const PVCLOCK_GUEST_STOPPED: u8 = 2;

/// The fields of a page, without its version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PvclockTime {
    /// The guest's TSC at the reference instant.
    pub tsc_timestamp: u64,
    /// The guest's time at the reference instant, in ns.
    pub system_time_ns: u64,
    /// Turns TSC ticks into ns.
    pub scale: TimeScale,
    /// [`PVCLOCK_TSC_STABLE`] and [`PVCLOCK_GUEST_STOPPED`].
    pub flags: u8,
}

impl PvclockTime {
    /// The guest's time in ns when its TSC reads `tsc` (`__pvclock_read_cycles`).
    ///
    /// A `tsc` below the timestamp wraps, as it does in every guest.
    #[must_use]
    pub const fn at(&self, tsc: u64) -> u64 {
        let delta = tsc.wrapping_sub(self.tsc_timestamp);
        self.system_time_ns.wrapping_add(self.scale.scale(delta))
    }

    const fn last_word(&self) -> u64 {
        self.scale.mul as u64 | (self.scale.shift as u8 as u64) << 32 | (self.flags as u64) << 40
    }

    const fn from_words(words: [u64; 3]) -> Self {
        Self {
            tsc_timestamp: words[0],
            system_time_ns: words[1],
            scale: TimeScale {
                mul: words[2] as u32,
                shift: (words[2] >> 32) as u8 as i8,
            },
            flags: (words[2] >> 40) as u8,
        }
    }
}

/// A page shared between the host, which writes it, and the vCPUs, which read it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct PvclockPage<W> {
    version: W,
    tsc_timestamp: W,
    system_time: W,
    rest: W,
}

/// What a reader got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PvclockReading {
    /// The guest's time in ns.
    pub ns: u64,
    /// The page's flags.
    pub flags: u8,
    /// The version under which all fields were read.
    pub version: u32,
}

/// No consistent reading was had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PvclockBusy {
    /// How often it was tried.
    pub attempts: u32,
    /// The version last seen; odd means that the host died or was preempted while writing.
    pub version: u32,
}

impl core::fmt::Display for PvclockBusy {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "the clock page changed under each of {} readings (last version {}): try again, or \
             read another clock if the version stays odd",
            self.attempts, self.version
        )
    }
}

impl core::error::Error for PvclockBusy {}

impl<W: AtomicWord> Default for PvclockPage<W> {
    fn default() -> Self {
        Self::new()
    }
}

impl<W: AtomicWord> PvclockPage<W> {
    /// A page of zeros, as guest memory is before the first update.
    #[must_use]
    pub fn new() -> Self {
        Self {
            version: W::new(0),
            tsc_timestamp: W::new(0),
            system_time: W::new(0),
            rest: W::new(0),
        }
    }

    /// The version, even unless the host is writing.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire) as u32
    }

    /// Host: makes the version odd, so that readers retry, and returns the odd version.
    ///
    /// A version left odd by a host that died is not taken for an even one.
    pub fn begin_update(&self) -> u32 {
        let odd = (self.version.load(Ordering::Relaxed) as u32).wrapping_add(1) | 1;
        self.version.store(u64::from(odd), Ordering::Relaxed);
        // No field may become visible before the odd version.
        self.version.fence(Ordering::Release);
        odd
    }

    /// Host: writes the fields, between [`Self::begin_update`] and [`Self::end_update`].
    ///
    /// [`PVCLOCK_GUEST_STOPPED`] stays set if it is in the guest's copy: only the guest clears it.
    pub fn write_fields(&self, time: PvclockTime) -> PvclockTime {
        let stopped = (self.rest.load(Ordering::Relaxed) >> 40) as u8 & PVCLOCK_GUEST_STOPPED;
        let time = PvclockTime {
            flags: time.flags | stopped,
            ..time
        };
        self.tsc_timestamp
            .store(time.tsc_timestamp, Ordering::Relaxed);
        self.system_time
            .store(time.system_time_ns, Ordering::Relaxed);
        self.rest.store(time.last_word(), Ordering::Relaxed);
        time
    }

    /// Host: makes the version even again; `odd` is what [`Self::begin_update`] returned.
    pub fn end_update(&self, odd: u32) {
        let even = u64::from(odd.wrapping_add(1));
        self.version.store(even, Ordering::Release);
    }

    /// Host: replaces the fields; returns what the page now holds.
    pub fn publish(&self, time: PvclockTime) -> PvclockTime {
        let odd = self.begin_update();
        let written = self.write_fields(time);
        self.end_update(odd);
        written
    }

    /// Guest: acknowledges [`PVCLOCK_GUEST_STOPPED`]; returns whether it was set.
    pub fn acknowledge_stopped(&self) -> bool {
        let bit = u64::from(PVCLOCK_GUEST_STOPPED) << 40;
        self.rest.fetch_and(!bit, Ordering::Relaxed) & bit != 0
    }

    /// Guest: the fields and their version, if both were stable over the whole reading. Adds what
    /// `read_clock` returned between the two looks at the version.
    ///
    /// # Errors
    /// [`PvclockBusy`] if the version was odd or changed.
    pub fn try_read<T>(
        &self,
        read_clock: impl FnOnce() -> T,
    ) -> Result<(PvclockTime, u32, T), PvclockBusy> {
        // An odd version loses its low bit here, and so differs in the second look.
        let version = self.version.load(Ordering::Acquire) as u32 & !1;
        let time = PvclockTime::from_words([
            self.tsc_timestamp.load(Ordering::Relaxed),
            self.system_time.load(Ordering::Relaxed),
            self.rest.load(Ordering::Relaxed),
        ]);
        let value = read_clock();
        // The fields must have been read before the second look.
        self.version.fence(Ordering::Acquire);
        let again = self.version.load(Ordering::Relaxed) as u32;
        if again == version {
            Ok((time, version, value))
        } else {
            Err(PvclockBusy {
                attempts: 1,
                version: again,
            })
        }
    }

    /// Guest: the time, with `rdtsc` read inside the protected section, at most `attempts` times.
    ///
    /// # Errors
    /// [`PvclockBusy`] if no attempt met a stable page.
    pub fn read(
        &self,
        mut rdtsc: impl FnMut() -> u64,
        attempts: u32,
    ) -> Result<PvclockReading, PvclockBusy> {
        let mut last = self.version();
        for _ in 0..attempts {
            match self.try_read(&mut rdtsc) {
                Ok((time, version, tsc)) => {
                    return Ok(PvclockReading {
                        ns: time.at(tsc),
                        flags: time.flags,
                        version,
                    });
                }
                Err(busy) => last = busy.version,
            }
        }
        Err(PvclockBusy {
            attempts,
            version: last,
        })
    }
}

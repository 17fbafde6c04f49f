//! Structures of the header: options that C sets, and what it gets back.
//!
//! Each begins with its size. A caller that was compiled with a later header has more fields than this
//! library knows: they must be 0. So a library never ignores an option silently.

use std::ffi::{c_char, c_int};

use super::{Failure, argument};
use crate::explanation::ForGuest;
use crate::policy::{Options, Policy, Unequal};

/// `struct guest_clock_options`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct COptions {
    /// Bytes of the caller's structure.
    pub size: usize,
    /// `enum guest_clock_policy`.
    pub policy: c_int,
    /// `enum guest_clock_unequal`.
    pub unequal: c_int,
    /// Not 0: with a bound where exactness cannot be had.
    pub accept_inexact: c_int,
    /// [`Uncertainty::frequency_error_ppb`](crate::arithmetic::Uncertainty::frequency_error_ppb).
    pub frequency_error_ppb: u32,
    /// The policy's limit, in ns.
    pub limit_ns: u64,
    /// [`Uncertainty::realtime_skew_ns`](crate::arithmetic::Uncertainty::realtime_skew_ns).
    pub realtime_skew_ns: u64,
    /// [`Uncertainty::master_clock_age_ns`](crate::arithmetic::Uncertainty::master_clock_age_ns).
    pub master_clock_age_ns: u64,
    /// [`WallClocks::ahead_ns`](crate::WallClocks::ahead_ns).
    pub wall_clocks_ahead_ns: i64,
    /// [`WallClocks::at_most_ns`](crate::WallClocks::at_most_ns); 0: no limit.
    pub wall_clocks_at_most_ns: u64,
}

/// Reads a structure of the caller's.
///
/// # Safety
/// `pointer` is null or points to a structure of integers and pointers. It begins with its size, which is
/// how many bytes are readable.
pub(super) unsafe fn read<T: Copy>(name: &str, pointer: *const T) -> Result<T, Failure> {
    if pointer.is_null() {
        return Err(argument(&format!("{name} is a null pointer")));
    }
    // SAFETY: not null, and the caller vouches for the size. Needed: C's structure is a pointer.
    let size = unsafe { pointer.cast::<usize>().read() };
    check_size(name, size, size_of::<T>())?;
    let trailing = size - size_of::<T>();
    // SAFETY: the caller vouches for `size` bytes, which are the structure and `trailing`. Any bytes are
    // valid integers. Needed: as above.
    let (caller, rest) = unsafe {
        let rest = pointer.add(1).cast::<u8>();
        (pointer.read(), std::slice::from_raw_parts(rest, trailing))
    };
    if rest.iter().any(|byte| *byte != 0) {
        return Err(argument(&format!(
            "{name} has a field that this version does not know: set what is not named to 0"
        )));
    }
    Ok(caller)
}

/// What an array of the caller's has of its vCPUs; `None`: null, empty or beyond [`crate::MAX_VCPUS`].
///
/// # Safety
/// `first` is null or points to `count` readable values, which stay for the life of the result.
pub(super) unsafe fn of_vcpus<'a, T>(first: *const T, count: usize) -> Option<&'a [T]> {
    let is_array = !first.is_null() && (1..=crate::MAX_VCPUS).contains(&count);
    // SAFETY: not null, and the caller vouches for `count` values. Needed: C's array is a pointer.
    is_array.then(|| unsafe { std::slice::from_raw_parts(first, count) })
}

impl COptions {
    /// Reads the caller's structure.
    ///
    /// # Safety
    /// As [`read`].
    pub(super) unsafe fn read(options: *const Self) -> Result<Options, Failure> {
        // SAFETY: the caller vouches for it.
        unsafe { read("options", options)? }.options()
    }

    fn options(&self) -> Result<Options, Failure> {
        let policy = match self.policy {
            0 => Policy::Stopped,
            1 => Policy::Elapsed {
                refuse_above_ns: self.limit_ns,
            },
            2 => Policy::AtMost {
                max_ns: self.limit_ns,
            },
            _ => {
                return Err(argument(
                    "policy is none of GUEST_CLOCK_STOPPED, _ELAPSED, _AT_MOST",
                ));
            }
        };
        let unequal = match self.unequal {
            0 => Unequal::Refuse,
            1 => Unequal::Highest,
            2 => Unequal::First,
            3 => Unequal::Keep,
            _ => {
                return Err(argument(
                    "unequal is none of GUEST_CLOCK_UNEQUAL_REFUSE, _HIGHEST, _FIRST, _KEEP",
                ));
            }
        };
        let mut options = Options::new(policy).unequal(unequal);
        if self.accept_inexact != 0 {
            options = options.accept_inexact();
        }
        let at_most_ns = match self.wall_clocks_at_most_ns {
            0 => u64::MAX,
            ns => ns,
        };
        options = options.wall_clocks(self.wall_clocks_ahead_ns, at_most_ns);
        options.uncertainty.realtime_skew_ns = self.realtime_skew_ns;
        options.uncertainty.master_clock_age_ns = self.master_clock_age_ns;
        options.uncertainty.frequency_error_ppb = self.frequency_error_ppb;
        Ok(options)
    }
}

/// The largest size that a caller may state: a page holds any later version.
const MOST_BYTES: usize = 4096;

fn check_size(name: &str, size: usize, least: usize) -> Result<(), Failure> {
    if (least..=MOST_BYTES).contains(&size) {
        return Ok(());
    }
    let text =
        format!("{name}.size is {size}: set it to the size of the structure, {least} or more");
    Err(argument(&text))
}

/// `struct guest_clock_explanation`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CExplanation {
    /// Bytes of the caller's structure.
    pub size: usize,
    /// Room at `json`; becomes the bytes that the document needs, with its final 0.
    pub json_bytes: usize,
    /// Null, or where the document goes.
    pub json: *mut c_char,
    /// What had passed by the hosts' wall clocks, in ns.
    pub elapsed_ns: i64,
    /// By how much guest time advanced, in ns.
    pub advanced_ns: u64,
    /// Saved kvmclock in ns; 0 on arm64.
    pub clock_from_ns: u64,
    /// kvmclock at the anchor in ns; 0 on arm64.
    pub clock_to_ns: u64,
    /// Saved offset: of the first vCPU's TSC, or of the VM's counter.
    pub offset_from: u64,
    /// New offset. On arm64 the VMM hands it to the next save.
    pub offset_to: u64,
    /// Largest distance of TSC and kvmclock, in ns; `UINT64_MAX`: not known.
    pub tsc_against_kvmclock_ns: u64,
    /// Largest error of guest time because of the restore, in ns; `UINT64_MAX`: not known.
    pub clock_against_real_ns: u64,
    /// Largest distance of the TSC from one that ticks on, in ns; `UINT64_MAX`: not known.
    pub tsc_against_its_rate_ns: u64,
    /// kvmclock minus its plan after the restore, in ns; `INT64_MIN`: not measured.
    pub clock_residual_ns: i64,
    /// The guest's frequency in kHz.
    pub counter_khz: u32,
    /// Number of vCPUs.
    pub vcpus: u32,
    /// 1 if only rounding is between the guest's clocks and the ideal.
    pub is_exact: c_int,
    /// 1: KVM's master clock is on. A plan takes it for on.
    pub master_clock: c_int,
    /// [`ForGuest::vmclock_counter`].
    pub vmclock_counter: u64,
    /// [`ForGuest::vmclock_utc_ns`].
    pub vmclock_utc_ns: u64,
    /// [`ForGuest::vmclock_max_error_ns`].
    pub vmclock_max_error_ns: u64,
    /// [`ForGuest::wall_clock_late_ns`].
    pub wall_clock_late_ns: i64,
    /// [`ForGuest::notified_vcpus`].
    pub notified_vcpus: u64,
}

impl CExplanation {
    /// With what the guest needs in addition to its clocks.
    pub(super) fn for_guest(self, guest: &ForGuest) -> Self {
        Self {
            vmclock_counter: guest.vmclock_counter,
            vmclock_utc_ns: guest.vmclock_utc_ns,
            vmclock_max_error_ns: guest.vmclock_max_error_ns,
            wall_clock_late_ns: guest.wall_clock_late_ns,
            notified_vcpus: guest.notified_vcpus as u64,
            ..self
        }
    }
}

/// An [`CExplanation`]'s values, and its document.
pub(super) struct Explained {
    pub(super) values: CExplanation,
    pub(super) json: String,
}

/// Gives the caller what it asked for: values, and the document where there is room.
///
/// # Safety
/// `target` is null, or points to a `size_t` and to as many writable bytes as that says. Its `json` is
/// null or points to `json_bytes` writable bytes.
pub(super) unsafe fn explain(target: *mut CExplanation, explained: Explained) {
    if target.is_null() {
        return;
    }
    let Explained { values, json } = explained;
    // SAFETY: not null, and `check` found its size large enough. Needed: C's structure is a pointer.
    let caller = unsafe { target.read() };
    let needed = json.len() + 1;
    if !caller.json.is_null() && caller.json_bytes > 0 {
        let fits = caller.json_bytes >= needed;
        let text = if fits { json.as_bytes() } else { &[] };
        // SAFETY: the caller vouches for `json_bytes` bytes, which hold the text and a 0; a fresh string
        // does not overlap them. Needed: C's buffer is a pointer.
        unsafe {
            let buffer = caller.json.cast::<u8>();
            buffer.copy_from_nonoverlapping(text.as_ptr(), text.len());
            buffer.add(text.len()).write(0);
        }
    }
    let values = CExplanation {
        size: caller.size,
        json: caller.json,
        json_bytes: needed,
        ..values
    };
    // SAFETY: as above.
    unsafe { target.write(values) };
}

/// Refuses a structure of an impossible size before anything is done.
///
/// # Safety
/// `target` is null or points to a readable `size_t`.
pub(super) unsafe fn check(target: *const CExplanation) -> Result<(), Failure> {
    if target.is_null() {
        return Ok(());
    }
    // SAFETY: not null, and the caller vouches for the size. Needed: C's structure is a pointer.
    let size = unsafe { target.cast::<usize>().read() };
    check_size("explanation", size, size_of::<CExplanation>())
}

impl Default for CExplanation {
    fn default() -> Self {
        Self {
            size: size_of::<Self>(),
            json_bytes: 0,
            json: std::ptr::null_mut(),
            elapsed_ns: 0,
            advanced_ns: 0,
            clock_from_ns: 0,
            clock_to_ns: 0,
            offset_from: 0,
            offset_to: 0,
            tsc_against_kvmclock_ns: 0,
            clock_against_real_ns: 0,
            tsc_against_its_rate_ns: 0,
            clock_residual_ns: i64::MIN,
            counter_khz: 0,
            vcpus: 0,
            is_exact: 0,
            master_clock: 0,
            vmclock_counter: 0,
            vmclock_utc_ns: 0,
            vmclock_max_error_ns: 0,
            wall_clock_late_ns: 0,
            notified_vcpus: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zeroed() -> COptions {
        COptions {
            size: size_of::<COptions>(),
            policy: 0,
            unequal: 0,
            accept_inexact: 0,
            frequency_error_ppb: 0,
            limit_ns: 0,
            realtime_skew_ns: 0,
            master_clock_age_ns: 0,
            wall_clocks_ahead_ns: 0,
            wall_clocks_at_most_ns: 0,
        }
    }

    #[test]
    fn a_later_headers_fields_are_refused_unless_they_are_zero() {
        let mut later = [zeroed(), zeroed()];
        later[0].size = 2 * size_of::<COptions>();
        later[1].size = 0;
        // SAFETY: two structures are as many bytes as the first one says.
        let read = |later: &[COptions; 2]| unsafe { COptions::read(later.as_ptr()) };
        assert!(read(&later).is_ok());
        later[1].limit_ns = 1;
        let (_, text) = read(&later).expect_err("a field that is not known");
        assert!(text.contains("does not know"), "{text}");
        for size in [0, 8, size_of::<COptions>() - 1, MOST_BYTES + 1, usize::MAX] {
            later[0].size = size;
            let (_, text) = read(&later).expect_err("no such size");
            assert!(text.contains("options.size"), "{text}");
        }
    }

    #[test]
    fn every_option_reaches_the_library() {
        let given = COptions {
            policy: 2,
            unequal: 3,
            accept_inexact: 1,
            limit_ns: 7,
            realtime_skew_ns: 8,
            master_clock_age_ns: 9,
            frequency_error_ppb: 10,
            wall_clocks_ahead_ns: -11,
            wall_clocks_at_most_ns: 12,
            ..zeroed()
        };
        let options = given.options().expect("in range");
        assert_eq!(options.policy, Policy::AtMost { max_ns: 7 });
        assert_eq!(options.unequal, Unequal::Keep);
        assert_eq!(options.inexact, crate::Inexact::Accept);
        let clocks = options.wall_clocks;
        assert_eq!((clocks.ahead_ns, clocks.at_most_ns), (-11, 12));
        let known = options.uncertainty;
        assert_eq!(
            (
                known.realtime_skew_ns,
                known.master_clock_age_ns,
                known.frequency_error_ppb
            ),
            (8, 9, 10)
        );
        for unequal in [-1, 4] {
            let given = COptions {
                unequal,
                ..zeroed()
            };
            assert!(given.options().is_err());
        }
    }
}

//! How the kernel converts ticks of the TSC to ns, from the page of an event (`struct perf_event_mmap_page`).

use std::io;

use stealtime_trace::write::raw::TscToNs;

use super::attributes::{self, Attributes};
use super::ring::Ring;

/// Bytes of the page up to `time_zero`.
pub(crate) const PAGE_START: usize = 64;
/// Positions in them.
const CAPABILITIES: usize = 40;
const TIME_SHIFT: usize = 50;
const TIME_MULT: usize = 52;
const TIME_OFFSET: usize = 56;
/// `cap_user_time`: the kernel's clock is the TSC by these numbers. Without it they are not set.
const USER_TIME: u64 = 1 << 3;

/// The conversion of this host's TSC; `None` where the kernel's clock is no stable TSC.
///
/// # Errors
/// The kernel refuses the event or its page: no CAP_PERFMON, or no perf_event_open.
pub(crate) fn tsc_to_ns() -> io::Result<Option<TscToNs>> {
    let event = attributes::open(&Attributes::dummy(), 0)?;
    // Mapping the page fills it.
    let ring = Ring::new(0, event, 0)?;
    Ok(parse(&ring.page_start()))
}

/// Reads the page's fields.
fn parse(page: &[u8; PAGE_START]) -> Option<TscToNs> {
    let field = |offset: usize| page.get(offset..);
    let word = |offset| Some(u64::from_ne_bytes(*field(offset)?.first_chunk()?));
    let shift = u16::from_ne_bytes(*field(TIME_SHIFT)?.first_chunk()?);
    let mult = u32::from_ne_bytes(*field(TIME_MULT)?.first_chunk()?);
    let is_set = word(CAPABILITIES)? & USER_TIME != 0 && mult > 0;
    is_set.then_some(TscToNs {
        mult,
        shift: shift.into(),
        offset_ns: word(TIME_OFFSET)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_conversion_is_that_of_the_page() {
        let mut page = [0; PAGE_START];
        page[TIME_SHIFT..][..2].copy_from_slice(&31_u16.to_ne_bytes());
        page[TIME_MULT..][..4].copy_from_slice(&1_073_741_824_u32.to_ne_bytes());
        page[TIME_OFFSET..][..8].copy_from_slice(&(-5_i64).to_ne_bytes());
        // The clock of this kernel is not the TSC.
        assert_eq!(parse(&page), None);
        page[CAPABILITIES..][..8].copy_from_slice(&USER_TIME.to_ne_bytes());
        let found = parse(&page).expect("a conversion");
        assert_eq!((found.mult, found.shift), (1 << 30, 31));
        assert_eq!(found.offset_ns as i64, -5);
    }

    /// Where the kernel lets this process ask.
    #[test]
    fn this_host_converts_its_tsc_to_its_clock() {
        match tsc_to_ns() {
            Ok(Some(tsc)) => {
                let ghz = (1_u64 << tsc.shift.min(63)) as f64 / f64::from(tsc.mult);
                assert!((0.1..20.0).contains(&ghz), "{ghz} GHz: {tsc:?}");
            }
            Ok(None) => eprintln!("skipped: the clock of this host is not the TSC"),
            Err(error) => eprintln!("skipped: {error}"),
        }
    }
}

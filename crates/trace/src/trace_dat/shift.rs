//! The option TIME_SHIFT (trace-cmd.dat.v7(5)): a guest's times to its host's clock.
//!
//! trace-cmd writes it into the file of a guest that was recorded together with its host.
//!
//! trace-cmd measures the offset of the two clocks from time to time. Between two measurements the
//! earlier offset applies or, where the file says so, the line between both. Before the first and
//! after the last measurement the next two apply.

use std::sync::Arc;

use crate::tracefs::Endian;

/// `TRACECMD_TSYNC_FLAG_INTERPOLATE`.
const INTERPOLATE: u32 = 1;

/// One measurement of the offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sample {
    /// Time of the measurement by the guest's clock.
    time: u64,
    /// Added to the guest's times after scaling, in ns.
    offset: i64,
    /// Factor of the guest's times, with `fraction` bits behind the point.
    scaling: u64,
    /// Bits of the product behind the point.
    fraction: u32,
}

/// The measurements of one vCPU, in the order of time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Shift {
    samples: Arc<[Sample]>,
    interpolates: bool,
}

impl Shift {
    /// The measurements of all vCPUs; `None` where the option is damaged.
    pub(super) fn parse(data: &[u8], endian: Endian) -> Option<Vec<Self>> {
        // Before it: the identifier of the host's file.
        let flags = endian.u32(data, 8)?;
        let cpus = endian.u32(data, 12)? as usize;
        let mut places = Vec::new();
        let mut position = 16;
        for _ in 0..cpus {
            let count = endian.u32(data, position)? as usize;
            places.push((position + 4, count));
            position = count.checked_mul(24)?.checked_add(position + 4)?;
            data.get(..position)?;
        }
        // Newer files have the bits of the fractions behind all of these.
        let has_fractions = position < data.len();
        let mut shifts = Vec::with_capacity(places.len());
        for (start, count) in places {
            let word =
                |array: usize, index: usize| endian.u64(data, start + 8 * (array * count + index));
            let mut samples = Vec::with_capacity(count);
            for index in 0..count {
                let fraction = match has_fractions {
                    true => endian.u64(data, position + 8 * index)?,
                    false => 0,
                };
                samples.push(Sample {
                    time: word(0, index)?,
                    offset: word(1, index)?.cast_signed(),
                    scaling: word(2, index).filter(|bits| *bits != 0)?,
                    fraction: u32::try_from(fraction)
                        .ok()
                        .filter(|bits| *bits < u64::BITS)?,
                });
            }
            position += if has_fractions { 8 * count } else { 0 };
            samples.sort_by_key(|sample| sample.time);
            samples.dedup_by_key(|sample| sample.time);
            shifts.push(Self {
                samples: samples.into(),
                interpolates: flags & INTERPOLATE != 0,
            });
        }
        Some(shifts)
    }

    /// A time of the guest by the host's clock; as it is where nothing was measured.
    #[inline]
    pub(super) fn apply(&self, time: u64) -> u64 {
        match &*self.samples {
            [] => time,
            // trace-cmd takes the offset alone of an only measurement.
            [sample] => time.saturating_add_signed(sample.offset),
            samples => self.between(samples, time),
        }
    }

    fn between(&self, samples: &[Sample], time: u64) -> u64 {
        let above = samples.partition_point(|sample| sample.time <= time);
        let first = above.saturating_sub(1).min(samples.len().saturating_sub(2));
        let Some([earlier, later]) = samples.get(first..).and_then(<[_]>::first_chunk) else {
            debug_assert!(false, "fewer than two measurements");
            return time;
        };
        let offset = match self.interpolates {
            true => line(earlier, later, time),
            false => earlier.offset,
        };
        let scaled = (u128::from(time) * u128::from(earlier.scaling)) >> earlier.fraction;
        u64::try_from(scaled)
            .unwrap_or(u64::MAX)
            .saturating_add_signed(offset)
    }
}

/// The offset on the line through two measurements.
fn line(earlier: &Sample, later: &Sample, time: u64) -> i64 {
    let span = i128::from(later.time) - i128::from(earlier.time);
    let elapsed = i128::from(time) - i128::from(earlier.time);
    let rise = i128::from(later.offset) - i128::from(earlier.offset);
    // Both factors have 65 bits, so the product may overflow 128.
    let product = elapsed
        .checked_mul(rise)
        .and_then(|value| value.checked_add(span / 2));
    let along = product
        .zip(Some(span))
        .and_then(|(value, span)| value.checked_div_euclid(span));
    let offset = along.and_then(|along| along.checked_add(i128::from(earlier.offset)));
    offset
        .and_then(|value| i64::try_from(value).ok())
        .unwrap_or(earlier.offset)
}

/// The option's content, for tests: of each vCPU time, offset, scaling and fraction bits.
#[cfg(test)]
pub(super) fn option(flags: u32, cpus: &[&[(u64, i64, u64, u64)]], fractions: bool) -> Vec<u8> {
    let mut data = vec![7; 8];
    data.extend(flags.to_le_bytes());
    data.extend((cpus.len() as u32).to_le_bytes());
    for samples in cpus {
        data.extend((samples.len() as u32).to_le_bytes());
        data.extend(samples.iter().flat_map(|it| it.0.to_le_bytes()));
        data.extend(samples.iter().flat_map(|it| it.1.to_le_bytes()));
        data.extend(samples.iter().flat_map(|it| it.2.to_le_bytes()));
    }
    if fractions {
        data.extend(cpus.concat().iter().flat_map(|it| it.3.to_le_bytes()));
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shift(flags: u32, samples: &[(u64, i64, u64, u64)], fractions: bool) -> Shift {
        let data = option(flags, &[&[], samples], fractions);
        let all = Shift::parse(&data, Endian::Little).expect("well made");
        assert_eq!((all.len(), all[0].apply(77)), (2, 77), "nothing measured");
        all[1].clone()
    }

    #[test]
    fn an_only_measurement_is_an_offset() {
        let shift = shift(INTERPOLATE, &[(500, -40, 3, 0)], false);
        assert_eq!(
            [100, 500, 900].map(|time| shift.apply(time)),
            [60, 460, 860]
        );
        assert_eq!(shift.apply(30), 0, "never before the clock began");
    }

    #[test]
    fn times_take_the_measurement_before_them() {
        let samples = [
            (2000, 30, 1, 0),
            (1000, 10, 1, 0),
            (3000, 20, 1, 0),
            (1000, 99, 1, 0),
        ];
        let shift = shift(0, &samples, false);
        for (time, by) in [
            (500, 10),
            (1000, 10),
            (1999, 10),
            (2000, 30),
            (2999, 30),
            (9000, 30),
        ] {
            assert_eq!(shift.apply(time), time + by, "{time}");
        }
    }

    #[test]
    fn or_what_lies_between_two() {
        let shift = shift(
            INTERPOLATE,
            &[(1000, 10, 1, 0), (2000, 30, 1, 0), (3000, 20, 1, 0)],
            true,
        );
        for (time, by) in [
            (1000, 10),
            (1500, 20),
            (2000, 30),
            (2500, 25),
            (3000, 20),
            (4000, 10),
        ] {
            assert_eq!(shift.apply(time), time + by, "{time}");
        }
        assert_eq!(shift.apply(500), 500, "the line goes on before the first");
    }

    #[test]
    fn clocks_of_other_speeds_are_scaled() {
        let samples = [(0, 5, 3, 1), (1000, 5, 3, 1)];
        assert_eq!(shift(0, &samples, true).apply(100), 155);
        assert_eq!(
            shift(0, &samples, false).apply(100),
            305,
            "no fractions in the file"
        );
        let most = [(0, i64::MAX, u64::MAX, 0), (u64::MAX, i64::MIN, 1, 0)];
        let hostile = shift(INTERPOLATE, &most, false);
        assert_eq!(hostile.apply(u64::MAX), u64::MAX);
    }

    #[test]
    fn what_is_cut_or_without_sense_is_refused() {
        let good = option(1, &[&[(1, 2, 1, 0)], &[(1, 2, 1, 0), (5, 2, 1, 0)]], true);
        assert!(Shift::parse(&good, Endian::Little).is_some());
        // Without its fractions it is a file of an older trace-cmd.
        let older = good.len() - 3 * 8;
        for len in (0..good.len()).filter(|len| *len != older) {
            assert!(
                Shift::parse(&good[..len], Endian::Little).is_none(),
                "{len}"
            );
        }
        for sample in [(1, 2, 0, 0), (1, 2, 1, 64)] {
            let data = option(0, &[&[sample]], true);
            assert!(Shift::parse(&data, Endian::Little).is_none(), "{sample:?}");
        }
        let many = [[0; 12].as_slice(), &u32::MAX.to_le_bytes()].concat();
        assert!(Shift::parse(&many, Endian::Little).is_none());
    }
}

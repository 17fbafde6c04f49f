//! The fast path of samples: all fields at fixed offsets.
//!
//! perf gives all its tracepoints the sample type of the first. Then the fields of each sample stand
//! at the same offsets in the first bytes of its record. Other samples take the slow path
//! ([`super::attr`]), with the same result.

use super::attr::{Attr, Sample};
use super::attrs::Attrs;
use super::counted::Unwanted;
use super::kind;
use crate::tracefs::Endian;

/// Bytes from the start of a record in which its fields must lie: one cache line.
const HEAD: usize = 64;

/// Offsets of the fields, in words of 8 bytes from the start of the record.
#[derive(Debug, Clone, Copy)]
struct Places {
    id: usize,
    tid: usize,
    time: usize,
    cpu: usize,
    /// The word that begins with the length of the tracepoint's record.
    end: usize,
}

/// How the samples with an id are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Route {
    /// The index of their attribute; [`SLOW`] for those that take the slow path.
    attr: u32,
    /// Where they are counted; [`DECODED`] for those that are decoded.
    place: u32,
}

const SLOW: u32 = u32::MAX;
const DECODED: u32 = u32::MAX;

/// Offsets and routes of the samples of one recording.
#[derive(Debug)]
pub(super) struct FastPath {
    places: Places,
    /// By id, from the first on.
    routes: Vec<Route>,
    first_id: u64,
}

/// A sample, its fields not yet loaded.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found<'a> {
    places: Places,
    head: &'a [u8; HEAD],
    route: Route,
    /// The length of the record, and that of the tracepoint's.
    pub(super) len: usize,
    raw: usize,
    pub(super) misc: u16,
}

impl FastPath {
    /// `None` where samples of the first attribute lack an id, a thread, a time, a CPU or the
    /// tracepoint's record.
    pub(super) fn new(attrs: &Attrs, unwanted: Option<&Unwanted>, endian: Endian) -> Option<Self> {
        let attributes = attrs.all();
        let first = attributes.first()?;
        let fixed = first.fixed()?;
        let places = [fixed.id, fixed.tid, fixed.time, fixed.cpu];
        let has_all = fixed.has_raw && !places.contains(&0) && attrs.id_offset() == Some(fixed.id);
        let fits = fixed.end + 8 <= HEAD && endian == Endian::Little;
        if !(has_all && fits) {
            return None;
        }
        let (first_id, ids) = attrs.dense();
        let route = |index: Option<usize>| {
            let like_first = |attr: &&Attr| attr.sample_type() == first.sample_type();
            let index = index.filter(|index| attributes.get(*index).filter(like_first).is_some());
            let place = unwanted.and_then(|unwanted| unwanted.place(index?));
            Route {
                attr: index
                    .and_then(|index| u32::try_from(index).ok())
                    .unwrap_or(SLOW),
                place: place.map_or(DECODED, u32::from),
            }
        };
        Some(Self {
            places: Places {
                id: fixed.id / 8,
                tid: fixed.tid / 8,
                time: fixed.time / 8,
                cpu: fixed.cpu / 8,
                end: fixed.end / 8,
            },
            routes: ids.map(route).collect(),
            first_id,
        })
    }

    /// The sample with which `bytes` begin. `None` for any other record, for a sample that is cut, and
    /// for one that must take the slow path.
    #[inline]
    pub(super) fn find<'a>(&self, bytes: &'a [u8]) -> Option<Found<'a>> {
        let head = bytes.first_chunk::<HEAD>()?;
        let places = self.places;
        let start = word(head, 0);
        let len = (start >> 48) as usize;
        let raw = word(head, places.end) as u32 as usize;
        let is_whole = 8 * places.end + 4 + raw <= len && len <= bytes.len();
        if start as u32 != kind::SAMPLE || !is_whole {
            return None;
        }
        let id = word(head, places.id).wrapping_sub(self.first_id);
        let route = *self.routes.get(usize::try_from(id).ok()?)?;
        (route.attr != SLOW).then_some(Found {
            places,
            head,
            route,
            len,
            raw,
            misc: (start >> 32) as u16,
        })
    }
}

impl Found<'_> {
    /// The index of its attribute.
    #[inline]
    pub(super) fn attr(&self) -> usize {
        self.route.attr as usize
    }

    /// Where it is counted ([`Unwanted::counts_at`]); for a sample to decode an index that is too
    /// large.
    #[inline]
    pub(super) fn place(&self) -> usize {
        self.route.place as usize
    }

    /// Its time, in ns of perf's clock.
    #[inline]
    pub(super) fn time(&self) -> u64 {
        word(self.head, self.places.time)
    }

    /// Its CPU.
    #[inline]
    pub(super) fn cpu(&self) -> u32 {
        word(self.head, self.places.cpu) as u32
    }

    /// All fields.
    #[inline]
    pub(super) fn sample(&self) -> Sample {
        let task = word(self.head, self.places.tid);
        Sample {
            id: Some(word(self.head, self.places.id)),
            pid: task as i32,
            tid: (task >> 32) as i32,
            time: Some(self.time()),
            cpu: Some(self.cpu()),
            raw: Some((8 * self.places.end + 4, self.raw)),
        }
    }
}

/// A word of a record. The remainder changes no place that [`FastPath::new`] gives; with it the
/// compiler needs no bounds check.
#[inline]
fn word(head: &[u8; HEAD], place: usize) -> u64 {
    const WORDS: usize = HEAD / 8;
    let offset = place % WORDS * 8;
    head.get(offset..offset + 8)
        .and_then(<[u8]>::first_chunk)
        .map_or(0, |word| u64::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::super::attr;
    use super::*;

    const IP: u64 = 1 << 0;
    const TID: u64 = 1 << 1;
    const TIME: u64 = 1 << 2;
    const CPU: u64 = 1 << 7;
    const PERIOD: u64 = 1 << 8;
    const RAW: u64 = 1 << 10;
    const IDENTIFIER: u64 = 1 << 16;
    const NEEDED: u64 = TID | TIME | CPU | RAW | IDENTIFIER;

    fn attr(sample_type: u64) -> Attr {
        let mut bytes = [0; 64];
        bytes[24..32].copy_from_slice(&sample_type.to_le_bytes());
        Attr::parse(&bytes, Endian::Little).expect("it is long enough")
    }

    /// Attributes of these types with the ids 100 and 101, 102 and 103, and so on.
    fn attrs(sample_types: &[u64]) -> Attrs {
        let mut attrs = Attrs::default();
        for (sample_type, first) in sample_types.iter().zip((100..).step_by(2)) {
            attrs.add(attr(*sample_type), [first, first + 1]);
        }
        attrs
    }

    /// A sample with this id, words that are all different, and so many bytes of a tracepoint's record
    /// behind them; other bytes follow.
    fn record(sample_type: u64, id: u64, raw: u32) -> Vec<u8> {
        let words = (sample_type & !RAW).count_ones() as usize;
        let len = 8 + 8 * words + 4 + raw as usize;
        let mut bytes = kind::SAMPLE.to_le_bytes().to_vec();
        bytes.extend(5_u16.to_le_bytes());
        bytes.extend(u16::try_from(len).expect("it is short").to_le_bytes());
        bytes.extend(id.to_le_bytes());
        for word in 1..words as u64 {
            bytes.extend((word * 0x0101_0203_0000_0507).to_le_bytes());
        }
        bytes.extend(raw.to_le_bytes());
        bytes.resize(len + HEAD, 0x5a);
        bytes
    }

    #[test]
    fn both_paths_find_the_same() {
        for sample_type in [NEEDED, NEEDED | IP, NEEDED | PERIOD, NEEDED | IP | PERIOD] {
            let attrs = attrs(&[sample_type, sample_type]);
            let fast_path =
                FastPath::new(&attrs, None, Endian::Little).expect("all fields are there");
            for (id, index) in [(100, 0), (101, 0), (102, 1), (103, 1)] {
                let bytes = record(sample_type, id, 12);
                let found = fast_path.find(&bytes).expect("a whole sample");
                let sample = attr::sample(&bytes[..found.len], &attrs.all()[0], Endian::Little);
                assert_eq!(Some(found.sample()), sample, "{sample_type:#x}");
                assert_eq!((found.attr(), found.misc), (index, 5));
                assert_eq!(found.len, bytes.len() - HEAD);
            }
        }
    }

    #[test]
    fn other_samples_take_the_slow_path() {
        let attrs = attrs(&[NEEDED, NEEDED | IP]);
        let fast_path = FastPath::new(&attrs, None, Endian::Little).expect("all fields are there");
        let good = record(NEEDED, 100, 12);
        assert!(fast_path.find(&good).is_some());
        assert!(
            fast_path.find(&record(NEEDED, 99, 12)).is_none(),
            "no such id"
        );
        assert!(
            fast_path.find(&record(NEEDED, 104, 12)).is_none(),
            "no such id"
        );
        assert!(
            fast_path.find(&record(NEEDED | IP, 102, 12)).is_none(),
            "other fields"
        );
        let len = good.len() - HEAD;
        assert!(fast_path.find(&good[..HEAD - 1]).is_none());
        let long = record(NEEDED, 100, 60);
        assert!(
            fast_path.find(&long[..long.len() - HEAD - 1]).is_none(),
            "cut"
        );
        let changed = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            fast_path.find(&bytes).is_some()
        };
        assert!(!changed(0, 10), "no sample");
        assert!(!changed(6, len as u8 - 1), "more in it than its length");
        assert!(!changed(6, 0) && !changed(len - 12 - 4, 13));
    }

    #[test]
    fn without_a_field_there_is_no_fast_path() {
        for lacking in [TID, TIME, CPU, RAW, IDENTIFIER] {
            let attrs = attrs(&[NEEDED & !lacking]);
            assert!(
                FastPath::new(&attrs, None, Endian::Little).is_none(),
                "{lacking:#x}"
            );
        }
        assert!(FastPath::new(&attrs(&[NEEDED]), None, Endian::Big).is_none());
        assert!(FastPath::new(&Attrs::default(), None, Endian::Little).is_none());
    }
}

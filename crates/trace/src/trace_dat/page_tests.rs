//! Pages made by hand.

use super::*;

const HEADER_PAGE: &[u8] = b"\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
    \tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
    \tfield: char overwrite;\toffset:8;\tsize:1;\tsigned:1;\n\
    \tfield: char data;\toffset:16;\tsize:4080;\tsigned:1;\n";

fn layout() -> PageLayout {
    PageLayout::usual(Endian::Little, 8, 256)
}

fn event(kind: u32, delta: u32, words: &[u32]) -> Vec<u8> {
    let head = kind | delta << 5;
    [&[head], words]
        .concat()
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect()
}

/// A page at time 1000 with these events.
fn page(events: &[Vec<u8>], flags: u64) -> Vec<u8> {
    let data = events.concat();
    let mut page = 1000_u64.to_le_bytes().to_vec();
    page.extend((data.len() as u64 | flags).to_le_bytes());
    page.extend(data);
    page
}

/// All records with their times, and whether the page is broken behind them.
fn read(page: &[u8]) -> (Vec<(u64, Vec<u8>)>, bool) {
    let layout = layout();
    let Ok(head) = layout.head(page) else {
        return (Vec::new(), true);
    };
    let mut walk = Walk {
        position: head.start,
        end: head.end,
        time: head.time,
    };
    let mut records = Vec::new();
    loop {
        match walk.next(page, layout.endian) {
            Ok(Some(range)) => records.push((walk.time, page[range].to_vec())),
            Ok(None) => return (records, false),
            Err(Broken) => return (records, true),
        }
    }
}

#[test]
fn the_header_says_where_things_are() {
    let usual = PageLayout::usual(Endian::Little, 8, 4096);
    assert_eq!(
        PageLayout::parse(HEADER_PAGE, Endian::Little),
        Some((usual, 4096))
    );
    let text = String::from_utf8_lossy(HEADER_PAGE);
    let of32 = text.replace("offset:8;\tsize:8", "offset:8;\tsize:4");
    let of32 = of32.replace("offset:16;\tsize:4080", "offset:12;\tsize:4084");
    let expected = PageLayout::usual(Endian::Big, 4, 4096);
    assert_eq!(
        PageLayout::parse(of32.as_bytes(), Endian::Big),
        Some((expected, 4096))
    );
    for bad in [
        "",
        "timestamp",
        "\tfield: u64 timestamp;\toffset:0;\tsize:8;",
    ] {
        assert_eq!(PageLayout::parse(bad.as_bytes(), Endian::Little), None);
    }
    let overlap = text.replace("data;\toffset:16", "data;\toffset:12");
    assert_eq!(PageLayout::parse(overlap.as_bytes(), Endian::Little), None);
}

#[test]
fn records_of_both_kinds_of_length() {
    let events = [
        event(2, 5, &[1, 2]),
        event(0, 7, &[4 + 6, 3, 4]),
        event(1, 0, &[9]),
    ];
    let (records, broken) = read(&page(&events, 0));
    assert!(!broken);
    assert_eq!(
        records,
        [
            (1005, vec![1, 0, 0, 0, 2, 0, 0, 0]),
            (1012, vec![3, 0, 0, 0, 4, 0]),
            (1012, vec![9, 0, 0, 0])
        ]
    );
}

#[test]
fn times_beyond_a_delta() {
    let stamp: u64 = 1 << 40 | 3;
    let events = [
        event(30, 1, &[2]),
        event(1, 1, &[0]),
        event(29, 4, &[8, 0]),
        event(1, 1, &[0]),
        event(31, stamp as u32 & 0x07ff_ffff, &[(stamp >> 27) as u32]),
        event(1, 1, &[0]),
        event(29, 0, &[0]),
    ];
    let times: Vec<u64> = read(&page(&events, 0))
        .0
        .iter()
        .map(|record| record.0)
        .collect();
    let first = 1000 + (2 << 27) + 1 + 1;
    assert_eq!(times, [first, first + 5, stamp + 1]);
}

#[test]
fn an_absolute_stamp_keeps_the_upper_bits() {
    assert_eq!(absolute(5, 1000), 5);
    let top = 3 << 59;
    assert_eq!(absolute(5, top | 4), top | 5);
    assert_eq!(absolute(3, top | 4), (4 << 59) | 3);
}

#[test]
fn losses_with_and_without_a_number() {
    let events = [event(1, 0, &[0])];
    let lost = |flags, tail: &[u8]| {
        let mut page = page(&events, flags);
        page.extend(tail);
        layout().head(&page).expect("good").lost
    };
    assert_eq!(lost(0, &[]), None);
    assert_eq!(lost(MISSED_STORED, &[]), None);
    assert_eq!(lost(MISSED_EVENTS, &[]), Some(0));
    assert_eq!(
        lost(MISSED_EVENTS | MISSED_STORED, &77_u64.to_le_bytes()),
        Some(77)
    );
    assert_eq!(
        lost(MISSED_EVENTS | MISSED_STORED, &[1]),
        Some(0),
        "no room for the number"
    );
}

#[test]
fn what_does_not_fit_is_broken() {
    assert!(layout().head(&[0; 15]).is_err());
    assert!(
        layout().head(&page(&[vec![0; 241]], 0)).is_err(),
        "longer than a page"
    );
    let good = event(1, 1, &[7]);
    let of = |bad: Vec<u8>| read(&page(&[good.clone(), bad], 0));
    for bad in [
        event(2, 0, &[0]),
        event(0, 0, &[3, 0]),
        event(0, 0, &[u32::MAX, 0]),
        event(0, 0, &[]),
        event(29, 1, &[400]),
        event(30, 1, &[]),
        event(31, 1, &[]),
        vec![1, 2],
    ] {
        let (records, broken) = of(bad.clone());
        assert_eq!((records.len(), broken), (1, true), "{bad:?}");
    }
    // The file ends within the page.
    let whole = page(&[good.clone(), good.clone()], 0);
    let (records, broken) = read(&whole[..whole.len() - 1]);
    assert_eq!((records.len(), broken), (1, true));
}

#[test]
fn big_endian() {
    let layout = PageLayout::usual(Endian::Big, 4, 64);
    let mut page = 9_u64.to_be_bytes().to_vec();
    page.extend(8_u32.to_be_bytes());
    page.extend((1_u32 << 27 | 3).to_be_bytes());
    page.extend([1, 2, 3, 4]);
    let head = layout.head(&page).expect("good");
    let mut walk = Walk {
        position: head.start,
        end: head.end,
        time: head.time,
    };
    assert_eq!(walk.next(&page, Endian::Big), Ok(Some(16..20)));
    assert_eq!(walk.time, 12);
    assert_eq!(walk.next(&page, Endian::Big), Ok(None));
}

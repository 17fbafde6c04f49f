//! Compression and recognition, through files as a user has them.

use std::io::Write;

use super::*;
use crate::SourceInfo;

const TEXT: &[u8] = b"cpus=1\nsh-5 [000] ..... 1.100000: my_event: a\n\
    sh-5 [000] ..... 1.200000: my_event: b\n";

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("memory");
    encoder.finish().expect("memory")
}

fn xz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 1);
    encoder.write_all(bytes).expect("memory");
    encoder.finish().expect("memory")
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).expect("memory")
}

/// Events of the host, the compression and the notes.
fn read(bytes: &[u8]) -> Result<(usize, SourceInfo), ReadError> {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(bytes).expect("a file");
    let mut source = open(file.path())?;
    let mut events = 0;
    while let Some(event) = source.next_event()? {
        events += usize::from(event.kind.is_host_event());
    }
    Ok((events, source.info().clone()))
}

#[test]
fn compression_is_seen_by_content() {
    assert_eq!(read(TEXT).expect("plain").0, 2);
    for (name, pack) in [
        ("gzip", gzip as fn(&[u8]) -> Vec<u8>),
        ("xz", xz),
        ("zstd", zstd),
    ] {
        let (events, info) = read(&pack(TEXT)).expect("packed");
        assert_eq!((events, info.compression), (2, Some(name)));
        assert!(!info.is_partial(), "{name}: {:?}", info.notes);

        let (first, second) = TEXT.split_at(70);
        let both = [pack(first), pack(second)].concat();
        let (events, info) = read(&both).expect("two members");
        assert_eq!((events, info.is_partial()), (2, false), "{name}");
    }
}

#[test]
fn damaged_compression_gives_what_was_unpacked() {
    let long: Vec<u8> = (0..20_000)
        .flat_map(|i: u64| format!("sh-5 [000] ..... {i}.1: e{}: {}\n", i % 7, i * i).into_bytes())
        .collect();
    for (name, pack) in [
        ("gzip", gzip as fn(&[u8]) -> Vec<u8>),
        ("xz", xz),
        ("zstd", zstd),
    ] {
        let packed = pack(&long);
        let (events, info) = read(&packed[..packed.len() * 9 / 10]).expect("most of it");
        assert!(info.is_partial(), "{name}");
        assert!(
            info.notes[0].text.contains("cut short or damaged"),
            "{name}: {:?}",
            info.notes
        );
        // xz puts all of it into one block, which lacks its tail; the others lose a tenth.
        assert!(events > 10_000 && events < 20_000, "{name}: {events}");

        let garbage = [&packed[..], b"trailing garbage"].concat();
        let (events, info) = read(&garbage).expect("all of it");
        assert_eq!((events, info.is_partial()), (20_000, true), "{name}");
    }
}

#[test]
fn nothing_unpacked_is_an_error_that_says_why() {
    for packed in [gzip(TEXT), xz(TEXT), zstd(TEXT)] {
        let error = read(&packed[..12]).expect_err("nothing there");
        assert!(matches!(error, ReadError::Corrupt { .. }), "{error}");
    }
}

#[test]
fn what_is_no_trace_is_refused() {
    assert!(matches!(read(b""), Err(ReadError::Empty { .. })));
    assert!(matches!(read(&gzip(b"")), Err(ReadError::Empty { .. })));
    let error = read(b"\x7fELF\x02\x01\x01\0 and so on").expect_err("a program");
    let text = error.to_string();
    assert!(
        text.contains("starts with \\x7fELF\\x02\\x01\\x01\\x00"),
        "{text}"
    );
    assert!(matches!(
        read(&[0; 100_000]),
        Err(ReadError::UnknownFormat { .. })
    ));
    assert!(matches!(
        read(&[b'\n'; 100_000]),
        Err(ReadError::UnknownFormat { .. })
    ));
    let missing = open(Path::new("no/such/file")).err().expect("no file");
    assert!(
        missing.to_string().starts_with("no/such/file: "),
        "{missing}"
    );
    let dir = open(Path::new("/")).err().expect("a folder");
    assert!(matches!(dir, ReadError::Open { .. }), "{dir}");
}

#[test]
fn magics_alone_are_too_little() {
    for magic in [
        &b"PERFILE2"[..],
        b"2ELIFREP",
        b"\x17\x08\x44tracing",
        b"PERFILE2\x10\0\0\0\0\0\0\0",
    ] {
        for pad in [0, 1, 40, 200] {
            let bytes = [magic, &vec![0; pad]].concat();
            if let Ok((events, _)) = read(&bytes) {
                assert_eq!(events, 0);
            }
        }
    }
}

#[test]
fn a_bomb_costs_no_memory() {
    // 128 MiB of line ends in some KiB.
    let mut encoder = zstd::Encoder::new(Vec::new(), 3).expect("an encoder");
    encoder.write_all(TEXT).expect("memory");
    let block = vec![b'\n'; 1 << 20];
    for _ in 0..128 {
        encoder.write_all(&block).expect("memory");
    }
    let packed = encoder.finish().expect("memory");
    assert!(packed.len() < 1 << 20);
    assert_eq!(read(&packed).expect("a text").0, 2);
}

#[test]
fn what_must_be_seekable_is_stored_whole() {
    let bytes: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
    let input = Box::new(std::io::Cursor::new(zstd(&bytes)));
    let stream = Stream::new("test".into(), input, None, None).expect("a stream");
    let mut stored = Stored::new(stream).expect("room");
    assert_eq!((stored.len, stored.compression), (400_000, Some("zstd")));
    let mut word = [0; 4];
    assert_eq!(stored.fill_at(4 * 77_777, &mut word).expect("in memory"), 4);
    assert_eq!(u32::from_le_bytes(word), 77_777);
    assert_eq!(stored.fill_at(399_998, &mut word).expect("in memory"), 2);
    assert_eq!(
        stored.fill_at(u64::MAX >> 1, &mut word).expect("in memory"),
        0
    );
}

/// Reads on after the first event, behind `change`.
fn read_across(
    pack: fn(&[u8]) -> Vec<u8>,
    change: fn(&std::path::Path),
) -> Result<usize, ReadError> {
    let long: Vec<u8> = (0..20_000)
        .flat_map(|i: u64| format!("sh-5 [000] ..... {i}.1: e{}: {}\n", i % 7, i * i).into_bytes())
        .collect();
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("it's a trace.txt");
    std::fs::write(&path, pack(&long)).expect("a file");
    let mut source = open(&path)?;
    assert!(source.next_event().expect("the first event").is_some());
    change(&path);
    let mut batch = Vec::new();
    let end = loop {
        match source.next_events(1000, &mut batch) {
            Ok(true) => {}
            Ok(false) => break Ok(batch.len()),
            Err(error) => break Err(error),
        }
    };
    assert!(
        source
            .next_event()
            .expect("nothing after the end")
            .is_none()
    );
    end
}

#[test]
fn a_file_that_changes_while_it_is_read_is_refused() {
    let append = |path: &std::path::Path| {
        let mut file = std::fs::File::options()
            .append(true)
            .open(path)
            .expect("a file");
        file.write_all(b"sh-5 [000] ..... 20001.1: late: 1\n")
            .expect("a line");
    };
    let cut = |path: &std::path::Path| {
        let file = std::fs::File::options()
            .write(true)
            .open(path)
            .expect("a file");
        file.set_len(1000).expect("a shorter file");
    };
    let touch = |path: &std::path::Path| {
        let file = std::fs::File::options()
            .write(true)
            .open(path)
            .expect("a file");
        file.set_modified(std::time::UNIX_EPOCH)
            .expect("another time");
    };
    for pack in [<[u8]>::to_vec as fn(&[u8]) -> Vec<u8>, gzip, zstd] {
        for change in [append as fn(&std::path::Path), cut, touch] {
            let error = read_across(pack, change).expect_err("parts of different times");
            let text = error.to_string();
            assert!(
                text.contains("it's a trace.txt: the file changed while it was read"),
                "{text}"
            );
        }
        let replace = |path: &std::path::Path| {
            std::fs::write(path.with_extension("new"), "another").expect("a file");
            std::fs::rename(path.with_extension("new"), path).expect("a rename");
        };
        assert!(read_across(pack, replace).expect("the opened file is whole") > 19_000);
    }
}

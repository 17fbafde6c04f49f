//! Reads the frames of the stream.

use std::io::{ErrorKind, Read};

use stealtime_trace::ReadError;

use super::format::{HEADER_LEN, Kind, MAGIC, VERSION, add_to_checksum};
use super::io_error;

/// Bytes of a frame before its payload.
const FRAME_LEN: usize = 12;

/// The stream's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    /// CPUs of the machine.
    pub(super) cpus: u16,
    /// Frequency of the time stamps in kHz, not 0.
    pub(super) tsc_khz: u32,
}

/// A frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    /// When, TSC.
    pub(super) tsc: u64,
    /// CPU that recorded it.
    pub(super) cpu: u8,
    /// What happened.
    pub(super) body: Body,
}

/// What a frame says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Body {
    /// A phase begins.
    Phase,
    /// A thread runs a vCPU of a VM.
    Vcpu { tid: u64, vcpu: u64, vm: String },
    /// An event with its operands.
    Event {
        kind: Kind,
        small: u32,
        first: u64,
        second: u64,
    },
    /// Events were lost, so many in all.
    Lost { count: u64 },
}

/// A stream being read.
pub(super) struct Stream<R> {
    source: R,
    input: String,
    offset: u64,
    header: Header,
    events: u64,
    skipped: u64,
    ended: bool,
}

impl<R: Read> Stream<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// The input is no such stream, or of another version.
    pub(super) fn new(source: R, input: String) -> Result<Self, ReadError> {
        let header = Header {
            cpus: 0,
            tsc_khz: 0,
        };
        let mut stream = Self {
            source,
            input,
            offset: 0,
            header,
            events: 0,
            skipped: 0,
            ended: false,
        };
        let magic: [u8; 8] = stream.bytes()?;
        if &magic != MAGIC {
            return Err(stream.corrupt(0, "not an event stream of scripts/bare".to_owned()));
        }
        let [version, len, cpus, _]: [u16; 4] = stream.words()?;
        if version != VERSION {
            let problem = format!("event stream of version {version}; version {VERSION} is read");
            let input = stream.input;
            return Err(ReadError::Unsupported { input, problem });
        }
        let tsc_khz = u32::from_le_bytes(stream.bytes()?);
        let _reserved: [u8; 4] = stream.bytes()?;
        let _seed: [u8; 8] = stream.bytes()?;
        if tsc_khz == 0 {
            return Err(stream.corrupt(16, "a TSC of 0 kHz".to_owned()));
        }
        // A later minor version may have more.
        for _ in HEADER_LEN..len {
            let _more: [u8; 1] = stream.bytes()?;
        }
        stream.header = Header { cpus, tsc_khz };
        Ok(stream)
    }

    pub(super) fn header(&self) -> Header {
        self.header
    }

    /// Frames of unknown kinds so far.
    pub(super) fn skipped(&self) -> u64 {
        self.skipped
    }

    /// The next frame; `None` after the last one.
    ///
    /// # Errors
    /// The stream breaks off, or a frame is damaged. Both name the frame's offset.
    pub(super) fn next_frame(&mut self) -> Result<Option<Frame>, ReadError> {
        while !self.ended {
            let begin = self.offset;
            let head: [u8; FRAME_LEN] = self.bytes()?;
            let [kind, cpu, len_low, len_high, tsc @ ..] = head;
            let mut payload = vec![0; usize::from(u16::from_le_bytes([len_low, len_high]))];
            self.fill(&mut payload)?;
            let recorded = u16::from_le_bytes(self.bytes()?);
            let computed = checksum(head.iter().chain(&payload));
            if recorded != computed {
                let problem =
                    format!("frame with checksum {recorded:#06x}; its bytes have {computed:#06x}");
                return Err(self.corrupt(begin, problem));
            }
            let Some(body) = self.body(kind, &payload, begin)? else {
                self.skipped += 1;
                continue;
            };
            let tsc = u64::from_le_bytes(tsc);
            match body {
                Body::Lost { count: 0 } => {}
                body => return Ok(Some(Frame { tsc, cpu, body })),
            }
        }
        Ok(None)
    }

    fn body(&mut self, kind: u8, payload: &[u8], begin: u64) -> Result<Option<Body>, ReadError> {
        let short = |stream: &Self| {
            let len = payload.len();
            stream.corrupt(begin, format!("frame of kind {kind} with {len} bytes"))
        };
        match Kind::from_number(kind) {
            None => Ok(None),
            Some(Kind::Phase) => {
                operands(payload).map_or_else(|| Err(short(self)), |_| Ok(Some(Body::Phase)))
            }
            Some(Kind::Vcpu) => {
                let (tid, vcpu, text) = operands(payload).ok_or_else(|| short(self))?;
                let vm = String::from_utf8_lossy(text).into_owned();
                Ok(Some(Body::Vcpu { tid, vcpu, vm }))
            }
            Some(Kind::End) => {
                let (events, count, _) = operands(payload).ok_or_else(|| short(self))?;
                self.ended = true;
                if events != self.events {
                    let read = self.events;
                    let problem = format!("the end counts {events} events, {read} were read");
                    return Err(self.corrupt(begin, problem));
                }
                Ok(Some(Body::Lost { count }))
            }
            Some(kind) => {
                let (small, rest) = payload.split_first_chunk().ok_or_else(|| short(self))?;
                let (first, second, _) = operands(rest).ok_or_else(|| short(self))?;
                self.events += 1;
                let small = u32::from_le_bytes(*small);
                Ok(Some(Body::Event {
                    kind,
                    small,
                    first,
                    second,
                }))
            }
        }
    }

    fn corrupt(&self, offset: u64, problem: String) -> ReadError {
        ReadError::Corrupt {
            input: self.input.clone(),
            offset,
            problem,
        }
    }

    fn words(&mut self) -> Result<[u16; 4], ReadError> {
        let bytes: [u8; 8] = self.bytes()?;
        let [a, b, c, d, e, f, g, h] = bytes;
        Ok([[a, b], [c, d], [e, f], [g, h]].map(u16::from_le_bytes))
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], ReadError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), ReadError> {
        match self.source.read_exact(bytes) {
            Ok(()) => {
                self.offset += bytes.len() as u64;
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                let problem = "the stream breaks off: was the hypervisor stopped?".to_owned();
                Err(self.corrupt(self.offset, problem))
            }
            Err(source) => Err(io_error(&self.input, self.offset, source)),
        }
    }
}

/// Two operands, and what follows them.
fn operands(payload: &[u8]) -> Option<(u64, u64, &[u8])> {
    let (first, rest) = payload.split_first_chunk()?;
    let (second, rest) = rest.split_first_chunk()?;
    Some((
        u64::from_le_bytes(*first),
        u64::from_le_bytes(*second),
        rest,
    ))
}

/// Each byte is added to 31 times the sum so far, modulo 2^16.
fn checksum<'a>(bytes: impl Iterator<Item = &'a u8>) -> u16 {
    bytes.fold(0, |sum, byte| add_to_checksum(sum, *byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        for word in [VERSION, HEADER_LEN, 2, 0] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(50_000u32.to_le_bytes());
        bytes.extend([0; 12]);
        bytes
    }

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![kind, 1];
        bytes.extend((payload.len() as u16).to_le_bytes());
        bytes.extend(77u64.to_le_bytes());
        bytes.extend(payload);
        let sum = checksum(bytes.iter());
        bytes.extend(sum.to_le_bytes());
        bytes
    }

    fn problem(bytes: &[u8]) -> String {
        let stream = Stream::new(bytes, "made".to_owned());
        let error = stream.and_then(|mut stream| {
            while stream.next_frame()?.is_some() {}
            Ok(())
        });
        error.expect_err("a damaged stream").to_string()
    }

    #[test]
    fn frames_come_back_and_unknown_kinds_are_counted() {
        let mut bytes = header();
        bytes.extend(frame(4, &[1; 20]));
        bytes.extend(frame(99, b"what"));
        bytes.extend(frame(
            Kind::End as u8,
            &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ));
        let mut stream = Stream::new(&bytes[..], "made".to_owned()).expect("a stream");
        let frame = stream.next_frame().expect("whole").expect("an event");
        assert_eq!((frame.tsc, frame.cpu), (77, 1));
        assert_eq!(stream.next_frame().expect("whole"), None);
        assert_eq!(stream.skipped(), 1);
    }

    #[test]
    fn damage_names_its_offset() {
        assert!(problem(b"STBARE\n\n").contains("offset 0: not an event stream"));
        let mut bytes = header();
        bytes.extend(frame(4, &[1; 20]));
        assert!(
            problem(&bytes).contains("offset 66: the stream breaks off"),
            "no end"
        );
        assert!(problem(&bytes[..50]).contains("offset 44: the stream breaks off"));
        let flipped = bytes.len() - 5;
        bytes[flipped] ^= 1;
        assert!(problem(&bytes).contains("offset 32: frame with checksum"));
        bytes.truncate(32);
        bytes.extend(frame(Kind::End as u8, &[9; 16]));
        assert!(problem(&bytes).contains("offset 32: the end counts"));
        bytes[8] = 2;
        assert!(problem(&bytes).contains("version 2; version 1 is read"));
    }
}

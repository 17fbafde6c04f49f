//! Lines of a stream, in bounded memory.

use std::io::{self, Read};

/// The longest line that is kept; events print a few hundred bytes.
pub(super) const MAX_LINE: usize = 64 << 10;

/// Bytes of the buffer: first few, so that a small input costs little.
const FIRST_BUFFER: usize = 4 << 10;
const BUFFER: usize = 4 * MAX_LINE;

/// Splits a stream into lines. Ends of lines are `\n` or `\r\n`.
pub(super) struct Lines<R> {
    input: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Offset in the stream of `buffer[start]`.
    offset: u64,
    /// Whether the rest of the line is skipped, because it is longer than [`MAX_LINE`].
    skipping: bool,
    /// Lines longer than [`MAX_LINE`].
    pub(super) too_long: u64,
}

impl<R: Read> Lines<R> {
    pub(super) fn new(input: R) -> Self {
        Self {
            input,
            buffer: vec![0; FIRST_BUFFER],
            start: 0,
            end: 0,
            offset: 0,
            skipping: false,
            too_long: 0,
        }
    }

    /// Offset in the text of the next line.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// The next line without its end, or `None` at the end of the text.
    pub(super) fn next(&mut self) -> io::Result<Option<&[u8]>> {
        let mut searched = 0;
        loop {
            let held = self.buffer.get(self.start..self.end).unwrap_or_default();
            let unseen = held.get(searched..).unwrap_or_default();
            if let Some(newline) = memchr::memchr(b'\n', unseen) {
                let (start, len) = (self.start, searched + newline);
                self.advance(len + 1);
                if std::mem::take(&mut self.skipping) {
                    searched = 0;
                    continue;
                }
                return Ok(self.line(start, len));
            }
            if held.len() > MAX_LINE {
                self.too_long += u64::from(!self.skipping);
                self.skipping = true;
                self.advance(held.len());
                searched = 0;
                continue;
            }
            searched = held.len();
            if !self.fill()? {
                let (start, len) = (self.start, searched);
                self.advance(len);
                let ended = len == 0 || std::mem::take(&mut self.skipping);
                return Ok(if ended { None } else { self.line(start, len) });
            }
        }
    }

    fn line(&self, start: usize, len: usize) -> Option<&[u8]> {
        let line = self.buffer.get(start..start + len)?;
        Some(line.strip_suffix(b"\r").unwrap_or(line))
    }

    fn advance(&mut self, len: usize) {
        self.start += len;
        self.offset += len as u64;
    }

    /// Reads more bytes behind the held ones; `false` at the end of the stream.
    fn fill(&mut self) -> io::Result<bool> {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let room = self.buffer.get_mut(self.end..).unwrap_or_default();
        loop {
            match self.input.read(room) {
                Ok(len) => {
                    self.end += len;
                    if self.end == self.buffer.len() && self.end < BUFFER {
                        self.buffer.resize(4 * self.end, 0);
                    }
                    return Ok(len > 0);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &[u8]) -> (Vec<Vec<u8>>, u64) {
        let mut lines = Lines::new(text);
        let mut found = Vec::new();
        while let Some(line) = lines.next().expect("memory reads") {
            found.push(line.to_vec());
        }
        (found, lines.too_long)
    }

    #[test]
    fn lines_with_any_end() {
        let (lines, too_long) = all(b"a\r\n\nb\nlast");
        assert_eq!(lines, [&b"a"[..], b"", b"b", b"last"]);
        assert_eq!(too_long, 0);
        assert_eq!(all(b"").0.len(), 0);
    }

    #[test]
    fn a_line_without_end_costs_no_memory() {
        let mut text = vec![b'x'; 10 * MAX_LINE];
        assert_eq!(all(&text), (vec![], 1));
        text.extend_from_slice(b"\nnext\n");
        text.extend(vec![b'y'; 5 * MAX_LINE]);
        text.extend_from_slice(b"\nend");
        assert_eq!(all(&text), (vec![b"next".to_vec(), b"end".to_vec()], 2));
    }
}

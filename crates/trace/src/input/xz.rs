//! xz, without losing what was unpacked in the call that meets the damage.

use std::io::{self, BufRead, Read};

use liblzma::stream::{Action, CONCATENATED, Error, Status, Stream};

/// What unpacking may use at the most, in bytes; `xz -9` needs 65 MiB.
const MEMORY: u64 = 128 << 20;

/// Unpacks one xz stream after the other.
pub(super) struct Xz<R> {
    input: R,
    stream: Stream,
    failed: Option<Error>,
}

impl<R: BufRead> Xz<R> {
    pub(super) fn new(input: R) -> io::Result<Self> {
        let stream = Stream::new_stream_decoder(MEMORY, CONCATENATED)?;
        Ok(Self {
            input,
            stream,
            failed: None,
        })
    }
}

impl<R: BufRead> Read for Xz<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(error) = self.failed.take() {
            return Err(error.into());
        }
        loop {
            let packed = self.input.fill_buf()?;
            let end = packed.is_empty();
            let action = if end { Action::Finish } else { Action::Run };
            let before = (self.stream.total_in(), self.stream.total_out());
            let result = self.stream.process(packed, buffer, action);
            let taken = usize::try_from(self.stream.total_in() - before.0).unwrap_or(0);
            let given = usize::try_from(self.stream.total_out() - before.1).unwrap_or(0);
            self.input.consume(taken);
            match result {
                Err(error) if given > 0 => {
                    self.failed = Some(error);
                    return Ok(given);
                }
                Err(error) => return Err(error.into()),
                Ok(_) if given > 0 => return Ok(given),
                Ok(Status::StreamEnd) => return Ok(0),
                Ok(_) if end => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
            }
        }
    }
}

//! xz, without losing what was unpacked in the call that meets the damage.

use std::io::{self, BufRead, Read};

use liblzma::stream::{Action, CONCATENATED, Error, Status, Stream};

/// Memory limit of the decoder, in bytes; `xz -9` needs 65 MiB.
const MEMORY: u64 = 128 << 20;

/// Unpacks one xz stream after the other.
pub(super) struct Xz<R> {
    input: R,
    stream: Stream,
    /// An error that came with bytes: it is returned by the next call.
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
            let (total_in, total_out) = (self.stream.total_in(), self.stream.total_out());
            let result = self.stream.process(packed, buffer, action);
            let consumed = usize::try_from(self.stream.total_in() - total_in).unwrap_or(0);
            let produced = usize::try_from(self.stream.total_out() - total_out).unwrap_or(0);
            self.input.consume(consumed);
            match result {
                Err(error) if produced > 0 => {
                    self.failed = Some(error);
                    return Ok(produced);
                }
                Err(error) => return Err(error.into()),
                Ok(_) if produced > 0 => return Ok(produced),
                Ok(Status::StreamEnd) => return Ok(0),
                Ok(_) if end => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
            }
        }
    }
}

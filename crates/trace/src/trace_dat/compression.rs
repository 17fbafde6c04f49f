//! The compression inside version 7 files: of sections, and of trace data in chunks.

use flate2::{Decompress, FlushDecompress, Status};

/// Why data cannot be unpacked.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum UnpackError {
    /// A section is marked as compressed in a file without compression.
    #[error("compressed, but the file names no compression")]
    NotNamed,
    /// The file names another compression than trace-cmd writes.
    #[error("compressed with {0:?}; zlib and zstd can be read")]
    Unknown(String),
    /// The decoder's own error.
    #[error("{name}: {message}")]
    Decoder {
        /// `zlib` or `zstd`.
        name: &'static str,
        /// The decoder's message.
        message: String,
    },
    /// The stream does not end with its input.
    #[error("zlib: the data does not end where it should")]
    NoEnd,
    /// The size in front of the data is wrong, in bytes.
    #[error("unpacks to {found} bytes, not to {expected}")]
    Size {
        /// Size of the unpacked data.
        found: usize,
        /// Size that the file says.
        expected: usize,
    },
}

impl UnpackError {
    fn decoder(name: &'static str, error: &impl ToString) -> Self {
        let message = error.to_string();
        Self::Decoder { name, message }
    }
}

/// The compression of a file's sections and trace data.
pub(super) enum Compression {
    /// Not at all.
    None,
    /// `zlib`.
    Zlib,
    /// `zstd`.
    Zstd(Box<zstd::bulk::Decompressor<'static>>),
    /// Another one.
    Unknown(String),
}

impl Compression {
    /// The compression by its name in the file's header.
    pub(super) fn named(name: &str) -> std::io::Result<Self> {
        Ok(match name {
            "none" | "" => Self::None,
            "zlib" => Self::Zlib,
            "zstd" => Self::Zstd(Box::new(zstd::bulk::Decompressor::new()?)),
            name => Self::Unknown(name.to_owned()),
        })
    }

    /// The same compression for another thread; none where nothing can be unpacked.
    pub(super) fn another(&self) -> Option<Self> {
        match self {
            Self::None | Self::Unknown(_) => None,
            Self::Zlib => Some(Self::Zlib),
            Self::Zstd(_) => Self::named("zstd").ok(),
        }
    }

    /// Unpacks to exactly `size` bytes in `output`, instead of its former content.
    ///
    /// # Errors
    /// The compression is unknown, or the data are damaged. Never more than `size` bytes are written.
    pub(super) fn unpack(
        &mut self,
        input: &[u8],
        size: usize,
        output: &mut Vec<u8>,
    ) -> Result<(), UnpackError> {
        output.clear();
        output.reserve_exact(size);
        match self {
            Self::None => return Err(UnpackError::NotNamed),
            Self::Unknown(name) => return Err(UnpackError::Unknown(name.clone())),
            Self::Zstd(decompressor) => {
                decompressor
                    .decompress_to_buffer(input, output)
                    .map_err(|error| UnpackError::decoder("zstd", &error))?;
            }
            Self::Zlib => {
                let mut decompress = Decompress::new(true);
                let status = decompress
                    .decompress_vec(input, output, FlushDecompress::Finish)
                    .map_err(|error| UnpackError::decoder("zlib", &error))?;
                if status != Status::StreamEnd {
                    return Err(UnpackError::NoEnd);
                }
            }
        }
        if output.len() != size {
            return Err(UnpackError::Size {
                found: output.len(),
                expected: size,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn packed(kind: &str, bytes: &[u8]) -> Vec<u8> {
        match kind {
            "zstd" => zstd::bulk::compress(bytes, 1).expect("memory"),
            _ => {
                let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), Default::default());
                encoder.write_all(bytes).expect("memory");
                encoder.finish().expect("memory")
            }
        }
    }

    #[test]
    fn what_was_packed_is_unpacked_and_nothing_else() {
        let bytes = [7; 5000];
        for kind in ["zstd", "zlib"] {
            let mut compression = Compression::named(kind).expect("known");
            let packed = packed(kind, &bytes);
            let mut output = Vec::new();
            assert_eq!(compression.unpack(&packed, 5000, &mut output), Ok(()));
            assert_eq!(output, bytes);
            for size in [4999, 5001, 0] {
                assert!(
                    compression.unpack(&packed, size, &mut output).is_err(),
                    "{kind} {size}"
                );
                assert!(output.capacity() < 8192, "{kind} {size}");
            }
            assert!(compression.unpack(&packed[..9], 5000, &mut output).is_err());
        }
        for kind in ["none", "lz4"] {
            let mut compression = Compression::named(kind).expect("taken");
            assert!(compression.unpack(&[0], 1, &mut Vec::new()).is_err());
        }
    }
}

//! The compression inside version 7 files: of sections, and of trace data in chunks.

use flate2::{Decompress, FlushDecompress, Status};

/// How a file's sections and trace data are compressed.
pub(super) enum Compression {
    /// Not at all.
    None,
    /// `zlib`.
    Zlib,
    /// `zstd`.
    Zstd(Box<zstd::bulk::Decompressor<'static>>),
    /// One that is not known here.
    Unknown(String),
}

impl Compression {
    /// From the name in the file's header.
    pub(super) fn named(name: &str) -> std::io::Result<Self> {
        Ok(match name {
            "none" | "" => Self::None,
            "zlib" => Self::Zlib,
            "zstd" => Self::Zstd(Box::new(zstd::bulk::Decompressor::new()?)),
            other => Self::Unknown(other.to_owned()),
        })
    }

    /// Unpacks to exactly `size` bytes in `output` (whatever it held is lost).
    ///
    /// # Errors
    /// A sentence that says what is wrong. Never more than `size` bytes are written.
    pub(super) fn unpack(
        &mut self,
        input: &[u8],
        size: usize,
        output: &mut Vec<u8>,
    ) -> Result<(), String> {
        output.clear();
        output.reserve_exact(size);
        match self {
            Self::None => return Err("compressed, but the file names no compression".into()),
            Self::Unknown(name) => {
                return Err(format!(
                    "compressed with {name:?}; zlib and zstd can be read"
                ));
            }
            Self::Zstd(decompressor) => {
                decompressor
                    .decompress_to_buffer(input, output)
                    .map_err(|error| format!("zstd: {error}"))?;
            }
            Self::Zlib => {
                let mut decompress = Decompress::new(true);
                let status = decompress
                    .decompress_vec(input, output, FlushDecompress::Finish)
                    .map_err(|error| format!("zlib: {error}"))?;
                if status != Status::StreamEnd {
                    return Err("zlib: the data does not end where it should".into());
                }
            }
        }
        if output.len() != size {
            let found = output.len();
            return Err(format!("unpacks to {found} bytes, not to {size}"));
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

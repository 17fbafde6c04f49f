//! Byte streams: a file, a pipe or memory, unpacked, with the position for messages and progress.
//!
//! Nothing in this folder knows a container. Readers of containers use it; `open` chooses the reader.
//!
//! Compression is recognised by content, never by the file's name. A [`Stream`] is read from front
//! to back and needs no room. A [`Stored`] input can be read at any position. It is a plain file or, if
//! the input is compressed or a pipe, an unpacked temporary file without a name. Up to
//! [`SPOOL_IN_MEMORY`] bytes of it stay in memory. A longer one needs room in the directory that
//! `TMPDIR` names, else in the system's default.

mod compression;
mod read_at;
mod stored;
mod stream;
mod xz;

pub use read_at::ReadAt;
pub(crate) use read_at::fill_at;
pub use stored::SPOOL_IN_MEMORY;
pub(crate) use stored::Stored;
pub(crate) use stream::{Damage, Progress, Stream};

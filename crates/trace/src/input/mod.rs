//! Byte streams: a file, a pipe or memory, unpacked, with the position for messages and progress.
//!
//! Nothing in this folder knows a container. Readers of containers use it; `open` chooses the reader.
//!
//! Compression is recognised by content, never by the file's name. A [`Stream`] is read from front
//! to back and needs no room. A [`Stored`] input can be read at any position: a plain file as it is;
//! anything else (compressed, or from a pipe) unpacked into a temporary file without a name. Up to
//! [`SPOOL_IN_MEMORY`] bytes of it stay in memory. The rest lies in the directory that `TMPDIR` names
//! (else the system's default), which needs room for the unpacked recording.

mod compression;
mod read_at;
mod stored;
mod stream;
mod xz;

pub use read_at::ReadAt;
pub use stored::SPOOL_IN_MEMORY;
pub(crate) use stored::Stored;
pub(crate) use stream::{Damage, Progress, Stream};

//! Folders of results: locked, with files that are there whole or not at all, and rows of typed columns as
//! Parquet or CSV. The same rows are the same bytes.

mod cell;
mod folder;
mod form;
pub mod parallel;

pub use cell::{Cell, CellKind, Column};
pub use folder::{Folder, FolderError};
pub use form::{Encoded, Form, Note, ROW_GROUP, Rows};

//! Trace files to events.

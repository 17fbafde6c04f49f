//! Answers to terminal tables, JSON and Perfetto.

//! Tests of the analysis as a whole.

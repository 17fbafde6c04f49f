//! A deterministic simulation of a virtualization host and its guests.
//!
//! The host's decisions are made by `stealtime-hypervisor`, as a real one's would be, and what
//! happens comes out as the events that traces of real hosts hold. A run is a pure function of its
//! [`Config`](config::Config).

pub mod config;

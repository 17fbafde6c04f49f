//! Reading a [`State`] by serde.
//!
//! In JSON and its like the architecture is a field among the others, in any order. A derived reader of
//! such enumerations first copies values of unknown types, which takes more text in a VMM. This one has a
//! place for the fields of every architecture.

use std::fmt;

use serde::de::{Error, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

use crate::saved::{Arm64State, Instant, State, VcpuState, X86State};

/// A state in formats that do not name their fields.
#[derive(Deserialize)]
enum Numbered {
    X86(X86State),
    Arm64(Arm64State),
}

/// The fields of every architecture.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    arch: Arch,
    vcpus: Vcpus,
    #[serde(default, deserialize_with = "some")]
    host_tsc_khz: Option<u32>,
    #[serde(default, deserialize_with = "some")]
    frac_bits: Option<u32>,
    #[serde(default, deserialize_with = "some")]
    tsc_khz: Option<u32>,
    #[serde(default, deserialize_with = "some")]
    ratio: Option<u64>,
    #[serde(default, deserialize_with = "some")]
    instant: Option<Instant>,
    #[serde(default, deserialize_with = "some")]
    counter_hz: Option<u32>,
    #[serde(default, deserialize_with = "some")]
    counter_offset: Option<u64>,
    #[serde(default, deserialize_with = "some")]
    offset_bound_ticks: Option<u64>,
    #[serde(default, deserialize_with = "some")]
    host_count: Option<u64>,
    #[serde(default, deserialize_with = "some")]
    realtime_ns: Option<u64>,
    #[serde(default, deserialize_with = "some")]
    instant_bound_ticks: Option<u64>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Arch {
    X86,
    Arm64,
}

/// `vcpus`: a list on x86, a number on arm64.
enum Vcpus {
    States(Vec<VcpuState>),
    Count(u32),
}

/// A field that is not null where it is present.
fn some<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    T::deserialize(deserializer).map(Some)
}

impl<'de> Deserialize<'de> for Vcpus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ListOrNumber)
    }
}

struct ListOrNumber;

impl<'de> Visitor<'de> for ListOrNumber {
    type Value = Vcpus;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the vCPUs of x86, or the number of vCPUs of arm64")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vcpus, A::Error> {
        let mut states = Vec::new();
        while let Some(state) = list.next_element()? {
            states.push(state);
        }
        Ok(Vcpus::States(states))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Vcpus, E> {
        let count = u32::try_from(number);
        let count = count.map_err(|_| E::invalid_value(Unexpected::Unsigned(number), &self))?;
        Ok(Vcpus::Count(count))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Vcpus, E> {
        let count = u32::try_from(number);
        let count = count.map_err(|_| E::invalid_value(Unexpected::Signed(number), &self))?;
        Ok(Vcpus::Count(count))
    }
}

fn need<T, E: Error>(field: Option<T>, name: &'static str) -> Result<T, E> {
    field.ok_or_else(|| E::missing_field(name))
}

impl Named {
    /// # Errors
    /// A field is missing, or is one of the other architecture.
    fn into_state<E: Error>(self) -> Result<State, E> {
        let has_x86 = [
            self.host_tsc_khz.is_some(),
            self.frac_bits.is_some(),
            self.tsc_khz.is_some(),
            self.ratio.is_some(),
            self.instant.is_some(),
        ];
        let has_arm64 = [
            self.counter_hz.is_some(),
            self.counter_offset.is_some(),
            self.offset_bound_ticks.is_some(),
            self.host_count.is_some(),
            self.realtime_ns.is_some(),
            self.instant_bound_ticks.is_some(),
        ];
        match (self.arch, self.vcpus) {
            (Arch::X86, Vcpus::States(vcpus)) if !has_arm64.contains(&true) => {
                Ok(State::X86(X86State {
                    host_tsc_khz: need(self.host_tsc_khz, "host_tsc_khz")?,
                    frac_bits: need(self.frac_bits, "frac_bits")?,
                    tsc_khz: need(self.tsc_khz, "tsc_khz")?,
                    ratio: need(self.ratio, "ratio")?,
                    instant: need(self.instant, "instant")?,
                    vcpus,
                }))
            }
            (Arch::Arm64, Vcpus::Count(vcpus)) if !has_x86.contains(&true) => {
                Ok(State::Arm64(Arm64State {
                    counter_hz: need(self.counter_hz, "counter_hz")?,
                    counter_offset: need(self.counter_offset, "counter_offset")?,
                    offset_bound_ticks: need(self.offset_bound_ticks, "offset_bound_ticks")?,
                    host_count: need(self.host_count, "host_count")?,
                    realtime_ns: need(self.realtime_ns, "realtime_ns")?,
                    vcpus,
                    instant_bound_ticks: self.instant_bound_ticks.unwrap_or(0),
                }))
            }
            (Arch::X86, _) => Err(E::custom("a field of arm64 in a state of x86")),
            (Arch::Arm64, _) => Err(E::custom("a field of x86 in a state of arm64")),
        }
    }
}

impl<'de> Deserialize<'de> for State {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            return Named::deserialize(deserializer)?.into_state();
        }
        Ok(match Numbered::deserialize(deserializer)? {
            Numbered::X86(state) => Self::X86(state),
            Numbered::Arm64(state) => Self::Arm64(state),
        })
    }
}

//! Feature sections: what perf records of the host
//! (tools/perf/Documentation/perf.data-file-format.txt).

use super::attrs::Attrs;
use super::tracing_data::{self, TracingData};
use crate::tracefs::Endian;

const TRACING_DATA: usize = 1;
const HOSTNAME: usize = 3;
const OSRELEASE: usize = 4;
const ARCH: usize = 6;
const NRCPUS: usize = 7;
const EVENT_DESC: usize = 12;

/// The sections that are read (`HEADER_*` of tools/perf/util/header.h).
pub(super) const WANTED: [usize; 6] = [TRACING_DATA, HOSTNAME, OSRELEASE, ARCH, NRCPUS, EVENT_DESC];

/// The content of the sections.
#[derive(Default)]
pub(super) struct Features {
    pub(super) tracing: Option<TracingData>,
    hostname: Option<String>,
    release: Option<String>,
    arch: Option<String>,
    /// CPUs online.
    pub(super) cpus: Option<u32>,
}

impl Features {
    /// Reads one section; returns what is wrong with it.
    pub(super) fn read(
        &mut self,
        feature: usize,
        bytes: &[u8],
        endian: Endian,
        attrs: &mut Attrs,
    ) -> Option<String> {
        match feature {
            TRACING_DATA => return self.tracing(bytes),
            HOSTNAME => self.hostname = string(bytes, endian),
            OSRELEASE => self.release = string(bytes, endian),
            ARCH => self.arch = string(bytes, endian),
            NRCPUS => self.cpus = endian.u32(bytes, 4),
            EVENT_DESC => {
                let read = event_desc(bytes, endian, attrs);
                let damaged = || "the section with the events' names is damaged".to_owned();
                return read.is_none().then(damaged);
            }
            _ => {}
        }
        None
    }

    /// Reads the event formats; returns what is wrong with them.
    pub(super) fn tracing(&mut self, bytes: &[u8]) -> Option<String> {
        let (tracing, damage) = tracing_data::parse(bytes);
        self.tracing = tracing.or(self.tracing.take());
        damage
    }

    /// The host as `uname -snrm` would say it, as far as the file does.
    pub(super) fn uname(&self) -> Option<String> {
        let release = self.release.as_deref()?;
        let hostname = self.hostname.as_deref().unwrap_or("(none)");
        let arch = self.arch.as_deref().unwrap_or_default();
        Some(
            format!("Linux {hostname} {release} {arch}")
                .trim_end()
                .to_owned(),
        )
    }
}

/// `struct perf_header_string`: the padded length, the bytes, zeros.
fn string(bytes: &[u8], endian: Endian) -> Option<String> {
    let len = endian.u32(bytes, 0)? as usize;
    let text = bytes.get(4..)?.get(..len)?;
    let end = memchr::memchr(0, text).unwrap_or(text.len());
    Some(String::from_utf8_lossy(text.get(..end)?).into_owned())
}

/// `HEADER_EVENT_DESC`: names the attributes by their ids. `None` where it is damaged.
fn event_desc(bytes: &[u8], endian: Endian, attrs: &mut Attrs) -> Option<()> {
    let events = endian.u32(bytes, 0)?;
    let attr_size = endian.u32(bytes, 4)? as usize;
    let mut offset = 8_usize;
    for _ in 0..events {
        offset = offset.checked_add(attr_size)?;
        let ids = endian.u32(bytes, offset)? as usize;
        let name = string(bytes.get(offset + 4..)?, endian)?;
        let padded = endian.u32(bytes, offset + 4)? as usize;
        let first = offset.checked_add(8)?.checked_add(padded)?;
        offset = first
            .checked_add(ids.checked_mul(8)?)
            .filter(|end| *end <= bytes.len())?;
        for id in 0..ids {
            attrs.name(endian.u64(bytes, first + 8 * id)?, &name);
        }
    }
    Some(())
}

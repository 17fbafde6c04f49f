//! The packets of a Perfetto trace.
//!
//! Field numbers are those of Perfetto's published schema, protos/perfetto/trace/*.proto.

use std::collections::HashMap;
use std::io::{self, Write};

use super::proto::Encoder;

/// The writer of the first run's track events; others follow.
const SEQUENCE: u64 = 1;
/// Where the number of the run is in the ids of tracks and flows: above the 36 bits of [`Track::uuid`].
///
/// [`Track::uuid`]: super::track::Track::uuid
const RUN_SHIFT: u32 = 40;
/// `SEQ_INCREMENTAL_STATE_CLEARED`: nothing before this packet is referred to.
const STATE_CLEARED: u64 = 1;
/// `SEQ_NEEDS_INCREMENTAL_STATE`: refers to names of earlier packets.
const NEEDS_STATE: u64 = 2;
/// Perfetto counts in `int64`.
pub(super) const LATEST: u64 = i64::MAX.cast_unsigned();

/// A name in the file's table of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Name(u64);

/// What a slice is about: users can search and filter by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Category {
    Guest,
    Exit,
    Vmm,
    Off,
    Poll,
    Task,
    Irq,
    Ipi,
    Lost,
}

const CATEGORIES: [(Category, &str); 9] = [
    (Category::Guest, "guest"),
    (Category::Exit, "exit"),
    (Category::Vmm, "vmm"),
    (Category::Off, "off_cpu"),
    (Category::Poll, "poll"),
    (Category::Task, "task"),
    (Category::Irq, "irq"),
    (Category::Ipi, "ipi"),
    (Category::Lost, "lost"),
];

/// Names of arguments.
const ARGUMENTS: [&str; 6] = ["tid", "info1", "icr_low", "dest_id", "lost", "errno"];

/// An argument of a slice: an index into the names of arguments comes from [`arg`].
pub(super) type Arg = (u64, u64);

/// An argument with one of the names that the file knows.
pub(super) fn arg(name: &'static str, value: u64) -> Arg {
    let index = ARGUMENTS.iter().position(|known| *known == name);
    (index.map_or(0, |index| index as u64 + 1), value)
}

/// A slice's or an instant's looks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mark<'a> {
    pub(super) name: Name,
    pub(super) category: Category,
    pub(super) args: &'a [Arg],
    /// Flows that start or pass here.
    pub(super) flows: &'a [u64],
    /// Flows that end here.
    pub(super) ends: &'a [u64],
}

impl Mark<'_> {
    /// Without arguments and flows.
    pub(super) const fn plain(name: Name, category: Category) -> Self {
        Self {
            name,
            category,
            args: &[],
            flows: &[],
            ends: &[],
        }
    }
}

/// What a track is.
#[derive(Debug, Clone, Copy)]
pub(super) enum TrackKind<'a> {
    /// A row or a group of rows.
    Plain { name: &'a str },
    /// The group of a process.
    Process { pid: i32, name: &'a str },
    /// Tells Perfetto that a thread is of a process.
    Thread { pid: i32, tid: i32, name: &'a str },
    /// A counter of nanoseconds or of anything else.
    Counter { name: &'a str, is_ns: bool },
}

/// Packets to a writer.
pub(super) struct Packets<'w> {
    writer: &'w mut dyn Write,
    /// The number of the run.
    run: u64,
    packet: Encoder,
    names: HashMap<Box<str>, Name>,
    /// `InternedData` for the next packet that is written.
    new_names: Encoder,
    written: u64,
}

impl<'w> Packets<'w> {
    /// Names that are kept, so that memory is bounded; a trace with more of them loses the names, not the
    /// slices.
    const MAX_NAMES: usize = 1 << 18;

    /// Starts a trace.
    pub(super) fn new(writer: &'w mut dyn Write, run: u16) -> Self {
        let mut packets = Self {
            writer,
            run: run.into(),
            packet: Encoder::default(),
            names: HashMap::new(),
            new_names: Encoder::default(),
            written: 0,
        };
        for (i, (_, name)) in (1..).zip(CATEGORIES) {
            packets.new_names.message(1, |category| {
                category.uint(1, i);
                category.text(2, name);
            });
        }
        for (i, name) in (1..).zip(ARGUMENTS) {
            packets.new_names.message(3, |argument| {
                argument.uint(1, i);
                argument.text(2, name);
            });
        }
        packets
    }

    /// A name's entry in the table, made where there is none.
    pub(super) fn name(&mut self, name: &str) -> Name {
        if let Some(known) = self.names.get(name) {
            return *known;
        }
        let name = if self.names.len() < Self::MAX_NAMES {
            name
        } else if let Some(known) = self.names.get("(name not kept)") {
            return *known;
        } else {
            "(name not kept)"
        };
        let new = Name(self.names.len() as u64 + 1);
        self.names.insert(name.into(), new);
        self.new_names.message(2, |entry| {
            entry.uint(1, new.0);
            entry.text(2, name);
        });
        new
    }

    /// The id of a track among those of all runs: ids of one run are below 2^36.
    const fn id(&self, track: u64) -> u64 {
        track | self.run << RUN_SHIFT
    }

    /// Tells of a track, in the group `parent`, at the place `rank` there.
    pub(super) fn track(
        &mut self,
        uuid: u64,
        parent: Option<u64>,
        rank: u32,
        kind: TrackKind<'_>,
    ) -> io::Result<()> {
        let (uuid, parent) = (self.id(uuid), parent.map(|parent| self.id(parent)));
        self.packet.message(60, |track| {
            track.uint(1, uuid);
            if let Some(parent) = parent {
                track.uint(5, parent);
            }
            match kind {
                TrackKind::Plain { name } => track.text(2, name),
                TrackKind::Process { pid, name } => track.message(3, |process| {
                    process.int(1, pid.into());
                    process.text(6, name);
                }),
                TrackKind::Thread { pid, tid, name } => track.message(4, |thread| {
                    thread.int(1, pid.into());
                    thread.int(2, tid.into());
                    thread.text(5, name);
                }),
                TrackKind::Counter { name, is_ns } => {
                    track.text(2, name);
                    // UNIT_TIME_NS, UNIT_COUNT
                    track.message(8, |counter| counter.uint(3, if is_ns { 1 } else { 2 }));
                }
            }
            // EXPLICIT: children stand by their ranks.
            track.uint(11, 3);
            track.uint(12, rank.into());
        });
        self.send(None)
    }

    /// `TYPE_SLICE_BEGIN`.
    pub(super) fn begin(&mut self, time_ns: u64, track: u64, mark: &Mark<'_>) -> io::Result<()> {
        self.track_event(time_ns, track, 1, mark)
    }

    /// `TYPE_SLICE_END` of the track's innermost slice.
    pub(super) fn end(&mut self, time_ns: u64, track: u64) -> io::Result<()> {
        let track = self.id(track);
        self.packet.message(11, |event| {
            event.uint(9, 2);
            event.uint(11, track);
        });
        self.send(Some(time_ns))
    }

    /// `TYPE_INSTANT`.
    pub(super) fn instant(&mut self, time_ns: u64, track: u64, mark: &Mark<'_>) -> io::Result<()> {
        self.track_event(time_ns, track, 3, mark)
    }

    /// `TYPE_COUNTER`.
    pub(super) fn counter(&mut self, time_ns: u64, track: u64, value: u32) -> io::Result<()> {
        let track = self.id(track);
        self.packet.message(11, |event| {
            event.uint(9, 4);
            event.uint(11, track);
            event.uint(30, value.into());
        });
        self.send(Some(time_ns))
    }

    fn track_event(
        &mut self,
        time_ns: u64,
        track: u64,
        event_type: u64,
        mark: &Mark<'_>,
    ) -> io::Result<()> {
        let known = CATEGORIES
            .iter()
            .position(|(category, _)| *category == mark.category);
        let (track, run) = (self.id(track), self.run);
        self.packet.message(11, |event| {
            event.uint(3, known.map_or(0, |index| index as u64 + 1));
            for (name, value) in mark.args {
                event.message(4, |argument| {
                    argument.uint(1, *name);
                    argument.uint(3, *value);
                });
            }
            event.uint(9, event_type);
            event.uint(10, mark.name.0);
            event.uint(11, track);
            for flow in mark.flows {
                event.fixed64(47, *flow | run << RUN_SHIFT);
            }
            for flow in mark.ends {
                event.fixed64(48, *flow | run << RUN_SHIFT);
            }
        });
        self.send(Some(time_ns))
    }

    /// The host's name and how many CPUs it has: `uname` as `sysname`, node, release, version.
    pub(super) fn system(&mut self, release: Option<&str>, cpus: u32) -> io::Result<()> {
        self.packet.message(45, |system| {
            if let Some(release) = release {
                system.message(1, |utsname| {
                    utsname.text(1, "Linux");
                    utsname.text(3, release);
                });
            }
            if cpus > 0 {
                system.uint(8, cpus.into());
            }
        });
        self.send(None)
    }

    /// An `FtraceEventBundle` that was encoded before.
    pub(super) fn ftrace(&mut self, bundle: &[u8]) -> io::Result<()> {
        self.packet.raw(1, bundle);
        self.send(None)
    }

    /// Writes the packet that stands in `self.packet`, and the names that it may need.
    fn send(&mut self, time_ns: Option<u64>) -> io::Result<()> {
        if let Some(time_ns) = time_ns {
            self.packet.uint(8, time_ns.min(LATEST));
        }
        self.packet.uint(10, SEQUENCE + self.run);
        if !self.new_names.bytes().is_empty() {
            self.packet.raw(12, self.new_names.bytes());
            self.new_names.clear();
        }
        let cleared = if self.written == 0 { STATE_CLEARED } else { 0 };
        self.packet.uint(13, NEEDS_STATE | cleared);
        self.written += 1;

        let mut head = Encoder::default();
        head.raw(1, self.packet.bytes());
        self.packet.clear();
        self.writer.write_all(head.bytes())
    }

    /// How many packets were written; hands everything on to the file.
    pub(super) fn finish(&mut self) -> io::Result<u64> {
        self.writer.flush()?;
        Ok(self.written)
    }
}

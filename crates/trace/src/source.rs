//! What every reader gives: events in the order of time, and what is known of the recording.

use stealtime_events::{CpuId, Event};

use crate::{NameTable, ReadError, tracepoint};

/// A trace being read, CPUs merged by time.
pub trait EventSource: Send {
    /// The next event, or `None` at the end. Names of tasks come as events of their own
    /// ([`stealtime_events::Kind::Task`]) before the first event that needs them; losses as
    /// [`stealtime_events::Kind::Lost`] where they happened.
    ///
    /// # Errors
    /// What makes going on impossible. After an error the source gives no more events; what it gave
    /// before stays valid and the answer made of it is partial.
    fn next_event(&mut self) -> Result<Option<Event>, ReadError>;

    /// Adds the next events, at most `most`, to `out`. Whether more may come.
    ///
    /// # Errors
    /// As [`EventSource::next_event`]; `out` has what came before.
    fn next_events(&mut self, most: usize, out: &mut Vec<Event>) -> Result<bool, ReadError> {
        for _ in 0..most {
            match self.next_event()? {
                Some(event) => out.push(event),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// The table of names so far.
    fn names(&self) -> &NameTable;

    /// What is known of the recording; complete once the last event was read.
    fn info(&self) -> &SourceInfo;

    /// Bytes read so far and bytes in all (of the file as it lies on disk or was spooled), for a
    /// progress bar. The total is `None` where it is not known.
    fn progress(&self) -> (u64, Option<u64>);
}

/// The container that the trace came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// trace-cmd `trace.dat` with its version, 6 or 7.
    TraceDat(u8),
    /// `perf.data` in file mode.
    PerfData,
    /// `perf.data` in pipe mode (`perf record -o -`).
    PerfPipe,
    /// The tracefs `trace` file or `trace-cmd report`, as text.
    Text,
}

impl Format {
    /// The format's name in tables and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TraceDat(7) => "trace.dat v7",
            Self::TraceDat(_) => "trace.dat v6",
            Self::PerfData => "perf.data",
            Self::PerfPipe => "perf.data (pipe)",
            Self::Text => "ftrace text",
        }
    }
}

/// What one unit of `time_ns` is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClockUnit {
    /// Nanoseconds (perhaps rounded: text has microseconds).
    #[default]
    Ns,
    /// Ticks of the TSC or of a counter, which could not be converted.
    Ticks,
}

/// The recording's clock.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Clock {
    /// The trace clock's name (`local`, `mono`, `x86-tsc`), empty where the file does not say.
    pub name: String,
    /// What one unit is.
    pub unit: ClockUnit,
    /// The frequency by which ticks were converted, in kHz, where that was done.
    pub tsc_khz: Option<u64>,
}

/// Events that the recording lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lost {
    /// Sum of the losses whose size is known.
    pub counted: u64,
    /// Places where events were lost whose number is not known.
    pub uncounted_gaps: u64,
}

/// Events of a tracepoint that were counted and not given ([`crate::Options::only`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counted {
    /// The tracepoint.
    pub name: String,
    /// How many there were.
    pub events: u64,
    /// The earliest time, in units of the source's clock.
    pub first_ns: u64,
    /// The latest time.
    pub last_ns: u64,
    /// The highest number of a CPU.
    pub last_cpu: CpuId,
}

impl Counted {
    /// None yet.
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            events: 0,
            first_ns: u64::MAX,
            last_ns: 0,
            last_cpu: CpuId(0),
        }
    }

    /// One more.
    #[inline]
    pub(crate) fn add(&mut self, time_ns: u64, cpu: CpuId) {
        self.events += 1;
        self.first_ns = self.first_ns.min(time_ns);
        self.last_ns = self.last_ns.max(time_ns);
        self.last_cpu = self.last_cpu.max(cpu);
    }
}

/// Something that a user must know of this recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Whether the events given are fewer than were recorded (cut short, undecodable), so that every
    /// answer is partial.
    pub partial: bool,
    /// Whether something that [`crate::Options`] say of the recording was of no use.
    pub unused: bool,
    /// One sentence, with file offset or event name.
    pub text: String,
}

/// What is known of a recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceInfo {
    /// The container.
    pub format: Format,
    /// The compression around the container: `zstd`, `xz`, `gzip`.
    pub compression: Option<&'static str>,
    /// The clock of `time_ns`.
    pub clock: Clock,
    /// `uname` of the recorded host, where the file has it.
    pub uname: Option<String>,
    /// How many CPUs the host has, where the file says so.
    pub cpus: Option<u32>,
    /// Losses so far.
    pub lost: Lost,
    /// Events whose time was before that of the event given before them. They were given all the
    /// same.
    pub out_of_order: u64,
    /// Tracepoints that the recording has switched on (where the container says so): with these
    /// `0 events` means that nothing happened.
    pub recorded: Vec<String>,
    /// Tracepoints whose name in the recording is an older one: today's name, and that one.
    pub renamed: Vec<(&'static str, &'static str)>,
    /// Events that were counted and not given; complete once the last event was read.
    pub counted: Vec<Counted>,
    /// Events, given or counted, whose time was before that of an event before them; `None` where
    /// all were given, as the times of these tell.
    pub late: Option<u64>,
    /// What a user must know. Bounded: repeated notes are merged.
    pub notes: Vec<Note>,
}

impl SourceInfo {
    /// Knowing nothing yet but the container.
    #[must_use]
    pub fn new(format: Format) -> Self {
        Self {
            format,
            compression: None,
            clock: Clock::default(),
            uname: None,
            cpus: None,
            lost: Lost::default(),
            out_of_order: 0,
            recorded: Vec::new(),
            renamed: Vec::new(),
            counted: Vec::new(),
            late: None,
            notes: Vec::new(),
        }
    }

    /// Notes that the recording has a tracepoint of this name, if that is an older one.
    pub(crate) fn note_name(&mut self, name: &str) {
        if let Some(pair) = tracepoint::renamed().find(|pair| pair.1 == name)
            && !self.renamed.contains(&pair)
        {
            self.renamed.push(pair);
        }
    }

    /// How many different notes are kept.
    pub const MAX_NOTES: usize = 100;

    /// Adds a note, once.
    pub fn note(&mut self, partial: bool, text: impl Into<String>) {
        self.add(Note {
            partial,
            unused: false,
            text: text.into(),
        });
    }

    /// Notes, once, that something that [`crate::Options`] say was of no use.
    pub(crate) fn note_unused(&mut self, text: impl Into<String>) {
        self.add(Note {
            partial: false,
            unused: true,
            text: text.into(),
        });
    }

    fn add(&mut self, note: Note) {
        if self.notes.len() < Self::MAX_NOTES && !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Whether some of what was recorded could not be given.
    #[must_use]
    pub fn is_partial(&self) -> bool {
        self.notes.iter().any(|note| note.partial)
    }
}

//! The interface of all readers: events in the order of time, and properties of the recording.

use stealtime_events::{CpuId, Event};

use crate::{NameTable, ReadError, tracepoint};

/// A trace being read, CPUs merged by time.
pub trait EventSource: Send {
    /// The next event, or `None` at the end. Names of tasks come as events of their own
    /// ([`stealtime_events::Kind::Task`]) before the first event that needs them; losses as
    /// [`stealtime_events::Kind::Lost`] where they happened.
    ///
    /// # Errors
    /// Damage that ends the reading. The source has no events after an error. Those before it stay valid,
    /// and their answer is partial.
    fn next_event(&mut self) -> Result<Option<Event>, ReadError>;

    /// Adds the next events, at most `limit`, to `batch`. Returns whether more may come.
    ///
    /// # Errors
    /// As [`EventSource::next_event`]; `batch` has the events before the error.
    fn next_events(&mut self, limit: usize, batch: &mut Vec<Event>) -> Result<bool, ReadError> {
        for _ in 0..limit {
            match self.next_event()? {
                Some(event) => batch.push(event),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// The table of names so far.
    fn names(&self) -> &NameTable;

    /// Properties of the recording; complete once the last event is read.
    fn info(&self) -> &SourceInfo;

    /// Bytes read so far and bytes in all, for a progress bar: of the file on disk, or of its spooled
    /// content. The total is `None` where it is not known.
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

/// The unit of `time_ns`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClockUnit {
    /// Nanoseconds (perhaps rounded: text has microseconds).
    #[default]
    Ns,
    /// Ticks of the TSC or of a counter, without a known frequency.
    Ticks,
}

/// The recording's clock.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Clock {
    /// The trace clock's name (`local`, `mono`, `x86-tsc`), empty where the file does not say.
    pub name: String,
    /// What one unit is.
    pub unit: ClockUnit,
    /// The frequency of converted ticks, in kHz.
    pub tsc_khz: Option<u64>,
}

/// Events that the recording lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lost {
    /// Sum of the losses of a known size.
    pub counted: u64,
    /// Number of losses of an unknown size.
    pub uncounted_gaps: u64,
}

/// Events of a tracepoint that are counted and not decoded ([`crate::Options::only`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counted {
    /// The tracepoint.
    pub name: String,
    /// Number of events.
    pub events: u64,
    /// The earliest time, in units of the source's clock.
    pub first_ns: u64,
    /// The latest time.
    pub last_ns: u64,
    /// The highest number of a CPU.
    pub last_cpu: CpuId,
}

impl Counted {
    /// No events so far.
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            events: 0,
            first_ns: u64::MAX,
            last_ns: 0,
            last_cpu: CpuId(0),
        }
    }

    /// Counts an event.
    #[inline]
    pub(crate) fn add(&mut self, time_ns: u64, cpu: CpuId) {
        self.events += 1;
        self.first_ns = self.first_ns.min(time_ns);
        self.last_ns = self.last_ns.max(time_ns);
        self.last_cpu = self.last_cpu.max(cpu);
    }
}

/// A property of the recording that limits its answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Whether recorded events are missing (cut short, undecodable), so that every answer is partial.
    pub partial: bool,
    /// Whether a value of [`crate::Options`] is not used.
    pub unused: bool,
    /// One sentence, with file offset or event name.
    pub text: String,
}

/// Properties of a recording.
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
    /// Number of the host's CPUs, where the file says so.
    pub cpus: Option<u32>,
    /// The snapshot of the recorded host, JSON, where the file has it.
    pub snapshot: Option<String>,
    /// Losses so far.
    pub lost: Lost,
    /// Events with a time before that of the previous event. They are in the stream too.
    pub out_of_order: u64,
    /// Tracepoints that the recording has switched on, where the container says so. Of these, 0 events
    /// mean that there were none.
    pub recorded: Vec<String>,
    /// Tracepoints with an older name in the recording: the present name, and the older one.
    pub renamed: Vec<(&'static str, &'static str)>,
    /// Events that are counted and not decoded; complete once the last event is read.
    pub counted: Vec<Counted>,
    /// Events, decoded or counted, with a time before that of an earlier one. `None` where all are decoded:
    /// then their times show it.
    pub late: Option<u64>,
    /// Limits of the answers. Bounded: repeated notes are merged.
    pub notes: Vec<Note>,
}

impl SourceInfo {
    /// Nothing known so far but the container.
    #[must_use]
    pub fn new(format: Format) -> Self {
        Self {
            format,
            compression: None,
            clock: Clock::default(),
            uname: None,
            cpus: None,
            snapshot: None,
            lost: Lost::default(),
            out_of_order: 0,
            recorded: Vec::new(),
            renamed: Vec::new(),
            counted: Vec::new(),
            late: None,
            notes: Vec::new(),
        }
    }

    /// Notes a tracepoint of the recording that has an older name.
    pub(crate) fn note_name(&mut self, name: &str) {
        if let Some(pair) = tracepoint::renamed().find(|pair| pair.1 == name)
            && !self.renamed.contains(&pair)
        {
            self.renamed.push(pair);
        }
    }

    /// Different notes that are kept, at most.
    pub const MAX_NOTES: usize = 100;

    /// Adds a note, once.
    pub fn note(&mut self, partial: bool, text: impl Into<String>) {
        self.add(Note {
            partial,
            unused: false,
            text: text.into(),
        });
    }

    /// Notes, once, that a value of [`crate::Options`] is not used.
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

    /// Whether recorded events are missing.
    #[must_use]
    pub fn is_partial(&self) -> bool {
        self.notes.iter().any(|note| note.partial)
    }
}

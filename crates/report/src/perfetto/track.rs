//! Slices on tracks, within the window of time that is exported.

use std::io::{self, Write};

use super::packet::{Category, Mark, Name, Packets, TrackKind};

/// Ids of tracks: unlike for every kind of thing that has a track.
#[derive(Debug, Clone, Copy)]
pub(super) enum Track {
    /// The group of all host CPUs.
    Cpus,
    /// A host CPU.
    Cpu(u16),
    /// A VM, by its place in the roster.
    Vm(u32),
    /// A vCPU, by its place in the roster.
    Vcpu(u32),
    /// The thread of a vCPU in Perfetto's own list of threads.
    Thread(u32),
    /// A vCPU's halt polling time.
    HaltPoll(u32),
    /// A vCPU's PLE window.
    PleWindow(u32),
    /// The group of all that is of one run.
    Run,
}

impl Track {
    /// `TrackDescriptor.uuid`; never 0, which is Perfetto's own.
    pub(super) fn uuid(self) -> u64 {
        let (kind, index) = match self {
            Self::Cpus => (1, 0),
            Self::Cpu(cpu) => (2, u32::from(cpu)),
            Self::Vm(vm) => (3, vm),
            Self::Vcpu(vcpu) => (4, vcpu),
            Self::Thread(vcpu) => (5, vcpu),
            Self::HaltPoll(vcpu) => (6, vcpu),
            Self::PleWindow(vcpu) => (7, vcpu),
            Self::Run => (8, 0),
        };
        (kind << 32) | u64::from(index)
    }
}

/// Times in ns of the trace's clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Period {
    pub(super) begin: u64,
    pub(super) end: u64,
}

/// Packets, but only of the time that was asked for.
pub(super) struct Sink<'w> {
    pub(super) packets: Packets<'w>,
    /// Nothing before this is written.
    from_ns: u64,
    /// Whether `from_ns` has been reached.
    open: bool,
}

impl<'w> Sink<'w> {
    /// A sink that writes from `from_ns` on, of the how many-th run of the file.
    pub(super) fn new(writer: &'w mut dyn Write, from_ns: u64, run: u16) -> Self {
        Self {
            packets: Packets::new(writer, run),
            from_ns,
            open: from_ns == 0,
        }
    }

    /// Whether what happens now is written.
    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// The window has been reached: slices that are open must be begun by whoever keeps them.
    pub(super) fn open(&mut self) {
        self.open = true;
    }

    /// See [`Packets::track`].
    pub(super) fn track(
        &mut self,
        track: Track,
        parent: Option<Track>,
        rank: u32,
        kind: TrackKind<'_>,
    ) -> io::Result<()> {
        self.packets
            .track(track.uuid(), parent.map(Track::uuid), rank, kind)
    }
}

/// The slices that are open on a track, outermost first. Time on it never runs backwards.
#[derive(Debug)]
pub(super) struct Stack {
    track: Track,
    /// Whether it is written. Otherwise it keeps its state, because other tracks need it.
    is_shown: bool,
    open: Vec<(u64, Name, Category)>,
    last_ns: u64,
}

impl Stack {
    /// No slice is open.
    pub(super) fn new(track: Track, is_shown: bool) -> Self {
        Self {
            track,
            is_shown,
            open: Vec::new(),
            last_ns: 0,
        }
    }

    /// The time, or that of the last change where that was later.
    pub(super) fn clamp(&mut self, time: u64) -> u64 {
        self.last_ns = self.last_ns.max(time);
        self.last_ns
    }

    /// How many slices are open.
    pub(super) fn depth(&self) -> usize {
        self.open.len()
    }

    /// Opens a slice under `key`, by which [`Stack::find`] finds it.
    pub(super) fn begin(
        &mut self,
        sink: &mut Sink<'_>,
        time: u64,
        key: u64,
        mark: &Mark<'_>,
    ) -> io::Result<()> {
        let time = self.clamp(time);
        self.open.push((key, mark.name, mark.category));
        if self.is_shown && sink.is_open() {
            sink.packets.begin(time, self.track.uuid(), mark)?;
        }
        Ok(())
    }

    /// The depth at which the innermost slice with this key lies.
    pub(super) fn find(&self, key: u64) -> Option<usize> {
        self.open.iter().rposition(|open| open.0 == key)
    }

    /// Closes slices until `depth` are left.
    pub(super) fn close_to(
        &mut self,
        sink: &mut Sink<'_>,
        time: u64,
        depth: usize,
    ) -> io::Result<()> {
        let time = self.clamp(time);
        while self.open.len() > depth {
            self.open.pop();
            if self.is_shown && sink.is_open() {
                sink.packets.end(time, self.track.uuid())?;
            }
        }
        Ok(())
    }

    /// Writes the part within the window of a slice with a known end. The caller keeps it within the
    /// slices that are open.
    pub(super) fn slice(
        &self,
        sink: &mut Sink<'_>,
        period: Period,
        mark: &Mark<'_>,
    ) -> io::Result<()> {
        let begin = period.begin.max(sink.from_ns);
        if !self.is_shown || !sink.open || period.end < begin {
            return Ok(());
        }
        sink.packets.begin(begin, self.track.uuid(), mark)?;
        sink.packets.end(period.end, self.track.uuid())
    }

    /// A moment.
    pub(super) fn instant(
        &self,
        sink: &mut Sink<'_>,
        time: u64,
        mark: &Mark<'_>,
    ) -> io::Result<()> {
        if !self.is_shown || !sink.open {
            return Ok(());
        }
        sink.packets.instant(time, self.track.uuid(), mark)
    }

    /// Whether it is written.
    pub(super) fn is_shown(&self) -> bool {
        self.is_shown
    }

    /// Begins what is open at the beginning of the window.
    pub(super) fn reopen(&mut self, sink: &mut Sink<'_>) -> io::Result<()> {
        self.last_ns = self.last_ns.max(sink.from_ns);
        if !self.is_shown {
            return Ok(());
        }
        for (_, name, category) in &self.open {
            let mark = Mark::plain(*name, *category);
            sink.packets.begin(sink.from_ns, self.track.uuid(), &mark)?;
        }
        Ok(())
    }
}

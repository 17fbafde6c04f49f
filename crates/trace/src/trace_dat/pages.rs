//! Pages of live ring buffers: each CPU's pages as they are read, to events merged by time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use stealtime_events::{CpuId, Event, Kind, Tid};

use super::page::{PageLayout, Walk};
use super::{cmdline, lines, tgid};
use crate::tracefs::{Decoder, Endian, EventQueue, EventSink, Formats, Stamp, Symbols};
use crate::write::raw::Recording;
use crate::{Format, NameTable, ReadError, SourceInfo};

/// Pages that are kept for reuse.
const SPARE: usize = 256;

/// Pages in, events out.
///
/// Pages of one CPU come in the order of time. Events leave in the order of time over all CPUs, once the
/// caller says up to which time all pages are there. A page that is earlier than the one before it shows a
/// clock that was set back. What waits then is lost, and the order begins anew.
pub struct Pages {
    layout: PageLayout,
    decoder: Decoder,
    names: NameTable,
    info: SourceInfo,
    queue: EventQueue,
    cpus: Vec<Cpu>,
    /// CPUs with a record, by its time.
    heads: BinaryHeap<Reverse<(u64, usize)>>,
    spare: Vec<Vec<u8>>,
    /// Time of the latest event that left, in ns.
    last: u64,
    /// The latest begin of a page, in ns.
    newest: u64,
}

/// One CPU's pages.
#[derive(Default)]
struct Cpu {
    number: u16,
    /// The begin of its latest page, in ns.
    begin: u64,
    waiting: VecDeque<Vec<u8>>,
    page: Vec<u8>,
    walk: Walk,
    record: std::ops::Range<usize>,
    /// Whether `record` is one; it is in `heads` then.
    has_record: bool,
    lost: Option<u64>,
}

impl Pages {
    /// A reader of pages with this description. Times are taken as ns.
    ///
    /// # Errors
    /// `header_page` is not understood.
    pub fn new(recording: &Recording) -> Result<Self, ReadError> {
        let endian = match cfg!(target_endian = "little") {
            true => Endian::Little,
            false => Endian::Big,
        };
        let corrupt = || ReadError::Corrupt {
            input: "events/header_page".to_owned(),
            offset: 0,
            problem: "pages of the ring buffer are not described as in any known kernel".to_owned(),
        };
        let parsed = PageLayout::parse(&recording.header_page, endian);
        let (mut layout, _) = parsed.ok_or_else(corrupt)?;
        layout.size = recording.buffer_page_size as usize;
        if !layout.fits() {
            return Err(corrupt());
        }
        let mut info = SourceInfo::new(Format::TraceDat(7));
        let mut formats = Formats::default();
        let ftrace = recording.ftrace.iter().map(|text| ("ftrace", text));
        let systems = recording.systems.iter();
        let systems = systems.flat_map(|system| {
            let texts = system.formats.iter();
            texts.map(|text| (system.name.as_str(), text))
        });
        for (system, text) in ftrace.chain(systems) {
            if let Err(error) = formats.add(system, text) {
                info.note(false, format!("{system}: {error}"));
            }
        }
        let mut names = NameTable::default();
        let symbols = Symbols::new(recording.kallsyms.clone());
        let decoder = Decoder::new(&formats, endian, symbols, &mut names);
        Ok(Self {
            layout,
            decoder,
            names,
            info,
            queue: EventQueue::default(),
            cpus: Vec::new(),
            heads: BinaryHeap::new(),
            spare: Vec::new(),
            last: 0,
            newest: 0,
        })
    }

    /// Names so far.
    #[must_use]
    pub const fn names(&self) -> &NameTable {
        &self.names
    }

    /// What is known of the stream.
    #[must_use]
    pub const fn info(&self) -> &SourceInfo {
        &self.info
    }

    /// The latest begin of a page, in ns.
    #[must_use]
    pub const fn newest(&self) -> u64 {
        self.newest
    }

    /// Names of threads as of now: lines of an id and a name, and lines of the ids of thread and process.
    /// Only changes become events.
    pub fn name_tasks(&mut self, cmdlines: &[u8], tgids: &[u8]) {
        let stamp = Stamp {
            time_ns: self.last,
            cpu: CpuId(0),
        };
        let tgids: std::collections::HashMap<Tid, Tid> = lines(tgids).filter_map(tgid).collect();
        for (tid, comm) in lines(cmdlines).filter_map(cmdline) {
            let process = tgids.get(&tid).copied();
            self.decoder
                .task_named(tid, process, comm, stamp, &mut self.names, &mut self.queue);
        }
    }

    /// The begin of a page, in ns; 0 for one that contradicts its layout.
    #[must_use]
    pub fn begin_of(&self, page: &[u8]) -> u64 {
        self.layout.head(page).map_or(0, |head| head.time)
    }

    /// A buffer of a page's size, to be filled and given to [`Pages::push`].
    #[must_use]
    pub fn buffer(&mut self) -> Vec<u8> {
        let mut page = self.spare.pop().unwrap_or_default();
        page.resize(self.layout.size, 0);
        page
    }

    /// Takes a buffer back.
    pub fn recycle(&mut self, page: Vec<u8>) {
        if self.spare.len() < SPARE {
            self.spare.push(page);
        }
    }

    /// The next page of a CPU.
    pub fn push(&mut self, cpu: u16, page: Vec<u8>) {
        let known = self.cpus.iter().position(|known| known.number == cpu);
        let index = known.unwrap_or_else(|| {
            self.cpus.push(Cpu {
                number: cpu,
                ..Cpu::default()
            });
            self.cpus.len() - 1
        });
        if let Ok(head) = self.layout.head(&page) {
            let former = std::mem::replace(&mut self.cpus[index].begin, head.time);
            if head.time < former {
                self.forget();
            }
            self.newest = self.newest.max(head.time);
        }
        let target = &mut self.cpus[index];
        target.waiting.push_back(page);
        if !target.has_record {
            self.advance(index);
        }
    }

    /// Loses what waits: its times do not compare with those to come. It would wait for hours.
    #[cold]
    fn forget(&mut self) {
        self.newest = 0;
        self.heads.clear();
        for cpu in &mut self.cpus {
            cpu.waiting.clear();
            cpu.has_record = false;
            cpu.walk = Walk::default();
            cpu.lose(0, &mut self.info);
        }
    }

    /// Gives all events before `limit`, in ns, in the order of time.
    pub fn take(&mut self, limit: u64, take: &mut dyn FnMut(&Event, &NameTable)) {
        while let Some(event) = self.queue.pop() {
            take(&event, &self.names);
        }
        let is_due = |head: &&Reverse<(u64, usize)>| head.0.0 < limit;
        while let Some(&Reverse((time, index))) = self.heads.peek().filter(is_due) {
            self.heads.pop();
            let Some(cpu) = self.cpus.get_mut(index) else {
                continue;
            };
            let stamp = Stamp {
                time_ns: time,
                cpu: CpuId(cpu.number),
            };
            self.last = self.last.max(time);
            if let Some(count) = cpu.lost.take() {
                self.queue.push(stamp.event(Kind::Lost { count }));
            }
            let record = cpu.page.get(cpu.record.clone()).unwrap_or_default();
            self.decoder.decode(
                record,
                stamp,
                &mut self.names,
                &mut self.info,
                &mut self.queue,
            );
            while let Some(event) = self.queue.pop() {
                take(&event, &self.names);
            }
            self.advance(index);
        }
    }

    /// Advances to a CPU's next record, if its pages have one.
    fn advance(&mut self, index: usize) {
        let cpu = &mut self.cpus[index];
        loop {
            match cpu.walk.next(&cpu.page, self.layout.endian) {
                Ok(Some(record)) => {
                    cpu.record = record;
                    cpu.has_record = true;
                    self.heads.push(Reverse((cpu.walk.time, index)));
                    break;
                }
                Ok(None) => {}
                // The rest of the page is lost.
                Err(_) => cpu.lose(0, &mut self.info),
            }
            cpu.has_record = false;
            cpu.walk = Walk::default();
            let Some(page) = cpu.waiting.pop_front() else {
                break;
            };
            let former = std::mem::replace(&mut cpu.page, page);
            if self.spare.len() < SPARE {
                self.spare.push(former);
            }
            match self.layout.head(&cpu.page) {
                Ok(head) => {
                    cpu.walk = Walk {
                        position: head.start,
                        end: head.end,
                        time: head.time,
                    };
                    if let Some(lost) = head.lost {
                        cpu.lose(lost, &mut self.info);
                    }
                }
                Err(_) => cpu.lose(0, &mut self.info),
            }
        }
    }

    /// The latest time in the pages of a CPU that wait, in ns: of its last page's begin. `None`: no page
    /// waits.
    #[must_use]
    pub fn waits_until(&self, cpu: u16) -> Option<u64> {
        let cpu = self.cpus.iter().find(|known| known.number == cpu)?;
        let head = cpu.waiting.back().map(|page| self.layout.head(page));
        match head {
            Some(head) => head.ok().map(|head| head.time),
            None => cpu.has_record.then_some(cpu.walk.time),
        }
    }
}

impl Cpu {
    fn lose(&mut self, count: u64, info: &mut SourceInfo) {
        match count {
            0 => info.lost.uncounted_gaps += 1,
            count => info.lost.counted = info.lost.counted.saturating_add(count),
        }
        self.lost = Some(match self.lost {
            None => count,
            // An unknown number makes the sum unknown.
            Some(sum) if sum == 0 || count == 0 => 0,
            Some(sum) => sum.saturating_add(count),
        });
    }
}

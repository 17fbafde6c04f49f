//! Busy time of CPUs in windows, recorded and replayed.
use std::collections::BTreeMap;
use stealtime_analysis::{Analysis, Options};
use stealtime_events::{Event, Kind};
use stealtime_replay::{Extractor, host};
use stealtime_simulator::Sink;

#[derive(Default)]
struct Busy { first: Option<u64>, last: BTreeMap<u16, (u64, i32)>, wins: BTreeMap<(u64, u16), u64>, run: BTreeMap<(u64,i32),u64>, sw: u64, pre: u64, waking: u64, mig: u64 }
const W: u64 = 250_000_000;
impl Busy {
    fn take(&mut self, e: &Event) {
        let t = e.time_ns - *self.first.get_or_insert(e.time_ns);
        match e.kind {
        Kind::SchedSwitch { next, prev, prev_state, .. } => {
            let l = self.last.insert(e.cpu.0, (t, next.0));
            self.sw += 1;
            if prev.0 != 0 && prev_state & 0xff == 0 { self.pre += 1; }
            let _ = prev;
            let (since, who) = l.unwrap_or((0, prev.0));
            if who != 0 { let mut a = since; while a < t { let b = ((a / W + 1) * W).min(t); *self.wins.entry((a / W, e.cpu.0)).or_default() += b - a; *self.run.entry((a/W, who)).or_default() += b-a; a = b; } }
        }
        Kind::SchedWaking{..} => self.waking += 1,
        Kind::SchedMigrateTask{..} => self.mig += 1,
        _ => {}
        }
    }
    fn print(&self, what: &str) {
        println!("{what}: switches {} preempted {} wakings {} migrations {}", self.sw, self.pre, self.waking, self.mig);
        let mut by: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for (&(w, _), &ns) in &self.wins { by.entry(w).or_default().push(ns * 1000 / W); }
        for (w, v) in by { print!(" {w}:{v:?}"); }
        println!();
        let mut by: BTreeMap<i32, u64> = BTreeMap::new();
        for (&(_, tid), &ns) in &self.run { *by.entry(tid).or_default() += ns; }
        println!("  total {} {by:?}", by.values().sum::<u64>());
    }
}
impl Sink for Busy {
    fn event(&mut self, event: &Event) { self.take(event); }
}
fn main() -> Result<(), Box<dyn std::error::Error>> {
    for path in std::env::args().skip(1) {
        let mut source = stealtime_trace::open(path.as_ref())?;
        let mut analysis = Analysis::new(Options::default());
        let mut b = Busy::default();
        while let Some(event) = source.next_event()? { analysis.event(&event, source.names()); if event.kind.is_host_event() { b.take(&event); } }
        let answers = analysis.finish(source.names());
        let mut source = stealtime_trace::open(path.as_ref())?;
        let mut extractor = Extractor::new(&answers);
        while let Some(event) = source.next_event()? { extractor.event(&event, source.names()); }
        let recording = extractor.finish();
        b.print("recorded");
        let config = host::as_recorded(&recording, host::knobs(&recording), &host::Assumed::default(), 0);
        let mut b = Busy::default();
        let _ = stealtime_simulator::run(&config, &mut b)?;
        b.print("replayed");
    }
    Ok(())
}

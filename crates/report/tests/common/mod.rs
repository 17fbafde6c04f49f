//! Perfetto's reading of a trace, by an independent decoder: the messages are declared here once
//! more, from the published schema, and read by prost.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub struct Trace {
    #[prost(message, repeated, tag = "1")]
    pub packet: Vec<Packet>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Packet {
    #[prost(message, optional, tag = "1")]
    pub ftrace_events: Option<Bundle>,
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    pub trusted_packet_sequence_id: Option<u32>,
    #[prost(message, optional, tag = "11")]
    pub track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "12")]
    pub interned_data: Option<InternedData>,
    #[prost(uint32, optional, tag = "13")]
    pub sequence_flags: Option<u32>,
    #[prost(message, optional, tag = "60")]
    pub track_descriptor: Option<TrackDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
pub struct InternedData {
    #[prost(message, repeated, tag = "1")]
    pub event_categories: Vec<Interned>,
    #[prost(message, repeated, tag = "2")]
    pub event_names: Vec<Interned>,
    #[prost(message, repeated, tag = "3")]
    pub debug_annotation_names: Vec<Interned>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Interned {
    #[prost(uint64, optional, tag = "1")]
    pub iid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TrackEvent {
    #[prost(uint64, repeated, packed = "false", tag = "3")]
    pub category_iids: Vec<u64>,
    #[prost(message, repeated, tag = "4")]
    pub debug_annotations: Vec<Annotation>,
    #[prost(int32, optional, tag = "9")]
    pub r#type: Option<i32>,
    #[prost(uint64, optional, tag = "10")]
    pub name_iid: Option<u64>,
    #[prost(uint64, optional, tag = "11")]
    pub track_uuid: Option<u64>,
    #[prost(int64, optional, tag = "30")]
    pub counter_value: Option<i64>,
    #[prost(fixed64, repeated, packed = "false", tag = "47")]
    pub flow_ids: Vec<u64>,
    #[prost(fixed64, repeated, packed = "false", tag = "48")]
    pub terminating_flow_ids: Vec<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Annotation {
    #[prost(uint64, optional, tag = "1")]
    pub name_iid: Option<u64>,
    #[prost(uint64, optional, tag = "3")]
    pub uint_value: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TrackDescriptor {
    #[prost(uint64, optional, tag = "1")]
    pub uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    #[prost(message, optional, tag = "3")]
    pub process: Option<Process>,
    #[prost(message, optional, tag = "4")]
    pub thread: Option<Thread>,
    #[prost(uint64, optional, tag = "5")]
    pub parent_uuid: Option<u64>,
    #[prost(message, optional, tag = "8")]
    pub counter: Option<Counter>,
    #[prost(int32, optional, tag = "12")]
    pub sibling_order_rank: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Process {
    #[prost(int32, optional, tag = "1")]
    pub pid: Option<i32>,
    #[prost(string, optional, tag = "6")]
    pub process_name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Thread {
    #[prost(int32, optional, tag = "1")]
    pub pid: Option<i32>,
    #[prost(int64, optional, tag = "2")]
    pub tid: Option<i64>,
    #[prost(string, optional, tag = "5")]
    pub thread_name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Counter {
    #[prost(int32, optional, tag = "3")]
    pub unit: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Bundle {
    #[prost(uint32, optional, tag = "1")]
    pub cpu: Option<u32>,
    #[prost(message, repeated, tag = "2")]
    pub event: Vec<FtraceEvent>,
    #[prost(bool, optional, tag = "3")]
    pub lost_events: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
pub struct FtraceEvent {
    #[prost(uint64, optional, tag = "1")]
    pub timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "2")]
    pub pid: Option<u32>,
    #[prost(message, optional, tag = "4")]
    pub sched_switch: Option<SchedSwitch>,
}

#[derive(Clone, PartialEq, Message)]
pub struct SchedSwitch {
    #[prost(string, optional, tag = "1")]
    pub prev_comm: Option<String>,
    #[prost(int32, optional, tag = "2")]
    pub prev_pid: Option<i32>,
    #[prost(int32, optional, tag = "3")]
    pub prev_prio: Option<i32>,
    #[prost(int64, optional, tag = "4")]
    pub prev_state: Option<i64>,
    #[prost(string, optional, tag = "5")]
    pub next_comm: Option<String>,
    #[prost(int32, optional, tag = "6")]
    pub next_pid: Option<i32>,
}

/// A slice, or an instant where `begin == end` and `instant`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    pub track: String,
    pub name: String,
    pub begin: u64,
    pub end: u64,
    pub depth: usize,
    pub instant: bool,
    pub flows: Vec<u64>,
    pub ends: Vec<u64>,
}

/// What Perfetto makes of a trace.
#[derive(Debug, Default)]
pub struct Reading {
    pub slices: Vec<Slice>,
    pub counters: Vec<(String, u64, i64)>,
    pub tracks: BTreeMap<u64, TrackDescriptor>,
    pub bundles: Vec<Bundle>,
}

impl Reading {
    /// Reads as Perfetto's trace processor does: all packets sorted by time, equal times in the
    /// order of the file; an end closes the innermost slice of its track.
    ///
    /// # Panics
    /// On whatever Perfetto would complain of.
    pub fn new(bytes: &[u8]) -> Self {
        let trace = Trace::decode(bytes).expect("a Perfetto trace");
        let mut reading = Self::default();
        let mut names = BTreeMap::new();
        let mut events = Vec::new();
        for (i, packet) in trace.packet.into_iter().enumerate() {
            assert_eq!(packet.trusted_packet_sequence_id, Some(1));
            assert_eq!(packet.sequence_flags, Some(if i == 0 { 3 } else { 2 }));
            for entry in packet
                .interned_data
                .iter()
                .flat_map(|data| &data.event_names)
            {
                let old = names.insert(entry.iid(), entry.name().to_owned());
                assert_eq!(old, None, "a name is interned once");
            }
            if let Some(track) = packet.track_descriptor {
                let parent = track.parent_uuid();
                assert!(parent == 0 || reading.tracks.contains_key(&parent));
                assert!(reading.tracks.insert(track.uuid(), track).is_none());
            }
            reading.bundles.extend(packet.ftrace_events);
            if let Some(event) = packet.track_event {
                assert!(reading.tracks.contains_key(&event.track_uuid()));
                let name = match event.name_iid {
                    Some(iid) => names.get(&iid).expect("an interned name").clone(),
                    None => String::new(),
                };
                events.push((packet.timestamp.expect("a time"), name, event));
            }
        }
        events.sort_by_key(|(time, ..)| *time);
        reading.replay(events);
        reading.check_flows();
        reading
    }

    fn replay(&mut self, events: Vec<(u64, String, TrackEvent)>) {
        let mut open: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for (time, name, event) in events {
            let track = self.tracks[&event.track_uuid()].name().to_owned();
            let stack = open.entry(event.track_uuid()).or_default();
            match event.r#type() {
                2 => {
                    let slice = stack.pop().expect("an end has a begin");
                    self.slices[slice].end = time;
                }
                4 => self.counters.push((track, time, event.counter_value())),
                kind => {
                    assert!(kind == 1 || kind == 3, "type {kind}");
                    self.slices.push(Slice {
                        track,
                        name,
                        begin: time,
                        end: time,
                        depth: stack.len(),
                        instant: kind == 3,
                        flows: event.flow_ids,
                        ends: event.terminating_flow_ids,
                    });
                    if kind == 1 {
                        stack.push(self.slices.len() - 1);
                    }
                }
            }
        }
        assert!(open.values().all(Vec::is_empty), "every begin has an end");
    }

    fn check_flows(&self) {
        let mut begun = BTreeSet::new();
        for slice in &self.slices {
            assert!(slice.flows.iter().all(|flow| begun.insert(*flow)));
        }
        let mut ended = BTreeSet::new();
        for flow in self.slices.iter().flat_map(|slice| &slice.ends) {
            assert!(ended.insert(*flow), "a flow ends once");
        }
    }

    /// `depth name begin..end` of each slice and instant of a track.
    pub fn of(&self, track: &str) -> Vec<String> {
        let slices = self.slices.iter().filter(|slice| slice.track == track);
        slices
            .map(|slice| {
                let Slice {
                    name,
                    begin,
                    end,
                    depth,
                    instant,
                    ..
                } = slice;
                if *instant {
                    format!("{depth} {name} @{begin}")
                } else {
                    format!("{depth} {name} {begin}..{end}")
                }
            })
            .collect()
    }
}

//! `clock`: a host that updates a kvmclock page, and vCPUs that read it concurrently.

use stealtime_hypervisor::counter::arith::TimeScale;
use stealtime_hypervisor::counter::pvclock::{PvclockPage, PvclockTime};

use crate::model::{Model, Op, State, Violation, at_rest};
use crate::word::{self, Class, Layout, Word, WordInfo};

/// Updates that the host makes.
const UPDATES: u8 = 2;
const HOST: u8 = 0;
const PUBLISH: Op = 1;
const READ: Op = 1;

/// What each reader read last: the update that each field is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Local {
    published: u8,
    readers: [Option<[u8; 3]>; 2],
    before: [u8; 2],
    back: bool,
    left: [u8; 2],
}

/// The model.
#[derive(Debug)]
pub(crate) struct Clock {
    page: PvclockPage<Word>,
    layout: Layout,
    /// The version is odd during an update.
    odd: bool,
}

/// Fields that all encode the number of their update.
fn update(n: u8) -> PvclockTime {
    PvclockTime {
        tsc_timestamp: u64::from(n) * 100,
        system_time_ns: u64::from(n) * 1000,
        scale: TimeScale {
            mul: u32::from(n),
            shift: 0,
        },
        flags: 0,
    }
}

impl Clock {
    pub(crate) fn new(odd: bool) -> Self {
        let names = ["version", "tsc_timestamp", "system_time", "mul+flags"];
        let (page, layout) = word::allocate(PvclockPage::new, |n| WordInfo {
            name: names[n % 4],
            class: Class::Shared,
        });
        Self { page, layout, odd }
    }
}

impl Model for Clock {
    type Local = Local;

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn agents(&self) -> Vec<&'static str> {
        vec!["host", "vCPU 0", "vCPU 1"]
    }

    fn initial(&self) -> State<Local> {
        let local = Local {
            published: 0,
            readers: [None; 2],
            before: [0; 2],
            back: false,
            left: [2; 2],
        };
        at_rest(self.layout.initial, local)
    }

    fn choices(&self, state: &State<Local>, agent: u8, ops: &mut Vec<Op>) {
        let local = &state.local;
        match agent {
            HOST if local.published < UPDATES => ops.push(PUBLISH),
            1 | 2 if local.left[usize::from(agent) - 1] > 0 => ops.push(READ),
            _ => {}
        }
    }

    fn execute(&self, local: &mut Local, agent: u8, _op: Op) {
        if agent == HOST {
            let time = update(local.published + 1);
            if self.odd {
                self.page.publish(time);
            } else {
                let next = self.page.version().wrapping_add(2);
                self.page.write_fields(time);
                self.page.end_update(next.wrapping_sub(1));
            }
            local.published += 1;
            return;
        }
        let reader = usize::from(agent) - 1;
        local.left[reader] -= 1;
        if let Ok((time, _, ())) = self.page.try_read(|| ()) {
            let fields = [
                (time.tsc_timestamp / 100) as u8,
                (time.system_time_ns / 1000) as u8,
                time.scale.mul as u8,
            ];
            local.back |= fields[0] < local.before[reader];
            local.before[reader] = fields[0];
            local.readers[reader] = Some(fields);
        }
    }

    fn check(&self, state: &State<Local>) -> Option<Violation> {
        let torn = state.local.readers.iter().flatten();
        let mut torn = torn.filter(|f| f[0] != f[1] || f[0] != f[2]);
        if let Some(f) = torn.next() {
            let sentence = format!(
                "a reading took tsc_timestamp of update {}, system_time of update {} and the \
                 scale of update {}",
                f[0], f[1], f[2]
            );
            return Some(Violation::new("no-torn-read", sentence));
        }
        state.local.back.then(|| {
            let sentence = "a vCPU read an older update after a newer one".to_owned();
            Violation::new("no-time-travel", sentence)
        })
    }

    fn describe(&self, agent: u8, _op: Op) -> &'static str {
        if agent == HOST {
            "update page"
        } else {
            "read page"
        }
    }

    fn value(&self, _slot: usize, value: u64) -> String {
        value.to_string()
    }
}

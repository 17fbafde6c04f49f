//! nexosim: one model with all pending events, on nexosim's executor of one thread.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nexosim::model::{Context, Model, schedulable};
use nexosim::simulation::{Mailbox, SimInit};
use nexosim::time::MonotonicTime;
use serde::{Deserialize, Serialize};

use crate::{Measured, cpu_ns};

#[derive(Serialize, Deserialize)]
struct Hold {
    pending: Vec<u64>,
    /// The next increment last.
    increments: Vec<u64>,
    #[serde(skip)]
    finished: Arc<AtomicBool>,
}

#[Model]
impl Hold {
    #[nexosim(init)]
    async fn init(&mut self, cx: &Context<Self>, _: &mut ()) {
        for increment in std::mem::take(&mut self.pending) {
            hold(cx, increment);
        }
    }

    #[nexosim(schedulable)]
    fn event(&mut self, _: (), cx: &Context<Self>) {
        match self.increments.pop() {
            Some(increment) => hold(cx, increment),
            None => self.finished.store(true, Ordering::Relaxed),
        }
    }
}

fn hold(cx: &Context<Hold>, increment: u64) {
    let delay = Duration::from_nanos(increment);
    cx.schedule_event(delay, schedulable!(Hold::event), ())
        .expect("an increment is positive");
}

pub(crate) fn nexosim(pending: &[u64], increments: &[u64]) -> Result<Measured, Box<dyn Error>> {
    let finished = Arc::new(AtomicBool::new(false));
    let model = Hold {
        pending: pending.to_vec(),
        increments: increments.iter().rev().copied().collect(),
        finished: Arc::clone(&finished),
    };
    let mut simulation = SimInit::with_num_threads(1)
        .add_model(model, Mailbox::new(), "hold")
        .init(MonotonicTime::EPOCH)?;
    let start = cpu_ns()?;
    while !finished.load(Ordering::Relaxed) {
        simulation.step()?;
    }
    let cpu_ns = cpu_ns()? - start;
    let last = simulation.time().duration_since(MonotonicTime::EPOCH);
    Ok(Measured {
        cpu_ns,
        last_ns: u64::try_from(last.as_nanos())?,
    })
}

//! Points that scripts reach, and who waits for them.

use super::{Edge, ScriptConfig, Scripts, Step, Then};
use crate::ids::TaskNr;

/// A point that a script reaches, as often as it is through with its steps.
#[derive(Clone, Copy, Debug, Default)]
struct Point {
    /// How often it was reached.
    reached: u32,
    /// Who reaches it does so once at the most: that is all that others can wait for.
    once: bool,
    /// Who waits for it.
    waits: Option<Waiter>,
}

impl Point {
    /// Whether it was reached for who waits in this pass, the first being 0.
    const fn is_reached(&self, pass: u32) -> bool {
        self.reached > pass || (self.once && self.reached > 0)
    }
}

/// All points, and vCPUs that halt until one is reached.
#[derive(Clone, Debug, Default)]
pub(crate) struct Points {
    points: Vec<Point>,
    /// By VM: vCPUs that halt, and what for; who has longest is the first.
    idle: Vec<Vec<(TaskNr, Edge)>>,
}

/// Who waits for a point.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiter {
    pub(crate) task: TaskNr,
    /// Its passes so far.
    pub(crate) pass: u32,
    /// The VM whose vCPU it is, if it halts.
    pub(crate) idle_in: Option<u32>,
}

impl Points {
    /// The points of all scripts.
    pub(crate) fn new(scripts: &Scripts) -> Self {
        let mut points = vec![Point::default(); scripts.edges as usize];
        let once = |task: &&ScriptConfig| task.then != Then::Repeat;
        for task in scripts.tasks.iter().filter(once) {
            for step in task.steps.iter() {
                if let Step::Reach(edge) = *step
                    && let Some(point) = points.get_mut(edge.0 as usize)
                {
                    point.once = true;
                }
            }
        }
        let vms = scripts.tasks.iter().filter_map(|task| task.vm);
        let vms = vms.max().map_or(0, |last| last as usize + 1);
        Self {
            points,
            idle: vec![Vec::new(); vms],
        }
    }

    /// Whether a point was reached for who waits in this pass.
    pub(crate) fn is_reached(&self, edge: Edge, pass: u32) -> bool {
        let point = self.points.get(edge.0 as usize);
        point.is_none_or(|point| point.is_reached(pass))
    }

    /// A script waits from now on.
    pub(crate) fn wait(&mut self, edge: Edge, waiter: Waiter) {
        if let Some(point) = self.points.get_mut(edge.0 as usize) {
            point.waits = Some(waiter);
        }
        if let Some(idle) = self.idle_in(waiter.idle_in) {
            idle.push((waiter.task, edge));
        }
    }

    /// It waits no longer; its VM, if it is a vCPU.
    pub(crate) fn leave(&mut self, edge: Edge, task: TaskNr, vcpu_of: Option<u32>) {
        if let Some(point) = self.points.get_mut(edge.0 as usize) {
            point.waits.take_if(|waits| waits.task == task);
        }
        if let Some(idle) = self.idle_in(vcpu_of) {
            idle.retain(|waiter| waiter.0 != task);
        }
    }

    fn idle_in(&mut self, vm: Option<u32>) -> Option<&mut Vec<(TaskNr, Edge)>> {
        self.idle.get_mut(vm? as usize)
    }

    /// A script reaches a point: who is woken by that.
    ///
    /// Where that is a vCPU's doing and who was woken in the recording is at work, it is the vCPU of
    /// this VM that halts longest: a guest's scheduler gives what it wakes to an idle CPU
    /// (`select_idle_sibling` in the kernel's `sched/fair.c`).
    pub(crate) fn reach(&mut self, edge: Edge, vcpu_of: Option<u32>) -> Option<TaskNr> {
        let point = self.points.get_mut(edge.0 as usize)?;
        point.reached = point.reached.saturating_add(1);
        let (task, edge, idle_in) = match point.waits {
            Some(waits) if point.is_reached(waits.pass) => (waits.task, edge, waits.idle_in),
            Some(_) => return None,
            None => {
                let &(task, edge) = self.idle_in(vcpu_of)?.first()?;
                (task, edge, vcpu_of)
            }
        };
        self.leave(edge, task, idle_in);
        Some(task)
    }
}

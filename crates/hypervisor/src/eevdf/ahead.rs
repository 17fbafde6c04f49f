//! Reading ahead: what an operation on a task will need, from its entity up to the root.

use super::Fair;
use super::ids::{Ent, TaskId};
use crate::prefetch::prefetch;

/// How far [`Fair::prefetch`] has come on the way up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Climb {
    /// What was asked for last.
    reached: Reached,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reached {
    /// Nothing yet: this entity is next.
    Below(Ent),
    /// An entity.
    Entity(Ent),
    /// The queue that an entity is in, and the group that it stands for.
    Queue(Ent),
}

impl Climb {
    /// Before the first step, which is for the task's own entity.
    #[must_use]
    pub const fn to(task: TaskId) -> Self {
        let reached = Reached::Below(Ent(task.index));
        Self { reached }
    }
}

impl Fair {
    /// Asks for what comes next on the way up. A step reads what the step before it asked for: with
    /// some time between them none of them waits. Beyond the root nothing happens.
    ///
    /// This changes nothing but how soon memory comes.
    pub fn prefetch(&self, climb: &mut Climb) {
        match climb.reached {
            Reached::Below(e) => {
                self.prefetch_entity(climb, e);
            }
            Reached::Entity(e) => {
                let ent = &self.ent[e];
                if let Some(queue) = self.que.0.get(ent.queue.0 as usize) {
                    prefetch(queue);
                    climb.reached = Reached::Queue(e);
                }
                if let Some(rq) = self.rqs.0.get(ent.rq.0 as usize) {
                    prefetch(rq);
                }
                if let Some(g) = ent.group() {
                    prefetch(&self.groups[g]);
                }
            }
            Reached::Queue(e) => {
                if let Some(g) = self.ent[e].group() {
                    self.groups[g].parts.prefetch();
                }
                let above = self.parent(e);
                self.prefetch_entity(climb, above);
            }
        }
    }

    fn prefetch_entity(&self, climb: &mut Climb, e: Ent) {
        climb.reached = Reached::Below(e);
        if let Some(entity) = self.ent.at(e) {
            prefetch(entity);
            self.pool.prefetch(e.0);
            climb.reached = Reached::Entity(e);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may fail")]
mod tests {
    use super::*;
    use crate::eevdf::{Attr, Config, PickMode};

    #[test]
    fn the_way_up_is_a_step_for_each_entity_and_each_queue_and_ends() {
        let mut fair = Fair::new(Config::linux_7_2(2)).unwrap();
        let rq = fair.create_rq(PickMode::Hierarchical).unwrap();
        let outer = fair.create_group(None).unwrap();
        let inner = fair.create_group(Some(outer)).unwrap();
        fair.extend_group(inner, rq).unwrap();
        let task = fair.create_task(Attr::default(), Some(inner)).unwrap();

        // On no CPU yet: its entity alone.
        let mut climb = Climb::to(task);
        fair.prefetch(&mut climb);
        let alone = climb;
        assert_ne!(alone, Climb::to(task));
        fair.prefetch(&mut climb);
        assert_eq!(climb, alone);

        fair.fork(task, rq, 1_000).unwrap();
        let mut steps = 0;
        let mut climb = Climb::to(task);
        loop {
            let before = climb;
            fair.prefetch(&mut climb);
            if climb == before {
                break;
            }
            steps += 1;
        }
        // The task, two groups above it, a queue for each; and the step that finds nothing above.
        assert_eq!(steps, 2 * 3 + 1);
    }
}

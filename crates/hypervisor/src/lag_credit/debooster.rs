//! Versions 1 and 2 of the series, for comparison: the yielder is moved back instead.
//!
//! No reschedule is forced and no protection ended. What the yielder has run since it was last
//! accounted for is not in its virtual time yet, as in `yield_to_deboost`, which accounts only for
//! an entity that does not run.

use crate::eevdf::{Ent, Fair, RqId};

/// A yield back from the last target within this time pays less.
const REVERSE_PAIR_NS: u64 = 600_000;

/// Most that is paid, in tenths of a slice, by the tasks on the queue.
///
/// | tasks | at most |
/// |---|---|
/// | 2 | 6 slices |
/// | 3 | 4 |
/// | 4 to 6 | 2.5 |
/// | 7 to 8 | 2 |
/// | 9 to 12 | 1.5 |
/// | more | 1 |
fn cap_tenths(tasks: u32) -> u64 {
    match tasks {
        0..=2 => 60,
        3 => 40,
        4..=6 => 25,
        7..=8 => 20,
        9..=12 => 15,
        _ => 10,
    }
}

/// What the yielder pays, in its virtual ns: one slice (`gran`) and 1.1 times what it is behind
/// the target by (`need`), less for a pair that yields to and fro, between one slice and the cap.
fn penalty(gran: u64, need: u64, reverse: bool, tasks: u32) -> u64 {
    let full = gran.saturating_add(need).saturating_add(need / 10);
    let full = if reverse {
        full.min(need.max(gran))
    } else {
        full
    };
    let cap = u128::from(gran) * u128::from(cap_tenths(tasks)) / 10;
    full.min(u64::try_from(cap).unwrap_or(u64::MAX)).max(gran)
}

impl Fair {
    /// Moves the yielder back where its chain and the target's meet. False if nobody else is
    /// queued there.
    pub(super) fn deboost(&mut self, rq: RqId, p: Ent) -> bool {
        let (curr, now) = (self.rqs[rq].curr, self.rqs[rq].clock);
        let (y, t) = if self.is_flat(rq) {
            (curr, p)
        } else {
            self.siblings(curr, p)
        };
        let q = self.arena(y);
        let tasks = self.que[q].h_nr_queued;
        if tasks <= 1 {
            return false;
        }
        let behind = self.ent[t].vruntime.wrapping_sub(self.ent[y].vruntime) as i64;
        let need = behind.max(0) as u64;
        let recent = |(_, _, at): (Ent, Ent, u64)| now - at <= REVERSE_PAIR_NS;
        let last = self.credits[rq].pair.filter(|pair| recent(*pair));
        let reverse = last.is_some_and(|(from, to, _)| from == p && to == curr);
        let gran = self.ent[y].vtime(self.cfg.base_slice_ns);
        let paid = penalty(gran, need, reverse, tasks);
        let ent = &mut self.ent[y];
        ent.vruntime = ent.vruntime.wrapping_add(paid);
        ent.deadline = ent.vruntime.wrapping_add(ent.vtime(u64::from(ent.slice)));
        self.credits[rq].pair = Some((curr, p, now));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn penalty_is_between_a_slice_and_the_cap() {
        assert_eq!(penalty(1_000, 0, false, 2), 1_000);
        assert_eq!(penalty(1_000, 1_000, false, 2), 2_100);
        assert_eq!(penalty(1_000, 1_000, true, 2), 1_000);
        assert_eq!(penalty(1_000, 50_000, false, 2), 6_000);
        assert_eq!(penalty(1_000, 50_000, false, 5), 2_500);
        assert_eq!(penalty(1_000, 50_000, false, 100), 1_000);
    }
}

//! The order of turns and slices.

use serde::Serialize;

/// The two settings that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Side {
    /// The former values.
    A,
    /// The tried ones.
    B,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Give all knobs the values of this side.
    Turn(Side),
    /// Record a slice of a turn. Turns count from 0.
    Record {
        /// The number of the turn.
        turn: usize,
        /// Its side.
        side: Side,
    },
    /// Take everything back; nothing follows.
    Restore,
}

/// A plan of turns A, B, A, B, of equal slices each. After [`Turns::stop`] it restores.
#[derive(Clone, Debug)]
pub struct Turns {
    turns: usize,
    slices: usize,
    /// The number of the next action: each turn has one more than it has slices.
    next: usize,
    is_stopped: bool,
    is_over: bool,
}

impl Turns {
    /// So many pairs of turns, of so many slices; one of each at least.
    #[must_use]
    pub fn new(pairs: usize, slices: usize) -> Self {
        Self {
            turns: pairs.max(1) * 2,
            slices: slices.max(1),
            next: 0,
            is_stopped: false,
            is_over: false,
        }
    }

    /// The number of turns.
    #[must_use]
    pub const fn turns(&self) -> usize {
        self.turns
    }

    /// The number of slices of a turn.
    #[must_use]
    pub const fn slices(&self) -> usize {
        self.slices
    }

    /// Ends the plan: the next action restores.
    pub fn stop(&mut self) {
        self.is_stopped = true;
    }
}

impl Iterator for Turns {
    type Item = Action;

    fn next(&mut self) -> Option<Action> {
        if self.is_over {
            return None;
        }
        let (turn, step) = (self.next / (self.slices + 1), self.next % (self.slices + 1));
        if self.is_stopped || turn >= self.turns {
            self.is_over = true;
            return Some(Action::Restore);
        }
        self.next += 1;
        let side = match turn % 2 {
            0 => Side::A,
            _ => Side::B,
        };
        Some(match step {
            0 => Action::Turn(side),
            _ => Action::Record { turn, side },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_alternate_and_end_with_a_restore() {
        let actions: Vec<Action> = Turns::new(1, 2).collect();
        let record = |turn, side| Action::Record { turn, side };
        assert_eq!(
            actions,
            [
                Action::Turn(Side::A),
                record(0, Side::A),
                record(0, Side::A),
                Action::Turn(Side::B),
                record(1, Side::B),
                record(1, Side::B),
                Action::Restore,
            ]
        );
    }

    #[test]
    fn a_stop_restores_once_wherever_it_comes() {
        for actions in 0..8 {
            let mut turns = Turns::new(2, 1);
            for _ in 0..actions {
                turns.next();
            }
            turns.stop();
            assert_eq!(turns.next(), Some(Action::Restore), "{actions}");
            assert_eq!(turns.next(), None);
        }
    }
}

//! Chance from a seed, in streams that do not disturb each other.

use crate::chance::Chance;
use std::time::Duration;

pub struct Dice(Chance);

impl Dice {
    /// The stream of these parts: the same values whenever they are the same.
    pub fn of(parts: &[u64]) -> Self {
        let mut mixed = 0;
        for part in parts {
            mixed = Chance(mixed ^ part).next();
        }
        Dice(Chance(mixed))
    }

    pub fn next(&mut self) -> u64 {
        self.0.next()
    }

    pub fn below(&mut self, bound: usize) -> usize {
        self.0.below(bound)
    }

    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.next() % (most - least + 1)
    }

    pub fn percent(&mut self, share: u64) -> bool {
        self.next() % 100 < share
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// Whole milliseconds, up to `longest`.
    pub fn up_to(&mut self, longest: Duration) -> Duration {
        let millis = u64::try_from(longest.as_millis()).unwrap();
        Duration::from_millis(self.between(0, millis))
    }
}

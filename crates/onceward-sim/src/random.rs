//! Reproducible random numbers: the same seed gives the same run.

/// A seeded generator (SplitMix64): small, fast, and good enough for choosing faults.
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    /// A generator with this seed.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`, which must not be zero.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.draw() % limit.max(1)
    }

    /// An index into a sequence of this length.
    #[expect(clippy::expect_used, reason = "the number is smaller than a usize")]
    pub fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).expect("an index is smaller than its length")
    }

    /// True with a probability of `chance` in a thousand.
    pub fn permille(&mut self, chance: u64) -> bool {
        self.below(1_000) < chance
    }

    /// A second generator. Its numbers do not depend on how many are drawn from this one afterwards.
    pub fn fork(&mut self) -> Self {
        Self::seeded(self.draw())
    }
}

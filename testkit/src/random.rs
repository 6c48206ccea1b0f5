//! Random numbers that are reproducible from a seed on any machine. Not for secrets.

use uuid::Uuid;

/// SplitMix64: a few nanoseconds a number, well mixed, and every seed is a good one.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    pub fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    /// A stream of its own, so that numbers drawn by one task do not change those of another.
    pub fn stream(seed: u64, number: u64) -> Self {
        let mut own = Self(seed ^ number.wrapping_mul(0xa076_1d64_78bd_642f));
        own.draw();
        own
    }

    pub fn from_entropy() -> Self {
        Self(Uuid::new_v4().as_u64_pair().1)
    }

    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to `end`, which is left out. The bias is far below what a test could notice.
    pub fn below<N: TryFrom<u64> + TryInto<u64>>(&mut self, end: N) -> N {
        let end = end.try_into().ok().expect("an end above 0");
        N::try_from(self.draw() % end).ok().expect("it is below a number of its type")
    }

    pub fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last - first + 1)
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// Version 4, without the system call of `Uuid::new_v4`.
    pub fn uuid(&mut self) -> Uuid {
        let number = u128::from(self.draw()) << 64 | u128::from(self.draw());
        uuid::Builder::from_random_bytes(number.to_be_bytes()).into_uuid()
    }
}

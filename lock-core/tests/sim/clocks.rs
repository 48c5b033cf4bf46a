//! Clocks that start anywhere and run a little fast or slow.

use std::time::Duration;

use lock_core::clock::Moment;

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const SEC: u64 = 1_000 * MS;

pub(crate) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).expect("short spans")
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Skewed {
    pub(crate) offset: u64,
    pub(crate) ppm: i64,
}

impl Skewed {
    /// What the clock shows at this real time.
    pub(crate) fn at(&self, real: u64) -> u64 {
        let skew = i128::from(real) * i128::from(self.ppm) / 1_000_000;
        u64::try_from(i128::from(self.offset) + i128::from(real) + skew).expect("in range")
    }

    pub(crate) fn moment(&self, real: u64) -> Moment {
        Moment::from_nanos(self.at(real))
    }

    /// The first real time at which it shows `local`.
    pub(crate) fn when(&self, local: u64) -> u64 {
        let span = i128::from(local) - i128::from(self.offset);
        let guess = span * 1_000_000 / i128::from(1_000_000 + self.ppm);
        let mut real = u64::try_from(guess.max(0)).expect("in range");
        while real > 0 && self.at(real - 1) >= local {
            real -= 1;
        }
        while self.at(real) < local {
            real += 1;
        }
        real
    }
}

//! What the core costs by itself: `check()`, and a lock cycle over the memory store.
//!
//! `cargo bench -p lock-core`

#![allow(clippy::disallowed_methods, reason = "a benchmark measures time")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use lock_core::clock::{Clock as _, SystemClock};
use lock_core::{LockProvider as _, Provider};

/// Nanoseconds per call: the best of several rounds, because only the least disturbed one counts.
fn per_call(mut call: impl FnMut()) -> f64 {
    const CALLS: u32 = 200_000;
    (0..7)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..CALLS {
                call();
            }
            start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
        })
        .fold(f64::INFINITY, f64::min)
}

fn percentile(sorted: &[Duration], p: f64) -> Duration {
    let at = (sorted.len() as f64 * p) as usize;
    sorted[at.min(sorted.len() - 1)]
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let provider = Provider::single_node();
        let guard = provider.acquire("bench").await.expect("granted");
        let clock = per_call(|| {
            black_box(SystemClock.now());
        });
        let check = per_call(|| {
            black_box(guard.check());
        });
        println!("clock read            {clock:8.1} ns");
        println!("check()               {check:8.1} ns   (goal < 100)");

        let mut cycles = Vec::new();
        for _ in 0..5_000 {
            let start = Instant::now();
            let guard = provider.acquire("cycle").await.expect("granted");
            guard.release().await.expect("released");
            cycles.push(start.elapsed());
        }
        cycles.sort();
        println!(
            "acquire + release     {:8.1} µs p50, {:.1} µs p99, over the memory store",
            percentile(&cycles, 0.5).as_secs_f64() * 1e6,
            percentile(&cycles, 0.99).as_secs_f64() * 1e6
        );
    });
}

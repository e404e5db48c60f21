//! What one core can do at most: independent chains of fused multiply-adds in registers, no memory.

use std::hint::black_box;

use crate::rounds::Clock;

/// Iterations between two looks at the clock; about 20 ms.
const ITERATIONS: u64 = 5_000_000;

/// Multiply-adds counted as two operations, G/s, of one core in one burst of about 20 ms.
pub fn burst() -> f64 {
    let since = Clock::Cpu.now();
    let flops = work(black_box(ITERATIONS));
    flops / (Clock::Cpu.now() - since) / 1e9
}

/// Seconds that `flops` operations would take at `peak` G/s on `cores` cores.
pub fn seconds(flops: f64, peak: f64, cores: usize) -> f64 {
    flops / (peak * 1e9 * cores as f64)
}

#[cfg(target_arch = "x86_64")]
fn work(iterations: u64) -> f64 {
    if std::arch::is_x86_feature_detected!("avx512f") {
        // SAFETY: the CPU has the feature; nothing else is asked of the caller.
        return unsafe { x86::avx512(iterations) };
    }
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
        // SAFETY: as above.
        return unsafe { x86::avx2(iterations) };
    }
    portable(iterations)
}

#[cfg(not(target_arch = "x86_64"))]
fn work(iterations: u64) -> f64 {
    portable(iterations)
}

/// Chains in flight: more than latency times width of any core so far (4 cycles, 2 units), and few enough for 16 registers.
const CHAINS: usize = 12;

fn portable(iterations: u64) -> f64 {
    const LANES: usize = 4;
    let (x, y) = (black_box(1.000_000_1f32), black_box(1e-9f32));
    let mut chains = [[1.0f32; LANES]; CHAINS];
    for _ in 0..iterations {
        for chain in &mut chains {
            for lane in chain {
                *lane = lane.mul_add(x, y);
            }
        }
    }
    black_box(chains);
    2.0 * iterations as f64 * (LANES * CHAINS) as f64
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::CHAINS;
    use std::arch::x86_64::*;
    use std::hint::black_box;

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn avx2(iterations: u64) -> f64 {
        let (x, y) = (_mm256_set1_ps(black_box(1.000_000_1)), _mm256_set1_ps(black_box(1e-9)));
        let mut chains = [_mm256_set1_ps(1.0); CHAINS];
        for _ in 0..iterations {
            for chain in &mut chains {
                *chain = _mm256_fmadd_ps(*chain, x, y);
            }
        }
        black_box(chains);
        2.0 * iterations as f64 * (8 * CHAINS) as f64
    }

    #[target_feature(enable = "avx512f")]
    pub(super) fn avx512(iterations: u64) -> f64 {
        let (x, y) = (_mm512_set1_ps(black_box(1.000_000_1)), _mm512_set1_ps(black_box(1e-9)));
        let mut chains = [_mm512_set1_ps(1.0); CHAINS];
        for _ in 0..iterations {
            for chain in &mut chains {
                *chain = _mm512_fmadd_ps(*chain, x, y);
            }
        }
        black_box(chains);
        2.0 * iterations as f64 * (16 * CHAINS) as f64
    }
}

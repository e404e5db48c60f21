//! Functions compiled twice: for the baseline and for AVX2 with FMA, chosen once at run time.
//!
//! Bodies use `mul_add`, so both versions and every lane of a vector give the same bits as one scalar; the vector
//! version is only faster. (Without FMA in hardware `mul_add` is a slow library call, still right.)

/// Whether the fast version may run.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn fast() -> bool {
    std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma")
}

/// Define a function compiled for the baseline and for AVX2 + FMA. What it calls must be `#[inline(always)]`.
macro_rules! simd_fn {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            #[allow(clippy::too_many_arguments)]
            fn body($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                #[allow(clippy::too_many_arguments)]
                fn avx2($($arg: $ty),*) $(-> $ret)? {
                    body($($arg),*)
                }
                if $crate::cpu::simd::fast() {
                    // SAFETY: `avx2` is a safe function but for the CPU features it is compiled for, and `fast` has
                    // just said that this CPU has them.
                    return unsafe { avx2($($arg),*) };
                }
            }
            body($($arg),*)
        }
    };
}
pub(crate) use simd_fn;

/// Lanes of a running sum. Fixed, so that a sum depends on its length alone.
pub(crate) const LANES: usize = 16;

/// Fold the lanes of a running sum as a tree.
#[inline(always)]
pub(crate) fn fold(mut x: [f32; LANES]) -> f32 {
    let mut n = LANES / 2;
    while n > 0 {
        for i in 0..n {
            x[i] += x[i + n];
        }
        n /= 2;
    }
    x[0]
}

/// `sum f(i)` for `i` in `0..n`, element i in lane `i % LANES`.
#[inline(always)]
pub(crate) fn sum(n: usize, f: impl Fn(usize) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let whole = n - n % LANES;
    let mut i = 0;
    while i < whole {
        for (l, lane) in lanes.iter_mut().enumerate() {
            *lane += f(i + l);
        }
        i += LANES;
    }
    for (l, lane) in lanes.iter_mut().enumerate() {
        if i + l < n {
            *lane += f(i + l);
        }
    }
    fold(lanes)
}

/// `sum a[i] b[i]`.
#[inline(always)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let n = a.len();
    let b = &b[..n];
    let mut lanes = [0.0f32; LANES];
    let (ca, cb) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let (ra, rb) = (ca.remainder(), cb.remainder());
    for (x, y) in ca.zip(cb) {
        for l in 0..LANES {
            lanes[l] = x[l].mul_add(y[l], lanes[l]);
        }
    }
    for l in 0..ra.len() {
        lanes[l] = ra[l].mul_add(rb[l], lanes[l]);
    }
    fold(lanes)
}

/// `e^x` within 1.5 ulp (the polynomial of Cephes' expf); 0 below -87, finite above 88, NaN stays NaN.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Adding 1.5 * 2^23 rounds to an integer that then sits in the low bits of the mantissa.
    const MAGIC: f32 = 12_582_912.0;
    let y = if x > 88.0 { 88.0 } else { x };
    let z = y.mul_add(std::f32::consts::LOG2_E, MAGIC);
    let n = z - MAGIC;
    let r = n.mul_add(-0.693_359_4, y);
    let r = n.mul_add(2.121_944_4e-4, r);
    let p = 1.987_569_1e-4f32.mul_add(r, 1.398_199_9e-3);
    let p = p.mul_add(r, 8.333_452e-3);
    let p = p.mul_add(r, 4.166_579_6e-2);
    let p = p.mul_add(r, 1.666_666_5e-1);
    let p = p.mul_add(r, 0.5);
    let e = (p * r).mul_add(r, r) + 1.0;
    let scale = f32::from_bits((z.to_bits() << 23).wrapping_add(127 << 23));
    let v = e * scale;
    if x < -87.0 { 0.0 } else { v }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_and_keeps_nan_and_minus_infinity() {
        let mut worst = 0.0f64;
        for i in -870_000..880_000 {
            let x = i as f32 * 1e-4;
            let want = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) - want).abs() / want);
        }
        assert!(worst < 1.8e-7, "{worst}");
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert!(exp(f32::NAN).is_nan());
        assert_eq!(exp(0.0), 1.0);
    }

    simd_fn! {
        fn exp_all(x: &[f32], y: &mut [f32]) {
            for (y, x) in y.iter_mut().zip(x) {
                *y = exp(*x);
            }
        }
    }

    #[test]
    fn vector_lanes_have_the_bits_of_a_scalar() {
        let x: Vec<f32> = (0..1003).map(|i| (i as f32 - 500.0) * 0.17).collect();
        let mut y = vec![0.0; x.len()];
        exp_all(&x, &mut y);
        for (x, y) in x.iter().zip(&y) {
            assert_eq!(exp(*x).to_bits(), y.to_bits());
        }
    }
}

//! `x W^T` for a few rows of `x`, as decode needs it: `matrixmultiply` packs the whole weight on every call, which for
//! few rows costs more than the product itself. Here each weight is read once, transposed in registers 8 x 8.
//!
//! Its sums are those of `matrixmultiply`'s FMA kernels, bit for bit: K in blocks of [`KC`], inside a block one chain
//! of fused multiply-adds from zero, the blocks added in order. That is a property of another crate, so it is checked
//! on the machine it runs on, once, before this path is ever taken; if it does not hold, the path stays shut.

/// More rows than this pay for the packing.
pub(super) const MAX_ROWS: usize = 8;

pub(super) use x86::{Operands, agrees, product};

mod x86 {
    use std::arch::x86_64::*;
    use std::sync::OnceLock;

    use crate::Philox;
    use crate::cpu::simd;

    /// Block length over K of `matrixmultiply`'s sgemm.
    const KC: usize = 256;
    const W: usize = 8;

    /// Rows of the two operands and of the output: slices with a leading dimension.
    pub(crate) struct Operands<'a> {
        pub x: &'a [f32],
        pub ldx: usize,
        pub w: &'a [f32],
        pub ldw: usize,
        pub k: usize,
    }

    /// Whether this path gives the bits of `sgemm` here. Decided once.
    pub(crate) fn agrees(sgemm: impl Fn(&Operands, usize, usize, &mut [f32])) -> bool {
        static AGREES: OnceLock<bool> = OnceLock::new();
        *AGREES.get_or_init(|| {
            simd::fast()
                && [(3, 13, 64), (1, 8, 600), (8, 17, 257), (5, 31, 515)].into_iter().all(|(m, n, k)| {
                    let rng = Philox::new(1, 0x6e57);
                    let data: Vec<f32> = (0..((m + n) * k) as u64).map(|i| rng.normal(i) as f32).collect();
                    let (x, w) = data.split_at(m * k);
                    let o = Operands { x, ldx: k, w, ldw: k, k };
                    let (mut ours, mut theirs) = (vec![0.0; m * n], vec![0.0; m * n]);
                    product(&o, m, n, &mut ours, n);
                    sgemm(&o, m, n, &mut theirs);
                    ours.iter().zip(&theirs).all(|(a, b)| a.to_bits() == b.to_bits())
                })
        })
    }

    /// `out[i][j] = sum over k of x[i][k] w[j][k]`, `m` rows by `n` columns, row `i` of `out` at `i * ldo`.
    ///
    /// # Panics
    /// When a slice is too short for its shape, or the CPU lacks AVX2 and FMA.
    pub(crate) fn product(o: &Operands, m: usize, n: usize, out: &mut [f32], ldo: usize) {
        assert!(simd::fast());
        if m == 0 || n == 0 {
            return;
        }
        assert!(
            (m - 1) * o.ldx + o.k <= o.x.len() && (n - 1) * o.ldw + o.k <= o.w.len() && (m - 1) * ldo + n <= out.len()
        );
        let mut i = 0;
        while i < m {
            let rows = (m - i).min(4);
            let x = &o.x[i * o.ldx..];
            let out = &mut out[i * ldo..];
            // SAFETY: the features are there (asserted), and so are the elements (asserted).
            unsafe {
                match rows {
                    1 => strip::<1, 2>(o, x, n, out, ldo),
                    2 => strip::<2, 2>(o, x, n, out, ldo),
                    3 => strip::<3, 1>(o, x, n, out, ldo),
                    _ => strip::<4, 1>(o, x, n, out, ldo),
                }
            }
            i += rows;
        }
    }

    /// All columns for `M` rows, `C` panels of 8 columns at a time.
    ///
    /// # Safety
    /// AVX2 and FMA; `x` holds `M` rows, `o.w` `n` rows, `out` `M` rows of `n`.
    #[target_feature(enable = "avx2,fma")]
    unsafe fn strip<const M: usize, const C: usize>(o: &Operands, x: &[f32], n: usize, out: &mut [f32], ldo: usize) {
        let mut j = 0;
        while j + C * W <= n {
            // SAFETY: rows j..j + C * W of w exist, as the caller promises.
            let acc = unsafe { panels::<M, C>(o, x, &o.w[j * o.ldw..]) };
            for (m, acc) in acc.iter().enumerate() {
                for (c, v) in acc.iter().enumerate() {
                    let at = m * ldo + j + c * W;
                    // SAFETY: the slice has W elements.
                    unsafe { _mm256_storeu_ps(out[at..at + W].as_mut_ptr(), *v) };
                }
            }
            j += C * W;
        }
        // The last columns one by one: the same chain, scalar.
        while j < n {
            let w = &o.w[j * o.ldw..j * o.ldw + o.k];
            for m in 0..M {
                let x = &x[m * o.ldx..m * o.ldx + o.k];
                let mut total = 0.0f32;
                for (x, w) in x.chunks(KC).zip(w.chunks(KC)) {
                    total += x.iter().zip(w).fold(0.0f32, |s, (x, w)| x.mul_add(*w, s));
                }
                out[m * ldo + j] = total;
            }
            j += 1;
        }
    }

    /// # Safety
    /// AVX2 and FMA; `x` holds `M` rows and `w` `C * W` rows of `o.k` elements.
    #[target_feature(enable = "avx2,fma")]
    unsafe fn panels<const M: usize, const C: usize>(o: &Operands, x: &[f32], w: &[f32]) -> [[__m256; C]; M] {
        let (x, w) = (x.as_ptr(), w.as_ptr());
        let mut total = [[_mm256_setzero_ps(); C]; M];
        let mut at = 0;
        while at < o.k {
            let end = (at + KC).min(o.k);
            let mut acc = [[_mm256_setzero_ps(); C]; M];
            while at + W <= end {
                for c in 0..C {
                    // SAFETY: rows c * W.. of w and columns at..at + W exist.
                    let t = unsafe { transposed(w.add(c * W * o.ldw + at), o.ldw) };
                    for (j, t) in t.iter().enumerate() {
                        for (m, acc) in acc.iter_mut().enumerate() {
                            // SAFETY: row m of x has the element at + j.
                            let b = unsafe { _mm256_set1_ps(*x.add(m * o.ldx + at + j)) };
                            acc[c] = _mm256_fmadd_ps(b, *t, acc[c]);
                        }
                    }
                }
                at += W;
            }
            while at < end {
                for c in 0..C {
                    // SAFETY: column `at` of the W rows exists.
                    let t = unsafe {
                        let e = |r: usize| *w.add((c * W + r) * o.ldw + at);
                        _mm256_setr_ps(e(0), e(1), e(2), e(3), e(4), e(5), e(6), e(7))
                    };
                    for (m, acc) in acc.iter_mut().enumerate() {
                        // SAFETY: row m of x has the element `at`.
                        let b = unsafe { _mm256_set1_ps(*x.add(m * o.ldx + at)) };
                        acc[c] = _mm256_fmadd_ps(b, t, acc[c]);
                    }
                }
                at += 1;
            }
            for (total, acc) in total.iter_mut().zip(&acc) {
                for (t, a) in total.iter_mut().zip(acc) {
                    *t = _mm256_add_ps(*t, *a);
                }
            }
        }
        total
    }

    /// The 8 x 8 block at `p`, its columns as vectors.
    ///
    /// # Safety
    /// AVX2; eight rows of eight elements at `p`, `ld` apart.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn transposed(p: *const f32, ld: usize) -> [__m256; W] {
        // SAFETY: as promised.
        let r = |i: usize| unsafe { _mm256_loadu_ps(p.add(i * ld)) };
        let pair = |a, b| (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
        let ((a0, a1), (a2, a3)) = (pair(r(0), r(1)), pair(r(2), r(3)));
        let ((a4, a5), (a6, a7)) = (pair(r(4), r(5)), pair(r(6), r(7)));
        let lo = |a, b| _mm256_shuffle_ps::<0x44>(a, b);
        let hi = |a, b| _mm256_shuffle_ps::<0xee>(a, b);
        let (b0, b1, b2, b3) = (lo(a0, a2), hi(a0, a2), lo(a1, a3), hi(a1, a3));
        let (b4, b5, b6, b7) = (lo(a4, a6), hi(a4, a6), lo(a5, a7), hi(a5, a7));
        let low = |a, b| _mm256_permute2f128_ps::<0x20>(a, b);
        let high = |a, b| _mm256_permute2f128_ps::<0x31>(a, b);
        [low(b0, b4), low(b1, b5), low(b2, b6), low(b3, b7), high(b0, b4), high(b1, b5), high(b2, b6), high(b3, b7)]
    }
}

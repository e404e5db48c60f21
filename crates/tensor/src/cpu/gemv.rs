//! `x W^T` for a few rows of `x`, as decode needs it: `matrixmultiply` packs the whole weight on every call, which for
//! few rows costs more than the product itself. Here each weight is read once, transposed in registers 8 x 8.
//!
//! One core (Zen 3, FMA peak 103 GFLOP/s), GFLOP/s: 8 x 1024 x 1024 from 35 to 50 when eight rows share a transposition; 1 x
//! 1024 x 1024 from 8.6 to 12.6 and 1 x 3072 x 512 from 12 to 17 by visiting a cache line of a row once.
//!
//! Its sums are those of `matrixmultiply`'s FMA kernels, bit for bit: K in blocks of [`KC`], inside a block one chain
//! of fused multiply-adds from zero, the blocks added in order. That is a property of another crate, so it is checked
//! on the machine it runs on, once, before this path is ever taken; if it does not hold, the path stays shut.

/// More rows than this pay for the packing (at 16 x 1024 x 1024 it gives 49 GFLOP/s, this path 44; at 8 it gives 35, this 40 to 50).
pub(super) const MAX_ROWS: usize = 8;

pub(super) use x86::{Operands, agrees, product, product_at};

mod x86 {
    use std::arch::x86_64::*;
    use std::sync::OnceLock;

    use crate::Philox;
    use crate::cpu::simd;

    /// Block length over K of `matrixmultiply`'s sgemm.
    const KC: usize = 256;
    const W: usize = 8;
    /// How far ahead of the products a weight row is fetched, elements.
    const AHEAD: usize = 64;

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
        assert!(m == 0 || n == 0 || (m - 1) * ldo + n <= out.len());
        // SAFETY: the elements are there (asserted), and nobody else has them.
        unsafe { product_at(o, m, n, out.as_mut_ptr(), ldo) };
    }

    /// As [`product`], into `m` rows of `n` elements at `out`: columns of a wider matrix, whose others another thread may be
    /// writing meanwhile.
    ///
    /// # Safety
    /// Those elements are valid for writes, and nobody else touches them during the call.
    ///
    /// # Panics
    /// When an operand is too short for its shape, or the CPU lacks AVX2 and FMA.
    pub(crate) unsafe fn product_at(o: &Operands, m: usize, n: usize, out: *mut f32, ldo: usize) {
        assert!(simd::fast());
        if m == 0 || n == 0 {
            return;
        }
        assert!((m - 1) * o.ldx + o.k <= o.x.len() && (n - 1) * o.ldw + o.k <= o.w.len());
        let mut i = 0;
        while i < m {
            let rows = (m - i).min(8);
            let x = &o.x[i * o.ldx..];
            // A sum is one chain of multiply-adds, so several must be in flight: more rows, or more panels. But rows of the weight
            // that lie a multiple of 4 KiB apart share one set of the first-level cache, which holds eight.
            let crowded = (o.ldw * size_of::<f32>()).is_multiple_of(4096);
            // SAFETY: the features are there (asserted), and so are the elements (asserted, and as the caller promises).
            unsafe {
                let out = out.add(i * ldo);
                match rows {
                    1 if crowded => strip::<1, 1>(o, x, n, out, ldo),
                    1 => strip::<1, 2>(o, x, n, out, ldo),
                    2 if crowded => strip::<2, 1>(o, x, n, out, ldo),
                    2 => strip::<2, 2>(o, x, n, out, ldo),
                    3 => strip::<3, 1>(o, x, n, out, ldo),
                    4 => strip::<4, 1>(o, x, n, out, ldo),
                    5 => strip::<5, 1>(o, x, n, out, ldo),
                    6 => strip::<6, 1>(o, x, n, out, ldo),
                    7 => strip::<7, 1>(o, x, n, out, ldo),
                    _ => strip::<8, 1>(o, x, n, out, ldo),
                }
            }
            i += rows;
        }
    }

    /// All columns for `M` rows, `C` panels of 8 columns at a time.
    ///
    /// # Safety
    /// AVX2 and FMA; `x` holds `M` rows, `o.w` `n` rows; `M` rows of `n` at `out` are ours to write.
    #[target_feature(enable = "avx2,fma")]
    unsafe fn strip<const M: usize, const C: usize>(o: &Operands, x: &[f32], n: usize, out: *mut f32, ldo: usize) {
        let mut j = 0;
        while j + C * W <= n {
            // SAFETY: rows j..j + C * W of w exist, as do these columns of the output.
            unsafe { store::<M, C>(panels::<M, C>(o, x, &o.w[j * o.ldw..]), out.add(j), ldo) };
            j += C * W;
        }
        while j + W <= n {
            // SAFETY: as above, for one panel.
            unsafe { store::<M, 1>(panels::<M, 1>(o, x, &o.w[j * o.ldw..]), out.add(j), ldo) };
            j += W;
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
                // SAFETY: column j < n of row m.
                unsafe { *out.add(m * ldo + j) = total };
            }
            j += 1;
        }
    }

    /// # Safety
    /// AVX2; `M` rows of `C * W` elements at `out` are ours to write.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn store<const M: usize, const C: usize>(sums: [[__m256; C]; M], out: *mut f32, ldo: usize) {
        for (m, sums) in sums.iter().enumerate() {
            for (c, v) in sums.iter().enumerate() {
                // SAFETY: as promised.
                unsafe { _mm256_storeu_ps(out.add(m * ldo + c * W), *v) };
            }
        }
    }

    /// # Safety
    /// AVX2 and FMA; `x` holds `M` rows and `w` `C * W` rows of `o.k` elements.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn panels<const M: usize, const C: usize>(o: &Operands, x: &[f32], w: &[f32]) -> [[__m256; C]; M] {
        let (x, w) = (x.as_ptr(), w.as_ptr());
        let mut total = [[_mm256_setzero_ps(); C]; M];
        let mut at = 0;
        while at < o.k {
            let end = (at + KC).min(o.k);
            let mut acc = [[_mm256_setzero_ps(); C]; M];
            // A cache line of each weight row at a time: rows of usual lengths share their sets of the first-level cache, so
            // a line that is left half used would be fetched again.
            while at + 2 * W <= end {
                for c in 0..C {
                    for r in 0..W {
                        // A hint; no address faults.
                        _mm_prefetch::<_MM_HINT_T0>(w.wrapping_add((c * W + r) * o.ldw + at + AHEAD).cast());
                    }
                    for at in [at, at + W] {
                        // SAFETY: rows c * W.. of w and columns at..at + W exist; so do those columns of x.
                        unsafe { add_block(o, x, w.add(c * W * o.ldw + at), at, &mut acc, c) };
                    }
                }
                at += 2 * W;
            }
            while at + W <= end {
                for c in 0..C {
                    // SAFETY: as above.
                    unsafe { add_block(o, x, w.add(c * W * o.ldw + at), at, &mut acc, c) };
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

    /// Adds the products of an 8 x 8 block of the weight, at `w`, with columns `at..at + 8` of the `M` rows at `x`.
    ///
    /// # Safety
    /// AVX2 and FMA; the block and the columns exist.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn add_block<const M: usize, const C: usize>(
        o: &Operands,
        x: *const f32,
        w: *const f32,
        at: usize,
        acc: &mut [[__m256; C]; M],
        c: usize,
    ) {
        // SAFETY: as promised.
        let t = unsafe { transposed(w, o.ldw) };
        for (j, t) in t.iter().enumerate() {
            for (m, acc) in acc.iter_mut().enumerate() {
                // SAFETY: row m of x has the element at + j.
                let b = unsafe { _mm256_set1_ps(*x.add(m * o.ldx + at + j)) };
                acc[c] = _mm256_fmadd_ps(b, *t, acc[c]);
            }
        }
    }

    /// The 8 x 8 block at `p`, its columns as vectors. Halves of rows are loaded into both lanes at once, so that no shuffle
    /// has to cross them.
    ///
    /// # Safety
    /// AVX2; eight rows of eight elements at `p`, `ld` apart.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn transposed(p: *const f32, ld: usize) -> [__m256; W] {
        // Row i and row i + 4, four elements of each from column `at` on.
        let half = |i: usize, at: usize| {
            // SAFETY: as promised.
            let (low, high) = unsafe { (_mm_loadu_ps(p.add(i * ld + at)), _mm_loadu_ps(p.add((i + 4) * ld + at))) };
            _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(low), high)
        };
        let four = |at: usize| {
            let (r0, r1, r2, r3) = (half(0, at), half(1, at), half(2, at), half(3, at));
            let (a0, a1) = (_mm256_unpacklo_ps(r0, r1), _mm256_unpackhi_ps(r0, r1));
            let (a2, a3) = (_mm256_unpacklo_ps(r2, r3), _mm256_unpackhi_ps(r2, r3));
            [
                _mm256_shuffle_ps::<0x44>(a0, a2),
                _mm256_shuffle_ps::<0xee>(a0, a2),
                _mm256_shuffle_ps::<0x44>(a1, a3),
                _mm256_shuffle_ps::<0xee>(a1, a3),
            ]
        };
        let ([t0, t1, t2, t3], [t4, t5, t6, t7]) = (four(0), four(4));
        [t0, t1, t2, t3, t4, t5, t6, t7]
    }
}

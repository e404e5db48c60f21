//! Matrix products on `matrixmultiply`, behind one function.
//!
//! Why this library: it sums K in blocks of one fixed length whatever M and N are, so the bits of a row depend neither
//! on the rows beside it nor on how the work is cut over threads. The conformance suite checks it on every machine.

#[cfg(target_arch = "x86_64")]
use super::gemv;
use super::threads::Threads;
use crate::ops::{Gemm, GemmDims};
use crate::{Error, Result};

/// Rows or columns of one job: large against the micro-kernel, small enough to share.
const JOB: usize = 64;
/// Fewer multiply-adds than this are not worth waking anybody.
const SHARE: usize = 1 << 18;

/// A matrix in a slice: element (i, j) at `i * rs + j * cs`.
#[derive(Clone, Copy)]
struct Mat<'a> {
    data: &'a [f32],
    rs: usize,
    cs: usize,
}

fn span(rows: usize, cols: usize, rs: usize, cs: usize) -> usize {
    if rows == 0 || cols == 0 { 0 } else { (rows - 1) * rs + (cols - 1) * cs + 1 }
}

/// The output, written by several jobs in disjoint blocks.
struct Out {
    ptr: *mut f32,
    len: usize,
    ld: usize,
}

impl Out {
    /// Whole, so that a closure captures all of it.
    fn at(&self, offset: usize) -> *mut f32 {
        self.ptr.wrapping_add(offset)
    }
}

// SAFETY: jobs write disjoint row or column ranges of it, see `gemm` and `few_rows`.
unsafe impl Sync for Out {}

pub(super) fn gemm(threads: &Threads, a: &Gemm) -> Result<()> {
    let GemmDims { m, n, k } = a.validate()?;
    if m == 0 || n == 0 {
        return Ok(());
    }
    let (x, y, mut d) = (a.a.read::<f32>()?, a.b.read::<f32>()?, a.d.write::<f32>()?);
    let strides = |ld: usize, t: bool| if t { (1, ld) } else { (ld, 1) };
    let ((ars, acs), (brs, bcs)) = (strides(a.a.stride(0), a.ta), strides(a.b.stride(0), a.tb));
    let (am, bm) = (Mat { data: &x, rs: ars, cs: acs }, Mat { data: &y, rs: brs, cs: bcs });
    let ld = a.d.stride(0);
    // The kernel below trusts these.
    if span(m, k, ars, acs) > x.len()
        || span(k, n, brs, bcs) > y.len()
        || span(m, n, ld, 1) > d.len()
        || (m > 1 && ld < n)
    {
        return Err(Error::shape("gemm", "a leading dimension is smaller than its row".to_owned()));
    }
    let (alpha, beta) = (a.alpha as f32, a.beta as f32);
    #[cfg(target_arch = "x86_64")]
    if m <= gemv::MAX_ROWS
        && !a.ta
        && a.tb
        && alpha == 1.0
        && beta == 0.0
        && few_rows(threads, am, bm, (m, n, k), &mut d, ld)
    {
        return Ok(());
    }
    let out = Out { ptr: d.as_mut_ptr(), len: d.len(), ld };
    if threads.count() == 1 || m * n * k < SHARE {
        block(am, bm, &out, (0, m), (0, n), k, alpha, beta);
        return Ok(());
    }
    // Cut the longer side; each job owns whole rows or whole columns of the output.
    let by_rows = m >= n;
    let (long, jobs) = if by_rows { (m, m.div_ceil(JOB)) } else { (n, n.div_ceil(JOB)) };
    let jobs = jobs.min(threads.count() * 4).max(1);
    let step = long.div_ceil(jobs).next_multiple_of(JOB);
    threads.run(long.div_ceil(step), &|i| {
        let range = (i * step, ((i + 1) * step).min(long));
        let (rows, cols) = if by_rows { (range, (0, n)) } else { ((0, m), range) };
        block(am, bm, &out, rows, cols, k, alpha, beta);
    });
    Ok(())
}

/// `x W^T` for few rows without packing, where that gives the same bits. False when it does not.
#[cfg(target_arch = "x86_64")]
fn few_rows(threads: &Threads, x: Mat, w: Mat, (m, n, k): (usize, usize, usize), d: &mut [f32], ld: usize) -> bool {
    let same = gemv::agrees(|o, m, n, out| {
        let (a, b) = (Mat { data: o.x, rs: o.ldx, cs: 1 }, Mat { data: o.w, rs: 1, cs: o.ldw });
        block(a, b, &Out { ptr: out.as_mut_ptr(), len: out.len(), ld: n }, (0, m), (0, n), o.k, 1.0, 0.0);
    });
    if !same || k == 0 {
        return false;
    }
    // For `B = W^T`, a column of B is a row of W.
    let part = |at: usize, cols: usize| gemv::Operands {
        x: x.data,
        ldx: x.rs,
        w: &w.data[at * w.cs..at * w.cs + (cols - 1) * w.cs + k],
        ldw: w.cs,
        k,
    };
    if threads.count() == 1 || m * n * k < SHARE {
        gemv::product(&part(0, n), m, n, d, ld);
        return true;
    }
    assert!((m - 1) * ld + n <= d.len());
    let out = Out { ptr: d.as_mut_ptr(), len: d.len(), ld };
    // More pieces than threads: they do not all begin at once, nor run equally fast.
    let step = n.div_ceil(4 * threads.count()).next_multiple_of(JOB);
    threads.run(n.div_ceil(step), &|i| {
        let (at, cols) = (i * step, step.min(n - i * step));
        // SAFETY: columns `at..at + cols` of the output, which is borrowed exclusively and holds `m` rows of `n <= ld`
        // (asserted); the jobs have disjoint columns.
        unsafe { gemv::product_at(&part(at, cols), m, cols, out.at(at), ld) };
    });
    true
}

#[allow(clippy::too_many_arguments)]
fn block(a: Mat, b: Mat, out: &Out, rows: (usize, usize), cols: (usize, usize), k: usize, alpha: f32, beta: f32) {
    let (m, n) = (rows.1 - rows.0, cols.1 - cols.0);
    debug_assert!((rows.1 - 1) * out.ld + cols.1 <= out.len);
    // With K = 0 there is no first element to point at.
    let at = |x: &Mat, offset: usize| if k == 0 { x.data.as_ptr() } else { x.data[offset..].as_ptr() };
    let (pa, pb) = (at(&a, rows.0 * a.rs), at(&b, cols.0 * b.cs));
    // SAFETY: `gemm` has checked that m x k, k x n and m x n elements with these strides lie inside the three slices;
    // the output slice is borrowed exclusively, and no two jobs share an element of it: they own disjoint row ranges
    // or disjoint column ranges, and `ld >= n`.
    unsafe {
        let pc = out.at(rows.0 * out.ld + cols.0);
        let s = |x: usize| x as isize;
        matrixmultiply::sgemm(m, k, n, alpha, pa, s(a.rs), s(a.cs), pb, s(b.rs), s(b.cs), beta, pc, s(out.ld), 1);
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::cpu::simd;

    #[test]
    fn the_path_for_few_rows_is_open_wherever_the_cpu_has_fma() {
        // Its bits are the conformance suite's business; here, that it is not shut without anybody noticing.
        let threads = Threads::new(1);
        let (x, w, mut d) = ([1.0f32; 20], [2.0f32; 30], [0.0f32; 6]);
        let (a, b) = (Mat { data: &x, rs: 10, cs: 1 }, Mat { data: &w, rs: 1, cs: 10 });
        assert_eq!(few_rows(&threads, a, b, (2, 3, 10), &mut d, 3), simd::fast());
        assert!(!simd::fast() || d == [20.0; 6]);
    }
}

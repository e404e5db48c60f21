//! What every backend must pass, as a library: run [`all`] against it.
//!
//! Each case builds fixed pseudo-random inputs, fills every output that the operation must overwrite with NaN, and
//! runs on the backend under test and on the f64 reference. Shapes are odd on purpose; empty and length-1 sequences
//! are among them. Backends that promise batch invariance are also held to the bits: rows alone against rows in
//! company, packed against paged attention, cut against whole.

mod cases;
mod harness;
mod invariance;

use crate::{Backend, DType, ReferenceBackend, Result};

pub use harness::Harness;

/// One comparison.
#[derive(Clone, Debug)]
pub struct Check {
    pub name: String,
    /// `|got - want| / |want|`; for a comparison of bits, how many differ
    pub error: f64,
    pub bound: f64,
}

impl Check {
    /// NaN fails.
    pub fn passed(&self) -> bool {
        self.error <= self.bound
    }
}

/// All the checks of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub checks: Vec<Check>,
}

impl Report {
    pub fn failures(&self) -> Vec<&Check> {
        self.checks.iter().filter(|c| !c.passed()).collect()
    }

    fn push(&mut self, name: impl Into<String>, error: f64, bound: f64) {
        self.checks.push(Check { name: name.into(), error, bound });
    }
}

/// Bound on the norm ratio against f64. For f32, measured on the CPU backend: at most 4.3e-7 over all cases.
pub fn bound(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-12,
        DType::F32 => 2e-6,
        _ => 1e-2,
    }
}

/// Every operation against the reference, and the bits if the backend promises them.
///
/// # Errors
/// When an operation returns one: a missing operation is a failed run.
pub fn all(be: &dyn Backend, dtype: DType) -> Result<Report> {
    let mut report = Report::default();
    let reference = ReferenceBackend::new();
    for (name, case) in cases::ALL {
        let got = case(&Harness::new(be, dtype))?;
        let want = case(&Harness::new(&reference, DType::F64))?;
        for ((what, got), (_, want)) in got.iter().zip(&want) {
            report.push(format!("{name}: {what}"), harness::relative(got, want), bound(dtype));
        }
    }
    if be.caps().batch_invariant {
        invariance::all(be, dtype, &mut report)?;
    }
    Ok(report)
}

/// Every case on two backends must give the same bits: one backend with different numbers of threads, for instance.
pub fn same_bits(a: &dyn Backend, b: &dyn Backend, dtype: DType) -> Result<Report> {
    let mut report = Report::default();
    for (name, case) in cases::ALL {
        for ((what, x), (_, y)) in case(&Harness::new(a, dtype))?.iter().zip(&case(&Harness::new(b, dtype))?) {
            report.push(format!("{name}: {what}"), harness::differing(x, y), 0.0);
        }
    }
    Ok(report)
}

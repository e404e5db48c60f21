//! The conformance suite against our own backends.
#![allow(clippy::unwrap_used)]

use tensor::{CpuBackend, DType, ReferenceBackend, conformance};

fn assert_passes(report: &conformance::Report) {
    let failures = report.failures();
    assert!(failures.is_empty(), "{} of {} checks failed: {failures:#?}", failures.len(), report.checks.len());
    assert!(report.checks.len() > 100);
    let worst =
        report.checks.iter().filter(|c| c.bound > 0.0).map(|c| (c.error, &c.name)).max_by(|a, b| a.0.total_cmp(&b.0));
    eprintln!("worst of {} checks: {worst:?}", report.checks.len());
}

#[test]
fn the_cpu_backend_conforms() {
    assert_passes(&conformance::all(&CpuBackend::new(1), DType::F32).unwrap());
}

#[test]
fn the_cpu_backend_conforms_with_threads() {
    assert_passes(&conformance::all(&CpuBackend::new(3), DType::F32).unwrap());
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    for threads in [2, 3, 4] {
        let report = conformance::same_bits(&CpuBackend::new(1), &CpuBackend::new(threads), DType::F32).unwrap();
        assert_passes(&report);
    }
}

#[test]
fn the_reference_conforms_in_f32() {
    assert_passes(&conformance::all(&ReferenceBackend::new(), DType::F32).unwrap());
}

//! Reading manifests strictly.

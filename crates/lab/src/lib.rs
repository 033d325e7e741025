//! Real Kubernetes clusters on one machine, for the demo, the tests and the benchmarks.

pub mod debian;
pub mod image;

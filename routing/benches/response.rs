//! What watching costs.
#![allow(missing_docs)]
use criterion::{criterion_group, criterion_main};
fn none(_: &mut criterion::Criterion) {}
criterion_group!(benches, none);
criterion_main!(benches);

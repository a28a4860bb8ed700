//! An inference engine as seen from outside.
pub mod model;
pub mod sweep;

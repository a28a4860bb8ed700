//! The command line of Weighbridge.
//!
//! - [`args`]: the options; [`mod@reference`]: the page about them.
//! - [`commands`]: what each command does; [`exit`]: how it ends.
//! - [`client`], [`events`], [`fleet`]: what the prober says.
//! - [`view`], [`progress`], [`table`]: how that looks (pure).
//! - [`output`], [`screen`], [`paint`]: where it is printed.
//! - [`validate`]: what is wrong with a configuration (pure).
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

pub mod args;
pub mod client;
pub mod commands;
pub mod events;
pub mod exit;
pub mod fleet;
pub mod output;
pub mod paint;
pub mod progress;
pub mod reference;
pub mod screen;
pub mod table;
pub mod validate;
pub mod view;

//! What disks do to files.

use std::path::Path;

use anyhow::{Result, ensure};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Turns over one bit in each of so many bytes, at places that follow from the seed.
///
/// # Errors
/// When the file cannot be read or written, or is empty.
pub fn flip(path: &Path, bytes: usize, seed: u64) -> Result<()> {
    let mut content = std::fs::read(path)?;
    ensure!(!content.is_empty(), "{} is empty", path.display());
    let mut rng = StdRng::seed_from_u64(seed);
    for _ in 0..bytes {
        let place = rng.random_range(0..content.len());
        content[place] ^= 1 << rng.random_range(0..8);
    }
    Ok(std::fs::write(path, content)?)
}

/// Cuts the file at a place that follows from the seed.
///
/// # Errors
/// When the file cannot be cut.
pub fn truncate(path: &Path, seed: u64) -> Result<()> {
    let file = std::fs::File::options().write(true).open(path)?;
    let length = file.metadata()?.len();
    Ok(file.set_len(StdRng::seed_from_u64(seed).random_range(0..length.max(1)))?)
}

//! Files that options name.

use std::path::Path;

use crate::exit::Failure;

/// The whole content; `-` is standard input.
pub(super) fn read(path: &Path) -> Result<String, Failure> {
    let text = match path.as_os_str() == "-" {
        true => std::io::read_to_string(std::io::stdin()),
        false => std::fs::read_to_string(path),
    };
    text.map_err(|error| Failure::usage("unreadable_file", format!("{} cannot be read: {error}", shown(path))))
}

/// How it is called in a sentence.
pub(super) fn shown(path: &Path) -> String {
    if path.as_os_str() == "-" { "standard input".to_owned() } else { path.display().to_string() }
}

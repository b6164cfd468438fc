//! Entries of trees that failed: a line for each, and a file of their paths.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use haul::fault::Fault;
use haul::printable;
use serde::Serialize;
use serde_json::{Value, json};

use super::human::count_of;
use super::tell;
use crate::args::FailedTo;

/// Failures that are listed by name at the end.
const LISTED: usize = 1000;

/// The entries that failed in the latest attempt.
pub(super) struct Failures {
    listed: Vec<(Vec<u8>, Fault)>,
    count: u64,
    file: Option<PathList>,
    quiet: bool,
}

/// A file of paths, one in a line, or each with a NUL behind it.
pub(crate) struct PathList {
    path: PathBuf,
    file: Box<dyn Write + Send>,
    end: u8,
    /// Paths that would be two lines.
    left_out: u64,
    error: Option<io::Error>,
}

impl PathList {
    /// Makes the file of the options, if they name one, or empties the one that exists.
    pub(crate) fn create(to: &FailedTo) -> Result<Option<Self>, Fault> {
        let end = if to.null { 0 } else { b'\n' };
        let create = |path: &PathBuf| Self::at(path.clone(), end);
        to.failed_to.as_ref().map(create).transpose()
    }

    fn at(path: PathBuf, end: u8) -> Result<Self, Fault> {
        let file = haul::create_output(&path).map_err(|error| cannot_write(&path, &error))?;
        Ok(Self {
            path,
            file,
            end,
            left_out: 0,
            error: None,
        })
    }

    /// Adds a path.
    pub(crate) fn add(&mut self, path: &[u8]) {
        if path.contains(&self.end) {
            self.left_out += 1;
        } else if let Err(error) = self.file.write_all(&[path, &[self.end]].concat()) {
            self.error.get_or_insert(error);
        }
    }

    /// Returns what the list lacks.
    fn lacks(&self) -> Option<String> {
        if let Some(error) = &self.error {
            return Some(cannot_write(&self.path, error).to_string());
        }
        let (shown, count) = (shown(&self.path), self.left_out);
        let paths = count_of(count, "path with a line end", "paths with line ends");
        (count > 0).then(|| format!("'{shown}' lacks {paths}: add -0"))
    }

    /// Prints what the list lacks.
    pub(crate) fn tell_lacks(&self) {
        self.lacks().iter().for_each(|line| tell(line));
    }
}

fn cannot_write(path: &Path, error: &io::Error) -> Fault {
    Fault::file(&format!("cannot write '{}'", shown(path)), error)
}

fn shown(path: &Path) -> String {
    printable(path.as_os_str().as_encoded_bytes())
}

impl std::fmt::Debug for Failures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Failures")
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

impl Failures {
    pub(super) fn new(quiet: bool) -> Self {
        Self {
            listed: Vec::new(),
            count: 0,
            file: None,
            quiet,
        }
    }

    pub(super) fn write_to(&mut self, to: &FailedTo) -> Result<(), Fault> {
        self.file = PathList::create(to)?;
        Ok(())
    }

    /// Forgets them: another attempt offers everything again.
    pub(super) fn clear(&mut self) {
        if self.count == 0 {
            return;
        }
        (self.listed, self.count) = (Vec::new(), 0);
        // A file that could be made before.
        let again = |list: PathList| PathList::at(list.path, list.end).ok();
        self.file = self.file.take().and_then(again);
    }

    pub(super) fn note(&mut self, path: &[u8], fault: &Fault) {
        self.count += 1;
        if self.listed.len() < LISTED {
            self.listed.push((path.to_vec(), fault.clone()));
        }
        if let Some(list) = &mut self.file {
            list.add(path);
        }
    }

    /// Prints them and returns them for JSON.
    pub(super) fn list(&mut self) -> Option<Vec<Value>> {
        if self.count == 0 {
            return None;
        }
        self.file.iter().for_each(PathList::tell_lacks);
        let more = self.count - self.listed.len() as u64;
        if !self.quiet {
            for (path, fault) in &self.listed {
                tell(&format!("failed: {}: {fault}", printable(path)));
            }
            if more > 0 {
                tell(&format!("failed: {more} more"));
            }
        }
        let listed = self.listed.iter().map(|(path, fault)| {
            json!({ "path": PathText::new(path), "code": fault.code.name(), "text": fault.text })
        });
        Some(listed.collect())
    }
}

/// A path for JSON: text, or base64 where it is not UTF-8.
#[derive(Debug, Serialize)]
pub(super) struct PathText {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    name_b64: Option<String>,
}

impl PathText {
    pub(super) fn new(path: &[u8]) -> Self {
        Self {
            name: printable(path),
            name_b64: std::str::from_utf8(path).is_err().then(|| base64(path)),
        }
    }
}

/// Encodes bytes (RFC 4648, with padding).
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let mut word = [0; 3];
        word[..group.len()].copy_from_slice(group);
        let word = u32::from_be_bytes([0, word[0], word[1], word[2]]);
        for digit in 0..4 {
            let index = (word >> (18 - 6 * digit)) & 63;
            let is_padding = digit > group.len();
            text.push(if is_padding {
                '='
            } else {
                char::from(DIGITS[index as usize])
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_rfc_4648() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }
}

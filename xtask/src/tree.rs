//! The files of a checkout.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// What tools made, at any depth.
const MADE: [&str; 5] = ["target", ".git", "artifacts", "coverage", "corpus"];

/// A text file with its path from the root of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextFile {
    /// Path from the root, with `/` between parts.
    pub path: String,
    /// The whole content.
    pub text: String,
}

impl TextFile {
    /// Whether the name ends in `.{extension}`.
    #[must_use]
    pub fn has_extension(&self, extension: &str) -> bool {
        Path::new(&self.path)
            .extension()
            .is_some_and(|found| found == extension)
    }
}

/// Reads every UTF-8 file below `root` that people wrote, sorted by path.
///
/// # Errors
/// A folder or file that cannot be read.
pub fn read(root: &Path) -> Result<Vec<TextFile>> {
    let mut files = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries =
            fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))?;
        for entry in entries {
            let path = entry?.path();
            if path.is_symlink() || is_made(&path) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if let Some(file) = read_text(root, path)? {
                files.push(file);
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

fn is_made(folder: &Path) -> bool {
    folder
        .file_name()
        .and_then(|name| name.to_str())
        .is_some_and(|name| MADE.contains(&name))
}

/// `None` for binary files.
fn read_text(root: &Path, path: PathBuf) -> Result<Option<TextFile>> {
    let bytes = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    let Ok(text) = String::from_utf8(bytes) else {
        return Ok(None);
    };
    let path = path
        .strip_prefix(root)?
        .to_string_lossy()
        .replace('\\', "/");
    Ok(Some(TextFile { path, text }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_outputs_and_binary_files_are_left_out() {
        let root = tempfile::tempdir().unwrap();
        for folder in ["src", "target/debug", "fuzz/target"] {
            fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        fs::write(root.path().join("src/lib.rs"), "//! A crate.\n").unwrap();
        fs::write(
            root.path().join("src/capture.pcap"),
            [0xd4, 0xc3, 0xb2, 0xa1],
        )
        .unwrap();
        fs::write(root.path().join("target/debug/build.rs"), "made").unwrap();
        fs::write(root.path().join("fuzz/target/x.rs"), "made").unwrap();
        let paths: Vec<_> = read(root.path())
            .unwrap()
            .into_iter()
            .map(|file| file.path)
            .collect();
        assert_eq!(paths, ["src/lib.rs"]);
    }
}

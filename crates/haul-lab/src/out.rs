//! Where measurements go.

use std::fmt::Display;
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

/// The folder of `--out`, if there is one. It is made before anything is measured: a measurement
/// takes long, and one that cannot be kept is lost.
#[derive(Debug)]
pub struct Out(Option<PathBuf>);

impl Out {
    /// Makes the folder.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn make(folder: Option<PathBuf>) -> Result<Self> {
        if let Some(folder) = &folder {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("cannot make {}", folder.display()))?;
        }
        Ok(Self(folder))
    }

    /// Writes one file; its previous text stays until the new one is complete.
    pub fn keep(&self, name: &str, text: &str) -> Result<()> {
        let Some(folder) = &self.0 else { return Ok(()) };
        let (path, new) = (folder.join(name), folder.join(format!("{name}.new")));
        std::fs::write(&new, text)
            .and_then(|()| std::fs::rename(&new, &path))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Writes the files, then prints the table: the reader of stdout may close it.
    pub fn write(&self, files: &[(&str, String)], table: &str) -> Result<()> {
        for (name, text) in files {
            self.keep(name, text)?;
            if let Some(folder) = &self.0 {
                eprintln!("wrote {}", folder.join(name).display());
            }
        }
        // A closed pipe is no failure of the measurement.
        let _ = std::io::stdout().write_all(table.as_bytes());
        Ok(())
    }
}

/// Prints a line of results. If the reader closes the pipe, the command has not failed.
pub fn line(text: impl Display) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// A document as `results.json`.
pub fn json(results: &impl serde::Serialize) -> Result<String> {
    Ok(serde_json::to_string_pretty(results)? + "\n")
}
